"""Keeps inputs between runs, each made anew when the code that makes it has changed: arrays, files, packed datasets."""

from __future__ import annotations

import hashlib
import itertools
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import filelock
import numpy as np
from numpy.typing import NDArray

import packer
from benchmark.measuring import Rounds
from packer.convert import ConvertOptions, convert
from packer.errors import UsageError, WriteError
from packer.format import FieldSpec
from packer.sources import SourceOptions
from packer.warm import warm

#: Fields by name, (n, ...); of ragged samples one after another (m, ...), and `offsets` (n + 1,) of each among them.
Arrays = dict[str, NDArray[Any]]

#: Making an input is reported if it takes more seconds than this.
_SLOW = 0.5


class Bench:
    """Passed to every row: makes inputs and keeps them in `folder`.

    Args:
        rounds: how often is measured.
        scale: how many times as many samples as in a quick run there are.
    """

    def __init__(self, folder: Path, rounds: Rounds, scale: float = 1.0) -> None:
        self.folder, self.rounds, self.scale = folder, rounds, scale

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other runs from the folder, which all clones share: each would remove what another one writes.

        Files that rows have written are removed, also those of a run that was killed.

        Raises:
            UsageError: another run is at work in it.
            WriteError: it cannot be made or written.
        """
        lock = filelock.FileLock(self.folder / "lock")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except filelock.Timeout:
            message = f"{self.folder} is in use by another run; wait for it, or name another with --data"
            raise UsageError(message) from None
        except OSError as error:
            message = f"{self.folder}: cannot be written: {error.strerror}; name another folder with --data"
            raise WriteError(message) from None
        try:
            _remove(self.folder / "scratch")
            yield
        finally:
            _remove(self.folder / "scratch")
            lock.release()

    def some(self, count: int) -> int:
        """Return the number of samples in this run, if a quick run has `count`."""
        return max(8, int(count * self.scale))

    def arrays(self, make: Callable[..., Arrays], *arguments: object) -> Arrays:
        """Return what `make(self, *arguments)` returns."""
        return _loaded(self.folder_of(make, *arguments))

    def folder_of(self, make: Callable[..., Arrays], *arguments: object) -> Path:
        """Return the folder with these arrays, a .npy file each."""

        def write(path: Path) -> None:
            path.mkdir()
            for field, values in make(self, *arguments).items():
                np.save(path / f"{field}.npy", values)

        return self._made(_name(make, *arguments), write)

    def files(self, make: Callable[..., object], *arguments: object, suffix: str = "") -> Path:
        """Return the file or folder that `make(path, self, *arguments)` writes."""
        return self._made(_name(make, *arguments) + suffix, lambda path: make(path, self, *arguments))

    def packed(self, make: Callable[..., Arrays], *arguments: object, codec: str = "none", shards: int = 1) -> Path:
        """Return a packed dataset of the arrays that `make` returns, in memory as `packer warm` leaves it.

        Args:
            shards: how many, about.
        """

        def write(path: Path) -> None:
            folder = self.folder_of(make, *arguments)
            fields = {file.stem: np.load(file, mmap_mode="r") for file in sorted(folder.iterdir())}
            total = sum(values.nbytes for values in fields.values())
            size = max(-(-total // shards), 4096) if shards > 1 else None
            options = ConvertOptions(codec=codec, shard_size=size, workers=0)
            if "offsets" in fields:
                ends = itertools.pairwise(fields.pop("offsets"))
                specs = [FieldSpec(name=k, dtype=v.dtype.name, shape=(None, *v.shape[1:])) for k, v in fields.items()]
                samples = [{k: values[start:stop] for k, values in fields.items()} for start, stop in ends]
                convert(samples, path, options, fields=specs)
            else:
                pictures = tuple(name for name, values in fields.items() if values.ndim == 4)
                sources = [f"{name}={folder / name}.npy" for name in fields]
                convert(sources, path, options, source=SourceOptions(images=pictures))
            warm(path)

        return self._made(_name(make, *arguments, codec, shards) + ".packed", write, packed=True)

    def _made(self, name: str, make: Callable[[Path], object], packed: bool = False) -> Path:
        """Return the path of the input `name`, made by `make(path)` if it is not there.

        Args:
            packed: it is a packed dataset, so that it depends on the code of packer too.
        """
        name = f"x{self.scale:g}-{name}"
        path = self.folder / f"{_digest(packed)}@{name}"  # the digest first: some sources are told by their suffix
        if path.exists():
            return path
        for old in self.folder.glob(f"*@{name}"):
            _remove(old)
        start, partial = time.perf_counter(), self.folder / f"partial@{name}"
        _remove(partial)
        make(partial)
        partial.replace(path)
        if (seconds := time.perf_counter() - start) > _SLOW:
            print(f"bench: made {name} in {seconds:.1f} s", file=sys.stderr, flush=True)
        return path

    def scratch(self, name: str) -> Path:
        """Return a path where nothing is; files put there are removed after the run."""
        path = self.folder / "scratch" / name
        path.parent.mkdir(exist_ok=True)
        _remove(path)
        return path


def _name(make: Callable[..., object], *arguments: object) -> str:
    return "-".join([make.__name__, *map(str, arguments)])


@lru_cache(maxsize=1)
def _loaded(folder: Path) -> Arrays:
    """Return arrays; one set is held at a time: rows that use the same one stand together."""
    return {file.stem: np.load(file) for file in sorted(folder.glob("*.npy"))}


@lru_cache(maxsize=2)
def _digest(packed: bool) -> str:
    code = [Path(__file__).with_name("inputs.py"), *sorted(Path(__file__).parents[1].glob("inputs/*.py"))]
    if packed:
        code += [Path(__file__), *sorted(Path(packer.__file__).parent.rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in code)).hexdigest()[:8]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
