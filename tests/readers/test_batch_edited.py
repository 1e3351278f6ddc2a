"""What is put into the samples of a batch counts when torch collates them, as it does with any other dataset."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from readers import PackedDataset


class _Wrapped(Dataset[Any]):
    """Another's samples, changed by `change` within `__getitems__`; as a list or as they came."""

    def __init__(self, ds: PackedDataset, change: Callable[[Any], None], listed: bool) -> None:
        self._ds, self._change, self._listed = ds, change, listed

    def __len__(self) -> int:
        return len(self._ds)

    def __getitems__(self, indices: list[int]) -> Any:
        items: Any = self._ds.__getitems__(indices)
        items = list(items) if self._listed else items
        for item in items:
            self._change(item)
        return items


def _replace(item: dict[str, Any]) -> None:
    item["x"] = item["x"] * 0 - 1


def _remove(item: dict[str, Any]) -> None:
    item.pop("x")


def _rename(item: dict[str, Any]) -> None:
    item["z"] = item.pop("y")


def _add(item: dict[str, Any]) -> None:
    item.update(extra=torch.tensor(5))


CHANGES = [_replace, _remove, _rename, _add]


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_put_into_items_counts(rows: Path, change: Callable[[Any], None], listed: bool) -> None:
    """Samples that a collate function or a dataset around this one changes are collated as they were left."""
    wanted = [PackedDataset(rows)[i] for i in range(4)]
    for sample in wanted:
        change(sample)

    def collate(items: Any) -> Any:
        items = list(items) if listed else items
        for item in items:
            change(item)
        return default_collate(items)

    for loader in (
        DataLoader(PackedDataset(rows), batch_size=4, collate_fn=collate),
        DataLoader(_Wrapped(PackedDataset(rows), change, listed), batch_size=4),
    ):
        found = next(iter(loader))
        assert list(found) == list(wanted[0])
        for name, value in found.items():
            assert torch.equal(value, torch.stack([sample[name] for sample in wanted]))


def test_one_changed_item_of_many_counts(rows: Path) -> None:
    """Wherever it stands, and in batches that hold lists, tuples and dicts."""

    def nest(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": batch["x"], "pair": ({"y": batch["y"]}, [batch["y"] * 2, batch["y"]])}

    ds = PackedDataset(rows, batch_transform=nest)
    for number in (0, 2):
        batch = ds.__getitems__([4, 2, 9])
        batch[number]["pair"][0]["y"] = torch.tensor(-7)
        assert (default_collate(batch)["pair"][0]["y"] == -7).tolist() == [i == number for i in range(3)]
        batch = ds.__getitems__([4, 2, 9])
        batch[number]["pair"][1][0] = torch.tensor(-7)
        assert (default_collate(list(batch))["pair"][1][0] == -7).tolist() == [i == number for i in range(3)]
    batch = ds.__getitems__([4, 2, 9])
    batch[1]["x"].fill_(3)  # a view: the batch changes with it
    assert default_collate(batch) is batch.gathered
    assert (batch.gathered["x"][1] == 3).all()


def test_items_do_not_keep_their_batch_in_a_circle(rows: Path) -> None:
    """A batch's memory is free as soon as nobody has the batch or an item, without the garbage collector."""
    ds = PackedDataset(rows)
    gc.disable()
    try:
        batch = ds.__getitems__([4, 2, 9])
        items = list(batch)
        gone, gathered = weakref.ref(batch), weakref.ref(batch.gathered["x"])
        del batch
        assert gone() is None
        assert default_collate(items)["x"] is gathered()
        del items
        assert gathered() is None
    finally:
        gc.enable()
