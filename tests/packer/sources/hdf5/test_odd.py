"""Odd or damaged parts of a file cost nothing but themselves: what else it holds can be picked."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from opened_sources import open_hdf5, read_joined

from packer.errors import SourceError


def is_picked(path: Path, name: str = "good") -> bool:
    """Whether one dataset can be picked from the file, and holds 0, 1, 2."""
    (block,) = open_hdf5(str(path), pick={"q": f"/{name}"}).read()
    return np.asarray(block["q"]).tolist() == [0, 1, 2]


def test_a_link_that_a_user_defined_is_named(tmp_path: Path) -> None:
    """A link of a class that the library does not know is left out as any other is, and no obstacle."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["good"] = np.arange(3)
        file["odd"] = h5py.ExternalLink("nowhere.h5", "/")
    raw = bytearray(path.read_bytes())
    place = raw.find(b"odd") - 2
    assert raw[place] == 64
    raw[place] = 65
    path.write_bytes(raw)
    assert open_hdf5(str(path)).remarks == ["left out: /odd is a link. --field NAME=/path takes a link"]
    assert [f.name for f in open_hdf5(str(path), skip=["odd"]).fields] == ["good"]
    assert is_picked(path)


@pytest.mark.parametrize("samples", ["rows", "groups:/s"])
def test_a_damaged_group_is_named(tmp_path: Path, samples: str) -> None:
    """A group whose list of names is damaged is refused by name, left out by --skip, and no obstacle."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["s/0/good"] = file["good"] = np.arange(3)
        file.flush()
        size = path.stat().st_size
        file["bad/x"] = np.arange(3)
    raw = bytearray(path.read_bytes())
    place = raw.find(b"SNOD", size)
    raw[place : place + 4] = b"DONS"
    path.write_bytes(raw)
    if samples == "rows":
        with pytest.raises(SourceError, match=r"the group /bad cannot be listed .*--skip /bad, or pick"):
            open_hdf5(str(path))
        assert is_picked(path)
        assert is_picked(path, "s/0/good")
        skip = ["bad"]
    else:
        skip = ["bad", "/good"]
    fields = open_hdf5(str(path), skip=skip, samples=samples).fields
    assert {f.name.rpartition(".")[2] for f in fields} == {"good"}


def test_an_unknown_byte_order_is_a_problem_of_one_dataset(tmp_path: Path) -> None:
    """h5py has no word for the byte order of VAX."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["good"] = np.arange(3)
        file["old"] = np.arange(3, dtype="f4")
    raw = bytearray(path.read_bytes())
    place = raw.find(b"\x11\x20\x1f\0\x04\0\0\0")
    raw[place : place + 2] = b"\x31\x61"  # version 3 of the message, order of VAX
    path.write_bytes(raw)
    with pytest.raises(SourceError, match=r"/old has a datatype that h5py cannot read .*--skip old"):
        open_hdf5(str(path))
    assert is_picked(path)


def test_references_within_lists_are_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """h5py corrupts memory when it reads some: attributes are known by their types, datasets refused by name."""
    path = tmp_path / "x.h5"
    list_type = h5py.vlen_dtype(h5py.regionref_dtype)
    pair_type = np.dtype([("n", "i4"), ("at", h5py.regionref_dtype)])
    with h5py.File(path, "w") as file:
        file["good"] = np.arange(3)
        for name, type_ in ((b"lists", list_type), (b"pair", pair_type)):
            h5py.h5a.create(file.id, name, h5py.h5t.py_create(type_, logical=True), h5py.h5s.create_simple((1,)))
        file.attrs["unit"] = "m"
        file.create_dataset("lists", (3,), list_type)
        file.create_dataset("within", (3,), np.dtype([("n", "i4"), ("at", list_type)]))
        file.create_dataset("single", (), list_type)
    asked = []
    read = h5py.AttributeManager.__getitem__
    monkeypatch.setattr(h5py.AttributeManager, "__getitem__", lambda self, name: asked.append(name) or read(self, name))
    with pytest.raises(SourceError, match=r"/lists holds references.*/within holds references"):
        open_hdf5(str(path))
    source = open_hdf5(str(path), skip=["lists", "within"])
    assert source.origin["files"][0]["attributes"] == {"/": {"unit": "m"}}
    assert "these are not: 'lists' of x.h5, 'pair' of x.h5" in source.remarks[-1]
    assert set(asked) == {"unit"}


def test_what_is_damaged_and_not_asked_for_costs_nothing(tmp_path: Path) -> None:
    """A sound dataset is packed though a group and attributes are damaged; what must be left out is said."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["x"] = np.arange(10)
        file["x"].attrs["unit"], file.attrs["title"] = 1, 2
        file["bad/deep/y"] = np.arange(10)
        for number in range(7):
            file[f"odd/{number}"] = np.zeros(10, "S2").astype("V2")
    data = bytearray(path.read_bytes())
    for name in (b"unit\0", b"title\0"):
        data[data.index(name) - 8] = 99  # version of the attribute
    with h5py.File(path) as file:
        bad = h5py.h5o.get_info(file["bad"].id).addr
    heap = data.index(b"HEAP", bad)
    data[heap : heap + 4] = b"HEAQ"
    path.write_bytes(data)
    picked = open_hdf5(str(path), pick={"a": "/x"})
    assert read_joined(picked)["a"].tolist() == list(range(10))
    with pytest.raises(SourceError, match=r"/bad cannot be opened: .*Leave out with --skip bad --skip odd.0"):
        open_hdf5(str(path))
    assert read_joined(open_hdf5(str(path), skip=("bad", "odd")))["x"].tolist() == list(range(10))


@pytest.mark.parametrize("samples", ["rows", "files"])
def test_a_picked_dataset_needs_no_listing(tmp_path: Path, samples: str) -> None:
    """A path is opened directly, though the list of names of the group that holds it is damaged."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        for number in range(20):
            file[f"g/{number:02}"] = np.arange(3) + number
    data = bytearray(path.read_bytes())
    last = data.rindex(b"SNOD")  # the names are in several nodes
    data[last : last + 4] = b"DONS"
    path.write_bytes(data)
    with pytest.raises(SourceError, match="/g cannot be listed"):
        open_hdf5(str(path))
    values = read_joined(open_hdf5(str(path), pick={"a": "/g/00"}, samples=samples))["a"]
    assert np.ravel(values).tolist() == [0, 1, 2]
