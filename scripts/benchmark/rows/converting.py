"""Converting files, against decoding or copying the same files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmark.inputs import LARGE, PNG_FILES, SMALL, hdf5_rows, ply, png_pairs
from benchmark.interpreter import converting, decode, decode_by_kornia, pack, read_ply
from benchmark.measuring import Bench, Figures, Side, files_of, row

#: How often the PNG files are converted in one measurement.
COPIES = 8
# As many shards for one worker as for the other. By themselves they would be of 64 MiB at least; smaller ones would
# measure how processes start and wait for the disk: of HDF5, which takes least a byte, first of all.
SHARD = 45 * 2**20
PLANNED = 100_000


def _packing(
    bench: Bench, inputs: Path, workers: int, codec: str = "auto", shard: int | None = SHARD, name: str = ""
) -> Side:
    """A conversion from beginning to end, its processes and syncing the output included."""
    out = bench.scratch("out.packed")
    sources = _fields(inputs) if (inputs / "lr").is_dir() else [str(inputs)]
    options = {"codec": codec, "workers": workers, "shard_size": shard}

    def prepare() -> None:
        bench.scratch(out.name)
        os.sync()  # what was written before is not to be waited for

    return Side(
        name or f"{workers} workers", lambda: converting(pack, sources, str(out), **options), files_of(inputs), prepare
    )


def _fields(pairs: Path) -> list[str]:
    return [f"{field}={pairs / field}" for field in ("lr", "hr")]


@row("PNG 48/192 -> packed, 2 workers", "Pillow decoding in 2 processes", at_least=0.85)
def png_against_pillow(bench: Bench) -> Figures:
    """The codec is what auto takes; Pillow throws the pixels away."""
    folder = bench.files(png_pairs, LARGE, COPIES)
    paths = files_of(folder)
    return bench.race(_packing(bench, folder, 2), Side("Pillow", lambda: converting(decode, paths, 2) // 2, paths))


@row("PNG 48/192 -> packed, 2 workers", "1 worker", at_least=1.7, size=LARGE, codec="auto", shard=SHARD)
@row("small PNG pairs 16/64 -> packed, none, 2 workers", "1 worker", at_least=1.6, size=SMALL, codec="none", shard=None)
def two_workers(bench: Bench, size: int, codec: str, shard: int | None) -> Figures:
    """Shards are packed side by side; None: they are small enough that a small set has some for each worker."""
    folder = bench.files(png_pairs, size, COPIES)
    return bench.race(*(_packing(bench, folder, workers, codec, shard) for workers in (2, 1)))


@row("PNG 48/192 -> packed, photo+lz4, 2 workers", "none", at_least=1 / 1.15)
def photo_against_none(bench: Bench) -> Figures:
    """What encoding adds to decoding."""
    folder = bench.files(png_pairs, LARGE, COPIES)
    return bench.race(*(_packing(bench, folder, 2, codec, name=codec) for codec in ("photo+lz4", "none")))


@row("small PNG pairs 16/64 -> packed, none, in one process", "kornia-rs, reading and decoding", at_least=0.5)
def small_against_kornia(bench: Bench) -> Figures:
    """What is added to reading and decoding: planning, checking, writing."""
    folder = bench.files(png_pairs, SMALL, COPIES)
    paths = files_of(folder)
    theirs = Side("kornia-rs", lambda: converting(decode_by_kornia, paths) // 2, paths)
    return bench.race(_packing(bench, folder, 0, "none", None), theirs)


@row("text PLY -> packed, in one process", "plyfile reading alone", at_least=8)
def text_ply(bench: Bench) -> Figures:
    """Numbers out of text."""
    folder = bench.files(ply, "ascii", 24, 5_000)
    paths = files_of(folder)
    return bench.race(_packing(bench, folder, 0), Side("plyfile", lambda: converting(read_ply, paths), paths))


@row("binary PLY -> packed, none, 2 workers", "cp and sync", at_least=0.5, is_hdf5=False)
@row("uncompressed HDF5 -> packed, none, 2 workers", "cp and sync", at_least=0.5, is_hdf5=True)
def against_copying(bench: Bench, is_hdf5: bool) -> Figures:
    """Little work a byte: as fast as the disk, or nearly. HDF5: rows of 132 bytes and a label."""
    path = bench.files(hdf5_rows, suffix=".h5") if is_hdf5 else bench.files(ply, "binary_little_endian", 500, 10_000)
    out = bench.scratch("copy")
    ours = _packing(bench, path, 2, "none", SHARD * (1 + is_hdf5))

    def copy() -> int:
        subprocess.run(["cp", "-r", str(path), str(out)], check=True)
        subprocess.run(["sync"], check=True)
        return samples

    def prepare() -> None:
        bench.scratch(out.name)
        os.sync()

    samples = ours.run()
    return bench.race(ours, Side("cp", copy, files_of(path), prepare))


@row("packer plan of 100,000 PNG pairs", at_most=20, unit="s")
def plan(bench: Bench) -> Figures:
    """The command, from start to end. Of fewer files, what is above the plan of a few grows in proportion."""
    few, copies = bench.some(PNG_FILES[SMALL]), 20
    once, folder, count = bench.files(png_pairs, SMALL), bench.files(png_pairs, SMALL, copies), few * copies

    def seconds_of(pairs: Path) -> float:
        command = [str(Path(sys.executable).with_name("packer")), "plan", *_fields(pairs)]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - start

    def seconds() -> float:
        least = seconds_of(once)
        return least + (seconds_of(folder) - least) * (PLANNED - few) / (count - few)

    return bench.repeated(seconds, f"from {count:,} and {few:,}")
