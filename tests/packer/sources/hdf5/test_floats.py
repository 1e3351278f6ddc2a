"""Floats that numpy does not have: stored as wider ones, exactly, or refused."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from opened_sources import open_hdf5

from packer.errors import SourceError

ALL = h5py.h5s.ALL
BITS = np.arange(2**16, dtype="<u2")


def bfloat16(order: str = "<") -> h5py.h5t.TypeFloatID:
    """The upper half of a float32 as a type of its own."""
    narrow = (h5py.h5t.IEEE_F32LE if order == "<" else h5py.h5t.IEEE_F32BE).copy()
    narrow.set_fields(15, 7, 8, 0, 7)
    narrow.set_size(2)
    narrow.set_ebias(127)
    return narrow


def create(group: h5py.Group, name: str, type_: h5py.h5t.TypeID, values: np.ndarray, **layout) -> h5py.Dataset:
    """A dataset of `type_` that holds the bits of `values` as they are."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if "chunks" in layout:
        plist.set_chunk(layout["chunks"])
    dataset = h5py.h5d.create(group.id, name.encode(), type_, h5py.h5s.create_simple(values.shape), plist)
    dataset.write(ALL, ALL, np.ascontiguousarray(values), mtype=type_)
    return h5py.Dataset(dataset)


def read(path: Path, **options) -> np.ndarray:
    return np.concatenate([np.asarray(block["x"]) for block in open_hdf5(str(path), **options).read()])


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("layout", [{}, {"chunks": (1000,)}], ids=["contiguous", "chunked"])
def test_bfloat16_becomes_float32(tmp_path: Path, order: str, layout: dict) -> None:
    """Every one of the 65,536 bit patterns is the float32 with the same upper half; NaNs stay NaNs."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        stored = create(file, "x", bfloat16(order), BITS.astype(f"{order}u2"), **layout)
        assert stored.id.get_storage_size() >= 2 * len(BITS)
    source = open_hdf5(str(path))
    assert source.fields[0].dtype == "float32"
    assert source.remarks == [
        "a.h5: dataset /x holds floats of 16 bits that numpy does not have, such as bfloat16, stored as float32: "
        "all numbers are exact, but NaNs lose the bits they carry"
    ]
    expected = (BITS.astype("u4") << 16).view("f4")
    found = read(path)
    numbers = ~np.isnan(expected)
    assert numbers.sum() == 2**16 - 254
    assert found[numbers].tobytes() == expected[numbers].tobytes()
    assert np.isnan(found[~numbers]).all()


def test_unwritten_chunks_are_counted_in_the_bytes_of_the_file(tmp_path: Path) -> None:
    """A chunked dataset of bfloat16 that was written whole is not said to lack half of its chunks."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        create(file, "x", bfloat16(), BITS, chunks=(1024,))
    assert not any("never written" in note for note in open_hdf5(str(path)).remarks)


def test_bfloat16_in_groups_and_lists(tmp_path: Path) -> None:
    """Samples that are groups, arrays within a value and variable-length arrays are widened and noted too."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name in "ab":
            create(file.create_group(name), "x", bfloat16(), BITS[16256:16260])
    source = open_hdf5(str(path), samples="groups")
    assert source.remarks[0].startswith("dataset /x holds floats of 16 bits that numpy does not have")
    assert len(source.remarks) == 1
    assert read(path, samples="groups").tolist() == [[1.0, 1.0078125, 1.015625, 1.0234375]] * 2
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple((2,))
        h5py.h5d.create(file.id, b"x", h5py.h5t.vlen_create(bfloat16()), space)
        file["x"][0] = np.array([1.5, -2], "f4")
        file["x"][1] = np.array([3], "f4")
    source = open_hdf5(str(path))
    found = [row.tolist() for block in source.read() for row in block["x"]]
    assert found == [[1.5, -2], [3]]
    assert "bfloat16" in source.remarks[0]


def test_bfloat16_within_compounds_is_refused(tmp_path: Path) -> None:
    """h5py gives nonsense for members that it widens in place, so they are named and can be left out."""
    path = tmp_path / "a.h5"
    pair = h5py.h5t.create(h5py.h5t.COMPOUND, 6)
    pair.insert(b"p", 0, bfloat16())
    pair.insert(b"q", 2, h5py.h5t.STD_I32LE)
    outer = h5py.h5t.create(h5py.h5t.COMPOUND, 12)
    outer.insert(b"twice", 0, h5py.h5t.array_create(pair, (2,)))
    with h5py.File(path, "w") as file:
        file["good"] = np.arange(3)
        for name, type_ in (("c", pair), ("d", outer)):
            h5py.h5d.create(file.id, name.encode(), type_, h5py.h5s.create_simple((3,)))
    with pytest.raises(
        SourceError, match=r"/c has the member p of floats of 16 bits.*write it as float32.*--skip c --skip d"
    ):
        open_hdf5(str(path))
    assert [f.name for f in open_hdf5(str(path), skip=["c", "d"]).fields] == ["good"]
