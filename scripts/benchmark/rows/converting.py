"""Converting files, against decoding or copying the same files; checking datasets; what a converter takes of memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmark.inputs import LARGE, PNG_FILES, SMALL, hdf5_rows, pairs, ply, png_pairs, rows
from benchmark.interpreter import check, checking, converting, decode, decode_by_kornia, pack, read, read_ply
from benchmark.measuring import Bench, Figures, Side, files_of, row

#: How often the PNG files are converted in one measurement.
COPIES = 8
# As many shards for one worker as for the other. By themselves they would be of 64 MiB at least; smaller ones would
# measure how processes start and wait for the disk: of HDF5, which takes least a byte, first of all.
SHARD = 45 * 2**20
PLANNED = 100_000
READING = "reading the same bytes with xxh3"
WORKERS = 2
#: Seconds between two looks.
_EVERY = 0.02
_COMMAND = f"""
import sys
from benchmark.interpreter import made_pairs, pack
nbytes, out, codec = int(sys.argv[1]), *sys.argv[2:]
shard_size = min(2**30, nbytes // {WORKERS})
pack(made_pairs(nbytes), out, codec=codec, workers={WORKERS}, shard_size=shard_size, overwrite=True)
"""


def _packing(
    bench: Bench, inputs: Path, workers: int, codec: str = "auto", shard: int | None = SHARD, name: str = ""
) -> Side:
    """Return a conversion from beginning to end, its processes and syncing the output included."""
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
    """Pack with the codec that auto takes; Pillow throws the pixels away."""
    folder = bench.files(png_pairs, LARGE, COPIES)
    paths = files_of(folder)
    return bench.race(_packing(bench, folder, 2), Side("Pillow", lambda: converting(decode, paths, 2) // 2, paths))


@row("PNG 48/192 -> packed, 2 workers", "1 worker", at_least=1.7, size=LARGE, codec="auto", shard=SHARD)
@row("small PNG pairs 16/64 -> packed, none, 2 workers", "1 worker", at_least=1.6, size=SMALL, codec="none", shard=None)
def two_workers(bench: Bench, size: int, codec: str, shard: int | None) -> Figures:
    """Pack shards side by side; None: they are small enough that a small set has some for each worker."""
    folder = bench.files(png_pairs, size, COPIES)
    return bench.race(*(_packing(bench, folder, workers, codec, shard) for workers in (2, 1)))


@row("PNG 48/192 -> packed, photo+lz4, 2 workers", "none", at_least=1 / 1.15)
def photo_against_none(bench: Bench) -> Figures:
    """Measure what encoding adds to decoding."""
    folder = bench.files(png_pairs, LARGE, COPIES)
    return bench.race(*(_packing(bench, folder, 2, codec, name=codec) for codec in ("photo+lz4", "none")))


@row("small PNG pairs 16/64 -> packed, none, in one process", "kornia-rs, reading and decoding", at_least=0.5)
def small_against_kornia(bench: Bench) -> Figures:
    """Measure what is added to reading and decoding: planning, checking, writing."""
    folder = bench.files(png_pairs, SMALL, COPIES)
    paths = files_of(folder)
    theirs = Side("kornia-rs", lambda: converting(decode_by_kornia, paths) // 2, paths)
    return bench.race(_packing(bench, folder, 0, "none", None), theirs)


@row("text PLY -> packed, in one process", "plyfile reading alone", at_least=8)
def text_ply(bench: Bench) -> Figures:
    """Make numbers out of text."""
    folder = bench.files(ply, "ascii", 24, 5_000)
    paths = files_of(folder)
    return bench.race(_packing(bench, folder, 0), Side("plyfile", lambda: converting(read_ply, paths), paths))


@row("binary PLY -> packed, none, 2 workers", "cp and sync", at_least=0.5, is_hdf5=False)
@row("uncompressed HDF5 -> packed, none, 2 workers", "cp and sync", at_least=0.5, is_hdf5=True)
def against_copying(bench: Bench, is_hdf5: bool) -> Figures:
    """Do little work a byte: as fast as the disk, or nearly. HDF5: rows of 132 bytes and a label."""
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
    """Time the command, from start to end. Of fewer files, what is above the plan of a few grows in proportion."""
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


@row("verify, rows, none", READING, at_least=0.7, made=(rows,), codec="none")  # frames of 64 KiB
@row("verify, pairs 16/64, lz4", READING, at_least=0.7, made=(pairs, SMALL), codec="lz4")
def against_reading(bench: Bench, made: tuple[Any, ...], codec: str) -> Figures:
    """Check what is packed raw, and with two frames a sample, of 0.7 and 11 kB."""
    path = bench.packed(*made, codec=codec)
    files = files_of(path)
    ours = Side("verify", lambda: checking(check, path), files)
    return bench.race(ours, Side("xxh3", lambda: checking(read, files), files))


@row("memory of the converter and 2 workers, none", at_most=300 + 250 * WORKERS, unit="MB", codec="none")
@row(
    "memory of the converter and 2 workers, rowdelta+zstd",
    at_most=300 + 250 * WORKERS,
    unit="MB",
    codec="rowdelta+zstd",
)
def converter(bench: Bench, codec: str) -> Figures:
    """Write shards of 1 GiB, or one for each worker of a smaller dataset."""
    out, made = bench.scratch(f"made-{codec}.packed"), bench.some(200)

    def megabytes() -> float:
        return _peak([sys.executable, "-c", _COMMAND, str(made * 10**6), str(out), codec]) / 1e6

    figures = bench.repeated(megabytes, f"{made / 1000:g} GB, made on the fly")
    bench.scratch(out.name)
    return figures


def _peak(command: list[str]) -> int:
    """Return the most bytes that a command and its children held at a time; shared ones are counted for each.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    peak = 0
    with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as process:
        while process.poll() is None:
            peak = max(peak, _held(process.pid))
            time.sleep(_EVERY)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command[:2])
    return peak


def _held(pid: int) -> int:
    """Return bytes of memory (RSS) of a process and of its children; those that end meanwhile hold none."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    own = sum(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    return own + sum(_held(int(child)) for child in children)
