"""Which files a folder or a glob stands for, and in which order."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from packer.errors import SourceError
from packer.sources import open_sources


def rows(path: Path) -> str:
    """Writes a file of three rows."""
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)
    return str(path)


def test_hidden_files_are_passed_over(tmp_path: Path) -> None:
    """What some systems leave beside files, and in hidden folders, is no source; a folder of nothing else is empty."""
    (tmp_path / ".trash").mkdir()
    for name in ("._a.h5", ".trash/b.h5"):
        (tmp_path / name).write_bytes(b"\0\5\x16\7")
    with pytest.raises(SourceError, match="is empty, apart from hidden files"):
        open_sources([str(tmp_path)])
    a = rows(tmp_path / "a.h5")
    assert open_sources([str(tmp_path)]).files() == [a]
    inner = [rows(tmp_path / ".trash" / name) for name in ("b.h5", "c.h5")]
    assert open_sources([str(tmp_path / ".trash")]).files() == inner


def test_linked_folders_are_followed(tmp_path: Path) -> None:
    """As those of images and clouds are."""
    (tmp_path / "disk").mkdir()
    rows(tmp_path / "disk" / "a.h5")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "disk")
    assert open_sources([str(tmp_path / "data")]).files() == [str(tmp_path / "data" / "linked" / "a.h5")]


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
