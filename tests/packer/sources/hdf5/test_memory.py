"""A lack of memory is no damage of the file."""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from packer.convert import convert
from packer.errors import SourceError
from packer.sources.hdf5.file import faults_named

#: Far more than a process of many tests has free in its heap, which its children may use beyond the limit.
ROW = 400_000_000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is kept on Linux alone")
@pytest.mark.parametrize("kind", ["array", "text"])
def test_a_row_beyond_the_limit_names_the_option(tmp_path: Path, kind: str) -> None:
    """Whether numpy or libhdf5 gets no memory, the sentence names the sample and --read-memory."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        if kind == "array":
            file.create_dataset("x", (2, ROW), "u1", chunks=(1, ROW // 60), compression="gzip")[0, 0] = 1
        else:
            file.create_dataset("x", data=["x" * (ROW // 3)], dtype=h5py.string_dtype())
    with pytest.raises(SourceError, match=r"sample 0: reading it takes more than 30,000,000 bytes.*--read-memory"):
        convert(str(tmp_path / "a.h5"), tmp_path / "out", workers=1, read_bytes=30_000_000)


def test_a_lack_of_memory_is_told_as_it_is() -> None:
    """What keeps the limits sees a MemoryError; all else of h5py names the file and what was being done."""
    with pytest.raises(MemoryError), faults_named("a.h5", "reading"):
        np.empty(2**62, np.uint8)
    with pytest.raises(MemoryError), faults_named("a.h5", "reading"):
        raise OSError("Can't synchronously read data (memory allocation failed for chunk)")
    damage = r"a\.h5: reading failed: Can't read data \(wrong fletcher32"
    with pytest.raises(SourceError, match=damage), faults_named("a.h5", "reading"):
        raise OSError("Can't synchronously read data (wrong fletcher32)")
