"""Opening a source file that is read in one or two pieces."""

from __future__ import annotations

from io import FileIO


def open_raw(path: str) -> FileIO:
    """A file, open for reading, unbuffered and not through Path: a small one takes 9 us so, 17 by Path.read_bytes."""
    return open(path, "rb", buffering=0)  # noqa: PTH123
