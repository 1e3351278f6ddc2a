"""Attributes and single values: they come back as they were, or it is said that they do not."""

from __future__ import annotations

import h5py
import msgspec
import numpy as np
import pytest

from packer.convert import convert
from packer.export import export
from packer.format import manifest as manifests
from packer.sources.hdf5.source import open_hdf5

LONG = 20_000


def round_trip(work, make):
    """Notes of the source and of the export of a file of rows that `make` adds to; and the exported file's path."""
    with h5py.File(work / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        make(file)
    notes = open_hdf5(str(work / "a.h5")).notes()
    convert(str(work / "a.h5"), work / "d", workers=0)
    return notes, export(work / "d", work / "out").notes, work / "out/a.h5"


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        (h5py.string_dtype("ascii", LONG), "y" * LONG),
        (h5py.string_dtype(), "y" * LONG),
        (h5py.vlen_dtype("i4"), np.arange(3, dtype="i4")),
        (np.dtype([("a", "f8", (LONG,))]), np.zeros((), [("a", "f8", (LONG,))])),
        (np.dtype(("f8", (LONG,))), np.zeros(LONG)),
        (np.dtype("g"), 1.5),
    ],
    ids=["fixed text", "text", "list", "compound", "array", "long double"],
)
def test_single_values_that_are_not_kept(tmp_path, dtype, data):
    """Values that are large or of an odd kind are said to be left out, when packing and when exporting."""

    def make(file):
        file.create_dataset("cfg", (), dtype)[()] = data

    told, notes, path = round_trip(tmp_path, make)
    assert [
        note for note in told if "/cfg is a single value, too large or of a kind that is not kept (" in note
    ] == told
    assert len(told) == 1
    assert len(notes) == 1
    assert notes[0].startswith("/cfg is not written: it was too large or of a kind that is not kept (")
    assert (tmp_path / "d" / "manifest.json").stat().st_size < 10_000
    with h5py.File(path) as file:
        assert list(file) == ["x"]


def test_lost_values_are_named_before_kept_ones(tmp_path):
    """Of many notes the first ten are shown: what is lost does not hide behind what is kept."""

    def make(file):
        for n in range(20):
            file[f"k{n:02d}"] = n
        file["z"] = "y" * LONG

    told, notes, _ = round_trip(tmp_path, make)
    assert told[0].startswith("/z is a single value, too large or of a kind that is not kept")
    assert told[1] == "/k00 is a single value: kept with the attributes"
    assert told[-1] == "10 more datasets left out like these"
    assert len(notes) == 1


ARRAYS = [
    np.dtype(("<i4", (3,))),
    np.dtype((">f8", (2, 3))),
    np.dtype(([("a", "<i2"), ("b", "S3")], (2,))),
    np.dtype((h5py.enum_dtype({"A": 0, "B": 1}, "u1"), (4,))),
]


@pytest.mark.parametrize("dtype", ARRAYS, ids=str)
def test_array_types_stay_array_types(tmp_path, dtype):
    """A value of an array datatype is one value: it comes back with its type, alone, and in attributes."""

    def filled(*shape):
        values = np.zeros((*shape, *dtype.shape), dtype.base)
        values.reshape(-1)[::2] = np.ones(1, dtype.base)
        return values

    def make(file):
        file.create_dataset("v", (), dtype)[()] = filled()
        file["x"].attrs.create("one", filled(), dtype=dtype)
        file["x"].attrs.create("many", filled(5), dtype=dtype)

    _, notes, path = round_trip(tmp_path, make)
    assert notes == ()
    with h5py.File(tmp_path / "a.h5") as one, h5py.File(path) as other:
        assert (other["v"].dtype, other["v"].shape) == (dtype, ())
        assert other["v"][()].tobytes() == one["v"][()].tobytes()
        for name, shape in (("one", ()), ("many", (5,))):
            held = other["x"].attrs.get_id(name)
            assert (held.dtype, held.shape) == (dtype, shape)
            assert other["x"].attrs[name].tobytes() == one["x"].attrs[name].tobytes()


def test_a_long_text_among_others_is_no_text_of_its_own(tmp_path):
    """A list of texts with a long one in it is not kept at all, and never holds what was to stand for the long one."""

    def make(file):
        file["x"].attrs["texts"] = ["short", "y" * LONG]

    _, notes, path = round_trip(tmp_path, make)
    assert len(notes) == 1
    assert "the attribute 'texts' is not written: it was too large" in notes[0]
    with h5py.File(path) as file:
        assert not file["x"].attrs


def test_what_earlier_versions_kept_wrongly(tmp_path):
    """Summaries within values, and values of array types many times over, are notes; nothing is made of them."""
    round_trip(tmp_path, lambda file: file.__setitem__("v", b"y"))
    known = manifests.read(tmp_path / "d")
    inner = {"dtype": "S20000", "value": {"summary": "text of 20,000 characters"}}
    many = {"type": {"array": "<i4", "shape": [3]}, "shape": [3, 3], "hex": "01000000" * 27}
    values = {"/u": inner, "/v": {"dtype": "str", "value": ["a", inner["value"]]}, "/w": many}
    known.origin["files"][0]["values"] = values
    manifests.write(tmp_path / "d", msgspec.structs.replace(known, origin=known.origin))
    notes = export(tmp_path / "d", tmp_path / "again").notes
    reason = "is not written: it was too large or of a kind that is not kept (text of 20,000 characters)"
    assert notes[:2] == (f"/u {reason}", f"/v {reason}")
    assert notes[2:] == ("/w is not written: an early version did not keep it as it was; pack its source again",)
