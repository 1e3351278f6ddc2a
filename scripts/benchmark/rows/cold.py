"""Reading that comes from the disk: random samples of 48 kB from files that are not in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmark.inputs import arrays, packed
from benchmark.measuring import Bench, Figures, Side, disk_bytes, drop, files_of, resident_share, row
from readers import Loader, PackedDataset

BATCH = 32
#: A larger share of the file in memory, after it was dropped, is worth a word.
MOST_RESIDENT = 0.01


class _Cold:
    """Drops files before each measurement, and watches that reading them reads the disk."""

    def __init__(self, files: Sequence[Path], least_bytes: int) -> None:
        self._files = files
        self._least = least_bytes
        self._before = 0
        self.read = 0
        self.warm = False

    def prepare(self) -> None:
        drop(self._files)
        self.warm |= resident_share(self._files) > MOST_RESIDENT
        self._before = disk_bytes()

    def after(self) -> None:
        self.read = disk_bytes() - self._before
        self.warm |= self.read < self._least

    def note(self, name: str) -> str:
        """What one measurement read from the disk, and whether the files were cold before it."""
        return f"{name} read {self.read / 2**20:.0f} MB{', not wholly cold' if self.warm else ''}"


@row("cold, random samples of 48 kB, none, Loader", against="np.memmap fancy indexing, cold", at_least=4)
def cold_against_memmap(bench: Bench) -> Figures:
    """Every measurement opens the files anew, since pages that are mapped cannot be dropped; opening is counted."""
    path, array = packed.cold(bench.store, bench.sizes.cold), arrays.cold(bench.store, bench.sizes.cold)
    chosen = np.random.default_rng(0).permutation(bench.sizes.cold)[: bench.sizes.cold_reads]
    least = len(chosen) * arrays.COLD_BYTES // 2
    ours, theirs = _Cold(files_of(path), least), _Cold([array], least)
    figures = bench.race(
        _side("Loader", ours, lambda: _read_packed(path, chosen)),
        _side("np.memmap", theirs, lambda: _read_mapped(array, chosen)),
    )
    wanted = f"{len(chosen) * arrays.COLD_BYTES / 2**20:.0f} MB wanted"
    return replace(figures, notes=(wanted, ours.note("Loader"), theirs.note("np.memmap")))


def _side(name: str, cold: _Cold, read: Callable[[], int]) -> Side:
    def run() -> int:
        samples = read()
        cold.after()
        return samples

    return Side(name, run, prepare=cold.prepare, may_read=True)


def _read_packed(path: Path, chosen: NDArray[np.int64]) -> int:
    for _ in Loader(PackedDataset(path), BATCH, sampler=chosen):
        pass
    return len(chosen)


def _read_mapped(path: Path, chosen: NDArray[np.int64]) -> int:
    mapped = np.load(path, mmap_mode="r")
    for at in range(0, len(chosen), BATCH):
        mapped[chosen[at : at + BATCH]]
    return len(chosen)
