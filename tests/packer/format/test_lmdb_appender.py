"""A file that is appended to is let go when it is done with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from packer.errors import WriteError
from packer.format import LmdbAppender, clear_errors


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


def test_an_error_names_the_file_once(tmp_path: Path) -> None:
    """LMDB itself names it in some errors."""
    path = tmp_path / "nowhere" / "a.lmdb"
    with (
        pytest.raises(WriteError, match=r"a\.lmdb: cannot be written: No such file or directory; free") as caught,
        clear_errors(path),
    ):
        LmdbAppender(path, 2**20)
    assert str(caught.value).count(str(path)) == 1
