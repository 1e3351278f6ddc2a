"""Keeps inputs between runs, each made anew when the code that makes it has changed; and says how large they are."""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import filelock

import packer
from packer.errors import UsageError, WriteError

_HERE = Path(__file__).parent
#: Messages leave the number of seconds out where making took less.
_QUICK = 0.5


@dataclass(frozen=True)
class Sizes:
    """Numbers of samples, files and points.

    Attributes:
        rows: of 33 float32 and a label.
        small_pairs, large_pairs: of 16/64 px and of 48/192 px.
        small_files, large_files: how many of these are PNG files too.
        lmdb: of the small pairs, stored one key a sample.
        clouds: of 500 to 20,000 points.
        splats: scenes of 500 to 5,000 Gaussians.
        cold, cold_reads: samples of 48 kB in the file, and read in one measurement.
        tiny_rows: opened in 100 shards.
        order: numbers of an epoch's order.
        loaded: samples that a DataLoader over single samples reads in one measurement.
        text_files, text_points: text PLY files, and points of each.
        ply_files, ply_points: binary PLY files, and points of each.
        hdf5_rows: of 33 float32 in an HDF5 file.
        png_copies, small_copies: how often the large and the small PNG files are converted in one measurement.
        planned: PNG pairs that are planned.
        shard, hdf5_shard: raw bytes of a shard, about, where files are converted, and where the HDF5 file is.
        made: megabytes of pictures that are made while they are packed.
        pictures: large ones, of which crops are read.
        picture: rows and columns of such a picture.
    """

    rows: int = 1_000_000
    small_pairs: int = 10_000
    large_pairs: int = 1_500
    small_files: int = 500
    large_files: int = 200
    lmdb: int = 4_000
    clouds: int = 1_000
    splats: int = 200
    cold: int = 8_000
    cold_reads: int = 500
    tiny_rows: int = 10_000_000
    order: int = 10_000_000
    loaded: int = 10_000
    text_files: int = 24
    text_points: int = 5_000
    ply_files: int = 500
    ply_points: int = 10_000
    hdf5_rows: int = 1_200_000
    png_copies: int = 8
    small_copies: int = 8
    planned: int = 10_000
    # As many shards for one worker as for the other. By themselves they would be of 64 MiB at least; smaller ones
    # would measure how processes start and wait for the disk: of HDF5, which takes least a byte, first of all.
    shard: int = 45 * 2**20
    hdf5_shard: int = 90 * 2**20
    made: int = 200
    pictures: int = 6
    picture: tuple[int, int] = (1356, 2040)


QUICK = Sizes()
FULL = Sizes(
    rows=2_000_000,
    small_pairs=20_000,
    large_pairs=5_000,
    small_files=2_000,
    large_files=1_000,
    lmdb=20_000,
    clouds=4_000,
    splats=400,
    cold=40_000,
    cold_reads=5_000,
    loaded=100_000,
    text_files=100,
    text_points=10_000,
    ply_files=2_000,
    hdf5_rows=2_000_000,
    png_copies=5,
    small_copies=10,
    planned=100_000,
    shard=72 * 2**20,
    hdf5_shard=72 * 2**20,
    made=8_000,
    pictures=36,
)
#: For the tests of the benchmark itself.
TINY = Sizes(
    rows=2_000,
    small_pairs=64,
    large_pairs=16,
    small_files=16,
    large_files=8,
    lmdb=32,
    clouds=20,
    splats=8,
    cold=64,
    cold_reads=32,
    tiny_rows=10_000,
    order=10_000,
    loaded=200,
    text_files=2,
    text_points=200,
    ply_files=4,
    ply_points=100,
    hdf5_rows=1_000,
    png_copies=1,
    small_copies=1,
    planned=50,
    made=10,
    pictures=2,
    picture=(800, 500),
)


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
