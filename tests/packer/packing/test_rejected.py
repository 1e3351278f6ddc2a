"""The list of samples that were skipped: its manifest knows it, and nothing that is published of it is lost."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash
from broken import stopped_at
from made_datasets import make_plain, put_manifest

from packer.append import append
from packer.convert import convert
from packer.errors import DamagedError, DatasetError
from packer.format import FileEntry
from packer.format import manifest as manifests
from packer.merge import merge
from packer.packing import Change, read_rejected
from packer.repair import repair
from packer.verify import verify
from packer.watcher import Watcher

LIST = "rejected.jsonl"


def cut_short(folder: Path, clouds: Any, *names: str) -> str:
    """A folder with a good cloud, and one cut short for each name."""
    folder.mkdir()
    whole = (clouds.folder / "c3.ply").read_bytes()
    (folder / f"{folder.name}.ply").write_bytes(whole)
    for name in names:
        (folder / f"{name}.ply").write_bytes(whole[:-5])
    return str(folder)


@pytest.fixture
def dataset(tmp_path: Path, clouds: Any) -> Path:
    """One sample, and a list of two that were skipped."""
    source = cut_short(tmp_path / "in", clouds, "bad1", "bad2")
    return make_plain(convert(source, tmp_path / "d", workers=0, on_error="skip").path)


def found(folder: Path) -> list[str]:
    """Files that are damaged."""
    return [damage.file for damage in verify(folder).damages]


def test_the_manifest_knows_the_list(dataset: Path, files_of: Any) -> None:
    """Its bytes are checked with all others, and nothing else of the folder is unknown."""
    manifest = manifests.read(dataset)
    entry = manifest.left_out
    assert entry is not None
    assert (entry.file, entry.bytes) == (LIST, (dataset / LIST).stat().st_size)
    assert [Path(bad.file).name for bad in read_rejected(dataset, manifest)] == ["bad1.ply", "bad2.ply"]
    report = verify(dataset)
    assert (report.damages, report.files) == ((), len(files_of(dataset)))
    assert report.bytes == manifest.file_bytes + entry.bytes


def test_nothing_left_out_is_no_list(tmp_path: Path, clouds: Any) -> None:
    """A dataset of good samples says nothing of a list."""
    folder = convert(cut_short(tmp_path / "in", clouds), tmp_path / "d", workers=0, on_error="skip").path
    assert manifests.read(folder).left_out is None
    assert b'"left_out"' not in (folder / "manifest.json").read_bytes()
    assert not list(folder.glob("left-out-*"))


def test_every_flipped_bit_is_found(dataset: Path) -> None:
    """One bit of every eighth byte, chosen by chance."""
    path, chance = dataset / LIST, random.Random(0)
    whole = path.read_bytes()
    for at in range(0, len(whole), 8):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << chance.randrange(8)]) + whole[at + 1 :])
        assert found(dataset) == [LIST]
    path.write_bytes(whole)
    assert not found(dataset)


@pytest.mark.parametrize("change", ["removed", "cut", "emptied", "longer", "a folder"])
def test_other_lists_are_found_and_mended(dataset: Path, change: str, caplog: pytest.LogCaptureFixture) -> None:
    """A list with more after it is cut back by `repair`; one that is damaged goes, and the manifest knows."""
    path = dataset / LIST
    whole = path.read_bytes()
    if change == "longer":
        path.write_bytes(whole + b"\n")
    elif change in ("cut", "emptied"):
        path.write_bytes(whole[: -10 if change == "cut" else 0])
    else:
        path.unlink()
        if change == "a folder":
            path.mkdir()
    (damage,) = verify(dataset).damages
    assert damage.file == LIST
    assert "packer" not in damage.what
    if change == "a folder":
        path.rmdir()
    kept = ["bad1.ply", "bad2.ply"] if change == "longer" else []
    assert repair(dataset) == (LIST,)
    assert ("cut back to its 2 lines" if kept else "rejected.jsonl is lost") in caplog.text
    after = manifests.read(dataset)
    assert [Path(bad.file).name for bad in read_rejected(dataset, after)] == kept
    assert [shard.rejected for shard in after.shards] == [2]
    assert not found(dataset)


def test_damaged_lists_are_not_joined(dataset: Path, tmp_path: Path, clouds: Any) -> None:
    """Appending and merging would hide the damage: they refuse, before anything is packed."""
    path = dataset / LIST
    path.write_bytes(path.read_bytes().replace(b"bad1", b"bad7"))
    more = cut_short(tmp_path / "more", clouds)
    whole = convert(more, tmp_path / "w", workers=0).path
    before = (dataset / "manifest.json").read_bytes()
    with pytest.raises(DamagedError, match=r"rejected.jsonl: its digest is wrong.*packer repair"):
        append(dataset, more, workers=0)
    with pytest.raises(DamagedError, match="digest is wrong"):
        merge([whole, dataset], tmp_path / "m")
    assert not (tmp_path / "m" / "manifest.json").exists()
    assert (dataset / "manifest.json").read_bytes() == before
    assert not (dataset / "unfinished").exists()


def test_lists_of_joined_datasets(dataset: Path, tmp_path: Path, clouds: Any) -> None:
    """One behind the other, with the numbers that their shards have now."""
    other = convert(cut_short(tmp_path / "more", clouds, "bad3"), tmp_path / "o", workers=0, on_error="skip").path
    shutil.copytree(dataset, tmp_path / "a")
    merge([dataset, other], tmp_path / "m")
    append(tmp_path / "a", str(tmp_path / "more"), workers=0, on_error="skip")
    for folder in (tmp_path / "m", tmp_path / "a"):
        listed = read_rejected(folder, manifests.read(folder))
        places = [(Path(bad.file).name, bad.shard) for bad in listed]
        assert places == [("bad1.ply", 0), ("bad2.ply", 0), ("bad3.ply", 1)]
        assert not found(folder)


@pytest.mark.parametrize("listed", [True, False])
def test_another_append_takes_back_what_a_killed_one_listed(
    dataset: Path, tmp_path: Path, clouds: Any, listed: bool
) -> None:
    """Its own list is that of the dataset, whether it leaves anything out or not."""
    if not listed:
        dataset = convert(cut_short(tmp_path / "whole", clouds), tmp_path / "w", workers=0).path
    before = read_rejected(dataset, manifests.read(dataset))
    killed = cut_short(tmp_path / "killed", clouds, "bad3")
    stopped_at(lambda: append(dataset, killed, workers=0, on_error="skip"), Change, "publish")
    assert list(dataset.glob("left-out-*"))
    append(dataset, cut_short(tmp_path / "good", clouds), workers=0, on_error="skip")
    assert read_rejected(dataset, manifests.read(dataset)) == before
    assert not found(dataset)
    append(dataset, cut_short(tmp_path / "other", clouds, "bad4"), workers=0, on_error="skip")
    names = [Path(bad.file).name for bad in read_rejected(dataset, manifests.read(dataset))]
    assert names == [*(["bad1.ply", "bad2.ply"] if listed else []), "bad4.ply"]
    assert not found(dataset)


def test_what_an_append_adds_meanwhile_is_no_damage(dataset: Path, tmp_path: Path, clouds: Any) -> None:
    """Shards and lines that the manifest does not know yet: it is read once more before they are called damage."""
    more, added = cut_short(tmp_path / "more", clouds, "bad3"), []

    def once(*_: int) -> None:
        if not added:
            added.append(append(dataset, more, workers=0, on_error="skip").added)

    assert verify(dataset, Watcher(done=once)).damages == ()
    assert added == [1]
    assert not found(dataset)


def test_lists_that_may_not_be_read_are_not_given_up(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without permission is no damaged one: it is named, and stays."""
    before = (dataset / LIST).read_bytes()

    def refused(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == LIST:
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path, *arguments, **options)

    plain = Path.open
    manifest = manifests.read(dataset)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refused)
        for job in (lambda: verify(dataset), lambda: repair(dataset)):
            with pytest.raises(DatasetError, match=r"rejected.jsonl: cannot be read: Permission denied"):
                job()
    assert manifests.read(dataset) == manifest
    assert (dataset / LIST).read_bytes() == before


@pytest.mark.parametrize("lines", [b"words\n", b'{"a": 1}\n'])
def test_lists_of_something_else(dataset: Path, tmp_path: Path, clouds: Any, lines: bytes) -> None:
    """A manifest may speak of a file that lists no samples: verify says so, and appending before it packs."""
    (dataset / LIST).write_bytes(lines)
    other = FileEntry(file=LIST, bytes=len(lines), digest=xxhash.xxh3_128_hexdigest(lines))
    put_manifest(dataset, msgspec.structs.replace(manifests.read(dataset), left_out=other))
    with pytest.raises(DamagedError, match=r"rejected.jsonl: it lists no samples.*packer repair"):
        append(dataset, cut_short(tmp_path / "more", clouds), workers=0)
    assert not (dataset / "unfinished").exists()
    assert found(dataset) == [LIST]
