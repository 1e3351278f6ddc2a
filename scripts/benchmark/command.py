"""scripts/bench: measure reading and converting next to what they are compared with.

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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmark import rows as _rows  # noqa: F401  # registers them
from benchmark.measuring import ROWS, Bench, Figures, Rounds, Row, chosen
from packer.codecs import compiled
from packer.errors import UsageError, WriteError

#: Rounds and scale of a run.
QUICK: tuple[Rounds, float] = (Rounds(least=5, most=15, seconds=1.0), 1)
FULL: tuple[Rounds, float] = (Rounds(least=7, most=25, seconds=10.0), 4)

Results = list[tuple[Row, Figures]]
_NAME, _AGAINST = 54, 36


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as a command; return its exit status."""
    options = _parser().parse_args(arguments)
    if options.list:
        print("\n".join(row.title for row in ROWS))
        return 0
    with ExitStack() as stack:
        try:
            # What is wrong is better said now than when all is measured.
            if not (wanted := chosen(ROWS, options.only)):
                raise UsageError(f"no row has {' or '.join(map(repr, options.only))} in its title; --list prints all")
            if options.json and not options.json.absolute().parent.is_dir():
                raise UsageError(f"--json {options.json}: there is no folder {options.json.parent}")
            bench = Bench(options.data, *(FULL if options.full else QUICK))
            stack.enter_context(bench.alone())
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
    return 0


def measure(bench: Bench, wanted: Sequence[Row]) -> Results:
    """Measure rows one after another, and print each as it is done."""
    print(
        f"{'row':{_NAME}} {'against':{_AGAINST}} {'ours/s':>10} {'theirs/s':>10} {'result':>9} {'target':>9}",
        flush=True,
    )
    results: Results = []
    for row in wanted:
        figures = row.figures(bench)
        gc.collect()  # ends the worker processes of the row's loaders
        results.append((row, figures))
        print(line(row, figures), flush=True)
    return results


def surroundings(bench: Bench) -> str:
    """Return what the figures depend on: processors and their load, threads, speed of copying, the inputs."""
    processors, load = os.cpu_count() or 1, os.getloadavg()
    busy = "\nThe machine is busy: sides that use several threads or processes come out too slow." * (
        load[0] > processors / 2
    )
    return (
        f"{processors} processors, load average {', '.join(f'{value:.1f}' for value in load)}; "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; memcpy {_memcpy_rate() / 1e9:.1f} GB/s\n"
        f"{bench.scale:g} times the samples of a quick run, in {bench.folder}\n"
        f"Ratios are medians over rounds of the ratio within a round. Every side makes its own random order.{busy}"
    )


def frames_by() -> str:
    """Return how frames are handled, after loading what a process loads once it has handled them for half a second."""
    if compiled.loading.load() is not None:
        return "Frames are decoded and hashed by loops in machine code, as in any process that does so for long."
    return f"Frames are decoded and hashed one by one: {compiled.loading.failure}"


def _memcpy_rate() -> float:
    """Return the bytes a second that are copied within memory that is there already; the limit of limits."""
    source, target = np.ones(2**26, np.uint8), np.ones(2**26, np.uint8)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - start)
    return source.nbytes / min(seconds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "scripts/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="ROW", action="append", default=[], help="rows whose title holds this text")
    parser.add_argument("--list", action="store_true", help="print the titles of all rows")
    parser.add_argument("--full", action="store_true", help="four times as many samples, and more rounds")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results as JSON")
    parser.add_argument(
        "--data",
        metavar="DIR",
        type=Path,
        default=Path(tempfile.gettempdir()) / "packer-bench",
        help="where inputs are kept between runs (default: %(default)s)",
    )
    return parser


def line(row: Row, figures: Figures) -> str:
    """Return one row: rates, result, target, whether it falls short, notes."""
    digits = 2 if abs(figures.value) < 10 else 1 if abs(figures.value) < 100 else 0
    result, target = f"{figures.value:.{digits}f} {row.unit}", f"{'>=' if row.is_floor else '<='} {row.limit:.3g}"
    verdict = "" if row.met(figures.value) else "  FALLS SHORT"
    notes = f"  ({'; '.join(figures.notes)})" if figures.notes else ""
    rates = f"{_rate(figures.ours):>10} {_rate(figures.theirs):>10}"
    return f"{row.name:{_NAME}} {row.against:{_AGAINST}} {rates} {result:>9} {target:>9}{verdict}{notes}"


def summary(results: Sequence[tuple[Row, Figures]]) -> str:
    """Return how many rows fall short, and which."""
    short = [row for row, figures in results if not row.met(figures.value)]
    if not short:
        return "the row meets its target" if len(results) == 1 else f"all {len(results)} rows meet their targets"
    return "\n".join([f"{len(short)} of {len(results)} rows fall short:", *(f"  {row.title}" for row in short)])


def as_json(row: Row, figures: Figures) -> dict[str, Any]:
    """Return a row for machines."""
    what = {name: getattr(row, name) for name in ("name", "against", "unit", "limit", "is_floor")}
    return {**what, **asdict(figures), "met": row.met(figures.value)}


def _rate(rate: float | None) -> str:
    if rate is None:
        return ""
    return f"{rate:,.0f}" if rate < 1e7 else f"{rate / 1e6:,.0f} M"
