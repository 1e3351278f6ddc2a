"""Attributes and single values: they come back as they were, or it is said that they do not."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from opened_sources import open_hdf5

from packer.convert import convert
from packer.export import export

LONG = 20_000


def round_trip(work, make):
    """Notes of the source and of the export of a file of rows that `make` adds to; and the exported file's path."""
    with h5py.File(work / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        make(file)
    notes = open_hdf5(str(work / "a.h5")).remarks
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
    """Values that are large or of an odd kind are said to be left out when packing."""

    def make(file):
        file.create_dataset("cfg", (), dtype)[()] = data

    told, notes, path = round_trip(tmp_path, make)
    assert [
        note for note in told if "/cfg is a single value, too large or of a kind that is not kept (" in note
    ] == told
    assert len(told) == 1
    assert not notes
    assert (tmp_path / "d" / "manifest.json").stat().st_size < 10_000
    with h5py.File(path) as file:
        assert list(file) == ["x"]


def test_lost_values_are_named_before_kept_ones(tmp_path):
    """Of many notes the first ten are shown: what is lost does not hide behind what is kept."""

    def make(file):
        for n in range(20):
            file[f"k{n:02d}"] = n
        file["z"] = "y" * LONG

    told, _, _ = round_trip(tmp_path, make)
    assert told[0].startswith("/z is a single value, too large or of a kind that is not kept")
    assert told[1] == "/k00 is a single value: kept with the attributes"
    assert told[-1] == "11 more datasets left out like these"


KINDS = [
    np.dtype(("<i4", (3,))),
    np.dtype(([("a", "<i2"), ("b", "S3")], (2,))),
    np.dtype([("a", "<f8"), ("b", "S4")]),
    np.dtype("V3"),
]


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_kinds_of_values_that_are_not_kept(tmp_path, dtype):
    """Compounds, array types and opaque bytes are samples, not decorations: of one value they are a note."""

    def make(file):
        file.create_dataset("v", (), dtype)[()] = np.zeros(dtype.shape, dtype.base)
        file["x"].attrs.create("one", np.zeros(dtype.shape, dtype.base), dtype=dtype)
        file["x"].attrs["kept"] = 1

    told, notes, path = round_trip(tmp_path, make)
    assert not notes
    assert any("/v is a single value, too large or of a kind that is not kept" in note for note in told)
    assert any("not kept: 'one' of /x" in note for note in told)
    with h5py.File(path) as file:
        assert list(file) == ["x"]
        assert dict(file["x"].attrs) == {"kept": 1}


def test_a_long_text_among_others_is_no_text_of_its_own(tmp_path):
    """A list of texts with a long one in it is not kept at all, and never holds what was to stand for the long one."""

    def make(file):
        file["x"].attrs["texts"] = ["short", "y" * LONG]

    told, _, path = round_trip(tmp_path, make)
    assert told == ["a.h5: attributes too large or of a kind that is not kept: 'texts' of /x"]
    with h5py.File(path) as file:
        assert not file["x"].attrs
