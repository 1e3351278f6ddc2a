"""A folder that keeps inputs between runs: each is made once, and anew when the code that makes it has changed."""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import filelock

import packer
from packer.errors import UsageError, WriteError

_HERE = Path(__file__).parent
#: Messages leave the number of seconds out where making took less.
_QUICK = 0.5


class Store:
    """Keeps inputs in `folder`.

    Args:
        quiet: says nothing of what is made.
    """

    def __init__(self, folder: Path, quiet: bool = False) -> None:
        self.folder = folder
        self._quiet = quiet
        self._scratch = folder / "scratch"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WriteError(f"{folder}: cannot be made: {error.strerror}; name another folder with --data") from None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other runs from the folder, which all clones share: each would remove what another one writes.

        What rows have written is removed, also that of a run that was killed.

        Raises:
            UsageError: another run is at work in it.
            WriteError: it cannot be written.
        """
        lock = filelock.FileLock(self.folder / "lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise UsageError(
                f"{self.folder} is in use by another run; wait for it, or name another with --data"
            ) from None
        except OSError as error:
            raise WriteError(f"{self.folder}: cannot be written: {error.strerror}; name another with --data") from None
        try:
            self.clean()
            yield
            self.clean()
        finally:
            lock.release()

    def made(self, name: str, make: Callable[[Path], object], packed: bool = False) -> Path:
        """The input `name`, made by `make(path)` where it is not there.

        Args:
            packed: it is a packed dataset, so that it depends on the code of packer too.
        """
        path = self.folder / f"{_digest(packed)}@{name}"  # in front: some sources are told by their suffix
        if path.exists():
            return path
        for old in self.folder.glob(f"*@{name}"):
            _remove(old)
        start = time.perf_counter()
        partial = self.folder / f"partial@{name}"
        make(partial)
        partial.replace(path)
        seconds = time.perf_counter() - start
        if not self._quiet:
            taken = f" in {seconds:.1f} s" if seconds > _QUICK else ""
            print(f"bench: made {name}{taken}", file=sys.stderr, flush=True)
        return path

    def scratch(self, name: str) -> Path:
        """A path where nothing is; what is put there is gone with the next run at the latest."""
        self._scratch.mkdir(exist_ok=True)
        path = self._scratch / name
        _remove(path)
        return path

    def clean(self) -> None:
        """Removes what rows have written."""
        shutil.rmtree(self._scratch, ignore_errors=True)


@lru_cache(maxsize=2)
def _digest(packed: bool) -> str:
    code = sorted(_HERE.glob("*.py"))
    if packed:
        code += sorted(Path(packer.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in code)).hexdigest()[:8]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
