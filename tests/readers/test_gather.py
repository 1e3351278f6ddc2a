"""Uncompressed samples are copied whole, by torch's threads or by numpy, and what is handed out is the caller's own."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fields import same
from numpy.typing import NDArray

from packer.writer import DatasetWriter
from readers import Loader, PackedDataset

COUNT = 53
#: Dtype and shape by name: records of an odd number of bytes, of any element that torch copies by, long ones, and none.
FIELDS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "odd": ("u1", (7,)),
    "deep": ("u2", (3, 2, 1)),
    "x": ("f4", (33,)),
    "y": ("i8", ()),
    "wide": ("c16", (5,)),
    "long": ("u1", (40_001,)),
    "none": ("f4", (0, 2)),
}
VALUES: dict[str, NDArray[Any]] = {
    name: (np.arange(np.prod(shape)) % 7 + np.arange(COUNT)[:, None]).astype(dtype).reshape(COUNT, *shape)
    for name, (dtype, shape) in FIELDS.items()
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Uncompressed samples in several shards; a sample holds its number."""
    made = tmp_path_factory.mktemp("gather") / "packed"
    with DatasetWriter(made, codec="none", shard_size=500_000) as writer:
        for number in range(COUNT):
            writer.add({name: values[number] for name, values in VALUES.items()})
    return made


@pytest.fixture
def two_threads() -> Iterator[None]:
    """torch copies large batches by two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def elsewhere(work: Callable[[], Any]) -> Any:
    """What `work` gives in a thread of its own."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("nbytes", [0, 2**20])
def test_batches_of_any_size_are_as_packed(folder: Path, field: str, nbytes: int) -> None:
    """Records come whole, in any order and more than once, small batches and large ones, in any thread, by any way."""
    numbers = np.random.default_rng(0).integers(0, COUNT, nbytes // (VALUES[field][0].nbytes or nbytes or 1) + 9)
    dataset = PackedDataset(folder, field)
    for batch in (
        dataset[numbers],
        elsewhere(lambda: dataset[numbers]),
        *(next(iter(Loader(dataset, len(numbers), sampler=numbers, threads=threads))) for threads in (0, 1)),
    ):
        assert same(batch[field], VALUES[field][numbers])
        batch[field].zero_()  # its own memory, not the file's
    assert same(dataset[3][field], VALUES[field][3])


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("length", [2**16 + 1, 2**19 + 8, 2**19 + 7])
@pytest.mark.parametrize("numbers", [[], [4], [5, 0, 3, 3, 1]])
def test_records_too_large_for_all_addresses_are_as_packed(tmp_path: Path, length: int, numbers: list[int]) -> None:
    """Of several shards: records of so many bytes for each address would be more than 2**63 in all."""
    values = (np.arange(length) % 251 + np.arange(6)[:, None]).astype(np.uint8)
    with DatasetWriter(tmp_path / "d", codec="none", shard_size=2 * length) as writer:
        for value in values:
            writer.add({"x": value, "y": 0})
    dataset = PackedDataset(tmp_path / "d")
    assert len(dataset.manifest.shards) > 2
    for batch in (dataset[numbers], elsewhere(lambda: dataset[numbers])):
        assert same(batch["x"], values[numbers].reshape(-1, length))
    rows = slice(3, length - 2)
    assert same(dataset.read(2, "x", rows=rows), values[2, rows])


@pytest.mark.usefixtures("two_threads")
def test_threads_that_hold_a_copy_up_are_left_alone_for_a_while(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then numpy copies, with the same values, as it does in other threads."""
    dataset, numbers = PackedDataset(folder, ["x"]), np.arange(20_000) % COUNT
    select, done, now = torch.index_select, list[int](), [1e9]
    monkeypatch.setattr(torch, "index_select", lambda *given, **out: done.append(1) or select(*given, **out))
    monkeypatch.setattr(time, "perf_counter", itertools.count(step=1.0).__next__)  # any copy takes a second
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def copies() -> int:
        done.clear()
        assert same(dataset[numbers]["x"], VALUES["x"][numbers])
        return len(done)

    assert elsewhere(copies) == 0
    assert [copies() for _ in range(3)] == [1, 0, 0]
    now[0] += 1
    assert [copies() for _ in range(2)] == [1, 0]
    now[0] = 0.0


def test_what_a_transform_has_let_go_of_is_kept_by_nobody(folder: Path) -> None:
    """The batch it was given is gone while the caller works on what was made of it."""
    seen = []

    def transform(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        seen.append(weakref.ref(batch["odd"]))
        return batch["x"]

    for _ in Loader(PackedDataset(folder, batch_transform=transform), 8, threads=0):
        assert seen[-1]() is None


@pytest.mark.parametrize("modes", [(True, False), (False, True)])
def test_inference_mode_may_begin_and_end_between_epochs(folder: Path, modes: tuple[bool, bool]) -> None:
    """Of the memory of both, and of places that were looked up in the midst of a run."""
    loader = Loader(PackedDataset(folder, ["x", "long"]), 52)
    for mode in modes:
        with torch.inference_mode(mode):
            assert same(next(iter(loader))["long"], VALUES["long"][:52])
    batches = iter(Loader(PackedDataset(folder), 8))
    with torch.inference_mode():
        next(batches)
    batch = next(batches)
    assert torch.equal(torch.nn.Parameter(batch["x"]) * 2, batch["x"] * 2)


def test_a_loop_goes_on_in_another_thread(folder: Path) -> None:
    """In the midst of an epoch."""
    batches = iter(Loader(PackedDataset(folder), 8))
    next(batches)
    next(batches)
    assert elsewhere(lambda: [int(batch["y"][0]) for batch in batches]) == list(range(16, COUNT, 8))
