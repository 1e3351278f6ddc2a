"""Which files a folder or a glob stands for, and in which order."""

from __future__ import annotations

import itertools
from pathlib import Path

import h5py
import numpy as np
import pytest

from packer.errors import SourceError
from packer.sources.hdf5 import paths
from packer.sources.hdf5.paths import hdf5_paths
from packer.sources.opening import open_sources

NAMES = ["1.h5", "01.h5", "001.h5", "2.h5", "10.h5"]


@pytest.mark.parametrize("listed", list(itertools.permutations(NAMES))[::7], ids=" ".join)
def test_the_order_is_not_that_of_the_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: tuple[str, ...]
) -> None:
    """Names of one number come in one order, whichever way the file system lists them."""
    for name in NAMES:
        (tmp_path / name).touch()
    found = [tmp_path / name for name in listed]
    monkeypatch.setattr(paths, "walk", lambda place: iter([(str(place), list(listed))]))
    monkeypatch.setattr(paths.glob, "glob", lambda pattern, recursive: [str(p) for p in found])
    expected = [str(tmp_path / name) for name in ("001.h5", "01.h5", "1.h5", "2.h5", "10.h5")]
    assert hdf5_paths(str(tmp_path)) == expected
    assert hdf5_paths(str(tmp_path / "*.h5")) == expected


def test_hidden_files_are_passed_over(tmp_path: Path) -> None:
    """What some systems leave beside files, and in hidden folders, is no source; a folder of nothing else is empty."""
    (tmp_path / ".trash").mkdir()
    for name in ("._a.h5", ".trash/b.h5"):
        (tmp_path / name).write_bytes(b"\0\5\x16\7")
    with pytest.raises(SourceError, match="the folder holds no file of HDF5"):
        hdf5_paths(str(tmp_path))
    (tmp_path / "a.h5").touch()
    assert hdf5_paths(str(tmp_path)) == [str(tmp_path / "a.h5")]
    (tmp_path / ".trash" / "c.h5").touch()
    assert len(hdf5_paths(str(tmp_path / ".trash"))) == 2


def test_linked_folders_are_followed(tmp_path: Path) -> None:
    """As those of images and clouds are."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "a.h5").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "disk")
    assert hdf5_paths(str(tmp_path / "data")) == [str(tmp_path / "data" / "linked" / "a.h5")]


@pytest.mark.parametrize("suffix", [".nxs", ".he5", ".nc4", ".hdf", ".mat", ".weights", ""])
@pytest.mark.parametrize("block", [0, 512])
def test_a_file_is_known_by_its_signature(tmp_path: Path, suffix: str, block: int) -> None:
    """Whatever its suffix, alone, by a pattern and in a folder; what is of no known kind beside it is passed over."""
    path = tmp_path / f"a{suffix}"
    with h5py.File(path, "w", userblock_size=block) as file:
        file["x"] = np.arange(3)
    (tmp_path / "notes.txt").write_text("of mine")
    for source in (path, tmp_path / "a*", tmp_path):
        assert len(open_sources([str(source)])) == 3
