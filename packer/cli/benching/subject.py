"""The dataset that is measured: its files, the size of a sample, and how it is made warm or cold."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from packer.cli.benching.page_cache import drop, warm
from packer.cli.machine import machine_of
from packer.errors import DatasetError
from readers import PackedDataset
from readers.places import Numbers

#: Files of more bytes than this are not read through before each round: what is to be read is, before each pass.
THROUGH_BYTES = 2**30
#: Samples that are read at once to make them warm.
_AT_ONCE = 256


class Subject:
    """A packed dataset, and those of its fields that are read.

    Raises:
        DatasetError: it cannot be read, or has no samples.
    """

    def __init__(self, path: Path, fields: tuple[str, ...] | None) -> None:
        self.path = path
        dataset = PackedDataset(path, fields)
        self.manifest = dataset.manifest
        self.fields = tuple(dataset.fields)
        if not len(dataset):
            raise DatasetError(f"{path}: it has no samples; there is nothing to read")
        self.samples = len(dataset)
        totals = [self.manifest.columns[name] for name in self.fields]
        self.sample_bytes = sum(column.raw for column in totals) / self.samples
        self.stored_bytes = sum(column.stored for column in totals) / self.samples
        self.shares_frames = any(field.codec and (field.frame.samples or 1) > 1 for field in dataset.fields.values())
        self.machine = machine_of(path)
        self.files = [path / shard.file for shard in self.manifest.shards]
        self._is_small = sum(shard.bytes for shard in self.manifest.shards) <= THROUGH_BYTES

    def open(self) -> PackedDataset:
        """The dataset, opened anew: nothing of it is mapped yet."""
        return PackedDataset(self.path, self.fields)

    def warm_files(self) -> None:
        """Before a round: reads the files through, where that is quickly done."""
        if self._is_small:
            warm(self.files)

    def warm_samples(self, dataset: PackedDataset, numbers: Numbers) -> None:
        """Before a pass: reads its samples, where the files were not read through."""
        if not self._is_small:
            for at in range(0, len(numbers), _AT_ONCE):
                dataset.gather(numbers[at : at + _AT_ONCE])

    def cool(self) -> None:
        """Takes the files out of memory."""
        drop(self.files)

    def first(self, count: int) -> Numbers:
        """The first sample, `count` times: to get workers started without reading what will be measured."""
        return np.zeros(count, np.int64)
