"""Converts and reads inside one version of the project, as `against.py` asks it to: started by it, once for each.

Only public names are used here, so that old versions can run it too.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from functools import lru_cache
from typing import Any

import numpy as np

import packer

#: Samples of an epoch that is read in another way than by a shuffling Loader.
SOME = 40_000


#: Functions and options of the ways in which people read small batches, besides by a plain Loader.
_FUNCTIONS: dict[str, dict[str, Any]] = {
    "batch_transform": {"batch_transform": lambda batch: batch},
    "sample_transform": {"sample_transform": lambda sample: sample},
    "generator": {"sample_transform": lambda sample, generator: sample},
}
_OPTIONS: dict[str, dict[str, Any]] = {"as_numpy": {"as_numpy": True}, "channels_last=False": {"channels_last": False}}


def where() -> str:
    """Return the file of the package, which tells the version."""
    return os.path.realpath(packer.__file__)


def convert(sources: list[str], out: str, **options: Any) -> int:
    """Convert files by one process; return how many samples there are."""
    from packer.convert import convert  # reading needs none of it

    return convert(sources, out, workers=0, **options).samples


def append(sources: list[str], out: str) -> int:
    """Append files to a dataset by one process; return how many samples were added."""
    from packer.append import append

    return append(out, sources, workers=0).added


@lru_cache(maxsize=1)
def loader_of(path: str, batch: int, way: str = "Loader") -> Any:
    from torch.utils.data import DataLoader  # converting is done without torch

    from readers import Loader, PackedDataset

    if way.startswith("stream"):  # by a cache that holds six tenths
        nbytes = sum(entry.stat().st_size for entry in os.scandir(f"{path}/shards"))
        dataset = PackedDataset(f"file://{path}", cache=f"{path}.cache", cache_bytes=nbytes * 6 // 10)
        shuffle: dict[str, Any] = (
            {"shuffle": "shards", "shuffle_window": len(dataset) // 10} if way == "stream of shards" else {}
        )
        return Loader(dataset, batch, **shuffle)
    dataset = PackedDataset(path, **_FUNCTIONS.get(way, {}))
    if way == "Loader":
        return Loader(dataset, batch, shuffle=True)
    numbers = np.random.default_rng(0).permutation(min(SOME, len(dataset) // batch * batch))
    if way == "ds[numbers]":
        return _Indexed(dataset, numbers.reshape(-1, batch))
    if way == "DataLoader":
        return DataLoader(dataset, batch, sampler=numbers.tolist())
    return Loader(dataset, batch, sampler=numbers, **_OPTIONS.get(way, {}))


class _Indexed:
    """Batches by `dataset[numbers]`."""

    def __init__(self, dataset: Any, numbers: Any) -> None:
        self.dataset, self._numbers = dataset, numbers

    def __iter__(self) -> Any:
        return (self.dataset[numbers] for numbers in self._numbers)


def content(path: str, batch: int, first: float, way: str = "Loader") -> int:
    """Return the sum of the bytes of an epoch.

    Args:
        first: seconds of reading before the first measurement: a version may load loops that decode faster meanwhile.
    """
    import torch

    misses = loader_of.cache_info().misses
    loader_of(path, batch, way)
    if loader_of.cache_info().misses > misses:
        read(path, batch, first, way)
    total = 0
    for fields in loader_of(path, batch, way):
        for values in fields.values():
            is_plain = isinstance(values, torch.Tensor | np.ndarray)
            values = torch.as_tensor(values if is_plain else values.values)  # of clouds: Ragged
            total += int(values.contiguous().view(-1).view(torch.uint8).sum(dtype=torch.int64))
    return total


def read(path: str, batch: int, seconds: float, way: str = "Loader") -> int:
    """Read epochs for at least so long; return the number of samples."""
    loader, start, epochs = loader_of(path, batch, way), time.perf_counter(), 0
    while not epochs or time.perf_counter() - start < seconds:
        for _ in loader:
            pass
        epochs += 1
    return epochs * (len(loader.dataset) if way == "Loader" or way.startswith("stream") else SOME)


def open_again(path: str, times: int) -> int:
    """Open a dataset and read one sample, so many times; return how many."""
    from readers import PackedDataset

    for _ in range(times):
        PackedDataset(path)[0]
    return times


def cold(path: str, batch: int, numbers: list[int]) -> int:
    """Open a dataset and read some samples once; no map of it stays. Return how many."""
    from readers import Loader, PackedDataset

    for _ in Loader(PackedDataset(path), batch, sampler=numbers):
        pass
    gc.collect()
    return len(numbers)


if __name__ == "__main__":
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(globals()[name](**arguments)), flush=True)
