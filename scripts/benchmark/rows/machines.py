"""What many machines cost, measured on one: clusters, parts of an array of jobs, the plan of a million files, resuming.

Dask and Ray are measured where they are installed; a row of one that is not says so, and falls short.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmark.apart import apart, cpu_seconds, pack
from benchmark.inputs import LARGE, SMALL, pair_sources, pairs, png_pairs
from benchmark.measuring import Figures, Row, race
from benchmark.rows.converting import peak_bytes, writing
from benchmark.store import Bench
from packer.convert import convert, convert_part
from packer.packing import executor_at
from readers import Loader, PackedDataset

#: Pairs of images that a cluster packs, and that parts pack, in so many shards and so many times.
CLUSTER_PAIRS, PART_PAIRS, PART_SHARDS, PART_ROUNDS = 2_000, 2_000, 16, 2
PARTS = 1, 2, 4, 8
PLANNED_PAIRS = 1_000_000
#: A file has no more links than this; each is a file of its own to whoever lists and opens it.
_LINKS = 60_000
#: Bytes of memory that a plan may take for each file.
_FILE_BYTES = 300
_SPAWN = multiprocessing.get_context("spawn")


def _shard_size(pairs: int, size: int, shards: int) -> int:
    """Return the raw bytes of a shard, if so many pairs are to fill so many shards."""
    return max(4096, pairs * 3 * (size**2 + (size // 4) ** 2) // shards)


@contextmanager
def _dask() -> Iterator[Executor]:
    distributed: Any = importlib.import_module("distributed")
    workers = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(**workers) as cluster, executor_at(cluster.scheduler_address) as executor:
        yield executor


@contextmanager
def _ray() -> Iterator[Executor]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray: Any = importlib.import_module("ray.cluster_utils")
    cluster = ray.Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        with executor_at("ray") as executor:
            yield executor
    finally:
        del os.environ["RAY_ADDRESS"]
        cluster.shutdown()


#: Cluster of two workers on this machine, by the package.
CLUSTERS: dict[str, Callable[[], AbstractContextManager[Executor]]] = {"distributed": _dask, "ray": _ray}


def on_cluster(bench: Bench, package: str, shards: int) -> Figures:
    """Pack the same shards by a cluster and by workers of our own, two of each; the cluster is there already."""
    if importlib.util.find_spec(package) is None:
        return Figures(math.nan, notes=(f"{package} is not installed",))
    pairs = bench.some(CLUSTER_PAIRS)
    folder = bench.files(png_pairs, SMALL, pairs)
    sources = pair_sources(folder)
    size = _shard_size(pairs, SMALL, shards)
    ours = writing(bench, "own", lambda out: apart(pack, sources, out, codec="lz4", shard_size=size, workers=2), folder)
    with CLUSTERS[package]() as executor:
        theirs = writing(
            bench,
            package,
            lambda out: convert(sources, out, codec="lz4", shard_size=size, executor=executor).samples,
            folder,
        )
        return race(bench.rounds, ours, theirs)


for package, title in (("distributed", "Dask"), ("ray", "Ray")):
    for shards in (100, 2_000):
        Row(
            f"machines: time of {title} for {shards:,} shards, 2 processes",
            "2 workers of our own",
            at_most=1.3,
            package=package,
            shards=shards,
        )(on_cluster)


def _part_seconds(bench: Bench, pairs: int, calls: Sequence[str | None]) -> float:
    """Return the processor time of calls on so many pairs, each in a process of its own that has loaded all modules.

    Other work on the machine only adds to it, so it is the least of some.
    """
    sources = pair_sources(bench.files(linked_pairs, pairs, LARGE))
    few = pair_sources(bench.files(linked_pairs, PART_SHARDS, LARGE))
    size = _shard_size(pairs, LARGE, PART_SHARDS)

    def seconds() -> float:
        out, total = bench.scratch("parts.packed"), 0.0
        for part in calls:
            with ProcessPoolExecutor(1, _SPAWN) as process:
                process.submit(cpu_seconds, few, bench.scratch("few.packed"), None).result()  # loads all modules
                total += process.submit(cpu_seconds, sources, out, part, size).result()
        return total

    return min(seconds() for _ in range(PART_ROUNDS))


@lru_cache
def _seconds_alone(bench: Bench, pairs: int) -> float:
    """Return the processor time of one process."""
    return _part_seconds(bench, pairs, [None])


def in_parts(bench: Bench, parts: int) -> Figures:
    """Compare the processor time a sample of all parts, and of the call that publishes, with that of one process.

    A note says what does not depend on the number of samples. Starting Python, some 0.35 s a part, is not in it.
    """
    few, many = PART_SHARDS, PART_SHARDS + bench.some(PART_PAIRS)
    calls = [*(f"{n}/{parts}" for n in range(1, parts + 1)), None]
    fixed, fixed_alone = _part_seconds(bench, few, calls), _seconds_alone(bench, few)
    ratio = (_part_seconds(bench, many, calls) - fixed) / (_seconds_alone(bench, many) - fixed_alone)
    each = (fixed - fixed_alone) / len(calls)
    return Figures(
        ratio, notes=(f"{1e6 * _seconds_alone(bench, many) / many:.0f} us alone, and {1e3 * each:.0f} ms a call",)
    )


for parts in PARTS:
    Row(f"machines: processor time a sample, {parts} parts", "one process", at_most=1.05, parts=parts)(in_parts)


def linked_pairs(path: Path, bench: Bench, pairs: int, size: int = SMALL) -> None:
    """Write `lr`/*.png and `hr`/*.png for so many pairs, as links to a few files."""
    first = bench.files(png_pairs, size, 1)
    for field in ("lr", "hr"):
        folder = path / field
        folder.mkdir(parents=True)
        for number in range(pairs):
            file = folder / f"{number:07d}.png"
            if number % _LINKS == 0:
                shutil.copy(first / field / "000000.png", file)
                base = file
            else:
                os.link(base, file)


@lru_cache(maxsize=1)
def _planned(folder: Path) -> tuple[float, int]:
    """Return seconds and peak bytes of `packer plan`."""
    start = time.perf_counter()
    nbytes = peak_bytes([sys.executable, "-m", "packer.cli", "plan", *pair_sources(folder)])
    return time.perf_counter() - start, nbytes


@Row(f"machines: plan of {PLANNED_PAIRS:,} PNG pairs", at_most=200, unit="s", is_memory=False)
@Row(
    f"machines: memory of that plan, {_FILE_BYTES} bytes a file",
    at_most=2 * PLANNED_PAIRS * _FILE_BYTES / 1e6,
    unit="MB",
    is_memory=True,
)
def plan(bench: Bench, is_memory: bool) -> Figures:
    """Run the command once, from start to end; memory is that of all its processes."""
    seconds, nbytes = _planned(bench.files(linked_pairs, min(PLANNED_PAIRS, bench.some(PLANNED_PAIRS))))
    return Figures(nbytes / 1e6 if is_memory else seconds)


@Row("machines: the rest of a conversion that stopped at 90%", "the whole conversion", at_most=0.5)
def resuming(bench: Bench) -> Figures:
    """Go on where 90 of 100 shards are there; what remains is the plan, a tenth of the shards, and publishing."""
    pairs = bench.some(CLUSTER_PAIRS)
    folder, stopped = bench.files(png_pairs, SMALL, pairs), bench.scratch("stopped.packed")
    sources = pair_sources(folder)
    options: dict[str, Any] = {"codec": "none", "shard_size": _shard_size(pairs, SMALL, 100)}
    for part in range(1, 10):
        convert_part(sources, stopped, f"{part}/10", **options)
    whole, rest = (
        writing(bench, name, lambda out: apart(pack, sources, out, workers=2, **options), folder)
        for name in ("whole", "rest")
    )

    def prepare() -> None:
        rest.prepare()
        shutil.copytree(stopped, bench.scratch("rest.packed"))
        os.sync()

    figures = race(bench.rounds, whole, replace(rest, prepare=prepare))
    return replace(figures, notes=(*figures.notes, f"{pairs / (figures.theirs or 1):.2f} s"))


#: Seconds of reading before the epoch begins, and of the epoch.
_FIRST_SECONDS, _EPOCH_SECONDS = 2.0, 30.0


def _read_new(path: Path, cache: str | None, seconds: float) -> tuple[float, float]:
    """Read epochs for so many seconds after the first two; return samples a second, and the longest wait of all."""
    if cache is not None:
        os.environ["NUMBA_CACHE_DIR"] = cache
    loader = Loader(PackedDataset(path), 128, shuffle=True)
    start = last = time.perf_counter()
    samples, longest = 0, 0.0
    while True:
        for _ in loader:
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
            samples += 128 * (now - start > _FIRST_SECONDS)
            if now - start > _FIRST_SECONDS + seconds:
                return samples / (now - start - _FIRST_SECONDS), longest


@Row(f"machines: an epoch of {_EPOCH_SECONDS:.0f} s, lz4, two seconds after the first read", "compiled", at_least=0.8)
def new_environment(bench: Bench) -> Figures:
    """Read where the loops are not compiled yet, and where they are, in processes of their own; once each."""
    path, found = bench.packed(pairs, SMALL, codec="lz4"), []
    with tempfile.TemporaryDirectory() as cache:
        for folder, seconds in ((cache, _EPOCH_SECONDS), (None, _EPOCH_SECONDS / 3)):
            with ProcessPoolExecutor(1, _SPAWN) as process:
                found.append(process.submit(_read_new, path, folder, seconds).result())
    (ours, longest), (theirs, _) = found
    return Figures(ours / theirs, ours=ours, theirs=theirs, notes=(f"the longest wait is {1e3 * longest:.0f} ms",))
