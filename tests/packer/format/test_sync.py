"""What lasts: files before their names, folders before what leads into them; a disk that fails is an error."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from packer.errors import WriteError
from packer.format import make_folder, sync_folder


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inodes of what was synced, in order."""
    found: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: found.append(os.fstat(fd).st_ino))
    return found


def test_a_new_folder_lasts(tmp_path: Path, synced: list[int]) -> None:
    """Each folder in which one was made is synced; nothing is where nothing was made."""
    make_folder(tmp_path / "a" / "b" / "c")
    assert set(synced) == {path.stat().st_ino for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")}
    synced.clear()
    make_folder(tmp_path / "a" / "b")
    assert not synced


def fails_with(number: int) -> Callable[[int], None]:
    def fail(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(number, os.strerror(number))

    return fail


def test_a_disk_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename that may not last is no success."""
    monkeypatch.setattr(os, "fsync", fails_with(errno.EIO))
    with pytest.raises(WriteError, match=f"{tmp_path.name}: cannot be written: Input/output error"):
        sync_folder(tmp_path)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_where_folders_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Some file systems, such as some on networks, know no such call, and are used all the same."""
    monkeypatch.setattr(os, "fsync", fails_with(number))
    sync_folder(tmp_path)
