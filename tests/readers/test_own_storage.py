"""Every field of every batch has a storage of its own: sharing one with a process leaves all others as they are."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from packer.writer import DatasetWriter
from readers import Loader, PackedDataset

COUNT = 96


def value(name: str, i: int) -> Any:
    """Field `name` of sample i, told apart from that of every other sample."""
    rng = np.random.default_rng([i, len(name)])
    if name.startswith("row"):
        return np.full(33, i, np.float32)
    if name.startswith("small"):
        return rng.integers(0, 9, (6, 5, 3), np.uint8) + np.uint8(i)
    if name.startswith("large"):
        return np.full((96, 128, 3), i, np.uint8)
    if name.startswith("cloud"):
        return np.full((1 + i % 7, 3), i, np.float32)
    return np.full((2 + i % 3, 3 + i % 2, 3), i, np.uint8)


@pytest.fixture(scope="module", params=["none", "lz4"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, pairs of small and large pictures, clouds, and pictures of many sizes."""
    made = tmp_path_factory.mktemp("own") / "packed"
    with DatasetWriter(made, codec=request.param) as writer:
        for i in range(COUNT):
            writer.add({name: value(name, i) for name in ("row", "small", "large", "cloud", "picture")})
    return made


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """All tensors that a batch holds."""
    return pytree.tree_leaves(batch)


CHOICES = [["row"], ["large"], ["small", "large"], ["row", "cloud"], ["picture"]]


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("fields", CHOICES, ids=" ".join)
@pytest.mark.parametrize("batch_size", [1, 8, 40])
def test_a_storage_holds_its_tensor_and_nothing_else(
    folder: Path, fields: list[str], batch_size: int, threads: int
) -> None:
    """Whether batches are read alone or several at once, it has the bytes of its tensor, and so has what is saved."""
    seen: set[int] = set()
    batches = list(Loader(PackedDataset(folder, fields), batch_size, shuffle=True, threads=threads))
    for batch in batches:
        for tensor in tensors_of(batch):
            storage = tensor.untyped_storage()
            assert storage.nbytes() == tensor.nbytes
            assert storage._cdata not in seen
            seen.add(storage._cdata)
    saved = io.BytesIO()
    torch.save(batches[0], saved)
    assert len(saved.getvalue()) < 20_000 + sum(tensor.nbytes + 1000 for tensor in tensors_of(batches[0]))


@pytest.mark.parametrize("fields", CHOICES, ids=" ".join)
def test_batches_of_torch_have_storages_of_their_own(folder: Path, fields: list[str]) -> None:
    """Of plain indexing, and of torch's DataLoader."""
    dataset = PackedDataset(folder, fields)
    batches = [dataset[3:9], dataset[2], *DataLoader(dataset, 40)]
    tensors = [tensor for batch in batches for tensor in tensors_of(batch)]
    assert not [tensor for tensor in tensors if tensor.untyped_storage().nbytes() != tensor.nbytes]
    assert len({tensor.untyped_storage()._cdata for tensor in tensors}) == len(tensors)


#: How a tensor is kept.
KEPT: list[Callable[[torch.Tensor], Any]] = [
    lambda t: t,
    lambda t: t.detach().reshape(-1),
    lambda t: t.unbind()[-1],
    lambda t: t.numpy(),
    lambda t: t[-1:].numpy(),
    lambda t: memoryview(t.numpy()),
    lambda t: torch.from_dlpack(t),
    lambda t: np.from_dlpack(t),
    lambda t: torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage()),
    pickle.dumps,
]


@pytest.mark.skipif(sys.platform == "win32", reason="one way alone to share memory")
@pytest.mark.parametrize("fields", CHOICES, ids=" ".join)
def test_what_is_kept_stays_while_others_are_shared(folder: Path, fields: list[str]) -> None:
    """However a tensor is kept and others of its run are shared with processes, what is kept does not change."""
    shares: list[Callable[[torch.Tensor], Any]]
    shares = [lambda t: t.share_memory_(), lambda t: t.untyped_storage().share_memory_()]
    dataset = PackedDataset(folder, fields)
    for way, keep in enumerate(KEPT, CHOICES.index(fields)):
        share = shares[way % 2]  # the other one with other fields
        first, *others = Loader(dataset, 8, shuffle=True)
        kept = [keep(tensor) for tensor in tensors_of(first)]
        before = [one if isinstance(one, bytes) else np.asarray(one).tobytes() for one in kept]
        for tensor in tensors_of(others):
            share(tensor)
        del first, others, tensor
        rubbish = [np.full(size, 255, np.uint8) for size in (100, 1000, 5000, 40_000) for _ in range(9)]
        assert [one if isinstance(one, bytes) else np.asarray(one).tobytes() for one in kept] == before, rubbish[0]
