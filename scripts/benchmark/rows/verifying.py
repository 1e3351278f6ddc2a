"""Checking datasets, against reading the same bytes."""

from __future__ import annotations

from pathlib import Path

from benchmark.bench import Bench
from benchmark.inputs import packed
from benchmark.measuring import Side
from benchmark.page_cache import files_of
from benchmark.row import Figures, row
from packer.format.manifest import file_digest
from packer.verify import verify

READING = "reading the same bytes with xxh3"


@row("verify, rows, none", against=READING, at_least=0.7)
def uncompressed(bench: Bench) -> Figures:
    """Frames of 64 KiB."""
    return _against_reading(bench, packed.rows(bench.store, bench.sizes.rows))


@row("verify, pairs 16/64, lz4", against=READING, at_least=0.7)
def compressed(bench: Bench) -> Figures:
    """Two frames a sample, of 0.7 and 11 kB."""
    return _against_reading(bench, packed.pairs(bench.store, 64, bench.sizes.small_pairs, "lz4"))


def _against_reading(bench: Bench, path: Path) -> Figures:
    files = files_of(path)
    nbytes = sum(file.stat().st_size for file in files)

    def check() -> int:
        damages = verify(path).damages
        if damages:
            raise RuntimeError(str(damages[0]))
        return nbytes

    def read() -> int:
        for file in files:
            file_digest(file)
        return nbytes

    return bench.race(Side("verify", check, files), Side("xxh3", read, files))
