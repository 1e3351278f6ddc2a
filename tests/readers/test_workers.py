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
from torch.utils.data import DataLoader, Subset, get_worker_info

from readers import PackedDataset, Ragged
from readers.batch import Views

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


def _assert_same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype
        assert found.stride() == wanted.stride()
        assert torch.equal(found, wanted)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for name in wanted:
            _assert_same(found[name], wanted[name])
    elif isinstance(wanted, Ragged):
        _assert_same(found.values, wanted.values)
        _assert_same(found.offsets, wanted.offsets)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            _assert_same(a, b)
    else:
        assert found == wanted


@pytest.mark.keeps_open  # the fork server stays for the next test
@pytest.mark.parametrize("start", STARTS)
def test_workers_read_what_the_parent_reads(packed: Path, start: str) -> None:
    """Every kind of field, by number and by name, from workers started in any way after the parent has read."""
    ds = PackedDataset(packed)
    wanted = [ds[first : first + 8] for first in range(0, 60, 8)]
    _ = ds["a/3"], ds.names
    loader = _loader(ds, multiprocessing_context=start)
    for found, batch in zip(_epoch(loader), wanted, strict=True):
        _assert_same(found, batch)


@FORK
def test_workers_of_a_parent_that_has_not_read(packed: Path) -> None:
    """Each worker opens the shards for itself, and the parent can read afterwards."""
    ds = PackedDataset(packed)
    found = list(_epoch(_loader(ds, multiprocessing_context="fork")))
    _assert_same(found, [ds[first : first + 8] for first in range(0, 60, 8)])


@FORK
def test_persistent_workers_go_on_epoch_after_epoch(rows: Path) -> None:
    """The same workers read epoch after epoch, while the parent reads too."""
    ds = PackedDataset(rows, transform=_Marked())
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
def test_names_looked_up_before_and_after_a_fork(packed: Path) -> None:
    """Parent and children look names up in one table, each at its own time."""
    ds = PackedDataset(packed, fields=["label"], transform=_Marked())
    plain = PackedDataset(packed, fields=["label"])
    names = [f"a/{i}" for i in range(59, -1, -1)]
    wanted = plain[names]["label"]
    loader = _loader(ds, sampler=names, multiprocessing_context="fork")
    for _ in range(2):
        found = []
        for batch in _epoch(loader):
            found.append(batch["label"])
            assert batch["process"] != os.getpid()
            assert int(plain["a/7"]["label"]) == -1
        assert torch.equal(torch.cat(found), wanted)


@FORK
def test_two_loaders_on_one_path_at_once(rows: Path) -> None:
    """Train and validation parts are read by turns, each by workers of its own."""
    ds = PackedDataset(rows)
    train = _epoch(_loader(Subset(ds, range(800)), batch_size=100, multiprocessing_context="fork"))
    valid = _epoch(
        _loader(Subset(PackedDataset(rows), range(800, 1000)), batch_size=25, multiprocessing_context="fork")
    )
    seen = [number for pair in zip(train, valid, strict=True) for batch in pair for number in batch["y"].tolist()]
    assert sorted(seen) == list(range(1000))


@FORK
def test_empty_batches_and_empty_samples_pass_between_processes(packed: Path) -> None:
    """Samples of no points make a batch of no bytes, which a worker can hand over."""
    ds = PackedDataset(packed, fields=["xyz", "caption"])
    empty = [0, 15, 30]
    found = next(_epoch(_loader(Subset(ds, empty), multiprocessing_context="fork")))
    assert found["xyz"].values.shape == (0, 3)
    assert found["xyz"].offsets.tolist() == [0, 0, 0, 0]
    assert found["caption"] == ["", "", ""]


@FORK
def test_large_batches_come_from_a_forked_worker(rows: Path) -> None:
    """Gathers that torch would spread over threads do not hang in a process forked after they ran in the parent."""
    ds = PackedDataset(rows)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        _ = ds[:], torch.ones(10**6).sum()
        found = list(_epoch(_loader(ds, batch_size=1000, num_workers=1, multiprocessing_context="fork")))
    finally:
        torch.set_num_threads(threads)
    _assert_same(found, [ds[:]])


def _read_large(path: Path) -> None:
    ds = PackedDataset(path)
    numbers = torch.arange(8000) % 1000
    for _ in range(20):  # several threads and one are each tried more than once
        assert torch.equal(ds[numbers]["y"], numbers)


@FORK
def test_a_forked_process_of_ones_own_reads_large_batches(rows: Path) -> None:
    """Where the parent has used torch's threads, a child that nobody set to one thread does not wait for them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        _read_large(rows)
        child = multiprocessing.get_context("fork").Process(target=_read_large, args=(rows,))
        child.start()
        child.join(30)
        child.kill()
        child.join()
    finally:
        torch.set_num_threads(threads)
    assert child.exitcode == 0


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
    _assert_same(found["picture"], ds[numbers]["picture"])


def test_views_are_pickled_as_one_tensor() -> None:
    """Tensors of one storage make a pickle of that storage once; others, and none, are pickled as a list is."""
    whole = torch.arange(2000.0)
    views = Views([whole[:4].view(2, 2).T, whole[3:9], whole[0:0]])
    found = pickle.loads(pickle.dumps(views))
    _assert_same(found, list(views))
    assert len({tensor.untyped_storage().data_ptr() for tensor in found}) == 1
    assert pickle.dumps(views).count(b"_rebuild_tensor") == 1
    for other in ([], [torch.ones(2), torch.zeros(3)], [whole[:2], whole.view(torch.int32)[:2]]):
        _assert_same(pickle.loads(pickle.dumps(Views(other))), other)
