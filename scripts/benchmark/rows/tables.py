"""Rows of 33 float32 and a label: reading tiny samples."""

from __future__ import annotations

from benchmark.inputs import rows
from benchmark.loops import Values, indexing, limits, loader_side
from benchmark.measuring import Row, Side, checksum
from benchmark.store import Bench
from readers import PackedDataset

BATCH = 100
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
