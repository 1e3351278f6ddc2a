"""Datasets that packed ones are compared with: in RAM a batch at a time, and LMDB with one key a sample."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset


class InMemory(Dataset[Any]):
    """Tensors in RAM; DataLoader gets a whole batch by one index a field."""

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: values[index] for name, values in self.tensors.items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        index = torch.tensor(indices)
        return {name: values[index] for name, values in self.tensors.items()}


def as_it_is(batch: Any) -> Any:
    """The collate function for batches that are whole already."""
    return batch


class LmdbSamples(Dataset[dict[str, Tensor]]):
    """One key a sample: LZ4 of a pickled dict of arrays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.transaction: Any = None

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        import lmdb
        import lz4.frame

        if self.transaction is None:
            # Opened at the first read, so that every worker process has its own.
            environment = lmdb.open(str(self.path), subdir=False, readonly=True, lock=False, readahead=False)
            self.transaction = environment.begin(buffers=True)
        sample = pickle.loads(lz4.frame.decompress(self.transaction.get(b"%08d" % index)))
        return {field: torch.from_numpy(values) for field, values in sample.items()}
