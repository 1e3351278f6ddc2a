"""The workloads of the comparison, as the loose files that every system converts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from benchmark.inputs import LARGE, SMALL, clouds, hdf5_rows, pair_sources, pairs, ply_clouds, png_pairs, rows
from benchmark.measuring import checksum
from benchmark.store import Bench
from file_datasets import Rows, cloud_files, pair_files
from numpy.typing import NDArray
from torch.utils.data import Dataset

Sample = dict[str, NDArray[Any]]

#: A tenth of the benchmark's: some systems read sample by sample.
ROWS = 100_000


@dataclass(frozen=True)
class Workload:
    """Generated samples, and the sizes of the batches they are read in.

    Attributes:
        size: side of the larger picture of a pair, in pixels; 0 if there are none.
        what: what a sample is, in words.
    """

    name: str
    what: str
    batches: tuple[int, ...]
    size: int = 0
    is_ragged: bool = False


WORKLOADS = (
    Workload("pairs 16/64 px", "10,000 pairs of images, 13 kB each", (8, 128), SMALL),
    Workload("pairs 48/192 px", "1,500 pairs of images, 118 kB each", (8, 128), LARGE),
    Workload("rows of 33 floats", "100,000 rows with a label, 140 bytes each", (100,)),
    Workload("clouds", "1,000 clouds of 500 to 20,000 points, 154 kB each on average", (16,), is_ragged=True),
)


@dataclass(frozen=True)
class Loose:
    """The samples of a workload in loose files, which every system converts.

    Attributes:
        dataset: reads one sample, a dict of tensors, from its files.
        sources: the sources for `packer convert`.
        path: the file or folder with all of them.
        total: samples.
        expected: the checksum of an epoch, of the arrays that the files were made from.
    """

    workload: Workload
    dataset: Dataset[Any]
    sources: list[str]
    path: Path
    total: int
    expected: int

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, number: int) -> Sample:
        """Return one sample; pictures are (H, W, C)."""
        if isinstance(self.dataset, Rows):
            return {name: np.asarray(values[number]) for name, values in self.table.items()}
        sample = {name: values.numpy() for name, values in self.dataset[number].items()}
        return {name: v.transpose(1, 2, 0) if self.workload.size else v for name, v in sample.items()}

    @cached_property
    def table(self) -> Sample:
        """Return all rows, since nobody converts a file of rows one by one."""
        with h5py.File(self.path) as file:
            return {name: file[name][:] for name in ("x", "y")}

    @cached_property
    def first(self) -> Sample:
        return self[0]

    @cached_property
    def nbytes(self) -> int:
        """Return the bytes of the first sample."""
        return sum(values.nbytes for values in self.first.values())

    def __iter__(self) -> Iterator[Sample]:
        return (self[number] for number in range(self.total))

    def blocks(self, size: int) -> Iterator[tuple[slice, Sample]]:
        """Yield `size` samples at a time: their place among all samples, and each field of them as one array."""
        for start in range(0, self.total, size):
            place = slice(start, min(start + size, self.total))
            if isinstance(self.dataset, Rows):
                yield place, {name: values[place] for name, values in self.table.items()}
            else:
                samples = [self[number] for number in range(place.start, place.stop)]
                yield place, {name: np.stack([sample[name] for sample in samples]) for name in self.first}


def loose(bench: Bench, workload: Workload) -> Loose:
    """Return the loose files of a workload, made if they are not there."""
    if workload.size:
        arrays = bench.arrays(pairs, workload.size)
        path = bench.files(png_pairs, workload.size)
        dataset: Dataset[Any] = pair_files(path)
        sources = pair_sources(path)
    elif workload.is_ragged:
        arrays = bench.arrays(clouds)
        path = bench.files(ply_clouds, "binary_little_endian")
        dataset, sources = cloud_files(path), [str(path)]
    else:
        count = bench.some(ROWS)
        arrays = {name: values[:count] for name, values in bench.arrays(rows).items()}
        path = bench.files(hdf5_rows, count, suffix=".h5")
        dataset, sources = Rows(path, "x", "y"), [str(path)]
    total = len(arrays["offsets"]) - 1 if workload.is_ragged else len(next(iter(arrays.values())))
    values = [values for name, values in arrays.items() if name != "offsets"]
    return Loose(workload, dataset, sources, path, total, checksum(values))
