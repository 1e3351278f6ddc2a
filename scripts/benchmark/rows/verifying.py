"""Checking datasets, against reading the same bytes."""

from __future__ import annotations

from typing import Any

from benchmark import inputs
from benchmark.interpreter import check, checking, read
from benchmark.measuring import Bench, Figures, Side, files_of, row

READING = "reading the same bytes with xxh3"


@row("verify, rows, none", READING, at_least=0.7, made=(inputs.rows,), codec="none")  # frames of 64 KiB
@row("verify, pairs 16/64, lz4", READING, at_least=0.7, made=(inputs.pairs, inputs.SMALL), codec="lz4")
def against_reading(bench: Bench, made: tuple[Any, ...], codec: str) -> Figures:
    """Compressed: two frames a sample, of 0.7 and 11 kB."""
    path = bench.packed(*made, codec=codec)
    files = files_of(path)
    ours = Side("verify", lambda: checking(check, path), files)
    return bench.race(ours, Side("xxh3", lambda: checking(read, files), files))
