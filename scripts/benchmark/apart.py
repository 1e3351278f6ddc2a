"""Does work in a process of its own, as the command `packer` does it: without torch and the arrays of a benchmark.

Its worker processes are forks of it, which start and end sooner than forks of the benchmark. Checking is faster, too,
in a process that holds little. So this module imports nothing large.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image
from plyfile import PlyData

from packer.codecs import compiled
from packer.convert import convert, convert_part
from packer.format import file_digest
from packer.verify import verify


def apart(work: Callable[..., int], *arguments: Any, **options: Any) -> int:
    """Return the result of `work` in such a process, which is kept for the next call: one for each kind of work.

    A process that has converted would check at half the speed.
    """
    return _process(work).submit(work, *arguments, **options).result()


@lru_cache
def _process(_: Callable[..., int]) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def pack(sources: list[str], out: Path, **options: Any) -> int:
    """Convert files; return the number of samples."""
    return convert(sources, out, **options).samples


def cpu_seconds(sources: list[str], out: Path, part: str | None, shard_size: int | None = None) -> float:
    """Pack files, or a part of them, in this process alone; return the processor time that it took."""
    start = time.process_time()
    if part is None:
        convert(sources, out, workers=0, shard_size=shard_size)
    else:
        convert_part(sources, out, part, workers=0, shard_size=shard_size)
    return time.process_time() - start


def check(dataset: Path) -> int:
    """Check a dataset that is good, by loops in machine code as after half a second of it; return the bytes checked."""
    compiled.loading.load()
    report = verify(dataset, workers=0)
    if report.damages:
        raise RuntimeError(str(report.damages[0]))
    return report.bytes


def decode(pictures: list[Path], processes: int) -> int:
    """Decode pictures by Pillow and throw the pixels away; return how many."""
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        return len(pool.map(_decode_one, pictures, chunksize=32))


def _decode_one(path: Path) -> None:
    with Image.open(path) as picture:
        picture.load()


def read_ply(files: list[Path]) -> int:
    """Read PLY files by plyfile; return how many."""
    for path in files:
        PlyData.read(str(path))
    return len(files)


def read(files: list[Path]) -> int:
    """Read files and hash them; return their bytes."""
    for path in files:
        file_digest(path)
    return sum(path.stat().st_size for path in files)
