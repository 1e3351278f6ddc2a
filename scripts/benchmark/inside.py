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

import packer


def where() -> str:
    """Return the file of the package, which tells the version."""
    return os.path.realpath(packer.__file__)


def convert(sources: list[str], out: str, **options: Any) -> int:
    """Convert files by one process; return how many samples there are."""
    from packer.convert import convert  # reading needs none of it

    return convert(sources, out, workers=0, **options).samples


@lru_cache(maxsize=1)
def _loader(path: str, batch: int) -> Any:
    from readers import Loader, PackedDataset  # converting is done without torch

    return Loader(PackedDataset(path), batch, shuffle=True)


def content(path: str, batch: int, first: float) -> int:
    """Return the sum of the bytes of an epoch.

    Args:
        first: seconds of reading before the first measurement: a version may load loops that decode faster meanwhile.
    """
    import torch

    misses = _loader.cache_info().misses
    _loader(path, batch)
    if _loader.cache_info().misses > misses:
        read(path, batch, first)
    total = 0
    for fields in _loader(path, batch):
        for values in fields.values():
            values = values if isinstance(values, torch.Tensor) else values.values  # of clouds: Ragged
            total += int(values.contiguous().view(-1).view(torch.uint8).sum(dtype=torch.int64))
    return total


def read(path: str, batch: int, seconds: float) -> int:
    """Read shuffled epochs for at least so long; return the number of samples."""
    loader, start, epochs = _loader(path, batch), time.perf_counter(), 0
    while not epochs or time.perf_counter() - start < seconds:
        for _ in loader:
            pass
        epochs += 1
    return epochs * len(loader.dataset)


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
