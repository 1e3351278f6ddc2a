"""Rows of 33 float32 and a label: reading tiny samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from benchmark.inputs import arrays, packed
from benchmark.loops import Batches, data_loader, indexing, limits, loader_side, shuffled, total
from benchmark.measuring import Bench, Figures, Side, epochs, files_of, row
from readers import PackedDataset

BATCH = 100
LIMIT = "the limit: index_select or np.take"
INDEXING = "in-RAM x[idx], y[idx]"


def _fields(bench: Bench) -> list[NDArray[Any]]:
    return list(arrays.rows(bench.store, bench.sizes.rows).values())


def _loader(bench: Bench, expected: int, codec: str = "none", shards: int = 1, shuffle: bool | str = True) -> Side:
    path = packed.rows(bench.store, bench.sizes.rows, codec, shards)
    return loader_side(path, BATCH, expected, shuffle=shuffle)


def _against_indexing(bench: Bench, codec: str, shuffle: bool | str) -> Figures:
    fields = _fields(bench)
    expected = total(fields)
    return bench.race(_loader(bench, expected, codec, shuffle=shuffle), indexing(fields, BATCH, expected))


def _against_limit(bench: Bench, shards: int) -> Figures:
    fields = _fields(bench)
    expected = total(fields)
    return bench.race(_loader(bench, expected, shards=shards), *limits(fields, BATCH, expected))


@row("rows, none, batch 100, shuffled, Loader", against=INDEXING, at_least=1.2)
def raw_against_indexing(bench: Bench) -> Figures:
    """One file, uncompressed, against torch's fancy indexing."""
    return _against_indexing(bench, "none", shuffle=True)


@row("rows, none, batch 100, shuffled, Loader", against=LIMIT, at_least=0.6)
def raw_against_limit(bench: Bench) -> Figures:
    """One file, uncompressed, against the fastest gather in RAM."""
    return _against_limit(bench, shards=1)


@row("rows, none, batch 100, shuffled, Loader", against="DataLoader over in-RAM tensors", at_least=15)
def raw_against_data_loader(bench: Bench) -> Figures:
    """One file, uncompressed, against torch's default over tensors."""
    fields = _fields(bench)
    indices = np.random.default_rng(0).permutation(len(fields[0]))[: bench.sizes.loaded].tolist()
    tensors = TensorDataset(*(torch.from_numpy(values) for values in fields))
    return bench.race(_loader(bench, total(fields)), *data_loader(tensors, indices, BATCH, total(fields, indices)))


@row("rows, none, 8 shards, batch 100, Loader", against=LIMIT, at_least=0.4)
def shards_against_limit(bench: Bench) -> Figures:
    """Eight files."""
    return _against_limit(bench, shards=8)


@row("rows, bitshuffle, shuffle=block, Loader", against=INDEXING, at_least=0.5)
def bitshuffle_against_indexing(bench: Bench) -> Figures:
    """Compressed frames of many rows, each decoded about once an epoch."""
    return _against_indexing(bench, "bitshuffle", shuffle="block")


@row("rows, none, ds[indices], batch 100", against=INDEXING, at_least=1.0)
def indexed_against_indexing(bench: Bench) -> Figures:
    """Plain indexing of the dataset, without a Loader."""
    path = packed.rows(bench.store, bench.sizes.rows)
    dataset, fields = PackedDataset(path), _fields(bench)
    expected = total(fields)

    def batches() -> Batches:
        for index in shuffled(len(dataset), BATCH):
            yield dataset[index]

    ours = epochs("ds[indices]", batches, len(dataset), expected, files_of(path))
    return bench.race(ours, indexing(fields, BATCH, expected))
