"""Fields go back to the paths they came from, and attributes to the objects they belong to."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from made_datasets import put_manifest

from packer.convert import convert
from packer.export import export
from packer.format import manifest as manifests
from packer.merge import merge
from packer.sources import SourceOptions

#: What is said if datasets would have to be one, or lie within one another.
CLASH = "fields that were one dataset are written by their own names, below the root"


def exported(work, datasets, **options):
    """Paths of all objects of the export of a file that holds these datasets, by path, and the notes of the export."""
    with h5py.File(work / "a.h5", "w") as file:
        for path, values in datasets.items():
            file[path] = values
    convert(str(work / "a.h5"), work / "d", workers=0, source=SourceOptions(**options))
    return held(work)


def held(work):
    """Paths of all objects of the export, and its notes."""
    report = export(work / "d", work / "out", overwrite=True)
    with h5py.File(next((work / "out").iterdir())) as file:
        paths = []
        file.visit(paths.append)
    return paths, report.notes


@pytest.mark.parametrize(
    ("datasets", "options", "paths"),
    [
        (
            dict.fromkeys(("a", "a.b", "conv1.weight", "g/x", "g/x.y"), np.arange(3)),
            {},
            ["a", "a.b", "conv1.weight", "g", "g/x", "g/x.y"],
        ),
        (
            {"t.able": np.zeros(3, [("a.b", "<i4"), ("c", "<f4")])},
            {"pick": {"q": "/t.able/a.b"}},
            ["t.able", "t.able/a.b"],
        ),
        (
            {f"s{n}/{path}": np.arange(3) for n in range(2) for path in ("x.y", "x/z")},
            {"samples": "groups"},
            ["s0", "s0/x", "s0/x.y", "s0/x/z", "s1", "s1/x", "s1/x.y", "s1/x/z"],
        ),
    ],
    ids=["rows", "members of compounds", "groups"],
)
def test_dots_of_names_stay_dots(tmp_path, datasets, options, paths):
    """Weights of PyTorch models are named so; a name beside one that begins with it changes nothing."""
    found, notes = exported(tmp_path, datasets, **options)
    assert (sorted(found), notes) == (paths, ())


@pytest.mark.parametrize(
    "paths", [{}, {"a": "/b", "c": "/b"}, {"a": "/b", "c": "/b", "d": "/a/x"}, {"a": "/b", "c": "/b/x"}]
)
def test_no_two_fields_have_one_path(tmp_path, paths):
    """If a dataset was packed twice, or lies within another, all are written by the names of their fields, noted."""
    pick = {"a": "/a", "c": "/a", "d": "/d"}
    assert exported(tmp_path, dict.fromkeys("ad", np.arange(3)), pick=pick) == (["a", "c", "d"], (CLASH,))
    known = manifests.read(tmp_path / "d")
    known.origin["paths"] |= paths
    put_manifest(tmp_path / "d", known)
    assert held(tmp_path) == (["a", "c", "d"], (CLASH,))
    with h5py.File(tmp_path / "out/a.h5") as file:
        assert [file[name][()].tolist() for name in "acd"] == [[0, 1, 2]] * 3


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


def test_many_files_of_one_name_have_numbers(tmp_path):
    """A dataset of 150 sources that are all called a.h5: names stay short enough for a file system."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(2)
    convert(str(tmp_path / "a.h5"), tmp_path / "d", workers=0)
    merge([tmp_path / "d"] * 150, tmp_path / "all")
    assert export(tmp_path / "all", tmp_path / "out").files == 150
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"a.h5", *(f"a_{n}.h5" for n in range(2, 151))}
