"""Odd or damaged parts of a file cost nothing but themselves: what else it holds can be picked."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from hdf5_files import overwrite, write_hdf5
from opened_sources import open_hdf5, read_joined

from packer.errors import SourceError


def assert_picked(path: Path, name: str = "good", **options: str) -> None:
    """One dataset can be picked from the file, and holds 0, 1, 2."""
    assert np.ravel(read_joined(open_hdf5(str(path), pick={"q": f"/{name}"}, **options))["q"]).tolist() == [0, 1, 2]


def fields(path: Path, **options: object) -> list[str]:
    """Names of the fields of a file."""
    return sorted(field.name for field in open_hdf5(str(path), **options).fields)


def test_a_link_that_a_user_defined_is_named(tmp_path: Path) -> None:
    """A link of a class that the library does not know is skipped as any other is, and no obstacle."""
    path = tmp_path / "x.h5"
    write_hdf5(path, {"good": np.arange(3), "odd": h5py.ExternalLink("nowhere.h5", "/")})
    place = path.read_bytes().find(b"odd") - 2
    assert path.read_bytes()[place] == 64
    overwrite(path, place, bytes([65]))
    assert open_hdf5(str(path)).remarks == ["skipped: /odd is a link. --field NAME=/path takes a link"]
    assert fields(path, skip=["odd"]) == ["good"]
    assert_picked(path)


def test_a_damaged_group_is_named(tmp_path: Path) -> None:
    """A group whose list of names is damaged is refused by name, skipped by --skip, and no obstacle."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["s/0/good"] = file["good"] = np.arange(3)
        file["bad/x"] = np.arange(3)
    overwrite(path, b"SNOD", b"DONS")
    with pytest.raises(SourceError, match=r"the group /bad cannot be listed .*--skip /bad, or pick"):
        open_hdf5(str(path))
    assert_picked(path)
    assert_picked(path, "s/0/good")
    assert fields(path, skip=["bad"]) == ["good", "s.0.good"]
    assert fields(path, skip=["bad", "/good"], samples="groups:/s") == ["good"]


@pytest.mark.parametrize("samples", ["rows", "files"])
def test_a_picked_dataset_needs_no_listing(tmp_path: Path, samples: str) -> None:
    """A path is opened directly, though the list of names of the group that holds it is damaged."""
    path = tmp_path / "a.h5"
    write_hdf5(path, {f"g/{number:02}": np.arange(3) + number for number in range(20)}, libver="earliest")
    overwrite(path, b"SNOD", b"DONS")  # the names are in several nodes
    with pytest.raises(SourceError, match="/g cannot be listed"):
        open_hdf5(str(path))
    assert_picked(path, "g/00", samples=samples)


def test_an_unknown_byte_order_is_a_problem_of_one_dataset(tmp_path: Path) -> None:
    """h5py has no word for the byte order of VAX."""
    path = tmp_path / "x.h5"
    write_hdf5(path, {"good": np.arange(3), "old": np.arange(3, dtype="f4")})
    overwrite(path, b"\x11\x20\x1f\0\x04\0\0\0", b"\x31\x61")  # version 3 of the message, order of VAX
    with pytest.raises(SourceError, match=r"/old has a datatype that h5py cannot read .*--skip old"):
        open_hdf5(str(path))
    assert_picked(path)


def test_what_is_damaged_and_not_asked_for_costs_nothing(tmp_path: Path) -> None:
    """A sound dataset is packed though a group and attributes are damaged; what must be skipped is said."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["good"] = np.arange(3)
        file["good"].attrs["unit"], file.attrs["title"] = 1, 2
        for number in range(7):
            file[f"odd/{number}"] = np.zeros(3, "S2").astype("V2")
        file["bad/deep/y"] = np.arange(3)
        group = h5py.h5o.get_info(file["bad"].id).addr
    for name in (b"unit\0", b"title\0"):
        overwrite(path, path.read_bytes().index(name) - 8, bytes([99]))  # version of the attribute
    overwrite(path, path.read_bytes().index(b"HEAP", group), b"HEAQ")
    assert_picked(path)
    with pytest.raises(SourceError, match=r"/bad cannot be opened: .*Leave out with --skip bad --skip odd, or"):
        open_hdf5(str(path))
    assert fields(path, skip=("bad", "odd")) == ["good"]
