"""Worker processes of DataLoader: every way of starting them, before and after the parent has read."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from batches import plain
from torch.utils.data import DataLoader, Subset, get_worker_info

from readers import PackedDataset, Ragged
from readers.batch import SharedTensors

STARTS = [start for start in ("fork", "spawn", "forkserver") if start in multiprocessing.get_all_start_methods()]
# Other ways start new interpreters, which import torch: seconds a test.
FORK = pytest.mark.skipif("fork" not in STARTS, reason="no fork on this system")


class _Marked:
    """A transform that notes which process and worker it ran in."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        info = get_worker_info()
        return batch | {"process": os.getpid(), "worker": -1 if info is None else info.id}


def _loader(ds: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(ds, **({"batch_size": 8, "num_workers": 2} | options))


def _epoch(loader: DataLoader[Any]) -> Iterator[dict[str, Any]]:
    """One epoch; its workers are gone afterwards, whether or not it was read to the end."""
    batches = iter(loader)
    try:
        yield from batches
    finally:
        if loader.num_workers and not loader.persistent_workers:
            batches._shutdown_workers()  # type: ignore[attr-defined]


@pytest.mark.keeps_open  # the fork server stays for the next test
@pytest.mark.parametrize(("start", "names"), [(STARTS[0], False), *((start, True) for start in STARTS)])
def test_workers_read_what_the_parent_reads(packed: Path, start: str, names: bool) -> None:
    """Every kind of field, by number and by name, from workers started in any way before or after the parent reads."""
    ds = PackedDataset(packed)
    wanted = [PackedDataset(packed)[first : first + 8] for first in range(0, 60, 8)]
    if names:
        _ = ds["a/3"], ds.names
    sampler = [f"a/{i}" for i in range(60)] if names else None
    # Of the new interpreters, which import torch, one must do.
    loader = _loader(ds, multiprocessing_context=start, sampler=sampler, num_workers=2 if start == "fork" else 1)
    for found, batch in zip(_epoch(loader), wanted, strict=True):
        assert plain(found) == plain(batch)
        assert {type(value) for value in found.values()} == {torch.Tensor, Ragged, list}


@FORK
def test_persistent_workers_go_on_epoch_after_epoch(rows: Path) -> None:
    """The same workers read epoch after epoch, while the parent reads too."""
    ds = PackedDataset(rows, batch_transform=_Marked())
    loader = _loader(ds, batch_size=100, shuffle=True, persistent_workers=True, multiprocessing_context="fork")
    processes = set()
    for _ in range(3):
        seen = []
        for batch in loader:
            assert torch.equal(batch["x"][:, 0].long(), batch["y"])
            assert int(ds[int(batch["y"][0])]["y"]) == int(batch["y"][0])
            seen += batch["y"].tolist()
            processes.add(batch["process"])
        assert sorted(seen) == list(range(1000))
    assert len(processes) == 2
    assert os.getpid() not in processes
    loader._iterator._shutdown_workers()  # type: ignore[union-attr]


@FORK
def test_an_error_in_a_worker_keeps_its_kind(packed: Path) -> None:
    """A missing name is a KeyError in the parent too, and says which one."""
    ds = PackedDataset(packed)
    with pytest.raises(KeyError, match="'zz'"):
        list(_epoch(_loader(ds, sampler=["zz"], batch_size=1, multiprocessing_context="fork")))
    with pytest.raises(IndexError, match="sample 99 of 60"):
        list(_epoch(_loader(ds, sampler=[99], batch_size=1, multiprocessing_context="fork")))


@FORK
def test_ragged_images_pass_as_one_piece_of_memory(packed: Path) -> None:
    """Images of many sizes arrive as a plain list of tensors on one storage, after one descriptor was sent."""
    ds = PackedDataset(packed, fields=["picture"])
    numbers = list(range(60)) * 50
    (found,) = _epoch(_loader(Subset(ds, numbers), batch_size=3000, num_workers=1, multiprocessing_context="fork"))
    assert len({image.untyped_storage().data_ptr() for image in found["picture"]}) == 1
    assert plain(found["picture"]) == plain(ds[numbers]["picture"])


def test_views_are_pickled_as_one_tensor() -> None:
    """Tensors of one storage make a pickle of that storage once; others, and none, are pickled as a list is."""
    whole = torch.arange(2000.0)
    views = SharedTensors([whole[:4].view(2, 2).T, whole[3:9], whole[0:0]])
    found = pickle.loads(pickle.dumps(views))
    assert plain(found) == plain(list(views))
    assert len({tensor.untyped_storage().data_ptr() for tensor in found}) == 1
    assert pickle.dumps(views).count(b"_rebuild_tensor") == 1
    for other in ([], [torch.ones(2), torch.zeros(3)], [whole[:2], whole.view(torch.int32)[:2]]):
        assert plain(pickle.loads(pickle.dumps(SharedTensors(other)))) == plain(other)
