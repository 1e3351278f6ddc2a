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
EXACT_FILES = ["manifest.json", "names.lmdb", "shards/00000.lmdb", "shards/00001.lmdb"]
#: What the codecs of `exact` give does not depend on a library's version.
DATASETS = ("exact", "coded", "kinds", "photos", "decimals", "jpegs", "clips", "stacks")
#: It holds what its streams of H.264 were decoded to: another x264 makes other streams.
GROUPS = "groups"


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


def test_every_codec_with_a_name_is_in_a_golden_dataset() -> None:
    """What is written today can be read for ever; a new codec gets a dataset of its own, see `make.py`."""
    fields = [field for name in DATASETS for field in manifests.read(GOLDEN / name).fields]
    assert set(NAMED) <= {codec_name(field.codec) for field in fields}


@pytest.mark.parametrize("name", [*DATASETS, GROUPS])
def test_every_digest_and_checksum_is_right(name: str) -> None:
    """Files as the manifest says, frames as the shards say; frames kept raw would show nothing of their codec."""
    manifest = manifests.read(GOLDEN / name)
    for entry in (*manifest.shards, *([manifest.names] if manifest.names else [])):
        assert manifests.file_digest(GOLDEN / name / entry.file) == entry.digest
    for field in manifest.fields:
        total = manifest.columns[field.name]
        assert (total.stored < total.raw) == bool(field.codec)
        for column, _ in columns(GOLDEN / name, field.name):
            assert column.index.frames
            assert not any(len(wrong) for _, wrong in column.check_frames())


@pytest.mark.parametrize("name", DATASETS)
def test_samples_are_those_that_were_packed(make: Any, name: str) -> None:
    """Every value of every column, bit for bit; those of `exact` stand in exact.json, too (see the second reader)."""
    manifest = manifests.read(GOLDEN / name)
    assert manifest.fields == getattr(make, name.upper())
    expected = make.samples(name, 0, manifest.samples)
    for field in manifest.fields:
        want = [np.frombuffer(v.encode(), np.uint8) if isinstance(v, str) else v for v in expected[field.name]]
        for ours, theirs in zip(values(GOLDEN / name, field.name), want, strict=True):
            assert ours.dtype == theirs.dtype
            assert ours.shape == theirs.shape
            assert ours.tobytes() == theirs.tobytes(), field.name


def test_groups_of_h264_are_what_they_were_when_they_were_packed(make: Any) -> None:
    """Within the step that processors may differ by in colours; a group of few pixels is stored as they are."""
    fields = [field.name for field in manifests.read(GOLDEN / GROUPS).fields if "pixels" not in field.name]
    for name in fields:
        clips, pixels = (values(GOLDEN / GROUPS, field) for field in (name, f"pixels of {name}"))
        for clip, then, packed in zip(clips, pixels, make.samples(GROUPS, 0, 5)[name], strict=True):
            assert clip.shape == then.shape == packed.shape
            assert np.abs(clip.astype(int) - then).max(initial=0) <= 1
            assert np.square(then.astype(int) - packed).sum() <= then.size * 255**2 / 10**3  # 30 dB
        stored_raw = [not group for clip in clips for group in clip.files]
        assert not all(stored_raw)
        assert any(stored_raw) == ("ragged" in name)


def test_names_are_found() -> None:
    """By name, by number, and in the shards."""
    names = Names(GOLDEN / "exact", manifests.read(GOLDEN / "exact"))
    assert names.numbers(["größe", "a", "b/2", "b/1"]).tolist() == [2, 1, 4, 0]
    assert [names.name(number) for number in range(5)] == ["b/1", "a", "größe", "c", "b/2"]
    names.close()
    with Shard(GOLDEN / "exact" / "shards" / "00001.lmdb") as shard:
        assert list(shard.names(2)) == [b"c", b"b/2"]


@pytest.mark.skipif(
    mmap.PAGESIZE != 4096, reason="LMDB files have the system's page size, that of the golden ones is 4096"
)
def test_the_same_bytes_are_written_today(make: Any, tmp_path: Path) -> None:
    """Every file of the exact dataset, LMDB pages and manifest included."""
    make.make("exact", tmp_path)
    made = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file())
    assert made == EXACT_FILES
    for file in EXACT_FILES:
        assert (tmp_path / file).read_bytes() == (GOLDEN / "exact" / file).read_bytes(), file


@pytest.mark.parametrize("name", DATASETS[1:])
def test_other_codecs_write_the_same_samples_today(make: Any, tmp_path: Path, name: str) -> None:
    """Their bytes may differ between versions of their libraries; what they decode to may not."""
    make.make(name, tmp_path)
    old, new = manifests.read(GOLDEN / name), manifests.read(tmp_path)
    assert new.fields == old.fields
    for field in old.fields:
        pairs = zip(values(tmp_path, field.name), values(GOLDEN / name, field.name), strict=True)
        assert not [(a, b) for a, b in pairs if not (a.shape == b.shape and a.tobytes() == b.tobytes())]
