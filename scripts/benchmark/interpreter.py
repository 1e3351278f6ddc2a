"""Does work in a process of its own, as the command `packer` does it: without torch and all that a benchmark holds.

Its worker processes are forks of it, which start and end sooner than forks of the benchmark, and checking is faster
next to little than next to all that the benchmark holds.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from kornia_rs.io import read_image_png_u8
from numpy.typing import NDArray
from PIL import Image
from plyfile import PlyData

from packer.codecs import compiled
from packer.convert import convert
from packer.format.manifest import file_digest
from packer.format.schema import FieldSpec
from packer.sources.samples import SampleSource
from packer.verify import verify


def converting(work: Callable[..., int], *arguments: Any, **options: Any) -> int:
    """Return what `work` gives, in the process that converts; it has loaded no loops in machine code."""
    return _process("converting").submit(work, *arguments, **options).result()


def checking(work: Callable[..., int], *arguments: Any) -> int:
    """Return what `work` gives, in the process that checks; it has loaded the loops, as after half a second of it."""
    return _process("checking").submit(work, *arguments).result()


@lru_cache
def _process(what: str) -> ProcessPoolExecutor:
    start = _load_loops if what == "checking" else None
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=start)


def _load_loops() -> None:
    compiled.loading.load()


def pack(sources: Any, out: str, **options: Any) -> int:
    """Convert `sources`; return the number of samples."""
    return convert(sources, out, **options).samples


def check(dataset: Path) -> int:
    """Check a dataset that is good; return the bytes checked."""
    report = verify(dataset, workers=0)
    if report.damages:
        raise RuntimeError(str(report.damages[0]))
    return report.bytes


def decode(pictures: list[Path], processes: int) -> int:
    """Decode pictures by Pillow and throw the pixels away; return how many."""
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        return sum(pool.map(_decode_one, pictures, chunksize=32))


def _decode_one(path: Path) -> int:
    with Image.open(path) as picture:
        picture.load()
    return 1


def decode_by_kornia(pictures: list[Path]) -> int:
    """Read and decode pictures by kornia-rs, one after another; return how many."""
    for path in pictures:
        read_image_png_u8(str(path), "rgb")
    return len(pictures)


def read_ply(files: list[Path]) -> int:
    """Read PLY files by plyfile; return how many."""
    for path in files:
        PlyData.read(str(path))
    return len(files)


def read(files: list[Path]) -> int:
    """Read files and hash them; return their bytes."""
    for file in files:
        file_digest(file)
    return sum(file.stat().st_size for file in files)


class _MadePairs:
    """Pairs of 48/192 px made while they are packed: as many as are wanted, and none on the disk. No two are alike."""

    def __init__(self, nbytes: int) -> None:
        rng = np.random.default_rng(0)
        self.noise = {name: rng.integers(0, 32, (side, side, 3), np.uint8) for name, side in (("lr", 48), ("hr", 192))}
        self.count = nbytes // sum(noise.nbytes for noise in self.noise.values())

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, NDArray[np.uint8]]:
        return {name: np.roll(noise, number) + np.uint8(number % 256) for name, noise in self.noise.items()}


def made_pairs(nbytes: int) -> SampleSource:
    """Return pairs of about `nbytes` bytes."""
    pairs = _MadePairs(nbytes)
    specs = [FieldSpec(name=k, dtype="uint8", kind="image", shape=noise.shape) for k, noise in pairs.noise.items()]
    return SampleSource(pairs, specs)
