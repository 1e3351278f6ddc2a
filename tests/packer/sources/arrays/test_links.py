"""Several names of one dataset: it is packed once, and found by any of them."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from hdf5_files import write_hdf5
from opened_sources import open_hdf5, read_joined

from packer.convert import convert
from packer.errors import SourceError
from packer.export import export


@pytest.fixture
def linked(tmp_path: Path) -> str:
    """A file with further names of a dataset, of a single value, of a group, of the root and of another file."""
    path = str(tmp_path / "a.h5")
    write_hdf5(tmp_path / "other.h5", {"d": np.arange(3)})
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(3)
        file["one"] = 1
        file["g/x"] = np.arange(3.0)
        file["b"] = file["a"]
        file["deep/er/soft"] = h5py.SoftLink("/a")
        file["single"] = file["one"]
        file["h"] = h5py.SoftLink("/g")
        file["g/up"] = file["/"]
        file["there"] = h5py.ExternalLink("other.h5", "/d")
    return path


def test_further_names_are_said(linked: str) -> None:
    """One remark names them, and links and single values; a dataset is packed once, under its first name."""
    source = open_hdf5(linked)
    assert {f.name for f in source.fields} == {"a", "g.x"}
    assert source.remarks == [
        "skipped: /b is another name of /a; /h is a link; /one is a single value, which --once /one keeps; /single is "
        "another name of /one; /there is a link and 2 more. --field NAME=/path takes a link"
    ]
    (note,) = open_hdf5(linked, skip=["b", "deep", "g", "h", "there"]).remarks
    assert note.startswith("skipped: /one is a single value")


@pytest.mark.parametrize("name", ["/a", "/b", "deep/er/soft", "/g/up/b", "/g/up/g/up/a"])
def test_a_dataset_is_picked_by_any_name(linked: str, name: str) -> None:
    """Links to it and links to groups above it lead to it."""
    source = open_hdf5(linked, pick={"q": name, "x": "/h/x"})
    (block,) = source.read()
    assert np.asarray(block["q"]).tolist() == [0, 1, 2]
    assert np.asarray(block["x"]).tolist() == [0, 1, 2]
    assert source.origin["paths"] == {"q": "/" + name.strip("/"), "x": "/h/x"}


def test_a_name_that_leads_nowhere_is_said_as_it_was_asked_for(linked: str, tmp_path: Path) -> None:
    """The message has the path that was given, and lists the further names; a file that is gone gives no zeros."""
    with pytest.raises(SourceError, match=r"has no array /h/nope for field q") as caught:
        open_hdf5(linked, pick={"q": "/h/nope"})
    assert "/b is another name of /a" in str(caught.value)
    with pytest.raises(SourceError, match=r"field q: /single is a single value"):
        open_hdf5(linked, pick={"q": "/single"})
    source = open_hdf5(linked, pick={"q": "/there"})
    assert read_joined(source)["q"].tolist() == [0, 1, 2]
    assert source.files() == [linked, str(tmp_path / "other.h5")]
    (tmp_path / "other.h5").unlink()
    with pytest.raises(SourceError, match=r"has no array /there for field q"):
        open_hdf5(linked, pick={"q": "/there"})


def test_exports_have_the_names_they_were_packed_by(linked: str, tmp_path: Path) -> None:
    """Further names, which the plan tells of, do not come back."""
    convert(linked, tmp_path / "d", workers=0)
    assert not export(tmp_path / "d", tmp_path / "out").notes
    with h5py.File(tmp_path / "out/a.h5") as file:
        assert set(file) == {"a", "g"}


def test_groups_that_are_links_are_samples_if_a_pattern_names_them(tmp_path: Path) -> None:
    """A file that links one file for each episode is packed by a pattern; links next to the samples are named."""
    for n in range(3):
        write_hdf5(tmp_path / f"ep{n}.h5", {"obs/x": np.full((n + 2, 3), n)})
    path = str(tmp_path / "all.h5")
    with h5py.File(path, "w") as file:
        for n in range(3):
            file[f"ep{n}"] = h5py.ExternalLink(f"ep{n}.h5", "/")
        file["latest"] = h5py.SoftLink("/ep2")
    with pytest.raises(SourceError, match="/latest belongs to no sample"):
        open_hdf5(path, samples="groups:/ep*")
    source = open_hdf5(path, samples="groups:/ep*", skip=["latest"])
    assert source.names == ["ep0", "ep1", "ep2"]
    assert [value.tolist() for block in source.read() for value in block["obs.x"]] == [
        [[n] * 3] * (n + 2) for n in range(3)
    ]
    assert source.files() == [path, *(str(tmp_path / f"ep{n}.h5") for n in range(3))]
