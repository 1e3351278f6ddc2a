"""What lies on the Hub: rows of Parquet and tars of JPEG files, packed and read next to their own readers, in turn.

    $ scripts/compare --only hub

Rows are embeddings of 32 float32 with a label, two columns; batches of 100 in random order. Pictures are JPEG files of
192 px with a class, 1,000 to a tar; batches of 64, decoded to uint8.
"""

from __future__ import annotations

import io
import math
import os
import shutil
import statistics
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import torch
from benchmark.apart import apart, pack
from inputs.pictures import photographs
from numpy.typing import NDArray
from PIL import Image
from pyarrow import parquet
from torch.utils.data import DataLoader, Dataset

from comparing.training import Rates, measure
from readers import Loader, PackedDataset

NAME = "hub"
ROWS, VALUES, ROW_BATCH = 1_000_000, 32, 100
PICTURES, TARS, SIZE, PICTURE_BATCH = 5_000, 5, 192, 64
WORKERS = 2
HAS_DATASETS = find_spec("datasets") is not None

Ways = dict[str, Callable[[], Iterable[Any]]]
Writers = dict[str, Callable[[Path], object]]


def compare(folder: Path, rounds: int, scale: float = 1.0) -> str:
    """Write and read both by all ways, in turn; return a table of each."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = [_rows(folder, int(ROWS * scale)), _pictures(folder, int(PICTURES * scale))]
    tables = []
    for title, writers, ways in made:
        written = _written(writers, folder / "out", rounds)
        lines = [f"| {title}: packing | seconds | of processor time |", "| --- | ---: | ---: |"]
        for name, one in written.items():
            lines.append(f"| {name} | {statistics.median(one.wall):.2f} | {statistics.median(one.processor):.2f} |")
        rates = measure(ways(), rounds)
        lines += ["", f"| {title}: epochs | samples a second | a second of processor time |", "| --- | ---: | ---: |"]
        for name, one in rates.items():
            lines.append(f"| {name} | {statistics.median(one.wall):,.0f} | {statistics.median(one.processor):,.0f} |")
        tables.append("\n".join(lines))
    return "\n\n".join([*tables, f"- {os.cpu_count()} processors, load average {os.getloadavg()[0]:.1f}."])


def _written(writers: Writers, out: Path, rounds: int) -> dict[str, Rates]:
    """Return the seconds of each way of writing, to the disk, and of processor time; the first round is not counted."""
    seconds: dict[str, Rates] = {name: Rates([], []) for name in writers}
    for number in range(rounds + 1):
        for name, write in writers.items():
            shutil.rmtree(out, ignore_errors=True)
            os.sync()
            began, used = time.perf_counter(), _processor_seconds()
            write(out)
            os.sync()
            if number:
                seconds[name].wall.append(time.perf_counter() - began)
                seconds[name].processor.append(_processor_seconds() - used)
    return seconds


def _processor_seconds() -> float:
    """Return the processor time of this process and of all that it started, those that have ended included."""
    this = psutil.Process()
    return sum(sum(one.cpu_times()[:4]) for one in (this, *this.children(recursive=True)))


def _copy(files: Sequence[Path], out: Path) -> None:
    out.mkdir()
    subprocess.run(["cp", *files, out], check=True)


def _shuffled(count: int, size: int) -> Iterator[NDArray[np.int64]]:
    order = np.random.default_rng().permutation(count)
    return (order[first : first + size] for first in range(0, count, size))


# ---------------------------------------------------------------- rows of Parquet


def _rows(folder: Path, count: int) -> tuple[str, Writers, Callable[[], Ways]]:
    """Make the rows; return what they are, the ways to write them, and what returns the ways to read them."""
    path, rng = folder / "rows.parquet", np.random.default_rng(0)
    x = pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=count * VALUES).astype("f4")), VALUES)
    parquet.write_table(pa.table({"x": x, "y": rng.integers(0, 1_000, count)}), path)

    def read_and_copy(out: Path) -> None:
        parquet.read_table(path)
        _copy([path], out)

    def ways() -> Ways:
        packed, table = folder / "rows.packed", parquet.read_table(path).combine_chunks()
        pack([str(path)], packed, codec="none", workers=0)

        def take() -> Iterator[dict[str, torch.Tensor]]:
            for numbers in _shuffled(count, ROW_BATCH):
                some = table.take(numbers).combine_chunks()
                values = some["x"].chunk(0).flatten().to_numpy(zero_copy_only=False).reshape(-1, VALUES)
                yield {"x": torch.from_numpy(values.copy()), "y": torch.from_numpy(some["y"].to_numpy().copy())}

        return {
            "pq.read_table in RAM, table.take": take,
            **(_datasets_ways(path, folder / "datasets") if HAS_DATASETS else {}),
            "packer, none, Loader": Loader(PackedDataset(packed), ROW_BATCH, shuffle=True).__iter__,
        }

    writers: Writers = {
        "pq.read_table, and cp": read_and_copy,
        **({"HF datasets, load_dataset": lambda out: _loaded(path, out)} if HAS_DATASETS else {}),
        "packer, none, one process": lambda out: apart(pack, [str(path)], out, codec="none", workers=0),
        f"packer, auto, {WORKERS} processes": lambda out: apart(pack, [str(path)], out, workers=WORKERS),
    }
    return f"{count:,} rows of Parquet", writers, ways


def _loaded(path: Path, cache: Path) -> Any:
    from datasets import load_dataset

    return load_dataset("parquet", data_files=str(path), cache_dir=str(cache), split="train")


def _datasets_ways(path: Path, cache: Path) -> Ways:
    dataset = _loaded(path, cache).with_format("torch")
    loader = DataLoader(dataset, ROW_BATCH, True, num_workers=WORKERS, persistent_workers=True)
    return {
        "HF datasets, dataset[indices]": lambda: (dataset[n.tolist()] for n in _shuffled(len(dataset), ROW_BATCH)),
        f"HF datasets, DataLoader of {WORKERS} workers": loader.__iter__,
    }


# ---------------------------------------------------------------- tars of pictures


def _pictures(folder: Path, count: int) -> tuple[str, Writers, Callable[[], Ways]]:
    """Make the tars, and the same files loose; return as `_rows` does."""
    tars, files = folder / "tars", folder / "files"
    tars.mkdir()
    files.mkdir()
    rng, large = np.random.default_rng(0), [picture for _, picture in photographs()]
    each = math.ceil(count / TARS)
    for first in range(0, count, each):
        with tarfile.open(tars / f"{first // each:04d}.tar", "w") as tar:
            for number in range(first, min(first + each, count)):
                picture, data = large[number % len(large)], io.BytesIO()
                left, top = (int(rng.integers(length - SIZE + 1)) for length in picture.size)
                picture.crop((left, top, left + SIZE, top + SIZE)).save(data, "JPEG", quality=90)
                (files / f"{number:06d}.jpg").write_bytes(data.getvalue())
                for suffix, value in (("jpg", data.getvalue()), ("cls", b"%d" % (number % len(large)))):
                    member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                    member.size = len(value)
                    tar.addfile(member, io.BytesIO(value))
    shards = sorted(tars.iterdir())

    def ways() -> Ways:
        import webdataset

        packed = folder / "tars.packed"
        pack([str(tars)], packed, workers=WORKERS)
        dataset = PackedDataset(packed)
        read = webdataset.WebDataset([str(shard) for shard in shards], shardshuffle=len(shards)).shuffle(1_000)
        samples = read.decode("torchrgb8").to_tuple("jpg", "cls").batched(PICTURE_BATCH)
        loader = webdataset.WebLoader(samples, batch_size=None, num_workers=WORKERS, persistent_workers=True)
        loose = DataLoader(
            Pictures(files, len(large)), PICTURE_BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
        )
        return {
            f"loose files, Pillow, DataLoader of {WORKERS} workers": loose.__iter__,
            f"WebDataset, buffer of 1,000, {WORKERS} workers": loader.__iter__,
            **{
                f"packer, Loader of {n} threads": Loader(dataset, PICTURE_BATCH, shuffle=True, threads=n).__iter__
                for n in (1, 2)
            },
        }

    writers: Writers = {
        "cp of the tars": lambda out: _copy(shards, out),
        f"packer, of the tars, {WORKERS} processes": lambda out: apart(pack, [str(tars)], out, workers=WORKERS),
        f"packer, of loose files, {WORKERS} processes": lambda out: apart(pack, [str(files)], out, workers=WORKERS),
    }
    return f"{count:,} JPEG files", writers, ways


class Pictures(Dataset[Any]):
    """JPEG files in a folder by Pillow, and their classes, which are in turn."""

    def __init__(self, folder: Path, classes: int) -> None:
        self.files, self.classes = sorted(folder.iterdir()), classes

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[number]) as picture:
            return torch.from_numpy(np.array(picture)).permute(2, 0, 1), number % self.classes
