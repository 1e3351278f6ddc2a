"""scripts/bench: measure reading and converting next to other ways to do the same.

$ scripts/bench
$ scripts/bench --only clouds --only "pairs 48"
$ scripts/bench --full --json bench.json
$ scripts/bench --against main --only rows
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
from benchmark.against import LEAST, ROUNDS, compare
from benchmark.measuring import ROWS, Figures, Rounds, Row
from benchmark.store import Bench
from packer.codecs import compiled
from packer.errors import UsageError, WriteError

#: Rounds and scale of a run.
QUICK: tuple[Rounds, float] = (Rounds(least=5, most=15, seconds=1.0), 1)
FULL: tuple[Rounds, float] = (Rounds(least=7, most=25, seconds=10.0), 4)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as a command; return its exit status."""
    parser = parser_of("scripts/bench", __doc__, "row", Path(tempfile.gettempdir()) / "packer-bench")
    parser.add_argument("--list", action="store_true", help="print the titles of all rows")
    parser.add_argument("--full", action="store_true", help="four times as many samples, and more rounds")
    parser.add_argument(
        "--against",
        metavar="COMMIT",
        help=f"measure this code next to that of a commit; exit status 1 if a row has less than {LEAST} of its rate",
    )
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(row.title for row in ROWS))
        return 0
    rounds, scale = FULL if options.full else QUICK
    bench = Bench(options.data, ROUNDS if options.against else rounds, scale)
    with ExitStack() as stack:
        try:
            # Wrong usage is better reported now than when all is measured.
            if options.against:
                stack.enter_context(bench.alone())
                return int(compare(bench, options.against, options.only) > 0)
            if not (wanted := chosen(options.only)):
                raise UsageError(f"no row has {' or '.join(map(repr, options.only))} in its title; --list prints all")
            if options.json and not options.json.absolute().parent.is_dir():
                raise UsageError(f"--json {options.json}: there is no folder {options.json.parent}")
            stack.enter_context(bench.alone())
        except (UsageError, WriteError) as error:
            print(f"bench: error: {error}", file=sys.stderr)
            return error.exit_status
        results = measure(bench, wanted)
    if options.json:
        options.json.write_text(json.dumps([as_json(*result) for result in results], indent=2) + "\n")
    return 0


def parser_of(command: str, description: str | None, what: str, data: Path) -> argparse.ArgumentParser:
    """Return a parser with the options of every command that measures.

    Args:
        what: the thing that --only chooses by a part of its name.
        data: the usual folder for inputs.
    """
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(command, description=description, formatter_class=as_written)
    named = f"{what}s whose name holds this text; may be repeated"
    parser.add_argument("--only", metavar=what.upper(), action="append", default=[], help=named)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results as JSON")
    kept = "where inputs are kept between runs (default: %(default)s)"
    parser.add_argument("--data", metavar="DIR", type=Path, default=data, help=kept)
    return parser


def chosen(only: Sequence[str]) -> list[Row]:
    """Return the rows whose title holds one of the texts in `only`; if there is none, all that are quick.

    Those of growth and machines take minutes, and say how seconds and memory grow, not whether a change made something
    slower.
    """
    if not only:
        return [row for row in ROWS if not row.title.startswith(("growth", "machines"))]
    return [row for row in ROWS if any(text.lower() in row.title.lower() for text in only)]


def measure(bench: Bench, wanted: Sequence[Row]) -> list[tuple[Row, Figures]]:
    """Measure rows one after another; print each as it is done, and in the end which of them fall short."""
    print(surroundings(bench), frames_by(), sep="\n", flush=True)
    print(_cells("row", "against", "ours/s", "theirs/s", "result", "target"), flush=True)
    start = time.perf_counter()
    results = []
    for row in wanted:
        figures = row.figures(bench)
        gc.collect()  # ends the worker processes of the row's loaders
        results.append((row, figures))
        print(line(row, figures), flush=True)
    print(f"\n{summary(results)}\n{time.perf_counter() - start:.0f} s in all")
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
    """Return in words how frames are handled, after loading the loops, as a process does after half a second."""
    if compiled.loading.load() is not None:
        return "Frames are decoded and hashed by loops in machine code, as in any process that does so for long."
    return f"Frames are decoded and hashed one by one: {compiled.loading.failure}"


def _memcpy_rate() -> float:
    """Return the bytes a second at which memory that is there already is copied: nothing can be faster."""
    source, target = np.ones(2**26, np.uint8), np.ones(2**26, np.uint8)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - start)
    return source.nbytes / min(seconds)


def line(row: Row, figures: Figures) -> str:
    """Return one row: rates, result, target, whether it falls short, notes."""
    digits = 2 if abs(figures.value) < 10 else 1 if abs(figures.value) < 100 else 0
    result, target = f"{figures.value:.{digits}f} {row.unit}", f"{'>=' if row.is_floor else '<='} {row.limit:.3g}"
    verdict = "" if row.met(figures.value) else "  FALLS SHORT"
    notes = f"  ({'; '.join(figures.notes)})" if figures.notes else ""
    return _cells(row.name, row.against, _rate(figures.ours), _rate(figures.theirs), result, target) + verdict + notes


def _cells(name: str, against: str, ours: str, theirs: str, result: str, target: str) -> str:
    return f"{name:54} {against:36} {ours:>10} {theirs:>10} {result:>9} {target:>9}"


def _rate(rate: float | None) -> str:
    if rate is None:
        return ""
    return f"{rate:,.0f}" if rate < 1e7 else f"{rate / 1e6:,.0f} M"


def summary(results: Sequence[tuple[Row, Figures]]) -> str:
    """Return how many rows fall short, and which."""
    short = [row.title for row, figures in results if not row.met(figures.value)]
    if not short:
        return "the row meets its target" if len(results) == 1 else f"all {len(results)} rows meet their targets"
    return "\n  ".join([f"{len(short)} of {len(results)} rows fall short:", *short])


def as_json(row: Row, figures: Figures) -> dict[str, Any]:
    """Return a row for machines."""
    what = {name: getattr(row, name) for name in ("name", "against", "unit", "limit", "is_floor")}
    return {**what, **asdict(figures), "met": row.met(figures.value)}
