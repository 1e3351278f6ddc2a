"""Files reach the disk before they get their names, names before what leads to them; what is replaced stays whole."""

from __future__ import annotations

import numpy as np
import pytest
from broken import cut

from packer.append import append
from packer.convert import convert
from packer.format import manifest as manifests
from packer.merge import merge
from packer.writer import DatasetWriter


def check_dataset(calls, folder):
    """All files of a dataset that were made or taken over: the shards first, then the table, then the manifest."""
    manifest = folder / "manifest.json"
    calls.check_published(manifest)
    for shard in manifests.read(folder).shards:
        calls.check_published(folder / shard.file)
        calls.check_before(folder / shard.file, manifest)
    table = folder / manifests.read(folder).names.file
    calls.check_published(table)
    assert calls.check_renamed(table) < calls.check_renamed(manifest)
    if (folder / "rejected.jsonl").exists():
        assert calls.check_renamed(folder / "rejected.jsonl") < calls.check_renamed(manifest)


def write(folder, prefix, count):
    """A dataset of named samples in several shards."""
    with DatasetWriter(folder, shard_size=4096, codec="none") as writer:
        for n in range(count):
            writer.add({"x": np.full(600, n, "f8")}, name=f"{prefix}{n}")
    return folder


def test_a_conversion(tmp_path, pairs, disk_calls):
    """Every shard, the table of names and the manifest are synced, then renamed; then their folder is synced."""
    cut(pairs.folder / "hr" / "005.png")
    options = {"codec": "none", "shard_size": 4096, "on_error": "skip", "workers": 0}
    assert len(convert(pairs.sources, tmp_path / "d", **options).rejected) == 1
    assert len(manifests.read(tmp_path / "d").shards) > 1
    check_dataset(disk_calls, tmp_path / "d")


@pytest.mark.parametrize("file", ["shards/00000.rejected.jsonl", "rejected.jsonl"])
def test_lists_of_rejected_samples(tmp_path, pairs, disk_calls, file):
    """What was left out is on the disk before the shard, or the manifest, that counts it has its name."""
    cut(pairs.folder / "hr" / "002.png")
    convert(pairs.sources, tmp_path / "d", codec="none", shard_size=4096, on_error="skip", workers=0)
    named = tmp_path / "d" / ("manifest.json" if file == "rejected.jsonl" else "shards/00000.lmdb")
    before = disk_calls.calls[: disk_calls.check_renamed(named)]
    assert any(call[0] == "sync" and call[1].startswith(f"{tmp_path / 'd' / file}") for call in before)


def test_the_note_of_an_unfinished_conversion(tmp_path, pairs, disk_calls):
    """What is being made is on the disk before its first shard is."""
    convert(pairs.sources, tmp_path / "d", codec="none", workers=0)
    disk_calls.check_before(tmp_path / "d" / "unfinished.json", tmp_path / "d" / "shards" / "00000.lmdb")


@pytest.mark.parametrize("linked", [True, False])
def test_merging(tmp_path, disk_calls, monkeypatch, linked):
    """Shards of other datasets have been synced where they are linked; where they are copied, copies are."""
    if not linked:
        monkeypatch.setattr("pathlib.Path.hardlink_to", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    a, b = write(tmp_path / "a", "a", 3), write(tmp_path / "b", "b", 2)
    merge([a, b], tmp_path / "m")
    for folder in (a, b, tmp_path / "m"):
        check_dataset(disk_calls, folder)


@pytest.mark.parametrize("linked", [True, False])
def test_appending(tmp_path, pairs, new_pairs, disk_calls, monkeypatch, linked):
    """The new shards and the table of all names are on the disk before the manifest leads to them."""
    if not linked:
        monkeypatch.setattr("pathlib.Path.hardlink_to", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    convert(pairs.sources, tmp_path / "d", codec="none", workers=0)
    more = new_pairs(tmp_path / "more", 12, 6, 5, "more")
    cut(more.folder / "hr" / "more002.png")
    report = append(tmp_path / "d", more.sources, workers=0, on_error="skip", shard_size=4096)
    assert (report.added, len(report.rejected)) == (11, 1)
    assert len(report.manifest.shards) > 2
    check_dataset(disk_calls, tmp_path / "d")
