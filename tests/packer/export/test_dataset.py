"""Exporting: where files may go, what happens to what is there, and damage on the way."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from packer.convert import convert
from packer.errors import DamagedError, UsageError, WriteError
from packer.export import export
from packer.export.files import checked
from packer.format import FieldSpec
from packer.format import manifest as manifests
from packer.sources import SourceOptions
from packer.writer import DatasetWriter


def named_images(folder, names):
    """A dataset of small pictures of these names."""
    spec = FieldSpec(name="a", dtype="uint8", kind="image", shape=(2, 2, 1))
    with DatasetWriter(folder, fields=[spec]) as writer:
        for number, name in enumerate(names):
            writer.add({"a": np.full((2, 2, 1), number, np.uint8)}, name=name)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "a//b", ".", "a/./b", "x/..", "a/"])
def test_a_name_cannot_lead_out_of_the_folder(tmp_path, name):
    """A name that is no plain path is refused before anything is written, and HDF5 is advised."""
    named_images(tmp_path / "d", ["good", name])
    with pytest.raises(UsageError, match=r"cannot be the name of a file.*export to hdf5"):
        export(tmp_path / "d", tmp_path / "in" / "out", to="png")
    assert not (tmp_path / "in").exists()


def test_a_field_cannot_lead_out_of_the_folder(tmp_path):
    """Fields become folders, and may be called `..` in a dataset."""
    spec = FieldSpec(name="..", dtype="uint8", kind="image", shape=(2, 2, 1))
    convert([{"..": np.zeros((2, 2, 1), np.uint8)}], tmp_path / "d", fields=[spec])
    with pytest.raises(UsageError, match="leads out of the folder"):
        export(tmp_path / "d", tmp_path / "out", to="png")
    with pytest.raises(UsageError, match="HDF5 cannot hold"):
        export(tmp_path / "d", tmp_path / "h5", to="hdf5")


def test_plain_names_are_taken_as_they_are():
    """Dots, spaces and letters of any script are no danger."""
    for name in ("a", "a/b.c", "..a", "übung 1/…", "-rf", "a..b"):
        assert checked(name) == name


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    """Without overwrite nothing is touched; with it files of one name are replaced, and others stay."""
    named_images(tmp_path / "d", ["x", "y"])
    (tmp_path / "out" / "a").mkdir(parents=True)
    (tmp_path / "out" / "a" / "x.png").write_text("old")
    (tmp_path / "out" / "other").write_text("mine")
    with pytest.raises(UsageError, match=r"is not empty.*--overwrite"):
        export(tmp_path / "d", tmp_path / "out")
    assert (tmp_path / "out" / "a" / "x.png").read_text() == "old"
    export(tmp_path / "d", tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "a" / "x.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "other").read_text() == "mine"
    with pytest.raises(UsageError, match="is a file"):
        export(tmp_path / "d", tmp_path / "out" / "other", overwrite=True)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    """What the system says becomes one sentence with the path in it, and no half file stays."""
    named_images(tmp_path / "d", ["x"])
    (tmp_path / "out" / "a" / "x.png").mkdir(parents=True)
    with pytest.raises(WriteError, match=r"x\.png"):
        export(tmp_path / "d", tmp_path / "out", overwrite=True)
    assert [p.name for p in (tmp_path / "out" / "a").iterdir()] == ["x.png"]


def test_unknown_kinds_and_fields_are_refused(tmp_path):
    """The message says which there are."""
    named_images(tmp_path / "d", ["x"])
    with pytest.raises(UsageError, match="'jpeg'; png, ply, ply-text, hdf5"):
        export(tmp_path / "d", tmp_path / "out", to="jpeg")
    with pytest.raises(UsageError, match="no field 'b'; it has a"):
        export(tmp_path / "d", tmp_path / "out", fields=["b"])


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("to", ["png", "hdf5"])
def test_damage_is_not_exported(tmp_path, codec, to):
    """A flipped bit in a pixel is found on the way, and the field and samples are named."""
    spec = FieldSpec(name="a", dtype="uint8", kind="image", shape=(64, 64, 1))
    image = np.tile(np.random.default_rng(0).integers(0, 255, (8, 64, 1), np.uint8), (8, 1, 1))
    convert([{"a": image}] * 4, tmp_path / "d", fields=[spec], codec=codec)
    (entry,) = manifests.read(tmp_path / "d").shards
    path = tmp_path / "d" / entry.file
    data = bytearray(path.read_bytes())
    data[data.index(image[0].tobytes()) + 3] ^= 4
    path.write_bytes(data)
    with pytest.raises(DamagedError, match=r"field 'a', samples 0 to [03] of the shard: the checksum is wrong"):
        export(tmp_path / "d", tmp_path / "out", to=to)
    assert not [p for p in (tmp_path / "out").rglob("*") if p.is_file()]


def test_a_name_that_is_damaged_in_a_shard_is_not_exported(tmp_path):
    """Nothing has a checksum of it there: names are those of the table, which has one."""
    named_images(tmp_path / "d", ["first", "second"])
    shard = tmp_path / "d/shards/00000.lmdb"
    data = shard.read_bytes()
    assert data.count(b"firstsecond") == 1
    shard.write_bytes(data.replace(b"firstsecond", b"firstsecund"))
    export(tmp_path / "d", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out/a").iterdir()) == ["first.png", "second.png"]
    table = tmp_path / "d/names.lmdb"
    table.write_bytes(table.read_bytes().replace(b"second", b"secund"))
    with pytest.raises(DamagedError, match=r"names\.lmdb: .* run `packer verify`, then `packer repair`"):
        export(tmp_path / "d", tmp_path / "again")


def test_progress_counts_all_samples(tmp_path):
    """What the hook is told adds up to the samples and bytes of the dataset."""
    named_images(tmp_path / "d", ["x", "y", "z"])
    told = []
    report = export(tmp_path / "d", tmp_path / "out", progress=lambda samples, nbytes: told.append((samples, nbytes)))
    assert tuple(map(sum, zip(*told, strict=True))) == (3, 12)
    assert report.bytes == sum(p.stat().st_size for p in (tmp_path / "out" / "a").iterdir())


def test_nothing_depends_on_the_time(tmp_path, files_of):
    """Exported twice, files are the same to the byte, HDF5 too."""
    named_images(tmp_path / "d", ["x", "y"])
    export(tmp_path / "d", tmp_path / "one", to="hdf5")
    os.utime(tmp_path / "d" / "manifest.json", (1, 1))
    time.sleep(1.1)  # HDF5 counts whole seconds
    export(tmp_path / "d", tmp_path / "two", to="hdf5")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


@pytest.mark.parametrize("options", [{"patch": 4, "stride": 2}, {"downscale": 2}], ids=str)
def test_squares_and_smaller_pictures(tmp_path, pairs, contents, options):
    """They are written as they were packed, with a note; packed from those files they are the same samples."""
    sources = pairs.sources if "patch" in options else pairs.sources[1:]
    convert(sources, tmp_path / "d", workers=0, source=SourceOptions(**options))
    report = export(tmp_path / "d", tmp_path / "out")
    assert len(report.notes) == 1
    convert([f"{field}={tmp_path}/out/{field}" for field in ("lr", "hr")], tmp_path / "again", workers=0)
    one, two = contents(tmp_path / "d"), contents(tmp_path / "again")
    assert one[1] == two[1]
