"""Reading that comes from the disk: random samples of 48 kB from files that are not in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmark.inputs import COLD_BYTES, COLD_SAMPLES, cold
from benchmark.measuring import Bench, Figures, Side, disk_bytes, drop, files_of, resident_share, row
from readers import Loader, PackedDataset

BATCH = 32
#: A larger share of the file in memory, after it was dropped, is worth a word.
MOST_RESIDENT = 0.01


class _Cold:
    """A side that drops its files before each measurement, and watches that reading them reads the disk."""

    def __init__(self, name: str, files: Sequence[Path], bytes: int, read: Callable[[], int]) -> None:
        self.name, self._files, self._bytes, self._read = name, files, bytes, read
        self.side = Side(name, self.run, prepare=self.prepare, may_read=True)
        self.warm = False
        self.disk = 0

    def prepare(self) -> None:
        drop(self._files)
        self.warm |= resident_share(self._files) > MOST_RESIDENT

    def run(self) -> int:
        before = disk_bytes()
        samples = self._read()
        self.disk = disk_bytes() - before
        self.warm |= self.disk < self._bytes // 2
        return samples

    def note(self) -> str:
        """What one measurement read from the disk, and whether the files were cold before it."""
        return f"{self.name} read {self.disk / 2**20:.0f} MB{', not wholly cold' if self.warm else ''}"


@row("cold, random samples of 48 kB, none, Loader", "np.memmap fancy indexing, cold", at_least=4)
def cold_against_memmap(bench: Bench) -> Figures:
    """Every measurement opens the files anew, since pages that are mapped cannot be dropped; opening is counted."""
    path, array = bench.packed(cold), bench.folder_of(cold) / "x.npy"
    numbers = np.random.default_rng(0).permutation(bench.some(COLD_SAMPLES))[: bench.some(500)]
    wanted = len(numbers) * COLD_BYTES

    def packed() -> int:
        for _ in Loader(PackedDataset(path), BATCH, sampler=numbers):
            pass
        return len(numbers)

    def mapped() -> int:
        values = np.load(array, mmap_mode="r")
        for at in range(0, len(numbers), BATCH):
            values[numbers[at : at + BATCH]]
        return len(numbers)

    ours, theirs = _Cold("Loader", files_of(path), wanted, packed), _Cold("np.memmap", [array], wanted, mapped)
    figures = bench.race(ours.side, theirs.side)
    return replace(figures, notes=(f"{wanted / 2**20:.0f} MB wanted", ours.note(), theirs.note()))
