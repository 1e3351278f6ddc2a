"""What grows with the number of samples, from a million to a billion rows of one byte.

The rows are one shard of up to ten million of them, linked as often as it takes: the page cache holds ten megabytes.
Each row runs in a process of its own. Memory is what is anonymous: pages of the shards are no part of it.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import torch

from benchmark.measuring import Figures, Row
from benchmark.store import Arrays, Bench
from packer.format import ColumnTotals, manifest
from readers import Loader, PackedDataset

#: Rows of one shard, at most.
SHARD_ROWS = 10_000_000
BATCH, BATCHES = 128, 2_300
SIZES = 10**6, 10**7, 10**8, 10**9

#: Opens a dataset, does some work, and returns what is measured of it.
Work = Callable[[Path], float]


def one_byte_rows(bench: Bench, rows: int) -> Arrays:
    """Return the rows of a shard."""
    return {"x": np.arange(rows, dtype=np.uint8)}


def many_rows(path: Path, bench: Bench, rows: int) -> None:
    """Write a dataset of `rows`, whose shards are links to one."""
    source = bench.packed(one_byte_rows, min(rows, SHARD_ROWS))
    held = manifest.read(source)
    (shard,) = held.shards
    times = rows // shard.samples
    (path / "shards").mkdir(parents=True)
    entries = [msgspec.structs.replace(shard, file=f"shards/{number:05}.lmdb") for number in range(times)]
    for entry in entries:
        os.link(source / shard.file, path / entry.file)
    totals = {name: ColumnTotals(raw=c.raw * times, stored=c.stored * times) for name, c in held.columns.items()}
    whole = msgspec.structs.replace(held, samples=rows, shards=tuple(entries), columns=totals)
    manifest.write(path, whole)


def opening(path: Path) -> float:
    """Return the milliseconds of opening a dataset."""
    start = time.perf_counter()
    PackedDataset(path)
    return 1000 * (time.perf_counter() - start)


def first_batch(path: Path) -> float:
    """Return the milliseconds from an open dataset to the first batch of a shuffled epoch."""
    loader = _loader(path)
    start = time.perf_counter()
    next(iter(loader))
    return 1000 * (time.perf_counter() - start)


def saving(path: Path) -> float:
    """Return the milliseconds of `state_dict` after ten batches."""
    loader = _loader(path)
    batches = iter(loader)
    for _ in range(10):
        next(batches)
    start = time.perf_counter()
    loader.state_dict()
    return 1000 * (time.perf_counter() - start)


def resuming(path: Path) -> float:
    """Return the milliseconds from an open dataset to the first batch in the middle of an epoch."""
    loader = _loader(path)
    state = loader.state_dict() | {"done": len(loader.dataset) // 2 // BATCH * BATCH}
    start = time.perf_counter()
    loader.load_state_dict(state)
    next(iter(loader))
    return 1000 * (time.perf_counter() - start)


def rank_memory(path: Path) -> float:
    """Return the megabytes that a rank takes to open a dataset and read batches of a shuffled epoch."""
    before = _anonymous()
    batches = iter(_loader(path))
    for _ in range(BATCHES):
        next(batches)
    return _anonymous() - before  # while the epoch is under way: its order is part of it


def worker_memory(path: Path) -> float:
    """Return the megabytes that a worker of a DataLoader takes to read batches of numbers from all over."""
    dataset, numbers = PackedDataset(path), np.random.default_rng(0)
    before = _anonymous()
    for _ in range(BATCHES):
        dataset.__getitems__(numbers.integers(0, len(dataset), BATCH).tolist())
    return _anonymous() - before


def _loader(path: Path) -> Loader:
    return Loader(PackedDataset(path), BATCH, shuffle=True, seed=0)


def _anonymous() -> float:
    """Return the megabytes of this process that no file backs."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024 / 1e6


def _warmed(work: Work, path: Path, first: Path, times: int) -> float:
    """Return the median of what `work` measures, in a process that has read another dataset before."""
    torch.set_num_threads(1)
    for _ in zip(range(10), _loader(first), strict=False):
        pass
    return statistics.median([work(path) for _ in range(times)])


def grown(bench: Bench, work: Work, rows: int, times: int) -> Figures:
    """Measure one thing at one number of rows, in a process of its own."""
    path, first = bench.files(many_rows, rows, suffix=".packed"), bench.packed(one_byte_rows, 1000)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return Figures(pool.apply(_warmed, (work, path, first, times)))


#: What is measured, its unit, its limit, and how often: memory that a process took once is not taken again.
WORK: dict[str, tuple[Work, str, float, int]] = {
    "opening": (opening, "ms", 50, 5),
    "first batch, shuffled": (first_batch, "ms", 500, 5),
    "state_dict": (saving, "ms", 50, 5),
    "first batch, resumed in the middle": (resuming, "ms", 500, 5),
    "memory of a rank": (rank_memory, "MB", 100, 1),
    "memory of a worker": (worker_memory, "MB", 100, 1),
}
for title, (work, unit, limit, times) in WORK.items():
    for rows in SIZES:
        Row(f"growth: {title}, {rows:,} rows", at_most=limit, unit=unit, work=work, rows=rows, times=times)(grown)
