"""Floats that were written with few decimals: what they take, how fast they are read and packed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from benchmark.apart import apart, pack
from benchmark.inputs import bin_scans, measurements, ply_clouds, scans, text_rooms
from benchmark.loops import loader_side
from benchmark.measuring import Figures, Row, Side, checksum, files_of, repeated
from benchmark.rows.converting import writing
from benchmark.store import Arrays, Bench
from packer.codecs import digits_of
from packer.convert import ConvertOptions, convert
from packer.format import manifest as manifests
from packer.sources import SourceOptions
from readers import PackedDataset

RAW = "the raw bytes"
KITTI = SourceOptions(columns="x,y,z,intensity:float32")


def _share(path: Path) -> float:
    columns = manifests.read(path).columns.values()
    return sum(column.stored for column in columns) / sum(column.raw for column in columns)


@Row("lidar scans, 3 decimals, decimal+lz4, stored", RAW, at_most=0.62, make=scans, codec="decimal+lz4")
@Row("table of float64, 2 decimals, decimal+zstd, stored", RAW, at_most=0.2, make=measurements, codec="decimal+zstd")
def stored(bench: Bench, make: Callable[[Bench], Arrays], codec: str) -> Figures:
    """Compare the bytes of all frames with those of the arrays; bitshuffle's are noted."""
    ours, other = (_share(bench.packed(make, codec=name)) for name in (codec, "bitshuffle"))
    return Figures(ours, notes=(f"bitshuffle {other:.2f}",))


@Row("text PLY, 4 decimals, auto, stored", RAW, at_most=0.6)
def stored_text(bench: Bench) -> Figures:
    """Pack files of text with what auto takes."""
    shares, source = {}, bench.files(text_rooms)
    for codec in ("auto", "bitshuffle"):
        convert([source], bench.scratch(f"{codec}.packed"), ConvertOptions(codec=codec, workers=0))
        shares[codec] = _share(bench.folder / "scratch" / f"{codec}.packed")
    return Figures(shares["auto"], notes=(f"bitshuffle {shares['bitshuffle']:.2f}",))


@Row("lidar scans, 3 decimals, decimal+lz4, batch 4, Loader", "bitshuffle", at_least=0.6)
def reading(bench: Bench) -> list[Side]:
    """Read scans of 58,000 points."""
    expected = checksum(bench.arrays(scans)["points"])
    codecs = "decimal+lz4", "bitshuffle"
    return [loader_side(PackedDataset(bench.packed(scans, codec=name)), 4, expected, name) for name in codecs]


@Row("lidar scans, .bin -> packed, decimal+lz4, in one process", "bitshuffle", at_least=1 / 1.15)
def packing(bench: Bench) -> list[Side]:
    """Pack files as KITTI has them: no format costs less to read."""
    source = bench.files(bin_scans)

    def side(codec: str) -> Side:
        options = {"codec": codec, "workers": 0, "source": KITTI}
        return writing(bench, codec, lambda out: apart(pack, [str(source)], out, **options), source)

    return [side("decimal+lz4"), side("bitshuffle")]


@Row("looking for decimals where there are none", "packing binary PLY with auto", at_most=0.05)
def looking(bench: Bench) -> Figures:
    """Compare the time that auto spends on it with that of the whole conversion, in one process."""
    source, count = bench.files(ply_clouds, "binary_little_endian", bench.some(100)), 0

    def share() -> float:
        nonlocal count
        count += 1
        start = time.perf_counter()
        out = bench.scratch(f"looking{count}.packed")
        convert([source], out, ConvertOptions(workers=0))
        packed = time.perf_counter() - start
        samples = [sample["xyz"].numpy() for sample in PackedDataset(out)]
        start = time.perf_counter()
        digits_of(samples)
        return (time.perf_counter() - start) / packed

    return repeated(bench.rounds, share, f"{len(files_of(source))} clouds")
