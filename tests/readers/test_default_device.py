"""What is read lies on the CPU, wherever torch puts new tensors by default."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import plain
from torch.utils.data import DataLoader, RandomSampler

from packer.format import FieldSpec
from packer.writer import DatasetWriter
from readers import Crop, Loader, PackedDataset, PointSample


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """New tensors lie on a device that holds no values, so that whatever should not be there fails."""
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


WAYS: dict[str, dict[str, Any]] = {
    "all fields": {},
    "checked": {"verify": True},
    "crops": {"fields": ["lr", "picture"], "crop": Crop(1, of="picture")},
    "points": {"fields": ["xyz"], "points": PointSample(3)},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("threads", [0, 1])
def test_every_kind_of_field(packed: Path, way: str, threads: int, request: pytest.FixtureRequest) -> None:
    """One sample, a batch, none, and the batches of a loader are those that are read without a default device."""
    kept = np.flatnonzero(np.arange(60) % 5)  # the other clouds have no points

    def read() -> list[Any]:
        torch.default_generator.manual_seed(0)
        ds = PackedDataset(packed, **WAYS[way])
        loader = Loader(ds, 7, sampler=kept, threads=threads)
        return [ds[3], ds[kept], ds[[]], *loader]

    expected = read()
    request.getfixturevalue("elsewhere")
    assert plain(read()) == plain(expected)


def test_shared_frames_and_memory_of_the_pool(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Frames of several samples, some of them kept raw, and batches large enough for memory that is used again."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, (600, 2000), np.uint8)
    values[::2] = 7
    values[:100] = 1
    with DatasetWriter(tmp_path / "p", [FieldSpec(name="x", dtype="uint8", shape=(2000,))], codec="lz4") as writer:
        for row in values:
            writer.add({"x": row})
    request.getfixturevalue("elsewhere")
    ds = PackedDataset(tmp_path / "p")
    for shuffle in (True, "block"):
        for batch in Loader(ds, 600, shuffle=shuffle):
            assert np.array_equal(np.sort(batch["x"].numpy(), axis=0), np.sort(values, axis=0))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_samplers_and_workers(packed: Path, request: pytest.FixtureRequest) -> None:
    """A sampler of torch draws the same numbers; worker processes hand over shared memory."""
    numbers = Loader(PackedDataset(packed), 60, sampler=RandomSampler(range(60))).order.epoch(0).tolist()
    expected = PackedDataset(packed)[:60]
    request.getfixturevalue("elsewhere")
    loader = Loader(PackedDataset(packed), 60, sampler=RandomSampler(range(60)))
    assert loader.order.epoch(0).tolist() == numbers
    # torch's own workers are given their seed by a tensor on the default device.
    torch.set_default_device(None)
    workers = DataLoader(_Elsewhere(packed), batch_size=60, num_workers=1, multiprocessing_context="fork")
    assert plain(next(iter(workers))) == plain(expected)


class _Elsewhere(PackedDataset):
    """Reads under another default device."""

    def __getitems__(self, indices: Any) -> Any:
        with torch.device("meta"):
            return super().__getitems__(indices)
