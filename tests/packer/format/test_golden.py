"""The golden datasets: read as what they hold, and written again byte for byte.

Files made by an earlier version must be readable for ever. A test that fails here tells that the format has
changed: that takes a new format version, never a new golden file in place of the old one.
"""

from __future__ import annotations

import importlib.util
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.codecs import NAMED, codec_name
from packer.format import Column, Names, Shard
from packer.format import manifest as manifests

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
EXACT_FILES = ("manifest.json", "names.lmdb", "shards/00000.lmdb", "shards/00001.lmdb")
CODED_FILES = ("manifest.json", "shards/00000.lmdb")
PHOTOS_FILES = ("manifest.json", "shards/00000.lmdb", "shards/00001.lmdb")
DATASETS = ("coded", "kinds", "photos", "decimals")


@pytest.fixture(scope="module")
def make() -> Any:
    """The script that made the golden files."""
    spec = importlib.util.spec_from_file_location("golden_make", GOLDEN / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def columns(folder: Path, field: str) -> Iterator[tuple[Column, int]]:
    """The column of a field in each shard, and the shard's number of samples."""
    manifest = manifests.read(folder)
    number = [f.name for f in manifest.fields].index(field)
    for entry in manifest.shards:
        with Shard(folder / entry.file, entry.bytes) as shard:
            yield shard.column(number, manifest.fields[number], entry.samples), entry.samples


def values(folder: Path, field: str) -> list[np.ndarray[Any, Any]]:
    """All samples of a field."""
    return [sample for column, count in columns(folder, field) for sample in column.read(0, count)]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        *(("exact", f) for f in EXACT_FILES),
        *(("coded", f) for f in CODED_FILES),
        *(("kinds", f) for f in EXACT_FILES),
        *(("photos", f) for f in PHOTOS_FILES),
        *(("decimals", f) for f in PHOTOS_FILES),
    ],
)
def test_no_golden_file_is_missing(name: str, file: str) -> None:
    """A file that is gone is a failure: it is not made again."""
    assert (GOLDEN / name / file).is_file()


def test_every_codec_with_a_name_is_in_a_golden_dataset() -> None:
    """What is written today can be read for ever; a new codec gets a dataset of its own, see `make.py`."""
    fields = [field for name in DATASETS for field in manifests.read(GOLDEN / name).fields]
    assert set(NAMED) <= {codec_name(field.codec) for field in fields}


@pytest.mark.parametrize("name", ["exact", *DATASETS])
def test_every_digest_and_checksum_is_right(name: str) -> None:
    """Files as the manifest says, frames as the shards say."""
    manifest = manifests.read(GOLDEN / name)
    for entry in (*manifest.shards, *([manifest.names] if manifest.names else [])):
        assert manifests.file_digest(GOLDEN / name / entry.file) == entry.digest
    for field in manifest.fields:
        for column, _ in columns(GOLDEN / name, field.name):
            assert column.index.frames
            assert not any(len(wrong) for _, wrong in column.check_frames())


def test_the_manifest_says_what_there_is() -> None:
    """Literal members of the committed manifest."""
    manifest = manifests.read(GOLDEN / "exact")
    assert manifest.version == 1
    assert manifest.samples == 5
    assert [(s.file, s.samples) for s in manifest.shards] == [("shards/00000.lmdb", 3), ("shards/00001.lmdb", 2)]
    assert [(f.name, f.dtype, f.kind, f.shape) for f in manifest.fields] == [
        ("image", "uint8", "image", (40, 2, 1)),
        ("photo", "uint16", "image", (None, None, 2)),
        ("points", "float32", "array", (None, 3)),
        ("signal", "float16", "array", (600,)),
        ("grid", "complex64", "array", (3, 2)),
        ("tags", "bool", "array", (None,)),
        ("label", "int64", "array", ()),
        ("caption", "uint8", "text", (None,)),
    ]
    assert manifest.columns["photo"].raw == 4 * (0 + 2 + 6 + 12 + 20)


def test_samples_are_those_that_were_packed() -> None:
    """Literal values of every field, across both shards."""
    folder = GOLDEN / "exact"
    assert [int(v) for v in values(folder, "label")] == [1, -10, 100, -1000, 10000]
    assert [bytes(v).decode() for v in values(folder, "caption")] == ["", "ä", "ää", "äää", "ääää"]
    assert [v.tolist() for v in values(folder, "tags")] == [
        [],
        [True],
        [True, False],
        [True, False, False],
        [True, False, False, True],
    ]
    assert [v.shape for v in values(folder, "photo")] == [(1, 0, 2), (2, 1, 2), (3, 2, 2), (4, 3, 2), (5, 4, 2)]
    assert values(folder, "photo")[1].tolist() == [[[1000, 1001]], [[1002, 1003]]]
    assert values(folder, "photo")[2].tolist() == [
        [[2000, 2001], [2002, 2003]],
        [[2004, 2005], [2006, 2007]],
        [[2008, 2009], [2010, 2011]],
    ]
    assert [v.shape for v in values(folder, "points")] == [(0, 3), (20, 3), (40, 3), (60, 3), (80, 3)]
    assert [set(v.ravel().tolist()) for v in values(folder, "points")] == [set(), {0.5}, {1.5}, {2.5}, {3.5}]
    assert values(folder, "grid")[3].tolist() == [[3j, 1 + 3j], [2 + 3j, 3 + 3j], [4 + 3j, 5 + 3j]]
    signal = values(folder, "signal")
    assert [v.dtype for v in signal] == [np.float16] * 5
    assert [v[[0, 1, 599]].tolist() for v in signal[::4]] == [[0.0, 0.125, 74.875], [-4.0, -3.875, 70.875]]
    image = values(folder, "image")
    assert [v[:3, 1, 0].tolist() for v in image] == [[n, 7 + n, 14 + n] for n in range(5)]
    assert image[4][39].tolist() == [[21], [21]]  # 39 * 7 + 4, modulo 256


def test_names_are_found() -> None:
    """By name, by number, and in the shards."""
    entry = manifests.read(GOLDEN / "exact").names
    assert entry is not None
    names = Names(GOLDEN / "exact" / entry.file, entry)
    assert names.numbers(["größe", "a", "b/2", "b/1"]).tolist() == [2, 1, 4, 0]
    assert [names.name(number) for number in range(5)] == ["b/1", "a", "größe", "c", "b/2"]
    names.close()
    with Shard(GOLDEN / "exact" / "shards" / "00001.lmdb") as shard:
        assert list(shard.names(2)) == [b"c", b"b/2"]


def test_values_of_the_other_codecs() -> None:
    """Literal values of what zstd, blosc, LZ4 HC and zlib stored."""
    folder = GOLDEN / "coded"
    photos = values(folder, "photo")
    assert [v.shape for v in photos] == [(20, 8, 3), (21, 8, 3), (22, 8, 3)]
    assert not [(n, v) for n, v in enumerate(photos) if not (v == (np.arange(len(v)) * 3 + n)[:, None, None]).all()]
    clouds = values(folder, "cloud")
    assert [v.shape for v in clouds] == [(0, 3), (300, 3), (600, 3)]
    assert clouds[2][-1].tolist() == [1797.0, 1798.0, 1799.0]
    assert [v[[0, 1, 99]].tolist() for v in values(folder, "table")] == [[0, 1, 4], [1, 2, 5], [2, 3, 6]]
    assert [v[[0, 10, 99]].tolist() for v in values(folder, "count")] == [[0, 1, 9], [-1, 0, 8], [-2, -1, 7]]
    assert [v[[0, 20, 99]].tolist() for v in values(folder, "extra")] == [[0, 100, 400], [1, 101, 401], [2, 102, 402]]


@pytest.mark.parametrize("name", ["kinds", "photos", "decimals"])
def test_values_of_every_codec_and_kind(make: Any, name: str) -> None:
    """What was packed comes back from every column, with the checksum of every frame."""
    manifest = manifests.read(GOLDEN / name)
    assert manifest.fields == getattr(make, name.upper())
    expected = getattr(make, f"{name}_samples")(0, 5)
    for field in manifest.fields:
        want = [np.frombuffer(v.encode(), np.uint8) if isinstance(v, str) else v for v in expected[field.name]]
        for ours, theirs in zip(values(GOLDEN / name, field.name), want, strict=True):
            assert ours.dtype == theirs.dtype
            assert ours.shape == theirs.shape
            assert ours.tobytes() == theirs.tobytes(), field.name


@pytest.mark.parametrize("name", DATASETS)
def test_every_column_of_a_codec_is_encoded(name: str) -> None:
    """Frames that were kept raw would show nothing of their codec."""
    manifest = manifests.read(GOLDEN / name)
    encoded = [field.name for field in manifest.fields if field.codec]
    assert not [field for field in encoded if not (manifest.columns[field].stored < manifest.columns[field].raw)]


@pytest.mark.skipif(
    mmap.PAGESIZE != 4096, reason="LMDB files have the system's page size, that of the golden ones is 4096"
)
def test_the_same_bytes_are_written_today(make: Any, tmp_path: Path) -> None:
    """Every file of the exact dataset, LMDB pages and manifest included."""
    make.make_exact(tmp_path)
    made = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file())
    assert made == sorted(EXACT_FILES)
    for file in EXACT_FILES:
        assert (tmp_path / file).read_bytes() == (GOLDEN / "exact" / file).read_bytes(), file


@pytest.mark.parametrize("name", DATASETS)
def test_other_codecs_write_the_same_samples_today(make: Any, tmp_path: Path, name: str) -> None:
    """Their bytes may differ between versions of their libraries; what they decode to may not."""
    getattr(make, f"make_{name}")(tmp_path)
    old, new = manifests.read(GOLDEN / name), manifests.read(tmp_path)
    assert new.fields == old.fields
    for field in old.fields:
        pairs = zip(values(tmp_path, field.name), values(GOLDEN / name, field.name), strict=True)
        assert not [(a, b) for a, b in pairs if not (a.shape == b.shape and a.tobytes() == b.tobytes())]
