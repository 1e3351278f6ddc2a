"""Constants: what is kept once for a dataset, in a file that is checked whole before an array of it is given out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from packer.errors import DamagedError, UsageError
from packer.format.constants import Constants, found_constants, write_constants
from packer.format.manifest import FileEntry


@pytest.fixture
def entry(tmp_path: Path) -> FileEntry:
    """What is known of a file of two constants."""
    return write_constants(tmp_path, {"x": np.arange(3, dtype=">i4"), "t": np.float64(0.5)})


def test_constants_come_back(tmp_path: Path, entry: FileEntry) -> None:
    """By name, in the byte order of the machine."""
    found = Constants(tmp_path, entry)
    assert sorted(found) == ["t", "x"]
    assert (found["x"].tolist(), found["x"].dtype, found["t"].item()) == ([0, 1, 2], np.dtype("=i4"), 0.5)
    assert repr(found) == "Constants(t, x)"
    assert found_constants(tmp_path) == entry


def test_damage_of_every_sort_is_told(tmp_path: Path, entry: FileEntry) -> None:
    """A file of another size or content, one that is no archive or holds no arrays, and one that is missing."""
    path = tmp_path / entry.file
    data = path.read_bytes()
    for changed, said in ((data[:-1], "bytes, .* expected"), (data[:-1] + b"!", "its digest is wrong")):
        path.write_bytes(changed)
        with pytest.raises(DamagedError, match=said):
            Constants(tmp_path, entry)["x"]
    for changed in (b"no archive", data.replace(b"\x93NUMPY", b"\x93NAMPY")):
        path.write_bytes(changed)
        with pytest.raises(DamagedError, match=entry.file):
            found_constants(tmp_path)
    path.unlink()
    with pytest.raises(DamagedError, match="it is missing"):
        len(Constants(tmp_path, entry))
    assert found_constants(tmp_path) is None


def test_names_that_fields_cannot_have(tmp_path: Path) -> None:
    """Constants have them neither."""
    with pytest.raises(UsageError, match="a/b"):
        write_constants(tmp_path, {"a/b": np.zeros(1)})
