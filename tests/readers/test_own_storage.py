"""Every field of every batch has a storage of its own: sharing one with a process leaves all others as they are."""

from __future__ import annotations

import io
import subprocess
import sys
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


def tensors_of(batch: dict[str, Any]) -> list[torch.Tensor]:
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


#: Run by a process of its own, which a wrong memory access may kill.
KEEPING = """
import io, itertools, pickle, sys
import numpy as np, torch
import torch.multiprocessing as mp
from torch.utils import _pytree as pytree
from multiprocessing.reduction import ForkingPickler
from readers import Loader, PackedDataset

folder, *choices = sys.argv[1:]

def saved(t):
    file = io.BytesIO()
    torch.save(t, file)
    return file

# How a tensor is kept, and how what was kept is looked at.
AS_IS = lambda kept: kept
KEPT = {
    "tensor": (AS_IS, AS_IS),
    "detached": (lambda t: t.detach(), AS_IS),
    "slice": (lambda t: t[:1], AS_IS),
    "flat": (lambda t: t.reshape(-1), AS_IS),
    "parameter": (lambda t: torch.nn.Parameter(t, requires_grad=False), AS_IS),
    "unbound": (lambda t: t.unbind()[-1], AS_IS),
    "numpy": (lambda t: t.numpy(), AS_IS),
    "asarray": (lambda t: np.asarray(t), AS_IS),
    "slice of numpy": (lambda t: t.numpy()[:1], AS_IS),
    "numpy of slice": (lambda t: t[-1:].numpy(), AS_IS),
    "numpy as bytes": (lambda t: t.detach().numpy().reshape(-1).view(np.uint8), AS_IS),
    "turned numpy": (lambda t: t.numpy().T, AS_IS),
    "memoryview": (lambda t: memoryview(t.numpy()), np.asarray),
    "DLPack by torch": (lambda t: torch.from_dlpack(t), AS_IS),
    "DLPack by numpy": (lambda t: np.from_dlpack(t), AS_IS),
    "DLPack's capsule": (lambda t: torch.utils.dlpack.to_dlpack(t), torch.utils.dlpack.from_dlpack),
    "storage": (lambda t: t.untyped_storage(), lambda kept: torch.empty(0, dtype=torch.uint8).set_(kept)),
    "typed storage": (lambda t: t.storage(), lambda kept: torch.empty(0, dtype=kept.dtype).set_(kept)),
    "list of views": (lambda t: list(t), lambda kept: torch.stack(kept)),
    "list of arrays": (lambda t: list(t.numpy()), np.stack),
    "pickled": (pickle.dumps, pickle.loads),
    "saved": (saved, lambda file: torch.load(io.BytesIO(file.getvalue()))),
}

queue = mp.Queue()
def through_queue(tensors):
    queue.put(tensors)
    received = queue.get(timeout=60)
    assert all(map(torch.equal, received, tensors))

SHARED = {
    "share_memory_": lambda tensors: [t.share_memory_() for t in tensors],
    "storage": lambda tensors: [t.untyped_storage().share_memory_() for t in tensors],
    "queue": through_queue,
    "pickler": lambda tensors: [ForkingPickler.dumps(t) for t in tensors],
}

def tensors_of(batch):
    return pytree.tree_leaves(batch)

def bytes_of(values):
    return np.ascontiguousarray(values.numpy() if isinstance(values, torch.Tensor) else values).tobytes()

def check(loader, name, share):
    keep, look = KEPT[name]
    first, *batches = map(tensors_of, loader)
    chosen, others = first[:3], first[3:] + [tensor for batch in batches for tensor in batch]
    before = [bytes_of(look(keep(tensor))) for tensor in chosen]
    kept = [keep(tensor) for tensor in chosen]
    del first, batches, chosen
    SHARED[share](others[:20])
    del others
    rubbish = [np.full(size, 255, np.uint8) for size in (100, 1000, 5000, 40_000) for _ in range(9)], next(iter(loader))
    assert [bytes_of(look(one)) for one in kept] == before, (name, share, loader.batch_size)

# Every way to keep meets every way to share, over all fields and strategies together.
ways = itertools.cycle(SHARED)
for strategy, batch_size, threads in (("file_system", 8, 2), ("file_descriptor", 40, 0)):
    mp.set_sharing_strategy(strategy)
    for fields in choices:
        dataset = PackedDataset(folder, fields.split())
        loader = Loader(dataset, batch_size, shuffle=True, threads=threads, drop_last=True)
        next(ways)
        for name in KEPT:
            check(loader, name, next(ways))
queue.close()
queue.join_thread()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="one way alone to share memory")
def test_what_is_kept_stays_while_others_are_shared(folder: Path) -> None:
    """However a batch is kept and others are sent to another process, what is kept neither changes nor crashes."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KEEPING, str(folder), *map(" ".join, CHOICES)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
