"""Rows of 33 float32 and a label: reading tiny samples."""

from __future__ import annotations

from benchmark.inputs import rows
from benchmark.inside import SOME, loader_of
from benchmark.loops import TAKES, Values, indexing, limits, loader_side, takes
from benchmark.measuring import Row, Side, checksum, epochs
from benchmark.store import Bench
from readers import PackedDataset

BATCH, SMALL_BATCH = 100, 8
LIMIT = "the limit: index_select or np.take"
INDEXING = "in-RAM x[idx], y[idx]"


def _fields(bench: Bench) -> list[Values]:
    return list(bench.arrays(rows).values())


def _loader(bench: Bench, codec: str = "none", shuffle: bool | str = True) -> Side:
    dataset = PackedDataset(bench.packed(rows, codec=codec))
    return loader_side(dataset, BATCH, checksum(_fields(bench)), shuffle=shuffle)


@Row("rows, none, batch 100, shuffled, Loader", INDEXING, at_least=1.2, codec="none", shuffle=True)
@Row("rows, bitshuffle, shuffle=block, Loader", INDEXING, at_least=0.5, codec="bitshuffle", shuffle="block")
def against_indexing(bench: Bench, codec: str, shuffle: bool | str) -> list[Side]:
    """Compare with torch's fancy indexing. Compressed frames hold many rows, each decoded about once an epoch."""
    return [_loader(bench, codec, shuffle=shuffle), indexing(_fields(bench), BATCH)]


@Row("rows, none, batch 100, shuffled, Loader", LIMIT, at_least=0.6)
def against_limit(bench: Bench) -> list[Side]:
    """Compare with the fastest gather in RAM."""
    return [_loader(bench), *limits(_fields(bench), BATCH)]


@Row("rows, none, batch 8, batch_transform", TAKES, at_least=0.48, way="batch_transform")
@Row("rows, none, batch 8, sample_transform", TAKES, at_least=0.18, way="sample_transform")
@Row("rows, none, batch 8, as_numpy", TAKES, at_least=0.58, way="as_numpy")
@Row("rows, none, batch 8, channels_last=False", TAKES, at_least=0.58, way="channels_last=False")
@Row("rows, none, batch 8, ds[numbers]", TAKES, at_least=0.2, way="ds[numbers]")
@Row("rows, none, batch 8, DataLoader", TAKES, at_least=0.07, way="DataLoader")
def small_batches(bench: Bench, way: str) -> list[Side]:
    """Read some rows as people do, besides by a plain Loader."""
    loader = loader_of(str(bench.packed(rows, codec="none")), SMALL_BATCH, way)
    some = [values[:SOME] for values in _fields(bench)]
    return [epochs(way, lambda: loader, len(some[0]), checksum(some)), *takes(some, SMALL_BATCH)]
