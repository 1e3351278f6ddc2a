"""Several datasets as one, without packing anew."""

from __future__ import annotations

import io
import os
import re

import h5py
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from broken import cut
from made_datasets import put_manifest, written

from packer import stats
from packer.append import append
from packer.checking import compare
from packer.convert import convert
from packer.errors import DamagedError, UsageError
from packer.format import FrameRule, data_entry
from packer.format import manifest as manifests
from packer.merge import merge
from packer.sources import open_sources
from packer.verify import verify
from readers import PackedDataset


@pytest.mark.parametrize("linked", [True, False])
def test_samples_stand_one_behind_another(tmp_path, two, contents, monkeypatch, linked):
    """All samples of the first, then all of the second; shards are the same bytes, linked, or copied to the disk."""
    if not linked:
        monkeypatch.setattr("pathlib.Path.hardlink_to", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    a, b = two
    synced, sync = [], os.fsync
    monkeypatch.setattr("os.fsync", lambda fd: synced.append(os.fstat(fd).st_ino) or sync(fd))
    manifest = merge(two, tmp_path / "m")
    for entry in manifest.shards if not linked else ():
        assert (tmp_path / "m" / entry.file).stat().st_ino in synced
    assert manifest.samples == 14
    assert list(contents(tmp_path / "m")[1].items()) == [*contents(a)[1].items(), *contents(b)[1].items()]
    entries = [*manifests.read(a).shards, *manifests.read(b).shards]
    assert [e.digest for e in manifest.shards] == [e.digest for e in entries]
    assert not verify(tmp_path / "m").damages
    shared = (tmp_path / "m" / manifest.shards[0].file).samefile(a / entries[0].file)
    assert shared == linked


def test_constants_of_another_writer_are_kept_as_they_are(tmp_path, two):
    """What is kept once is not written anew: its digest would be another one if its writer has other dates, say."""
    held = io.BytesIO()
    np.savez(held, grid=np.arange(1000))
    for folder in two:
        entry = data_entry("constants.npz", held.getvalue())
        (folder / entry.file).write_bytes(held.getvalue())
        put_manifest(folder, msgspec.structs.replace(manifests.read(folder), constants=entry))
    merged = merge(two, tmp_path / "m")
    assert merged.constants is not None
    assert (tmp_path / "m" / merged.constants.file).read_bytes() == held.getvalue()
    assert PackedDataset(tmp_path / "m").constants["grid"].tolist() == list(range(1000))
    assert not verify(tmp_path / "m").damages


@pytest.mark.parametrize(
    ("kinds", "unit", "reason"),
    [
        ("yz", "us", "'kind' that stand for y, z, but x, y is expected"),
        ("xy", "ns", r"'at' that stand for timestamp\[ns\], but timestamp\[us\] is expected"),
    ],
)
def test_numbers_that_stand_for_something_else_are_refused(tmp_path, kinds, unit, reason):
    """Categories and units of times of a table are those of the dataset, for `merge`, `append`, `--like`, `verify`."""
    for name, *columns in (("a", "xy", "us"), ("b", kinds, unit)):
        table = {"kind": pa.array(columns[0]).dictionary_encode(), "at": pa.array([1, 2], pa.timestamp(columns[1]))}
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
        convert(tmp_path / f"{name}.parquet", tmp_path / name, workers=0)
    with pytest.raises(UsageError, match=f"b, against .*a has numbers of field {reason}"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "m")
    with pytest.raises(UsageError, match=f"the source has numbers of field {reason}"):
        append(tmp_path / "a", tmp_path / "b.parquet", workers=0)
    with pytest.raises(UsageError, match=f"the source has numbers of field {reason}"):
        convert(tmp_path / "b.parquet", tmp_path / "c", like=tmp_path / "a", workers=0)
    (damage,) = compare(tmp_path / "a", open_sources([str(tmp_path / "b.parquet")])).damages
    assert re.match(f"manifest.json: the source has numbers of field {reason}", str(damage))


def test_attributes_that_differ_are_said(tmp_path, caplog):
    """`merge` and `append` log which: a time may count from another day, and stored numbers have another scale."""
    for name, day in (("a", "2000-01-01"), ("b", "2001-01-01")):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["time"] = np.arange(3.0)
            file["time"].attrs.update(units=f"days since {day}", calendar="standard")
        convert(tmp_path / f"{name}.h5", tmp_path / name, workers=0)
    caplog.set_level("INFO", "packer")
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "m")
    append(tmp_path / "a", tmp_path / "b.h5", workers=0)
    said = [
        text for text in caplog.messages if "has other attributes of fields than the dataset: units of time" in text
    ]
    assert len(said) == 2


def test_lost_statistics_are_told(tmp_path, two, caplog):
    """Those of the parts say nothing of the whole: they are dropped, and the command that makes them is named."""
    merge(two, tmp_path / "without")
    assert not caplog.text
    stats.save(two[1], stats.statistics(two[1]))
    assert not merge(two, tmp_path / "m").stats
    assert (
        "statistics, which are of other samples or values, are dropped; `packer stats --save` makes them again"
        in caplog.text
    )


def test_merged_datasets_merge_again(tmp_path, two, contents):
    """Numbers of shards are new in every dataset, and parts of parts are parts."""
    merge(two, tmp_path / "m")
    c = written(tmp_path / "c", "ccc", 3)
    found = merge([c, tmp_path / "m"], tmp_path / "n")
    assert [part["samples"] for part in found.origin["parts"]] == [3, 9, 5]
    assert list(contents(tmp_path / "n")[1]) == [*contents(c)[1], *contents(tmp_path / "m")[1]]
    assert not verify(tmp_path / "n").damages


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"codec": "zstd"},
            r"field 'x' is stored with another codec, .* again with --like .*a, or .*append .*a .*c`",
        ),
        (
            {"width": 601},
            r"field 'x' is array int64 \[601\], array int64 \[600\] is expected; .* convert the sources of both as one",
        ),
        ({"prefix": "a"}, "has a sample named 'a0', which is there already"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, two, change, words):
    """The difference is named, and nothing is made."""
    other = written(tmp_path / "c", **{"prefix": "c", "count": 2, **change})
    with pytest.raises(UsageError, match=words):
        merge([two[0], other], tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_fields_and_names_must_agree(tmp_path, two):
    """Other fields, samples without names, and frames of another size cannot stand beside."""
    convert([{"z": np.zeros(3)}], tmp_path / "z")
    with pytest.raises(UsageError, match="has the fields z; x, y are expected"):
        merge([two[0], tmp_path / "z"], tmp_path / "m")
    bare = [{"x": np.zeros(600, int), "y": np.float32(1)}]
    convert(bare, tmp_path / "bare", codec="lz4")
    with pytest.raises(UsageError, match=r"have names, but those of .*bare have none"):
        merge([two[0], tmp_path / "bare"], tmp_path / "m")
    held = manifests.read(two[1])
    fields = (msgspec.structs.replace(held.fields[0], frame=FrameRule(samples=7)), *held.fields[1:])
    put_manifest(two[1], msgspec.structs.replace(held, fields=fields))
    with pytest.raises(UsageError, match="frames of another size"):
        merge(two, tmp_path / "m")


def test_the_output_is_no_input(tmp_path, two):
    """A dataset is not merged into itself, nor over another one without being asked."""
    for out in (two[0], two[0] / "m"):
        with pytest.raises(UsageError, match="lies within the source"):
            merge(two, out)
    with pytest.raises(UsageError, match="two datasets or more"):
        merge(two[:1], tmp_path / "m")
    merge(two, tmp_path / "m")
    with pytest.raises(UsageError, match="use --overwrite"):
        merge(two, tmp_path / "m")
    assert merge(two[::-1], tmp_path / "m", overwrite=True).samples == 14
    assert not verify(tmp_path / "m").damages


def test_a_shard_cut_short_is_not_taken(tmp_path, two):
    """A missing or shorter shard is damage, found before anything is published."""
    cut(two[1] / manifests.read(two[1]).shards[-1].file, 4096)
    with pytest.raises(DamagedError, match="expected"):
        merge(two, tmp_path / "m")
    assert not (tmp_path / "m" / "manifest.json").exists()


def test_shards_behind_links(tmp_path, two, contents):
    """Of shards that are symbolic links, as tools that version data make them, the files themselves are taken."""
    a, b = two
    store = tmp_path / "store"
    store.mkdir()
    for path in (a / "shards").iterdir():
        path.rename(store / path.name)
        path.symlink_to(store / path.name)
    expected = list(contents(a)[1]) + list(contents(b)[1])
    merge(two, tmp_path / "m")
    for path in (a / "shards").iterdir():
        path.unlink()
    for path in store.iterdir():
        path.unlink()
    assert list(contents(tmp_path / "m")[1]) == expected


def test_texts_of_different_lengths_are_merged(tmp_path):
    """Datasets of short texts have frames of one size, however long their texts are."""
    for number, text in enumerate(["a", "a caption of some words"]):
        convert([{"x": i, "caption": text * (i + 1)} for i in range(20)], tmp_path / f"d{number}", workers=0)
    merge([tmp_path / "d0", tmp_path / "d1"], tmp_path / "m")
    dataset = PackedDataset(tmp_path / "m")
    assert dataset[21]["caption"] == "a caption of some words" * 2
    assert len(dataset) == 40
