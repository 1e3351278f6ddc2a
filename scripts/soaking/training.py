"""What training programs do to readers: batches kept while others are shared, shards replaced, more shards than files.

Each trial runs in a child of its own. Linux alone.
"""

from __future__ import annotations

import itertools
import os
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
from torch.utils import _pytree as pytree
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from packer.convert import convert
from packer.errors import PackerError
from packer.format.manifest import MANIFEST, SHARD_FOLDER
from packer.verify import verify
from readers import Loader, PackedDataset
from soaking import in_child

SAMPLES = 400
_BATCHES = 40
#: Many shards: more than a process may open files.
SHARDS, FILES = 1100, 1024


@lru_cache
def dataset_of(folder: Path, add: int = 0, codec: str = "none") -> Path:
    """Pack samples of fixed and ragged fields, small and large; every value of sample i is (i + add) % 251."""
    samples, path = [], folder / f"{codec}-{add}"
    for number in range(SAMPLES):
        value = (number + add) % 251
        samples.append(
            {
                "small": np.full(33, value, np.float32),
                "large": np.full((48, 48, 3), value, np.uint8),
                "cloud": np.full((number % 7 + 1, 3), value, np.float32),
                "picture": np.full((number % 5 + 1, number % 3 + 1, 3), value, np.uint8),
            }
        )
    convert(samples, path, codec=codec, shard_size=2**20, workers=0)
    return path


def keep_and_share(folder: Path, seed: int) -> str:
    """Keep parts of some batches while others are shared, sent, saved or dropped; no kept one may change."""
    path = dataset_of(folder)
    return in_child(lambda: _keep_and_share(path, random.Random(seed)))


def _keep_and_share(path: Path, rng: random.Random) -> str:
    way = rng.choice(list(_WAYS))
    queue: Any = mp.get_context("fork").SimpleQueue()
    kept: list[tuple[Any, Any]] = []
    fields = rng.choice([["small"], ["cloud"], ["picture"], ["small", "cloud"], ["small", "large"], None])
    for batch in itertools.islice(_WAYS[way](PackedDataset(path, fields), rng), _BATCHES):
        tensors = pytree.tree_leaves(batch)
        for tensor in tensors[:9]:
            match rng.choice(["numpy", "row", "tensor", "share", "send", "save", "drop"]):
                case "numpy":
                    kept.append((tensor.numpy(), tensor.numpy().copy()))
                case "row":
                    kept.append((tensor[len(tensor) // 2 :], tensor[len(tensor) // 2 :].clone()))
                case "tensor":
                    kept.append((tensor, tensor.clone()))
                case "share":
                    tensor.share_memory_()
                case "send":
                    queue.put(tensor)
                    got = queue.get()
                    assert bool((got == tensor).all()), f"{way}: another tensor came out of the queue"
                case "save":
                    torch.save(tensor, os.devnull)
        del batch, tensors, tensor
        changed = sum(bool((now != then).any()) for now, then in kept)
        assert not changed, f"{way}: {changed} of {len(kept)} kept values have changed"
    return way


def _indexed(dataset: PackedDataset, rng: random.Random) -> Iterator[dict[str, Any]]:
    while True:
        yield dataset[rng.sample(range(len(dataset)), rng.choice([1, 8, 100]))]


def _loaded(dataset: PackedDataset, rng: random.Random) -> Iterator[dict[str, Any]]:
    loader = Loader(dataset, rng.choice([1, 8, 100]), shuffle=True, threads=rng.choice([0, 2]), seed=rng.randrange(99))
    while True:
        yield from loader


def _torch_loaded(dataset: PackedDataset, rng: random.Random) -> Iterator[dict[str, Any]]:
    sampler = BatchSampler(RandomSampler(dataset), rng.choice([8, 100]), drop_last=False)
    while True:
        yield from DataLoader(dataset, sampler=sampler, batch_size=None)


_WAYS: dict[str, Callable[[PackedDataset, random.Random], Iterator[dict[str, Any]]]] = {
    "indexing": _indexed,
    "Loader": _loaded,
    "DataLoader": _torch_loaded,
}


def replace(folder: Path, seed: int) -> str:
    """Replace a dataset, or one shard of it, by another of the same size under a reader; returns what came of it.

    After the whole dataset was replaced, the reader gives the old samples, or an error says why not: never the new
    ones. A single shard is foreign to its manifest, which `verify` finds.
    """
    codec = ("none", "lz4")[seed % 2]
    old, new = dataset_of(folder, 0, codec), dataset_of(folder, 1, codec)
    return in_child(lambda: _replace(old, new, folder / str(seed), random.Random(seed)))


def _replace(old: Path, other: Path, place: Path, rng: random.Random) -> str:
    shutil.copytree(old, place)
    dataset = PackedDataset(place, verify=rng.random() < 0.5)
    for _ in range(rng.choice([0, 0, 1, 5])):
        dataset[rng.randrange(SAMPLES)]
    names = sorted(f"{SHARD_FOLDER}/{path.name}" for path in (old / SHARD_FOLDER).iterdir())
    is_one = rng.random() < 0.3
    for name in [rng.choice(names)] if is_one else [*names, MANIFEST]:
        new = place / "new"
        shutil.copy(other / name, new)
        assert name == MANIFEST or new.stat().st_size == (place / name).stat().st_size, "the two shards differ in size"
        new.replace(place / name)
    found = "one shard, found by verify" if is_one else _read_replaced(dataset, rng.sample(range(SAMPLES), SAMPLES))
    assert not is_one or verify(place).damages, "verify does not find a shard of another dataset"
    shutil.rmtree(place)
    return found


def _read_replaced(dataset: PackedDataset, numbers: list[int]) -> str:
    refused = 0
    for number in numbers:
        try:
            sample = dataset[number]
        except PackerError:
            refused += 1
            continue
        for name, value in sample.items():
            assert bool((value == number % 251).all()), f"sample {number} has another {name}"
    return "the dataset, refused" if refused else "the dataset, the old samples are read"


def read_many_shards(folder: Path, seed: int) -> str:
    """Read and verify a dataset of more shards than a process may open files."""
    return in_child(lambda: _read_many_shards(folder / str(seed)))


def _read_many_shards(folder: Path) -> str:
    samples = [{"x": np.full(1024, number, np.int32)} for number in range(SHARDS)]
    convert(samples, folder, codec="none", shard_size=4096, workers=0)
    assert len(list((folder / SHARD_FOLDER).iterdir())) == SHARDS
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    dataset = PackedDataset(folder)
    for found in (dataset[:]["x"], torch.cat([batch["x"] for batch in Loader(dataset, 16)])):
        assert bool((found == torch.arange(SHARDS)[:, None]).all()), "other samples were read"
    assert not verify(folder).damages
    return f"{SHARDS} shards"
