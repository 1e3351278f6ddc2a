"""The file below an HDF5 file that is written: a disk that is full is an error, and not the end of the process."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any


class Sink(io.RawIOBase):
    """A new file for h5py, which takes all that libhdf5 writes, and tells of errors when it is asked.

    libhdf5 cannot close a file that it cannot write to, and often takes the process down later (2.0, samples as groups:
    with any limit on the size of the file). So what comes behind an error is kept in memory: no more than one block of
    samples and some MiB of metadata where `check` is called after every block.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("w+b", buffering=0)
        self._error: BaseException | None = None
        self._kept: list[tuple[int, bytes]] = []
        self._at = 0
        self._end = 0

    def check(self) -> None:
        """
        Raises:
            OSError: something could not be written; has the path in it.
            BaseException: what came while libhdf5 was writing, such as KeyboardInterrupt.
        """
        if isinstance(self._error, OSError):
            raise OSError(self._error.errno, self._error.strerror or str(self._error), str(self._path))
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._kept.clear()
        self._file.close()
        super().close()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._end}[whence]
        return self._at

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        if self._error is None:
            try:
                self._write(view)
            except BaseException as error:  # within a call of libhdf5 nothing may be raised
                self._error = error
        if self._error is not None:
            self._kept.append((self._at, bytes(view)))
        self._at += len(view)
        self._end = max(self._end, self._at)
        return len(view)

    def _write(self, view: memoryview) -> None:
        self._file.seek(self._at)
        while view:
            view = view[self._file.write(view) :]  # a disk that is nearly full takes a part

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        view[:] = bytes(len(view))
        self._file.seek(self._at)
        self._file.readinto(view)
        for start, data in self._kept:
            first, last = max(start, self._at), min(start + len(data), self._at + len(view))
            if first < last:
                view[first - self._at : last - self._at] = data[first - start : last - start]
        self._at += len(view)
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        self._end = self._at if size is None else size
        try:
            self._file.truncate(self._end)
        except BaseException as error:
            self._error = self._error or error
        return self._end
