"""A file that is appended to is let go when it is done with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from packer.format.lmdb_appender import LmdbAppender


def is_open(name: str) -> bool:
    """Whether this process has a file of this name open, removed or not."""
    links = Path("/proc/self/fd").iterdir()
    # The descriptor of the folder itself is gone by the time it is asked for.
    return any(name in str(link.readlink()) for link in links if link.is_symlink())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("end", ["finish", "abort"])
def test_the_file_is_let_go(tmp_path: Path, end: str) -> None:
    """Whether it is finished or given up."""
    file = LmdbAppender(tmp_path / "x.lmdb", 2**20)
    file.put(b"a", b"b")
    assert is_open("x.lmdb")
    getattr(file, end)()
    assert not is_open("x.lmdb")
