"""scripts/compare: measure packed datasets next to other systems.

$ scripts/compare --quick
$ scripts/compare --only FFCV --only packer --json compare.json
$ scripts/compare --only photographs         # random resized crops of JPEG files, on their own
$ scripts/compare --only video               # windows of mp4 files and of packed ones, on their own
$ scripts/compare --only stream              # epochs over a bucket larger than the cache, on their own
$ scripts/compare --only hub                 # rows of Parquet and tars of JPEG files, on their own
$ scripts/compare --only training            # random crops of pairs and windows of episodes, on their own
$ scripts/compare --docs                    # writes docs/compare.json, its pictures, and the tables of docs/compare.md
$ scripts/compare --read docs/compare.json --docs      # the same of results that are there
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pictures
import torch
from benchmark.command import frames_by, parser_of
from benchmark.measuring import Rounds, epochs, files_of, measured, warm
from benchmark.store import Bench

from comparing import hub, photographs, stream, training, video
from comparing.inputs import WORKLOADS, Loose, Workload, loose
from comparing.systems import SYSTEMS, Ours, System
from packer.errors import UsageError, WriteError

#: Seconds of one measurement: a system that reads an epoch sooner is done sooner, others are stopped.
SECONDS = 0.5
#: A conversion that has taken so many seconds is not repeated.
LONG = 5.0
#: Packages whose versions are reported.
THEIRS = ("lmdb", "lz4", "ffcv", "tensordict", "datasets", "pyarrow", "zarr", "tensorstore", "webdataset")
DOCS = Path(__file__).parents[2] / "docs"
START, STOP = "<!-- tables of scripts/compare -->", "<!-- end of tables -->"

_THREADS = torch.get_num_threads()

#: As `compare` returns them.
Results = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as a command; return its exit status."""
    parser = parser_of("scripts/compare", __doc__, "system", Path.home() / ".cache/lmdb-packer/compare-data")
    parser.add_argument("--quick", action="store_true", help="a fifth of the samples, fewer rounds: a few minutes")
    parser.add_argument("--read", metavar="FILE", type=Path, help="take results of an earlier run, and measure nothing")
    parser.add_argument("--docs", action="store_true", help="write the pictures and tables of docs/")
    options = parser.parse_args(arguments)
    if options.read:
        results = json.loads(options.read.read_text())
    else:
        rounds = Rounds(3, 3) if options.quick else Rounds(5, 5)
        bench = Bench(options.data, rounds, 0.2 if options.quick else 1.0)
        try:
            with bench.alone():
                if options.only == [photographs.NAME]:
                    print(photographs.compare(bench.folder / "photographs"))
                    return 0
                if options.only == [video.NAME]:
                    print(video.compare(bench.folder / "video"))
                    return 0
                if options.only == [hub.NAME]:
                    print(hub.compare(bench.folder / "hub", bench.rounds.least, bench.scale))
                    return 0
                if options.only == [training.NAME]:
                    print(training.compare(bench, bench.rounds.least))
                    return 0
                if options.only == [stream.NAME]:
                    folder = bench.folder / "stream"
                    folder.mkdir(exist_ok=True)
                    print(stream.compare(folder))
                    return 0
                results = compare(bench, options.only)
        except (UsageError, WriteError) as error:
            print(f"compare: error: {error}", file=sys.stderr)
            return error.exit_status
    print(tables(results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.docs:
        write_docs(results)
    return 0


def compare(bench: Bench, only: Sequence[str] = (), workloads: Sequence[Workload] = WORKLOADS) -> Results:
    """Convert and read every workload by every system whose name holds one of `only`; all if there is none.

    Returns:
        `machine`, `versions`, `workloads` (what samples are), `writing` (seconds and bytes by workload and system),
        `reading` (samples a second by workload, batch size and system), `left_out` (why, by system).

    Raises:
        UsageError: no system has such a name.
    """
    print(frames_by(), file=sys.stderr)
    systems = [system for system in SYSTEMS if not only or any(text in system.name for text in only)]
    if not systems:
        raise UsageError(f"--only: none of the systems is called so; there are {', '.join(s.name for s in SYSTEMS)}")
    results: Results = {
        "machine": {"processors": os.cpu_count(), "load": os.getloadavg(), "threads": _THREADS},
        "versions": {name: _version(name) for name in ("lmdb-packer", "torch", "numpy", *THEIRS)},
        "workloads": {workload.name: workload.what for workload in workloads},
        "writing": {},
        "reading": {},
        "left_out": {},
    }
    for workload in workloads:
        source = loose(bench, workload)
        able = [system for system in systems if system.takes_ragged or not workload.is_ragged]
        written = convert_all(bench, source, able, results["left_out"])
        if not written:  # none of them takes such samples
            continue
        results["writing"][workload.name] = written
        for batch in workload.batches:
            readers = [system for system in able if system.name in written]
            results["reading"][f"{workload.name}, batch {batch}"] = read_all(bench, source, readers, batch)
            gc.collect()  # ends the worker processes of the loaders
    return results


def convert_all(bench: Bench, source: Loose, systems: Sequence[System], left_out: dict[str, str]) -> Results:
    """Convert the loose files by all systems in turn, three times if that is not long; return seconds and bytes."""
    seconds: dict[str, list[float]] = {}
    for _ in range(min(3, bench.rounds.least)):
        for system in systems:
            if sum(seconds.get(system.name, [])) > LONG or system.name in left_out:
                continue
            path = _path(bench, source, system)
            if path == source.path:
                seconds[system.name] = [0.0]
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            warm(files_of(source.path))
            start = time.perf_counter()
            try:
                system.write(source, path)
            except ImportError as error:
                if isinstance(system, Ours):
                    raise
                left_out[system.name] = str(error)
                print(f"compare: {system.name} is left out: {error}", file=sys.stderr)
                continue
            os.sync()
            seconds.setdefault(system.name, []).append(time.perf_counter() - start)
            print(f"compare: {source.workload.name}: {system.name} {seconds[system.name][-1]:.1f} s", file=sys.stderr)
    files = {system.name: files_of(_path(bench, source, system)) for system in systems}
    return {
        name: {"seconds": statistics.median(found), "bytes": sum(file.stat().st_size for file in files[name])}
        for name, found in seconds.items()
    }


def read_all(bench: Bench, source: Loose, systems: Sequence[System], batch: int) -> Results:
    """Read epochs by all systems in turn; return the median of the quickest way of each, and its name."""
    sides, owners = [], []
    for system in systems:
        path = _path(bench, source, system)
        for way, begin in system.epochs(source, path, batch).items():
            side = epochs(f"{system.name}, {way}", begin, len(source), source.expected, files_of(path))
            sides.append(replace(side, run=_capped(begin, batch, len(source)), prepare=_use_all_threads))
            owners.append((system.name, way))
    found: Results = {}
    for (name, way), one in zip(owners, measured(bench.rounds, sides), strict=True):
        if name not in found or one.median > found[name]["samples_a_second"]:
            found[name] = {"samples_a_second": one.median, "way": way, "rounds": one.rates}
    print(f"compare: {source.workload.name}, batch {batch}: {len(sides)} sides read", file=sys.stderr)
    return found


def _use_all_threads() -> None:
    """Let torch use its threads: FFCV sets their number for the whole process."""
    torch.set_num_threads(_THREADS)


def _capped(begin: Callable[[], Iterable[Any]], batch: int, samples: int) -> Callable[[], int]:
    """Return a run that reads an epoch, but stops after SECONDS."""

    def run() -> int:
        stop, done = time.perf_counter() + SECONDS, 0
        for _ in begin():
            done += batch
            if time.perf_counter() > stop:
                break
        return min(done, samples)

    return run


def tables(results: Results) -> str:
    """Return the results as tables of Markdown: samples a second, then seconds to convert and size on disk."""
    reading, writing = results["reading"], results["writing"]
    names = list(dict.fromkeys(name for found in [*reading.values(), *writing.values()] for name in found))

    def table(title: str, columns: dict[str, dict[str, str]]) -> str:
        rows = [[name, *(column.get(name, "") for column in columns.values())] for name in names]
        lines = [[title, *columns], ["---", *["---:"] * len(columns)], *rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    rates = {key: _best_in_bold(found) for key, found in reading.items()}
    kept = {
        key: {name: f"{one['seconds']:.1f} s, {one['bytes'] / 1e6:,.0f} MB" for name, one in found.items()}
        for key, found in writing.items()
    }
    machine, versions = results["machine"], results["versions"]
    return "\n".join(
        [
            table("thousand samples a second", rates),
            "",
            table("converting, and size on disk", kept),
            "",
            *(f"- {name}: {what}." for name, what in results["workloads"].items()),
            f"- {machine['processors']} processors, load average before {machine['load'][0]:.1f}, "
            f"{machine['threads']} threads of torch.",
            f"- {', '.join(f'{name} {one}' for name, one in versions.items() if one)}.",
            *(f"- Left out: {name} ({why})." for name, why in results["left_out"].items()),
        ]
    )


def _best_in_bold(found: Results) -> dict[str, str]:
    best = max(found, key=lambda name: float(found[name]["samples_a_second"]))
    shown = {
        name: f"{one['samples_a_second'] / 1e3:,.{0 if one['samples_a_second'] > 1e4 else 1}f}"
        for name, one in found.items()
    }
    return shown | {best: f"**{shown[best]}**"}


def write_docs(results: Results) -> None:
    """Write results, the tables of compare.md between its two marks, and the pictures of them."""
    (DOCS / "compare.json").write_text(json.dumps(results, indent=1) + "\n")
    page = DOCS / "compare.md"
    before, rest = page.read_text().split(START)
    page.write_text(f"{before}{START}\n\n{tables(results)}\n\n{STOP}{rest.split(STOP)[1]}")
    pictures.main()


def _path(bench: Bench, source: Loose, system: System) -> Path:
    """Return the path at which a system keeps a workload; the loose files stay at their own."""
    if type(system).write is System.write:
        return source.path
    folder = bench.folder / "scratch" / source.workload.name.replace("/", "-").replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    suffix = ".packed" if isinstance(system, Ours) else ".lmdb" if "LMDB" in system.name else ""
    return folder / (system.name.replace(" ", "-").replace(",", "") + suffix)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
