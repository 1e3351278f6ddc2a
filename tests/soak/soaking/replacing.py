"""Replaces datasets, and shards of them, under a reader. Each trial runs in a child of its own. Linux alone."""

from __future__ import annotations

import random
import shutil
from functools import lru_cache
from pathlib import Path

import numpy as np
from made_datasets import make_plain

from packer.convert import convert
from packer.errors import PackerError
from packer.format import MANIFEST, SHARD_FOLDER
from packer.verify import verify
from readers import PackedDataset
from soaking import in_child

SAMPLES = 400


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
    return make_plain(path)


def trial(folder: Path, seed: int) -> str:
    """Replace a dataset, or one shard of it, by another of the same size under a reader; return the outcome.

    After the whole dataset was replaced, the reader returns the old samples or raises an error, and never returns new
    ones. A single replaced shard does not fit its manifest, which `verify` finds.
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
