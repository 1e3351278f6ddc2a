"""zarr of versions 2 and 3, folders and zip files: packed as HDF5 is, or refused in a sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opened_sources import read_each, read_joined
from zarr_files import write_zarr

from packer.convert import convert
from packer.errors import PackerError, SourceError
from packer.sources import SourceOptions, open_sources
from packer.sources.looking import NEVER_WRITTEN
from readers import PackedDataset

zarr = pytest.importorskip("zarr", reason="zarr is not installed: it has no version of today for Python 3.10")

X = np.arange(600, dtype=">f4").reshape(100, 3, 2)
ENDS = np.array([12, 40, 100])
#: Chunks of several rows, of part of a row, shards, and one chunk for all.
CHUNKS: dict[str, dict[str, Any]] = {
    "rows": {"chunks": (7, 3, 2)},
    "parts of rows": {"chunks": (30, 2, 1)},
    "shards": {"chunks": (5, 3, 2), "shards": (20, 3, 2)},
    "one": {"chunks": (100, 3, 2)},
    "plain": {"chunks": (9, 3, 2), "compressors": None},
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("chunks", CHUNKS)
def test_rows_in_any_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: str, version: int, axis: int
) -> None:
    """Whatever the chunks, whole and in parts, the rows are the same; each chunk is decoded once."""
    if chunks == "shards" and version == 2:
        version, suffix = 3, ".zarr.zip"
    else:
        suffix = ".zarr"
    path = write_zarr(tmp_path / f"a{suffix}", {"g/x": X}, version, **CHUNKS[chunks])
    monkeypatch.setattr("packer.sources.arrays.reading.BLOCK_BYTES", 100)
    reads: list[Any] = []
    plain = zarr.Array.__getitem__
    monkeypatch.setattr(zarr.Array, "__getitem__", lambda self, place: reads.append(place) or plain(self, place))
    source = open_sources([path], SourceOptions(axis=axis))
    expected = np.moveaxis(X, axis, 0).astype("f4")
    np.testing.assert_array_equal(read_joined(source)["g.x"], expected)
    first = (CHUNKS[chunks].get("shards") or CHUNKS[chunks]["chunks"])[axis]
    assert len(reads) == -(-X.shape[axis] // first)
    half = len(expected) // 2
    np.testing.assert_array_equal(read_joined(source.slice(1, half + 1))["g.x"], expected[1 : half + 1])


def test_an_array_that_declares_far_too_much_is_refused_at_once(tmp_path: Path) -> None:
    """A header of some hundred bytes may say anything: it is compared with the files beside it, as of HDF5."""
    zarr.create_group(tmp_path / "a.zarr").create_array("x", shape=(10**12, 1000), dtype="f4", chunks=(100, 1000))
    with pytest.raises(SourceError, match=r"dataset /x of shape .* declares 4,000,[\d,]+ bytes, but [\d,]+ are there"):
        open_sources([str(tmp_path / "a.zarr")])


@pytest.mark.parametrize("suffix", [".zarr", "", ".zarr.zip"])
def test_episodes_of_diffusion_policy(tmp_path: Path, suffix: str) -> None:
    """One command packs `data` by `meta/episode_ends`; a folder of any name is known by what it holds."""
    path = write_zarr(tmp_path / f"pusht{suffix}", {"data/action": X[:, :, 0], "meta/episode_ends": ENDS})
    convert(path, tmp_path / "out", workers=1, source=SourceOptions(samples="episodes:/meta/episode_ends"))
    dataset = PackedDataset(tmp_path / "out")
    assert [len(dataset[n]["data.action"]) for n in range(3)] == [12, 28, 60]
    np.testing.assert_array_equal(np.concatenate([s["data.action"] for s in dataset]), X[:, :, 0])


def test_several_zarr_are_one_dataset(tmp_path: Path) -> None:
    """The zarr of a folder or pattern follow one another as rows, or are a sample each, with attributes."""
    for number in (10, 2):
        path = write_zarr(tmp_path / f"in/ep{number}.zarr", {"x": np.full((number, 3), number)})
        zarr.open_group(path, mode="r+").attrs.update({"speed": number, "who": "me"})
    for text in (tmp_path / "in", tmp_path / "in/*.zarr"):
        assert read_joined(open_sources([str(text)]))["x"][:, 0].tolist() == [2] * 2 + [10] * 10
        source = open_sources([str(text)], SourceOptions(samples="files", attrs=("speed", "who")))
        values = read_each(source)
        assert (source.names, [int(speed) for speed in values["speed"]]) == (["ep2", "ep10"], [2, 10])
        assert (values["who"], [len(x) for x in values["x"]]) == (["me", "me"], [2, 10])
    assert source.origin["attributes"]["ep2"] == {"speed": 2, "who": "me"}
    assert all(Path(file).is_file() for file in source.files())


def test_missing_chunks_are_the_fill_value(tmp_path: Path) -> None:
    """As zarr has it, but the plan says so."""
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    array = group.create_array("x", shape=(10, 2), chunks=(2, 2), dtype="f4", fill_value=7)
    array[:4] = 1
    source = open_sources([str(tmp_path / "a.zarr")])
    assert read_joined(source)["x"][:, 0].tolist() == [1] * 4 + [7] * 6
    assert source.remarks == [
        f"{NEVER_WRITTEN}: 3 chunks of 6 samples in 1 file, the first: a.zarr: /x: 3 of its 5 chunks, 7.0"
    ]


@pytest.mark.parametrize("samples", ["rows", "files"])
def test_missing_chunks_within_shards_are_counted(tmp_path: Path, samples: str) -> None:
    """A shard that was never written counts with all its chunks, one that was with those that its index lacks.

    Chunks of the last shards that lie outside of the array lack nothing.
    """
    group = zarr.create_group(tmp_path / "a.zarr")
    shape: dict[str, Any] = {"shape": (9, 3), "chunks": (2, 2), "shards": (4, 4)}
    array = group.create_array("x", **shape, dtype="f4", fill_value=7)
    array[4:6], array[8:] = 1, 3
    source = open_sources([str(tmp_path / "a.zarr")], SourceOptions(samples=samples))
    what = "6 samples in 1 file" if samples == "rows" else "1 sample"
    assert source.remarks == [f"{NEVER_WRITTEN}: 6 chunks of {what}, the first: a.zarr: /x: 6 of its 10 chunks, 7.0"]
    with pytest.raises(SourceError, match="6 of its 10 chunks"):
        open_sources([str(tmp_path / "a.zarr")], SourceOptions(samples=samples, unwritten="refuse"))


def test_attributes_that_are_neither_numbers_nor_text_are_named(tmp_path: Path) -> None:
    """As JSON can hold them: objects, nothing, and lists of several kinds or lengths."""
    path = write_zarr(tmp_path / "a.zarr", {"x": X}, 3)
    odd = {"object": {"a": 1}, "null": None, "mixed": ["a", 1], "ragged": [[1], [1, 2]]}
    zarr.open_group(path, mode="r+").attrs.update({"who": ["me", "you"], "speed": 1.5, **odd})
    source = open_sources([path])
    assert source.origin["files"][0].attributes == {
        "/": {"who": {"dtype": "str", "value": ["me", "you"]}, "speed": 1.5}
    }
    for name in odd:
        assert any(f"these are not: {name!r} of" in remark or f", {name!r} of" in remark for remark in source.remarks)


def test_large_samples_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of an array that is large are read one after another."""
    monkeypatch.setattr("packer.sources.arrays.reading.LARGE_BYTES", 100)
    path = write_zarr(tmp_path / "a.zarr", {"g/x": X, "h/x": X[:30]}, 3, chunks=(8, 3, 2))
    convert(path, tmp_path / "out", workers=0, source=SourceOptions(samples="groups"))
    np.testing.assert_array_equal(PackedDataset(tmp_path / "out")["g"]["x"], X)
    np.testing.assert_array_equal(PackedDataset(tmp_path / "out")["h"]["x"], X[:30])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("version", [2, 3])
def test_text_of_any_length_is_text(tmp_path: Path, version: int) -> None:
    """Strings of version 3, `vlen-utf8` objects of version 2 and text of fixed length, in rows and one by one."""
    texts = ["abc", "", "é" * 500, "d"]
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=version)
    group.create_array("t", shape=(4,), dtype="str", chunks=(2,))[:] = texts
    group.create_array("u", data=np.array(["é", "", "b", "c"]))
    source = open_sources([str(tmp_path / "a.zarr")])
    (block,) = source.slice(1, 4).read()
    assert (block["t"], block["u"]) == (texts[1:], ["", "b", "c"])
    convert(str(tmp_path / "a.zarr"), tmp_path / "out", workers=0)
    assert PackedDataset(tmp_path / "out")[:]["t"] == texts


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("suffix", [".zarr", ".zarr.zip"])
def test_an_array_that_cannot_be_read_does_not_take_the_others(tmp_path: Path, version: int, suffix: str) -> None:
    """It is named, with what to install for its codec, before anything is packed; `--skip` and `--field` go on."""
    path = Path(write_zarr(tmp_path / "a.zarr", {"g/x": X, "g/odd": X, "g/none": X}, version))
    file = "zarr.json" if version == 3 else ".zarray"
    metadata = json.loads((path / "g/odd" / file).read_text())
    codec = {"name": "numcodecs.pcodec", "configuration": {}} if version == 3 else {"id": "pcodec"}
    metadata |= {"codecs": [codec]} if version == 3 else {"compressor": codec}
    (path / "g/odd" / file).write_text(json.dumps(metadata))
    (path / "g/none" / file).write_text("{")
    if suffix == ".zarr.zip":
        path = Path(shutil.make_archive(str(path), "zip", path))
    skip = ("g/none",)
    with pytest.raises(
        SourceError, match=r"/g/odd cannot be .*pcodec.*pip install 'numcodecs\[pcodec\]'.*--skip g\.odd"
    ):
        open_sources([str(path)], SourceOptions(skip=skip))
    with pytest.raises(SourceError, match=r"/g/none cannot be opened"):
        open_sources([str(path)], SourceOptions(skip=("g/odd",)))
    for options in (SourceOptions(skip=("g/odd", "g/none")), SourceOptions(pick={"g.x": "/g/x"})):
        np.testing.assert_array_equal(read_joined(open_sources([str(path)], options))["g.x"], X)


def test_a_zip_of_the_folder_around_a_zarr(tmp_path: Path) -> None:
    """The one zarr in it is opened, as most programs make zip files; several are named, and none is said."""
    write_zarr(tmp_path / "in/a.zarr", {"g/x": X}, 3)
    path = shutil.make_archive(str(tmp_path / "a.zarr"), "zip", tmp_path / "in")
    np.testing.assert_array_equal(read_joined(open_sources([path]))["g.x"], X)
    write_zarr(tmp_path / "in/b.zarr", {"x": X}, 2)
    path = shutil.make_archive(str(tmp_path / "b.zarr"), "zip", tmp_path / "in")
    with pytest.raises(SourceError, match=r"holds 2 zarr, a\.zarr, b\.zarr; zip each alone"):
        open_sources([path])


def test_damage_is_named(tmp_path: Path) -> None:
    """A chunk that cannot be decoded names its sample; a folder that is no zarr, and a zip that is none, say so."""
    path = write_zarr(tmp_path / "a.zarr", {"x": X}, chunks=(10, 3, 2))
    (tmp_path / "a.zarr/x/3.0.0").write_bytes(b"nothing")
    with pytest.raises(SourceError, match=r"a\.zarr: reading rows 0 to 99 failed") as caught:
        list(open_sources([path]).read())
    assert caught.value.sample == 30
    report = convert(path, tmp_path / "out", workers=0, on_error="skip")
    assert (report.samples, len(report.rejected)) == (90, 10)
    (tmp_path / "b.zarr").mkdir()
    (tmp_path / "c.zarr.zip").write_bytes(b"PK")
    for name, said in (("b.zarr", "empty|no zarr"), ("c.zarr.zip", "failed")):
        with pytest.raises(PackerError, match=said):
            open_sources([str(tmp_path / name)])
