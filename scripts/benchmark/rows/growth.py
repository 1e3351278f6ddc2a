"""What grows with the number of samples, of shards, and of names.

Datasets of up to a billion samples are one shard, linked as often as it takes, so that the page cache holds megabytes.
Each row runs in a process of its own. Memory is what is anonymous: pages of the shards are no part of it.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import torch

from benchmark.measuring import Figures, Row
from benchmark.store import Arrays, Bench
from packer.append import append
from packer.format import ColumnTotals, Manifest, manifest, write_names
from packer.writer import DatasetWriter
from readers import Loader, PackedDataset

#: Rows of one shard, at most.
SHARD_ROWS = 10_000_000
BATCH, BATCHES = 128, 2_300
SIZES = 10**6, 10**7, 10**8, 10**9
#: A hundred million samples in as many shards as `packer convert` makes at most by default.
SHARDS, RAGGED = 4096, 24_415
#: Named rows of one shard, how many there are in all, and how many are appended.
NAMED, NAMED_SIZES, APPENDED = 100_000, (10**5, 10**6, 10**7), 1000

#: Opens a dataset, does some work, and returns what is measured of it.
Work = Callable[[Path], float]
#: Writes a dataset of a size to a path.
Make = Callable[[Path, Bench, int], object]


def one_byte_rows(bench: Bench, rows: int) -> Arrays:
    """Return the rows of a shard."""
    return {"x": np.arange(rows, dtype=np.uint8)}


def ragged_rows(bench: Bench, rows: int) -> Arrays:
    """Return `x` (m,) uint8 of samples of 1, 2, 3, 1, 2, 3, ... bytes."""
    offsets = np.append(0, (np.arange(rows) % 3 + 1).cumsum())
    return {"x": np.zeros(offsets[-1], np.uint8), "offsets": offsets}


def many_rows(path: Path, bench: Bench, rows: int) -> None:
    """Write a dataset of `rows` of one byte."""
    source = bench.packed(one_byte_rows, min(rows, SHARD_ROWS))
    put_manifest(path, linked(path, source, max(rows // SHARD_ROWS, 1)))


def many_shards(path: Path, bench: Bench, shards: int) -> None:
    """Write a dataset of as many shards of ragged samples."""
    put_manifest(path, linked(path, bench.packed(ragged_rows, RAGGED, codec="lz4"), shards))


def named_shard(path: Path, bench: Bench) -> None:
    """Write a dataset of one shard of named rows."""
    with DatasetWriter(path, codec="none") as writer:
        for number in range(NAMED):
            writer.add({"x": np.uint8(0)}, name=f"{number:010}")


def named_rows(path: Path, bench: Bench, rows: int) -> None:
    """Write a dataset of `rows` of one byte, whose table names each of them; its shards repeat their names."""
    whole = linked(path, bench.files(named_shard, suffix=".packed"), rows // NAMED)
    table = path / "names.lmdb"
    write_names(table, [f"{number:010}".encode() for number in range(rows)])
    entry = manifest.file_entry(table.name, table)
    put_manifest(path, msgspec.structs.replace(whole, names=entry))


def put_manifest(path: Path, whole: Manifest) -> None:
    """Make `whole` the manifest of the dataset at a path."""
    (path / manifest.MANIFEST).write_bytes(manifest.encode(whole))


def linked(path: Path, source: Path, times: int) -> Manifest:
    """Link the one shard of a dataset `times` times; return the manifest of that many."""
    one = manifest.read(source)
    (shard,) = one.shards
    (path / "shards").mkdir(parents=True)
    entries = [msgspec.structs.replace(shard, file=f"shards/{number:05}.lmdb") for number in range(times)]
    for entry in entries:
        os.link(source / shard.file, path / entry.file)
    totals = {name: ColumnTotals(raw=c.raw * times, stored=c.stored * times) for name, c in one.columns.items()}
    return msgspec.structs.replace(one, samples=one.samples * times, shards=tuple(entries), columns=totals)


def opening(path: Path) -> float:
    """Return the milliseconds of opening a dataset."""
    start = time.perf_counter()
    PackedDataset(path)
    return 1000 * (time.perf_counter() - start)


def first_sample(path: Path) -> float:
    """Return the milliseconds from an open dataset to its first sample."""
    dataset = PackedDataset(path)
    start = time.perf_counter()
    dataset[0]
    return 1000 * (time.perf_counter() - start)


def megabytes_read(path: Path) -> float:
    """Return the megabytes that are read to open a dataset and to map its shards for the first sample."""
    before = _read()
    PackedDataset(path)[0]
    return _read() - before


def appending(path: Path) -> float:
    """Return the seconds of appending named samples to a copy of a dataset."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        copy, more = Path(folder, "copy"), Path(folder, "more")
        shutil.copytree(path, copy, copy_function=os.link)  # files of a dataset are replaced, but never changed
        with DatasetWriter(more, codec="none") as writer:
            for number in range(APPENDED):
                writer.add({"x": np.uint8(0)}, name=f"more {number}")
        start = time.perf_counter()
        append(copy, more, workers=0)
        return time.perf_counter() - start


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


def _read() -> float:
    """Return the megabytes that this process has read from files so far; pages of maps are not counted."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar:")) / 1e6


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


def grown(bench: Bench, make: Make, size: int, work: Work, times: int) -> Figures:
    """Measure one thing of a dataset of one size, in a process of its own."""
    path, first = bench.files(make, size, suffix=".packed"), bench.packed(one_byte_rows, 1000)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return Figures(pool.apply(_warmed, (work, path, first, times)))


def grows(title: str, make: Make, size: int, work: Work, unit: str, limit: float, times: int) -> None:
    """Add the row of one thing at one size."""
    Row(f"growth: {title}", at_most=limit, unit=unit, make=make, size=size, work=work, times=times)(grown)


#: What is measured, its unit, its limit, and how often: memory that a process took once is not taken again.
WORK: dict[str, tuple[Work, str, float, int]] = {
    "opening": (opening, "ms", 50, 5),
    "first batch, shuffled": (first_batch, "ms", 500, 5),
    "state_dict": (saving, "ms", 50, 5),
    "first batch, resumed in the middle": (resuming, "ms", 500, 5),
    "memory of a rank": (rank_memory, "MB", 100, 1),
    "memory of a worker": (worker_memory, "MB", 100, 1),
}
for title, figures in WORK.items():
    for rows in SIZES:
        grows(f"{title}, {rows:,} rows", many_rows, rows, *figures)
OPENING: dict[str, tuple[Work, str, float, int]] = {
    "opening": (opening, "ms", 50, 9),
    "first sample": (first_sample, "ms", 100, 9),
    "bytes read to open and for the first sample": (megabytes_read, "MB", 1, 1),
}
for title, figures in OPENING.items():
    grows(f"{title}, {SHARDS:,} shards of {SHARDS * RAGGED:,} ragged samples", many_shards, SHARDS, *figures)
for rows in NAMED_SIZES:
    grows(f"appending {APPENDED:,} names to {rows:,}", named_rows, rows, appending, "s", 1, 3)
