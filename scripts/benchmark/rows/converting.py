"""Converting files, against decoding or copying the same files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmark.inputs import files
from benchmark.interpreter import converting, decode, decode_by_kornia, pack
from benchmark.measuring import Bench, Figures, Side, files_of, row

LARGE = 192
#: As the size of shards: what packer chooses.
AUTO = -1
PLANNED = 100_000


def _convert_side(
    bench: Bench, sources: Sequence[str], workers: int, inputs: Path, codec: str = "auto", shard: int | None = None
) -> Side:
    """A conversion from beginning to end, its processes and syncing the output included."""

    out = bench.scratch("out.packed")

    def run() -> int:
        size = None if shard == AUTO else shard or bench.sizes.shard
        options = {"codec": codec, "workers": workers, "shard_size": size}
        return converting(pack, list(sources), str(out), **options)

    def prepare_out() -> None:
        bench.scratch(out.name)
        os.sync()  # what was written before is not to be waited for

    return Side(f"{workers} workers", run, files_of(inputs), prepare_out)


def _pairs(bench: Bench) -> tuple[Path, list[str]]:
    sizes = bench.sizes
    once = files.png_pairs(bench.store, LARGE, sizes.large_pairs, sizes.large_files)
    folder = files.linked_pairs(bench.store, once, sizes.png_copies)
    return folder, [f"lr={folder / 'lr'}", f"hr={folder / 'hr'}"]


@row("PNG 48/192 -> packed, 2 workers", against="Pillow decoding in 2 processes", at_least=0.85)
def png_against_pillow(bench: Bench) -> Figures:
    """The codec is what auto takes; Pillow throws the pixels away."""
    folder, sources = _pairs(bench)
    paths = files_of(folder)

    theirs = Side("Pillow", lambda: converting(decode, paths, 2) // 2, paths)
    return bench.race(_convert_side(bench, sources, 2, folder), theirs)


@row("PNG 48/192 -> packed, 2 workers", against="1 worker", at_least=1.7)
def two_workers(bench: Bench) -> Figures:
    """Shards are packed side by side."""
    folder, sources = _pairs(bench)
    return bench.race(_convert_side(bench, sources, 2, folder), _convert_side(bench, sources, 1, folder))


@row("small PNG pairs 16/64 -> packed, none, in one process", against="kornia-rs, reading and decoding", at_least=0.5)
def small_against_kornia(bench: Bench) -> Figures:
    """What is added to reading and decoding: planning, checking, writing."""
    folder, sources = _small_pairs(bench)
    paths = files_of(folder)

    theirs = Side("kornia-rs", lambda: converting(decode_by_kornia, paths) // 2, paths)
    ours = _convert_side(bench, sources, 0, folder, "none", AUTO)
    return bench.race(ours, theirs)


@row("small PNG pairs 16/64 -> packed, none, 2 workers", against="1 worker", at_least=1.6)
def two_workers_small(bench: Bench) -> Figures:
    """Shards small enough that a small set has some for each worker."""
    folder, sources = _small_pairs(bench)
    two, one = (_convert_side(bench, sources, workers, folder, "none", AUTO) for workers in (2, 1))
    return bench.race(two, one)


def _small_pairs(bench: Bench) -> tuple[Path, list[str]]:
    sizes = bench.sizes
    once = files.png_pairs(bench.store, 64, sizes.small_pairs, sizes.small_files)
    folder = files.linked_pairs(bench.store, once, sizes.small_copies)
    return folder, [f"lr={folder / 'lr'}", f"hr={folder / 'hr'}"]


@row("text PLY -> packed, in one process", against="plyfile reading alone", at_least=8)
def text_ply(bench: Bench) -> Figures:
    """Numbers out of text."""
    folder = files.ply_text(bench.store, bench.sizes.text_files, bench.sizes.text_points)
    paths = files_of(folder)
    ours = _convert_side(bench, [str(folder)], 0, folder)
    return bench.race(ours, Side("plyfile", lambda: _read_ply(paths), paths))


@row("binary PLY -> packed, none, 2 workers", against="cp and sync", at_least=0.5)
def binary_ply(bench: Bench) -> Figures:
    """Little work a byte: as fast as the disk, or nearly."""
    folder = files.ply_binary(bench.store, bench.sizes.ply_files, bench.sizes.ply_points)
    return _against_copying(bench, folder, bench.sizes.ply_files)


@row("uncompressed HDF5 -> packed, none, 2 workers", against="cp and sync", at_least=0.5)
def hdf5(bench: Bench) -> Figures:
    """Rows of 132 bytes and a label."""
    path = files.hdf5_rows(bench.store, bench.sizes.hdf5_rows)
    return _against_copying(bench, path, bench.sizes.hdf5_rows, bench.sizes.hdf5_shard)


def _against_copying(bench: Bench, path: Path, samples: int, shard: int | None = None) -> Figures:
    out = bench.scratch("copy")

    def copy() -> int:
        subprocess.run(["cp", "-r", str(path), str(out)], check=True)
        subprocess.run(["sync"], check=True)
        return samples

    def prepare_out() -> None:
        bench.scratch(out.name)
        os.sync()

    ours = _convert_side(bench, [str(path)], 2, path, "none", shard)
    return bench.race(ours, Side("cp", copy, files_of(path), prepare_out))


@row("packer plan of 100,000 PNG pairs", at_most=20, unit="s")
def plan(bench: Bench) -> Figures:
    """The command, from start to end. Of fewer files, what is above the plan of a few grows in proportion."""
    few, count = bench.sizes.small_files, bench.sizes.planned
    once = files.png_pairs(bench.store, 64, bench.sizes.small_pairs, few)
    folder = files.linked_pairs(bench.store, once, -(-count // few))

    def seconds() -> float:
        least = _plan_seconds(once)
        return least + (_plan_seconds(folder) - least) * (PLANNED - few) / (count - few)

    return bench.repeated(seconds, *([f"from {count:,} and {few:,}"] if count != PLANNED else []))


def _plan_seconds(folder: Path) -> float:
    command = [str(Path(sys.executable).with_name("packer")), "plan", f"lr={folder / 'lr'}", f"hr={folder / 'hr'}"]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def _read_ply(paths: Sequence[Path]) -> int:
    from plyfile import PlyData  # here, because only this row needs it

    for path in paths:
        PlyData.read(str(path))
    return len(paths)
