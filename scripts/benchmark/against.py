"""scripts/bench --against COMMIT: measures the code as it is next to that of a commit, in turn, in one run.

Both convert the same files and read what they made, in processes of their own: see `inside.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmark.inputs import (
    COLD_SAMPLES,
    LARGE,
    SMALL,
    TINY_ROWS,
    cold,
    hdf5_rows,
    npy_rows,
    pair_sources,
    ply_clouds,
    png_pairs,
    tiny_rows,
)
from benchmark.measuring import Rounds, Side, WrongContentError, files_of, measured
from benchmark.store import Bench
from packer.errors import UsageError
from packer.warm import drop_files, warm_file

ROOT = Path(__file__).parents[2]
#: The ratio that a row must reach, and how many times as many rounds a second look takes.
LEAST, AGAIN = 0.95, 3
#: Seconds of one measurement of reading, and of reading before the first if frames are decoded: loops are loaded then.
SECONDS, FIRST_SECONDS = 0.25, 2.0
#: Of a quick run: reading is measured in a dozen rounds, converting in three.
ROUNDS = Rounds(least=3, most=15, seconds=6.0)
SHARDS, OPENINGS = 100, 10
COLD_BATCH = 32
#: Bytes of a shard where shards come and go.
STREAM_SHARD = 4 * 2**20


class Version:
    """One version of the project, in two processes of its own: the one that converts holds no torch.

    Args:
        name: in messages and in the table.
        tree: the folder of its code.
    """

    def __init__(self, name: str, tree: Path) -> None:
        self.name, self._tree = name, tree
        self._processes: dict[bool, subprocess.Popen[str]] = {}
        self._packed: dict[str, Path] = {}

    def ask(self, work: str, **arguments: Any) -> int:
        """Return what a function of `inside.py` returns there."""
        converts = work in ("convert", "append")
        if converts not in self._processes:
            self._processes[converts] = self._started()
        return int(_answer(self._processes[converts], work, arguments))

    def packed(self, bench: Bench, sources: Sequence[str], **options: Any) -> Path:
        """Return what this version makes of files, in memory as `packer warm` leaves it."""
        key = json.dumps([sources, options])
        if key not in self._packed:
            self._packed[key] = path = bench.scratch(f"{self.name}-{len(self._packed)}.packed")
            self.ask("convert", sources=sources, out=str(path), **options)
            for file in (path / "shards").iterdir():
                drop_files([file])
                warm_file(file)
        return self._packed[key]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            process.communicate()

    def _started(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).with_name("inside.py"))]
        environment, pipe = {**os.environ, "PYTHONPATH": str(self._tree)}, subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        package = Path(_answer(process, "where", {}))
        if not package.is_relative_to(self._tree.resolve()):
            raise RuntimeError(f"{self.name}: {package} was imported, which is not in {self._tree}")
        return process


def _answer(process: subprocess.Popen[str], work: str, arguments: dict[str, Any]) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([work, arguments]) + "\n")
    process.stdin.flush()
    if not (line := process.stdout.readline()):
        raise RuntimeError(f"{work} failed; its error is above")
    return json.loads(line)


# ---------------------------------------------------------------- the rows


def _rows(bench: Bench) -> list[str]:
    return [str(bench.files(hdf5_rows, suffix=".h5"))]


def _small(bench: Bench) -> list[str]:
    return pair_sources(bench.files(png_pairs, SMALL))


def _large(bench: Bench) -> list[str]:
    return pair_sources(bench.files(png_pairs, LARGE))


def _clouds(bench: Bench) -> list[str]:
    return [str(bench.files(ply_clouds, "binary_little_endian"))]


def _npy(bench: Bench) -> list[str]:
    return [f"x={bench.files(npy_rows)}"]


#: Makes the side of one version.
Measure = Callable[[Bench, Version], Side]


def _reading(
    sources: Callable[[Bench], list[str]], codec: str, batch: int, way: str = "Loader", **options: Any
) -> Measure:
    sums: dict[str, int] = {}

    def side(bench: Bench, version: Version) -> Side:
        epochs = {
            "path": str(version.packed(bench, sources(bench), codec=codec, **options)),
            "batch": batch,
            "way": way,
        }
        first = 0.0 if codec == "none" else FIRST_SECONDS

        def check() -> None:
            sums[version.name] = version.ask("content", **epochs, first=first)
            if len(set(sums.values())) > 1:
                raise WrongContentError(f"the bytes of an epoch sum up to {sums}")

        return Side(version.name, partial(version.ask, "read", **epochs, seconds=SECONDS), check=check)

    return side


def _converting(sources: Callable[[Bench], list[str]], codec: str) -> Measure:
    def side(bench: Bench, version: Version) -> Side:
        out, files = bench.scratch(f"{version.name}.packed"), sources(bench)

        def prepare() -> None:
            bench.scratch(out.name)
            os.sync()

        convert = partial(version.ask, "convert", sources=files, out=str(out), codec=codec)
        read = [file for source in files for file in files_of(Path(source.rpartition("=")[2]))]
        return Side(version.name, convert, read, prepare)

    return side


def _appending(bench: Bench, version: Version) -> Side:
    """Append many pairs to a dataset of one, which has another name."""
    sources, out = _small(bench), bench.scratch(f"{version.name}.packed")
    first = bench.scratch("first")
    for field, _, folder in (source.partition("=") for source in sources):
        (first / field).mkdir(parents=True)
        shutil.copy(files_of(Path(folder))[0], first / field / "first.png")

    def prepare() -> None:
        bench.scratch(out.name)
        version.ask("convert", sources=pair_sources(first), out=str(out), codec="none")
        os.sync()

    read = [file for source in sources for file in files_of(Path(source.rpartition("=")[2]))]
    return Side(version.name, partial(version.ask, "append", sources=sources, out=str(out)), read, prepare)


def _opening(bench: Bench, version: Version) -> Side:
    size = max(4 * min(TINY_ROWS, bench.some(TINY_ROWS)) // SHARDS, 4096)
    path = version.packed(bench, [f"x={bench.folder_of(tiny_rows)}/x.npy"], codec="none", shard_size=size)
    return Side(version.name, lambda: version.ask("open_again", path=str(path), times=OPENINGS))


def _cold(bench: Bench, version: Version) -> Side:
    """Files are read anew each time, since pages that are mapped cannot be dropped; opening is counted."""
    path = version.packed(bench, [f"x={bench.folder_of(cold)}/x.npy"], codec="none")
    numbers = np.random.default_rng(0).permutation(bench.some(COLD_SAMPLES))[: bench.some(500)].tolist()
    read = partial(version.ask, "cold", path=str(path), batch=COLD_BATCH, numbers=numbers)
    return Side(version.name, read, prepare=partial(drop_files, files_of(path)))


#: How people read small batches, besides by a plain Loader; see `inside.py`.
WAYS = (
    "batch_transform",
    "sample_transform",
    "generator",
    "as_numpy",
    "channels_last=False",
    "ds[numbers]",
    "DataLoader",
)
ROWS: dict[str, Measure] = {
    "rows, none, batch 100": _reading(_rows, "none", 100),
    **{f"rows, none, batch 8, {way}": _reading(_rows, "none", 8, way) for way in WAYS},
    "pairs 16/64, none, batch 8": _reading(_small, "none", 8),
    "pairs 16/64, none, batch 128": _reading(_small, "none", 128),
    "pairs 48/192, none, batch 8": _reading(_large, "none", 8),
    "pairs 48/192, none, batch 128": _reading(_large, "none", 128),
    "clouds, none, batch 16": _reading(_clouds, "none", 16),
    "pairs 16/64, lz4, batch 8": _reading(_small, "lz4", 8),
    "pairs 16/64, lz4, batch 128": _reading(_small, "lz4", 128),
    "pairs 48/192, photo+lz4, batch 128": _reading(_large, "photo+lz4", 128),
    "clouds, bitshuffle, batch 16": _reading(_clouds, "bitshuffle", 16),
    "stream, in order, pairs 48/192, batch 8": _reading(_large, "none", 8, "stream", shard_size=STREAM_SHARD),
    "stream, shards, pairs 48/192, batch 8": _reading(_large, "none", 8, "stream of shards", shard_size=STREAM_SHARD),
    "stream, shards, rows, batch 100": _reading(_rows, "none", 100, "stream of shards", shard_size=STREAM_SHARD),
    "convert rows, HDF5, none": _converting(_rows, "none"),
    "convert rows, folder of .npy, none": _converting(_npy, "none"),
    "convert pairs 16/64, PNG, lz4": _converting(_small, "lz4"),
    "append pairs 16/64, PNG, none": _appending,
    "convert clouds, binary PLY, none": _converting(_clouds, "none"),
    "open 100 shards of 10,000,000 rows": _opening,
    "cold, random samples of 48 kB, none": _cold,
}


def compare(bench: Bench, commit: str, only: Sequence[str]) -> int:
    """Measure rows of both versions and print them; return how many are below `LEAST` even at a second look.

    Raises:
        UsageError: there is no such commit, or no such row.
        WrongContentError: the two read different bytes.
    """
    chosen = {
        title: row for title, row in ROWS.items() if not only or any(text.lower() in title.lower() for text in only)
    }
    if not chosen:
        titles = "; ".join(ROWS)
        raise UsageError(
            f"no row has {' or '.join(map(repr, only))} in its title; against a commit there are: {titles}"
        )
    below = 0
    with _versions(bench, commit) as (new, old):
        print(f"{'row':46} {old.name + '/s':>12} {'new/s':>12} {'ratio':>6}", flush=True)
        for title, row in chosen.items():
            now, before = look_twice(bench.rounds, row(bench, new), row(bench, old))
            is_below = now < LEAST * before
            verdict, below = f"  BELOW {LEAST}" if is_below else "", below + is_below
            print(f"{title:46} {before:12,.0f} {now:12,.0f} {now / before:6.2f}{verdict}", flush=True)
    return below


def look_twice(rounds: Rounds, new: Side, old: Side) -> tuple[float, float]:
    """Return the rates of both; if the new one is below `LEAST` of the old, those of a second look with more rounds.

    The rate is the median of the fastest third of the rounds: other work on the machine only slows rounds down, by
    another amount in each.
    """
    rates = _rates(rounds, new, old)
    if rates[0] < LEAST * rates[1]:
        rates = _rates(Rounds(AGAIN * rounds.least, AGAIN * rounds.most, AGAIN * rounds.seconds), new, old)
    return rates


def _rates(rounds: Rounds, new: Side, old: Side) -> tuple[float, float]:
    sides = measured(rounds, [new, old])
    fastest = [sorted(side.rates)[2 * len(side.rates) // 3 :] for side in sides]
    return statistics.median(fastest[0]), statistics.median(fastest[1])


@contextmanager
def _versions(bench: Bench, commit: str) -> Iterator[tuple[Version, Version]]:
    """Give the code as it is and that of a commit, which stays for the next run with what was compiled of it."""
    command = ["git", "rev-parse", "--verify", "--quiet", "--short=12", f"{commit}^{{commit}}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise UsageError(f"--against {commit}: this repository has no such commit")
    sha = done.stdout.strip()
    with ExitStack() as stack:
        versions = Version("new", ROOT), Version(sha[:8], bench.files(code_of, sha))
        for version in versions:
            stack.callback(version.close)
        yield versions


def code_of(path: Path, bench: Bench, sha: str) -> None:
    """Write the code of a commit."""
    path.mkdir()
    archive = subprocess.run(["git", "archive", sha, "packer", "readers"], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "x"], cwd=path, input=archive.stdout, check=True)
