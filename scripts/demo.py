"""The demo: pack several kinds of files, and read an epoch of each. What it prints fits a screen.

Run by scripts/demo, which installs and makes the inputs first.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmark.loops import data_loader
from benchmark.measuring import Rounds, race
from file_datasets import Rows, cloud_files, pair_files
from torch.utils.data import Dataset

from readers import PackedDataset

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"

ROUNDS = Rounds(least=3, most=15, seconds=1.0)


@dataclass(frozen=True)
class Job:
    """One set of inputs: how it is packed, and how its files would be read without packing."""

    name: str
    sources: tuple[str, ...]
    batch_size: int
    #: None: an epoch of it is compared with nothing.
    files: Callable[[], Dataset[Any]] | None
    #: Samples of many sizes cannot be stacked; a list of them is the least work for the files' side.
    collate: Callable[[list[Any]], Any] | None = None
    options: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()

    @property
    def packed(self) -> str:
        """Return the packed dataset, relative to the repository."""
        return f"data/packed/{self.name}.packed"


HELD_BACK = ("train=0.9", "valid=0.1")
PAIRS = Job(
    "pairs",
    ("lr=data/pairs/lr", "hr=data/pairs/hr"),
    128,
    lambda: pair_files(DATA / "pairs"),
    splits=HELD_BACK,
)
VOLUMES = ("image=data/volumes/imagesTr", "label=data/volumes/labelsTr")
JOBS = (
    PAIRS,
    # The same without the codec that `auto` chooses for photographs: larger, and faster to read.
    replace(PAIRS, name="pairs-lz4", options=("--codec", "lz4"), splits=()),
    Job("pictures", ("lr=data/pictures/lr", "hr=data/pictures/hr"), 16, lambda: pair_files(DATA / "pictures"), list),
    Job("clips", ("lr=data/clips/lr", "hr=data/clips/hr"), 8, None, options=("--samples", "folders")),
    Job("photographs", ("data/photographs",), 16, None, options=("--label", "folder"), splits=HELD_BACK),
    Job("clouds", ("data/clouds",), 16, lambda: cloud_files(DATA / "clouds"), list),
    Job("digits", ("data/digits.h5",), 128, lambda: Rows(DATA / "digits.h5", "images", "labels")),
    Job("demos", ("data/demos.hdf5",), 32, None, options=("--samples", "groups")),
    Job("table", ("data/photographs.csv",), 16, None, options=("--files", "image")),
    Job("parquet", ("data/digits.parquet",), 16, None),
    Job("videos", ("clip=data/videos",), 4, None, options=("--label", "folder")),
    Job("volumes", VOLUMES, 4, None, splits=("train=0.8", "test=0.2")),
)

HEAD = f"{'packer convert ...':55}{'samples':>8}{'MB':>6}{'packed':>7}{'samples/s':>10}{'files':>7}{'times':>6}"
NEXT = """
samples/s: a shuffled epoch by DataLoader. `packer info data/packed/pairs.packed` shows all options.
Now your own: pictures, clouds, videos, arrays, HDF5, tables, tars; lr=FOLDER hr=FOLDER for pairs.
  .venv/bin/packer convert FOLDER mine.packed
  .venv/bin/python -c "from readers import PackedDataset; print(PackedDataset('mine.packed')[0])"
"""


def pack(job: Job) -> PackedDataset:
    """Pack one set of inputs by the command line, as a user would, and open what came of it."""
    splits = [word for split in job.splits for word in ("--split", split)]
    command = ["convert", *job.sources, job.packed, *job.options, *splits, "--overwrite", "--quiet"]
    program = Path(sys.executable).with_name("packer")
    subprocess.run([program, *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return PackedDataset(ROOT / job.packed)


def line(job: Job, packed: PackedDataset) -> str:
    """Return what was packed, its size, and the samples a second of it and of its files, in the columns of HEAD.

    The files are read by the better of 0 and 2 workers.
    """
    manifest, words = packed.manifest, " ".join((*job.sources, *job.options))
    sizes = f"{manifest.samples:>8,}{manifest.raw_bytes / 1e6:>6.1f}{manifest.file_bytes / 1e6:>7.1f}"
    if job.files is None:
        return f"{words:55}{sizes}"
    files = job.files()
    sides = [data_loader(files, job.batch_size, workers, collate_fn=job.collate) for workers in (0, 2)]
    rates = race(ROUNDS, data_loader(packed, job.batch_size), *sides)
    return f"{words:55}{sizes}{rates.ours:>10,.0f}{rates.theirs:>7,.0f}{rates.value:>6.0f}"


def main() -> int:
    """Run the demo; return the exit status of the first command that failed, or 0."""
    print(HEAD)
    try:
        for job in JOBS:
            print(line(job, pack(job)), flush=True)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    print(NEXT, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
