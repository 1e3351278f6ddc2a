"""A lack of memory is no damage of the file."""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from hdf5_files import flip
from opened_sources import open_hdf5

from packer.checking import compare
from packer.convert import convert
from packer.errors import SourceError
from packer.sources import SourceOptions, base
from packer.sources.arrays import reading
from packer.sources.arrays.hdf5_files import faults_named
from packer.workers import memory_within
from readers import PackedDataset

#: Far more than a process of many tests has free in its heap, which its children may use beyond the limit.
ROW = 400_000_000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is kept on Linux alone")
@pytest.mark.parametrize("kind", ["array", "text"])
def test_a_row_beyond_the_limit_names_the_option(tmp_path: Path, kind: str) -> None:
    """Whether numpy or libhdf5 gets no memory, the sentence names the sample and --read-memory."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        if kind == "array":
            file.create_dataset("x", (2, ROW), "u1", chunks=(1, ROW // 60), compression="gzip")[0, 0] = 1
        else:
            file.create_dataset("x", data=["x" * (ROW // 3)], dtype=h5py.string_dtype())
    with pytest.raises(SourceError, match=r"sample 0: reading it takes more than 30,000,000 bytes.*--read-memory"):
        convert(str(tmp_path / "a.h5"), tmp_path / "out", workers=1, read_bytes=30_000_000)


def test_a_lack_of_memory_is_told_as_it_is() -> None:
    """What keeps the limits sees a MemoryError; all else of h5py names the file and what was being done."""
    with pytest.raises(MemoryError), faults_named("a.h5", "reading"):
        np.empty(2**62, np.uint8)
    with pytest.raises(MemoryError), faults_named("a.h5", "reading"):
        raise OSError("Can't synchronously read data (memory allocation failed for chunk)")
    damage = r"a\.h5: reading failed: Can't read data \(wrong fletcher32"
    with pytest.raises(SourceError, match=damage), faults_named("a.h5", "reading"):
        raise OSError("Can't synchronously read data (wrong fletcher32)")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets of some KiB are large, and are read in pieces of some rows."""
    monkeypatch.setattr(reading, "LARGE_BYTES", 1000)
    monkeypatch.setattr(base, "PIECE_BYTES", 300_000)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("codec", ["none", "auto"])
@pytest.mark.parametrize("lengths", [(400, 7, 900), (500, 500)], ids=["ragged", "fixed"])
def test_large_fields_are_what_small_ones_are(tmp_path: Path, codec: str, lengths: tuple[int, ...]) -> None:
    """Read in pieces or whole, ragged or not, raw or encoded, the same samples come out, and are verified."""
    rng = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    samples = []
    for n, length in enumerate(lengths):
        table = np.zeros(length, [("at", ">i4", (5,)), ("ok", "?")])
        table["at"] = rng.integers(0, 99, (length, 5))
        table["ok"] = rng.integers(0, 2, length)
        with h5py.File(tmp_path / f"in/{n}.h5", "w") as file:
            values = rng.integers(0, 99, (length, 30, 10)).astype(float)
            file.create_dataset("x", data=values, chunks=(7, 30, 2), compression="gzip")
            file["table"] = table
            file["label"] = n
            samples.append({"x": file["x"][()], "table.at": table["at"], "table.ok": table["ok"], "label": np.int64(n)})
    options = SourceOptions(samples="files")
    report = convert(str(tmp_path / "in"), tmp_path / "out", workers=0, codec=codec, source=options)
    assert any(field.frame.rows for field in report.manifest.fields)
    dataset = PackedDataset(tmp_path / "out", verify=True)
    for n, sample in enumerate(samples):
        for name, value in sample.items():
            assert np.array_equal(dataset[n][name], value)
    assert not compare(tmp_path / "out", open_hdf5(str(tmp_path / "in"), samples="files")).damages
    with h5py.File(tmp_path / "in/1.h5", "r+") as file:
        file["x"][-1, 2, 3] += 1
    (damage,) = compare(tmp_path / "out", open_hdf5(str(tmp_path / "in"), samples="files")).damages
    assert (damage.field, damage.samples, damage.names) == ("x", (1, 2), ("1",))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_large_field_that_cannot_be_read_is_left_out(tmp_path: Path, workers: int) -> None:
    """Of a sample that is damaged far behind its beginning nothing is packed; the others are."""
    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(3):
        with h5py.File(folder / f"{n}.h5", "w") as file:
            file["a"] = np.full((99, 9), n, np.float32)
            file.create_dataset("b", data=np.full((99, 9), n, np.float32), chunks=(9, 9), fletcher32=True)
            where = file["b"].id.get_chunk_info(8).byte_offset
    flip(folder / "1.h5", where)
    options = SourceOptions(samples="files")
    with pytest.raises(SourceError, match=r"1\.h5: reading failed"):
        convert(str(folder), tmp_path / "out", workers=workers, source=options)
    done = convert(str(folder), tmp_path / "out", workers=workers, source=options, on_error="skip")
    assert (done.samples, len(done.rejected)) == (2, 1)
    assert [int(value["b"][0, 0]) for value in PackedDataset(tmp_path / "out")] == [0, 2]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is kept on Linux alone")
def test_a_file_that_is_larger_than_memory_is_packed(tmp_path: Path) -> None:
    """A sample of 1 GB, declared and never written, takes a fifth of that."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (1000, 1000, 250), "f4", chunks=(1, 500, 250), compression="gzip")
        file["y"] = np.arange(3)
    options = SourceOptions(samples="files")
    report = convert(str(tmp_path / "a.h5"), tmp_path / "out", workers=1, read_bytes=200_000_000, source=options)
    assert report.raw_bytes == 1_000_000_000 + 24
    with memory_within(600_000_000):  # reading the manifest asks for 256 MiB
        assert not compare(tmp_path / "out", open_hdf5(str(tmp_path / "a.h5"), samples="files")).damages
