"""Checking datasets, against reading the same bytes."""

from __future__ import annotations

from pathlib import Path

from benchmark.inputs import packed
from benchmark.interpreter import check, checking, read
from benchmark.measuring import Bench, Figures, Side, files_of, row

READING = "reading the same bytes with xxh3"


@row("verify, rows, none", against=READING, at_least=0.7)
def uncompressed(bench: Bench) -> Figures:
    """Frames of 64 KiB."""
    return _against_reading(bench, packed.rows(bench.store, bench.sizes.rows), workers=0)


@row("verify, pairs 16/64, lz4", against=READING, at_least=0.7)
def compressed(bench: Bench) -> Figures:
    """Two frames a sample, of 0.7 and 11 kB."""
    return _against_reading(bench, packed.pairs(bench.store, 64, bench.sizes.small_pairs, "lz4"), workers=0)


def _against_reading(bench: Bench, path: Path, workers: int) -> Figures:
    files = files_of(path)

    ours = Side("verify", lambda: checking(check, path, workers), files)
    return bench.race(ours, Side("xxh3", lambda: checking(read, files), files))
