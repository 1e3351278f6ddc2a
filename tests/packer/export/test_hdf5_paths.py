"""Fields go back to the paths they came from, and attributes to the objects they belong to."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from packer.convert import convert
from packer.export import export
from packer.format import manifest as manifests
from packer.merge import merge
from packer.sources import SourceOptions

#: What is said if datasets would have to be one, or lie within one another.
CLASH = "fields that were one dataset are written by their own names, below the root"


def exported(work, make, fields=None, **options):
    """Paths of all objects of the export of a file that `make` makes, and the notes of the export."""
    with h5py.File(work / "a.h5", "w") as file:
        make(file)
    convert(str(work / "a.h5"), work / "d", workers=0, source=SourceOptions(**options))
    return held(work, fields)


def held(work, fields=None):
    """Paths of all objects of the export, and its notes."""
    report = export(work / "d", work / "out", fields=fields, overwrite=True)
    with h5py.File(next((work / "out").iterdir())) as file:
        paths = []
        file.visit(paths.append)
    return paths, report.notes


def test_dots_of_names_stay_dots(tmp_path):
    """Weights of PyTorch models are named so; a name beside one that begins with it changes nothing."""

    def make(file):
        for name in ("a", "a.b", "conv1.weight", "g/x", "g/x.y"):
            file[name] = np.arange(3)

    assert exported(tmp_path, make) == (["a", "a.b", "conv1.weight", "g", "g/x", "g/x.y"], ())


def test_dots_of_compound_members(tmp_path):
    """Members of compounds, and fields picked out of them, have paths as well."""

    def make(file):
        file["t.able"] = np.zeros(3, [("a.b", "<i4"), ("c", "<f4")])

    assert exported(tmp_path, make, pick={"q": "/t.able/a.b"}) == (["t.able", "t.able/a.b"], ())


def test_dots_of_groups_that_are_samples(tmp_path):
    """Paths are those within a sample's group."""

    def make(file):
        for n in range(2):
            file[f"s{n}/x.y"] = np.arange(3)
            file[f"s{n}/x/z"] = np.arange(n)

    expected = ["s0", "s0/x", "s0/x.y", "s0/x/z", "s1", "s1/x", "s1/x.y", "s1/x/z"]
    assert sorted(exported(tmp_path, make, samples="groups")[0]) == expected


def test_fields_of_one_dataset(tmp_path):
    """If a dataset was packed twice, all are written by the names of their fields, with a note."""

    def make(file):
        file["g/x"] = np.arange(3, dtype=">i2")
        file["g/y"] = np.arange(3)

    exported(tmp_path, make, pick={"one": "/g/x", "two": "/g/x", "y": "/g/y"})
    paths, notes = held(tmp_path)
    assert paths == ["one", "two", "y"]
    assert CLASH in notes
    with h5py.File(tmp_path / "out/a.h5") as file:
        assert file["one"][()].tolist() == file["two"][()].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "paths", [{"a": "/b", "c": "/b"}, {"a": "/b", "c": "/b", "d": "/a/x"}, {"a": "/b", "c": "/b/x"}]
)
def test_no_two_fields_have_one_path(tmp_path, paths):
    """Nor lies one within another."""

    def make(file):
        for name in "acd":
            file[name] = np.arange(3)

    exported(tmp_path, make)
    known = manifests.read(tmp_path / "d")
    known.origin["paths"] = paths
    manifests.write(tmp_path / "d", known)
    assert held(tmp_path) == (["a", "c", "d"], (CLASH,))


def test_files_of_one_name(tmp_path):
    """Files of several folders keep their folders; those of datasets that were joined are told apart by a number."""
    parts = []
    for part in "12":
        for folder in "pq":
            (tmp_path / part / folder).mkdir(parents=True)
            with h5py.File(tmp_path / part / folder / "a.h5", "w") as file:
                file["x"] = np.full(3, int(part))
        parts.append(convert(str(tmp_path / part), tmp_path / f"d{part}", workers=0).path)
    merge(parts, tmp_path / "d")
    export(tmp_path / "d", tmp_path / "out")
    found = {path.relative_to(tmp_path / "out").as_posix(): path for path in (tmp_path / "out").rglob("*.h5")}
    assert set(found) == {"p/a.h5", "q/a.h5", "p/a_2.h5", "q/a_2.h5"}
    with h5py.File(found["q/a_2.h5"]) as file:
        assert file["x"][()].tolist() == [2, 2, 2]
