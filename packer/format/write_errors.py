"""What goes wrong while LMDB writes, in words that help."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path
from types import TracebackType

import lmdb

from packer.errors import WriteError

#: With less than this many bytes free, a write that went wrong did so for want of room.
_HARDLY_ANY = 64 * 10**6


class clear_errors:  # noqa: N801  # reads as a statement
    """Turns what LMDB and the system raise while writing into a WriteError that names the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, (lmdb.Error, OSError)):
            raise WriteError(
                f"{self._path}: {self._reason(error)}; free some space or choose another folder, then run again"
            ) from None

    def _reason(self, error: BaseException) -> str:
        """The words of LMDB or the system; LMDB calls it an input/output error when the disk took but a part."""
        with contextlib.suppress(OSError):
            if "Input/output error" in str(error) and shutil.disk_usage(self._path.parent).free < _HARDLY_ANY:
                return os.strerror(errno.ENOSPC)
        return str(error)
