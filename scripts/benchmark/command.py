"""scripts/bench: measure reading and converting beside what they are compared with.

$ scripts/bench
$ scripts/bench --only clouds --only "pairs 48"
$ scripts/bench --full --json bench.json
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmark import rows as _rows  # noqa: F401  # registers them
from benchmark.inputs.store import FULL, QUICK, Store
from benchmark.measuring import ROWS, Bench, Figures, Rounds, Row, Target, chosen
from packer.codecs import compiled
from packer.errors import UsageError, WriteError

QUICK_ROUNDS = Rounds(least=5, most=15, seconds=1.0)
FULL_ROUNDS = Rounds(least=7, most=25, seconds=10.0)

Results = list[tuple[Row, Figures]]


_NAME, _AGAINST = 54, 36


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as a command; returns its exit status."""
    options = _parser().parse_args(arguments)
    if options.list:
        print("\n".join(row.title for row in ROWS))
        return 0
    with ExitStack() as stack:
        try:
            wanted = _wanted(options)
            bench = _bench(options)
            stack.enter_context(bench.store.alone())
        except (UsageError, WriteError) as error:
            print(f"bench: error: {error}", file=sys.stderr)
            return error.exit_status
        print(surroundings(bench), flush=True)
        print(frames_by(), flush=True)
        start = time.perf_counter()
        results = measure(bench, wanted)
    print(f"\n{summary(results)}\n{time.perf_counter() - start:.0f} s in all")
    if options.json:
        options.json.write_text(json.dumps([as_json(*result) for result in results], indent=2) + "\n")
    is_short = any(not row.target.met(figures.value) for row, figures in results)
    return 1 if options.strict and is_short else 0


def _wanted(options: argparse.Namespace) -> list[Row]:
    """The rows that are to be measured.

    Raises:
        UsageError: there are none, or the results could not be written: better said now than when all is measured.
    """
    wanted = chosen(ROWS, options.only)
    if not wanted:
        raise UsageError(f"no row has {' or '.join(map(repr, options.only))} in its title; --list prints all")
    if options.json and not options.json.absolute().parent.is_dir():
        raise UsageError(f"--json {options.json}: there is no folder {options.json.parent}")
    return wanted


def measure(bench: Bench, wanted: Sequence[Row]) -> Results:
    """Measures rows one after another, and prints each as it is done."""
    print(header(), flush=True)
    results: Results = []
    for row in wanted:
        start = time.perf_counter()
        figures = replace(row.measure(bench), seconds=time.perf_counter() - start)
        gc.collect()  # ends the worker processes of the row's loaders
        results.append((row, figures))
        print(line(row, figures), flush=True)
    return results


def surroundings(bench: Bench) -> str:
    """What the figures depend on: processors and their load, threads, speed of copying, the inputs."""
    sizes, processors, load = bench.sizes, os.cpu_count() or 1, os.getloadavg()
    busy = "\nThe machine is busy: sides that use several threads or processes come out too slow." * (
        load[0] > processors / 2
    )
    return (
        f"{processors} processors, load average {', '.join(f'{value:.1f}' for value in load)}; "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; memcpy {_memcpy_rate() / 1e9:.1f} GB/s\n"
        f"{sizes.rows:,} rows, {sizes.small_pairs:,} pairs of 16/64 px, {sizes.large_pairs:,} of 48/192 px, "
        f"{sizes.clouds:,} clouds, in {bench.store.folder}\n"
        f"Ratios are medians over rounds of the ratio within a round. Every side makes its own random order.{busy}"
    )


def frames_by() -> str:
    """How frames are handled, after loading what a process loads once it has handled them for half a second."""
    if compiled.loading.load() is not None:
        return "Frames are decoded and hashed by loops in machine code, as in any process that does so for long."
    return f"Frames are decoded and hashed one by one: {compiled.loading.failure}"


def _memcpy_rate() -> float:
    """Bytes a second copied within memory that is there already; the limit of limits."""
    source, target = np.ones(2**26, np.uint8), np.ones(2**26, np.uint8)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - start)
    return source.nbytes / min(seconds)


def _bench(options: argparse.Namespace) -> Bench:
    sizes, rounds = (FULL, FULL_ROUNDS) if options.full else (QUICK, QUICK_ROUNDS)
    return Bench(Store(options.data), sizes, rounds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "scripts/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="ROW", action="append", default=[], help="rows whose title holds this text")
    parser.add_argument("--list", action="store_true", help="print the titles of all rows")
    parser.add_argument("--full", action="store_true", help="the sizes that the targets were set for, and more rounds")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results as JSON")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 where a row falls short")
    parser.add_argument(
        "--data",
        metavar="DIR",
        type=Path,
        default=Path(tempfile.gettempdir()) / "packer-bench",
        help="where inputs are kept between runs (default: %(default)s)",
    )
    return parser


def header() -> str:
    """The line above the rows."""
    return f"{'row':{_NAME}} {'against':{_AGAINST}} {'ours/s':>10} {'theirs/s':>10} {'result':>9} {'target':>9}"


def line(row: Row, figures: Figures) -> str:
    """Return one row: rates, result, target, whether it falls short, notes."""
    rates = f"{_rate(figures.ours):>10} {_rate(figures.theirs):>10}"
    result = f"{amount(figures.value, row.target):>9} {bound(row.target):>9}"
    verdict = "" if row.target.met(figures.value) else "  FALLS SHORT"
    notes = f"  ({'; '.join(figures.notes)})" if figures.notes else ""
    return f"{row.name:{_NAME}} {row.against:{_AGAINST}} {rates} {result}{verdict}{notes}"


def summary(results: Sequence[tuple[Row, Figures]]) -> str:
    """How many rows fall short, and which."""
    short = [row for row, figures in results if not row.target.met(figures.value)]
    if not short:
        return "the row meets its target" if len(results) == 1 else f"all {len(results)} rows meet their targets"
    return "\n".join([f"{len(short)} of {len(results)} rows fall short:", *(f"  {row.title}" for row in short)])


def as_json(row: Row, figures: Figures) -> dict[str, Any]:
    """A row for machines."""
    return {
        "row": row.name,
        "against": row.against,
        "value": figures.value,
        "unit": row.target.unit,
        "target": row.target.limit,
        "is_floor": row.target.is_floor,
        "met": row.target.met(figures.value),
        "ours_per_second": figures.ours,
        "theirs_per_second": figures.theirs,
        "rounds": list(figures.rounds),
        "notes": list(figures.notes),
        "seconds": figures.seconds,
    }


def amount(value: float, target: Target) -> str:
    """A value with its unit."""
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f} {target.unit}"


def bound(target: Target) -> str:
    """The target with its direction."""
    return f"{'>=' if target.is_floor else '<='} {target.limit:g}"


def _rate(rate: float | None) -> str:
    if rate is None:
        return ""
    return f"{rate:,.0f}" if rate < 1e7 else f"{rate / 1e6:,.0f} M"
