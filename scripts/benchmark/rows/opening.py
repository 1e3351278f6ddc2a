"""Reading from the disk, and ten million samples.

Cold are random samples of 48 kB from files that are not in memory. Of ten million rows: an epoch's order, opening a
hundred shards, and what a worker process owns after an epoch.
"""

from __future__ import annotations

import multiprocessing
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from file_datasets import InMemory
from numpy.typing import NDArray

from benchmark.inputs import COLD_SAMPLES, cold, tiny_rows
from benchmark.measuring import Figures, Row, Side, files_of, repeated, warm
from benchmark.store import Bench
from packer.warm import drop_files
from readers import Loader, PackedDataset

COLD_BATCH = 32
SHARDS = 100
BATCH = 1_000


@Row("cold, random samples of 48 kB, none, Loader", "np.memmap fancy indexing, cold", at_least=4)
def cold_against_memmap(bench: Bench) -> list[Side]:
    """Open the files anew each time, since pages that are mapped cannot be dropped; opening is counted."""
    path, array = bench.packed(cold), bench.folder_of(cold) / "x.npy"
    numbers = np.random.default_rng(0).permutation(bench.some(COLD_SAMPLES))[: bench.some(500)]

    def packed() -> int:
        for _ in Loader(PackedDataset(path), COLD_BATCH, sampler=numbers):
            pass
        return len(numbers)

    def mapped() -> int:
        values = np.load(array, mmap_mode="r")
        for at in range(0, len(numbers), COLD_BATCH):
            values[numbers[at : at + COLD_BATCH]]
        return len(numbers)

    ours = Side("Loader", packed, prepare=partial(drop_files, files_of(path)))
    return [ours, Side("np.memmap", mapped, prepare=partial(drop_files, [array]))]


@Row("block shuffle, to an epoch's first batch", against="rng.permutation", at_least=1)
def order(bench: Bench) -> list[Side]:
    """Make the order of an epoch, and read the first batch of it."""
    loader = Loader(PackedDataset(bench.packed(tiny_rows, shards=SHARDS)), BATCH, shuffle="block")
    rng, n = np.random.default_rng(0), len(loader.dataset)
    ours = Side("Loader", lambda: n * bool(next(iter(loader))))
    return [ours, Side("permutation", lambda: len(rng.permutation(n)))]


@Row("opening 10,000,000 rows in 100 shards, to the first batch", at_most=100, unit="ms")
def opening(bench: Bench) -> Figures:
    """Time opening, the first batch in order, and one of rows from all over the shards."""
    path = bench.packed(tiny_rows, shards=SHARDS)
    files = files_of(path)
    spread = np.random.default_rng(0).integers(0, len(PackedDataset(path)), 100)

    def milliseconds(shuffle: bool | str = False) -> float:
        warm(files)
        start = time.perf_counter()
        dataset = PackedDataset(path)
        next(iter(Loader(dataset, 100, shuffle=shuffle)))
        dataset[spread]
        return 1000 * (time.perf_counter() - start)

    shuffled = f"with a full shuffle, whose order comes first: {milliseconds(True):.0f} ms"
    return repeated(bench.rounds, milliseconds, shuffled)


@Row("memory a worker owns after an epoch of those", against="one that reads in-RAM tensors", at_most=20, unit="MB")
def owned(bench: Bench) -> Figures:
    """Return private dirty memory of a forked process, above that of one over tensors."""
    dataset = PackedDataset(bench.packed(tiny_rows, shards=SHARDS))
    tensors = InMemory(**{k: torch.from_numpy(v) for k, v in bench.arrays(tiny_rows).items()})
    numbers = np.random.default_rng(0).permutation(len(dataset))

    def megabytes(read: Any) -> float:
        context = multiprocessing.get_context("fork")
        end, begin = context.Pipe(duplex=False)
        child = context.Process(target=lambda: begin.send(_private_after_epoch(read, numbers)))
        child.start()
        begin.close()  # so that a child that dies is an EOFError
        measured: float = end.recv()
        child.join()
        return measured

    ours, theirs = megabytes(dataset), megabytes(tensors)
    return Figures(ours - theirs, notes=(f"{ours:.0f} MB and {theirs:.0f} MB",))


def _private_after_epoch(dataset: Any, order: NDArray[np.int64]) -> float:
    """Ask for an epoch's batches as a DataLoader worker does; return the megabytes that this process has written to."""
    torch.set_num_threads(1)  # torch's threads do not survive a fork
    for at in range(0, len(order), BATCH):
        dataset.__getitems__(order[at : at + BATCH].tolist())
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:")) * 1024 / 1e6
