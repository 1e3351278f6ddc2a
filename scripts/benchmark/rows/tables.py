"""Rows of 33 float32 and a label: reading tiny samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch.utils.data import TensorDataset

from benchmark.inputs import rows
from benchmark.loops import Values, data_loaders, in_ram, indexing, limits, loader_side
from benchmark.measuring import Row, Side, checksum, files_of
from benchmark.store import Bench
from readers import PackedDataset

BATCH = 100
LIMIT = "the limit: index_select or np.take"
INDEXING = "in-RAM x[idx], y[idx]"


def _fields(bench: Bench) -> list[Values]:
    return list(bench.arrays(rows).values())


def _loader(bench: Bench, codec: str = "none", shards: int = 1, shuffle: bool | str = True) -> Side:
    dataset = PackedDataset(bench.packed(rows, codec=codec, shards=shards))
    return loader_side(dataset, BATCH, checksum(_fields(bench)), shuffle=shuffle)


@Row("rows, none, batch 100, shuffled, Loader", INDEXING, at_least=1.2, codec="none", shuffle=True)
@Row("rows, bitshuffle, shuffle=block, Loader", INDEXING, at_least=0.5, codec="bitshuffle", shuffle="block")
def against_indexing(bench: Bench, codec: str, shuffle: bool | str) -> list[Side]:
    """Compare with torch's fancy indexing. Compressed frames hold many rows, each decoded about once an epoch."""
    return [_loader(bench, codec, shuffle=shuffle), indexing(_fields(bench), BATCH)]


@Row("rows, none, batch 100, shuffled, Loader", LIMIT, at_least=0.6, shards=1)
@Row("rows, none, 8 shards, batch 100, Loader", LIMIT, at_least=0.4, shards=8)
def against_limit(bench: Bench, shards: int) -> list[Side]:
    """Compare with the fastest gather in RAM."""
    return [_loader(bench, shards=shards), *limits(_fields(bench), BATCH)]


@Row("rows, none, batch 100, shuffled, Loader", "DataLoader over in-RAM tensors", at_least=15)
def against_data_loader(bench: Bench) -> list[Side]:
    """Compare with torch's default over tensors."""
    fields = _fields(bench)
    numbers = np.random.default_rng(0).permutation(len(fields[0]))[: bench.some(10_000)]
    tensors = TensorDataset(*(torch.from_numpy(values) for values in fields))
    expected = checksum([values[numbers] for values in fields])
    return [_loader(bench), *data_loaders(tensors, numbers.tolist(), BATCH, expected)]


@Row("rows, none, ds[indices], batch 100", INDEXING, at_least=1.0)
def indexed_against_indexing(bench: Bench) -> list[Side]:
    """Index the dataset plainly, without a Loader."""
    path, fields = bench.packed(rows), _fields(bench)
    dataset = PackedDataset(path)
    ours = in_ram("ds[indices]", len(fields[0]), BATCH, dataset.__getitem__, checksum(fields))
    return [replace(ours, files=files_of(path)), indexing(fields, BATCH)]
