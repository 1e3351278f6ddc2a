"""One change of a packed dataset at a time: appending, repairing, keeping statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from packer.errors import UsageError, WriteError
from packer.packing.output import LOCK


@contextmanager
def dataset_lock(folder: Path) -> Iterator[None]:
    """Keeps others from changing the dataset; its manifest is to be read inside, or it may be an old one.

    Readers need no lock, and do not look at it. It is the one that converting into the folder holds.

    Raises:
        UsageError: something is changing it already.
        WriteError: the folder cannot be written.
    """
    lock = filelock.FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise UsageError(f"{folder} is being changed already: appended to, repaired or replaced; wait for it") from None
    except OSError as error:
        raise WriteError(f"{folder}: cannot be written: {error.strerror or error}") from None
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)  # while it is held: later it could be another one's
        lock.release()
