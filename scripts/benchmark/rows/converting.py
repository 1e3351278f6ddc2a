"""Converting files, against decoding or copying the same files; checking datasets; what a converter takes of memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from pyarrow import parquet

from benchmark.apart import apart, check, decode, pack, read, read_ply
from benchmark.inputs import (
    LARGE,
    PAIRS,
    PARQUET_ROWS,
    PNG_READ,
    SMALL,
    hdf5_rows,
    jpeg_tar,
    jpegs,
    pair_sources,
    parquet_files,
    parquet_rows,
    ply_clouds,
    png_pairs,
    rows,
)
from benchmark.measuring import Figures, Row, Side, files_of, repeated
from benchmark.store import Bench

# As many shards for one worker as for the other. By themselves they would be of 64 MiB at least; smaller ones would
# measure how processes start and wait for the disk: of HDF5, which takes least a byte, first of all.
SHARD = 45 * 2**20
PLANNED = 100_000
READING = "reading the same bytes with xxh3"
#: Megabytes that a converter may take, and each of its two workers.
MEMORY = 300 + 2 * 250
#: Seconds between two looks.
_EVERY = 0.02
_PACKER = Path(sys.executable).with_name("packer")


def _packing(
    bench: Bench, inputs: Path, workers: int, codec: str = "auto", shard: int | None = SHARD, name: str = ""
) -> Side:
    """Return a conversion from beginning to end, its processes and syncing the output included."""
    sources = pair_sources(inputs) if (inputs / "lr").is_dir() else [str(inputs)]
    return writing(
        bench,
        name or f"{workers} workers",
        lambda out: apart(pack, sources, out, codec=codec, workers=workers, shard_size=shard),
        inputs,
    )


def writing(bench: Bench, name: str, write: Callable[[Path], int], inputs: Path) -> Side:
    """Return a side that writes, each time to where nothing is, once all that was written before is on the disk."""
    out = bench.scratch(f"{name}.packed")

    def prepare() -> None:
        bench.scratch(out.name)
        os.sync()

    return Side(name, lambda: write(out), files_of(inputs), prepare)


@Row("PNG 48/192 -> packed, 2 workers", "Pillow decoding in 2 processes", at_least=0.85)
def png_against_pillow(bench: Bench) -> list[Side]:
    """Pack with the codec that auto takes; Pillow throws the pixels away."""
    folder = bench.files(png_pairs, LARGE)
    paths = files_of(folder)
    return [_packing(bench, folder, 2), Side("Pillow", lambda: apart(decode, paths, 2) // 2, paths)]


@Row("PNG 48/192 -> packed, 2 workers", "1 worker", at_least=1.7)
def two_workers(bench: Bench) -> list[Side]:
    """Pack shards side by side."""
    folder = bench.files(png_pairs, LARGE)
    return [_packing(bench, folder, workers) for workers in (2, 1)]


@Row("text PLY -> packed, in one process", "plyfile reading alone", at_least=2.5)
def text_ply(bench: Bench) -> list[Side]:
    """Make numbers out of text."""
    folder = bench.files(ply_clouds, "ascii", bench.some(12))
    paths = files_of(folder)
    return [_packing(bench, folder, 0), Side("plyfile", lambda: apart(read_ply, paths), paths)]


@Row("binary PLY -> packed, none, 2 workers", "cp and sync", at_least=0.5, is_hdf5=False)
@Row("uncompressed HDF5 -> packed, none, 2 workers", "cp and sync", at_least=0.5, is_hdf5=True)
def against_copying(bench: Bench, is_hdf5: bool) -> list[Side]:
    """Do little work a byte: as fast as the disk, or nearly. HDF5: rows of 132 bytes and a label."""
    path = bench.files(hdf5_rows, suffix=".h5") if is_hdf5 else bench.files(ply_clouds, "binary_little_endian")
    ours = _packing(bench, path, 2, "none", SHARD * (1 + is_hdf5))
    samples = ours.run()

    def copy(out: Path) -> int:
        subprocess.run(["cp", "-r", path, out], check=True)
        os.sync()
        return samples

    return [ours, writing(bench, "cp", copy, path)]


@Row("2,000,000 rows of Parquet -> packed, one process", "pq.read_table, cp and sync", at_least=0.67)
def parquet_against_reading(bench: Bench) -> list[Side]:
    """Take columns apart: a group of rows is decoded once."""
    path = bench.files(parquet_rows, suffix=".parquet")
    ours = _packing(bench, path, 0, "none", None)
    samples = ours.run()

    def copy(out: Path) -> int:
        parquet.read_table(path)
        subprocess.run(["cp", path, out], check=True)
        os.sync()
        return samples

    return [ours, writing(bench, "pyarrow", copy, path)]


@Row("JPEG of a tar -> packed, 2 workers", "the same loose files", at_least=0.95)
def tar_against_files(bench: Bench) -> list[Side]:
    """Keep the files: both are decoded once, to see that they are whole."""
    tar, folder = bench.files(jpeg_tar, suffix=".tar"), bench.files(jpegs)
    return [_packing(bench, tar, 2, name="tar"), _packing(bench, folder, 2, name="files")]


@Row("packer plan of 100,000 PNG pairs", at_most=20, unit="s")
def plan(bench: Bench) -> Figures:
    """Time the command, from start to end. Of fewer files, what is above the plan of a few grows in proportion."""
    few, count = bench.some(PNG_READ[SMALL]), bench.some(PAIRS[SMALL])
    some, every = bench.files(png_pairs, SMALL, few), bench.files(png_pairs, SMALL)

    def seconds() -> float:
        least = _planning(*pair_sources(some))
        return least + (_planning(*pair_sources(every)) - least) * (PLANNED - few) / (count - few)

    return repeated(bench.rounds, seconds, f"from {count:,} and {few:,}")


@Row("packer plan of 1,000 files of Parquet", at_most=3, unit="s")
def plan_parquet(bench: Bench) -> Figures:
    """Time the command, from start to end: it reads footers, and some rows to see how small they get."""
    folder = bench.files(parquet_files)
    return repeated(bench.rounds, lambda: _planning(str(folder)), f"of {PARQUET_ROWS:,} rows each")


def _planning(*sources: str) -> float:
    """Return the seconds that `packer plan` takes."""
    start = time.perf_counter()
    subprocess.run([_PACKER, "plan", *sources], check=True, capture_output=True)
    return time.perf_counter() - start


@Row("verify, rows, none", READING, at_least=0.7)  # frames of 64 KiB
def against_reading(bench: Bench) -> list[Side]:
    """Check rows that are packed raw."""
    path = bench.packed(rows)
    files = files_of(path)
    ours = Side("verify", lambda: apart(check, path), files)
    return [ours, Side("xxh3", lambda: apart(read, files), files)]


@Row("memory of the converter and 2 workers, none", at_most=MEMORY, unit="MB")
def memory(bench: Bench) -> Figures:
    """Write shards of 1 GiB, or one for each worker of a smaller dataset."""
    folder, out = bench.files(png_pairs, LARGE), bench.scratch("out.packed")
    nbytes = bench.some(PAIRS[LARGE]) * 3 * (48**2 + 192**2)
    options = ["--codec", "none", "--workers", "2", "--shard-size", str(min(2**30, nbytes // 2)), "--overwrite"]
    command: list[str | Path] = [_PACKER, "convert", *pair_sources(folder), out, *options]
    return repeated(bench.rounds, lambda: peak_bytes(command) / 1e6, f"{nbytes / 1e9:.1f} GB")


def peak_bytes(command: Sequence[str | Path]) -> int:
    """Return the most bytes that a command and its children held at a time; shared ones are counted for each.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    peak = 0
    with psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            with suppress(psutil.NoSuchProcess):  # it ended meanwhile
                family = [process, *process.children(recursive=True)]
                peak = max(peak, sum(one.memory_info().rss for one in family))
            time.sleep(_EVERY)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return peak
