"""What `__getitems__` gives: a list of samples to all who look, the gathered batch to torch's own collation."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    default_collate,
    random_split,
)

from packer.errors import UsageError
from readers import Loader, Mix, PackedDataset, Ragged
from readers.data_loader import Batch
from readers.samples import item_of


def _gathered_by(ds: PackedDataset) -> list[Batch]:
    """The batches that `ds` hands to a DataLoader from here on."""
    batches: list[Batch] = []
    getitems = ds.__getitems__

    def note(indices: Sequence[Any]) -> Batch:
        batches.append(getitems(indices))
        return batches[-1]

    ds.__getitems__ = note  # type: ignore[method-assign]
    return batches


def _is_the_gathered(found: dict[str, Any], batch: Batch) -> bool:
    """Whether every tensor of `found` is the memory that was gathered, not a copy."""
    return found is batch.gathered and all(isinstance(value, torch.Tensor) for value in found.values())


def test_a_batch_is_a_list_of_samples(packed: Path) -> None:
    """As many as were asked for, from either end, in slices and loops; each a dict."""
    ds = PackedDataset(packed)
    batch = ds.__getitems__([4, 2, 9])
    assert len(batch) == len(list(batch)) == 3
    for item, number in zip(batch, [4, 2, 9], strict=True):
        assert isinstance(item, dict)
        assert list(item) == list(ds.fields)
        assert torch.equal(item["xyz"], ds[number]["xyz"])
        assert torch.equal(item["picture"], ds[number]["picture"])
        assert item["caption"] == ds[number]["caption"]
        assert item["label"].shape == ()
    assert torch.equal(batch[-1]["x"], batch[2]["x"])
    assert [int(item["label"]) for item in batch[:2]] == [int(batch[0]["label"]), int(batch[1]["label"])]
    for wrong in (3, -4):
        with pytest.raises(IndexError, match="batch of 3"):
            _ = batch[wrong]


def test_default_collate_takes_the_gathered_batch(packed: Path) -> None:
    """All items of one batch, as a batch or as a list, are not stacked again."""
    batch = PackedDataset(packed).__getitems__([4, 2, 9])
    assert default_collate(batch) is batch.gathered
    assert default_collate(list(batch)) is batch.gathered


def test_items_that_are_not_the_whole_batch_are_collated_as_usual(rows: Path) -> None:
    """A part of a batch, another order, or items of two batches: the values of the items given, in their order."""
    batch = PackedDataset(rows).__getitems__([4, 2, 9])
    other = PackedDataset(rows).__getitems__([5])
    for items in (batch[:2], batch[::-1], [batch[0], batch[0], batch[2]], [batch[1], other[0]]):
        found = default_collate(items)
        assert found["y"].tolist() == [int(item["y"]) for item in items]
        assert torch.equal(found["x"][:, 5].long(), found["y"])


def test_an_item_is_a_dict_wherever_it_goes(packed: Path) -> None:
    """Changed, copied and pickled alone it is a plain dict, without the batch it is from."""
    batch = PackedDataset(packed, fields=["x", "xyz"]).__getitems__(list(range(50)))
    item = batch[3]
    again = pickle.loads(pickle.dumps(item))
    assert type(again) is dict
    assert torch.equal(again["x"], item["x"])
    assert type(copy.copy(item)) is dict
    item["extra"] = 1
    assert default_collate([dict(item)])["extra"].tolist() == [1]


def test_items_of_other_trees() -> None:
    """What a transform made is taken apart where it holds one item a sample, and passed whole where it does not."""
    tree = {
        "pair": (torch.arange(3), [torch.zeros(2), torch.ones(2), torch.ones(2)]),
        "array": np.arange(3),
        "scalar": torch.tensor(7),
        "whole": torch.zeros(5),
        "ragged": Ragged(torch.arange(4), torch.tensor([0, 1, 1, 4])),
        "text": ["a", "b", "c"],
        "word": "abc",
        "none": None,
    }
    item = item_of(tree, 2, 3)
    assert int(item["pair"][0]) == 2
    assert item["pair"][1].tolist() == [1, 1]
    assert item["array"] == 2
    assert item["scalar"] == 7
    assert item["whole"].shape == (5,)
    assert item["ragged"].tolist() == [1, 2, 3]
    assert (item["text"], item["word"], item["none"]) == ("c", "abc", None)
    assert item_of(torch.arange(3), 1, 3) == 1
    Pair = namedtuple("Pair", "x y")
    assert item_of(Pair(torch.arange(3), torch.arange(3) * 2), 2, 3) == Pair(2, 4)
    x, y = item_of([torch.arange(2), torch.arange(2) * 5], 1, 2)
    assert (int(x), int(y)) == (1, 5)
    assert item_of({"a": [[torch.arange(3)]]}, 2, 3) == {"a": [[2]]}


# torch's DataLoader.


def test_a_data_loader_gets_the_gathered_batches(rows: Path) -> None:
    """`DataLoader(ds, batch_size=128, shuffle=True)` hands on what was gathered: nothing is stacked."""
    ds = PackedDataset(rows)
    batches = _gathered_by(ds)
    seen = []
    for found in DataLoader(ds, batch_size=128, shuffle=True):
        assert _is_the_gathered(found, batches[-1])
        assert torch.equal(found["x"][:, 3].long(), found["y"])
        seen += found["y"].tolist()
    assert [len(batch) for batch in batches] == [128] * 7 + [104]
    assert sorted(seen) == list(range(1000))


def test_every_kind_of_field_goes_through_a_data_loader(packed: Path) -> None:
    """Tensors, Ragged, lists of images and text arrive as `ds[...]` gives them."""
    ds = PackedDataset(packed)
    first = next(iter(DataLoader(ds, batch_size=8)))
    wanted = ds[:8]
    assert list(first) == list(wanted)
    assert isinstance(first["xyz"], Ragged)
    assert torch.equal(first["xyz"].values, wanted["xyz"].values)
    assert first["caption"] == wanted["caption"]
    assert all(map(torch.equal, first["picture"], wanted["picture"]))
    assert first["lr"].is_contiguous(memory_format=torch.channels_last)


def test_a_collate_function_of_ones_own_sees_samples(packed: Path) -> None:
    """A sequence of dicts, which it may loop over, index, sort and measure."""

    def collate(items: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
        assert not [item for item in items if not isinstance(item, dict)]
        assert items[0]["x"].shape == (5,)
        return sorted((len(item["xyz"]), int(item["label"])) for item in items)

    found = list(DataLoader(PackedDataset(packed), batch_size=25, collate_fn=collate))
    assert [len(part) for part in found] == [25, 25, 10]
    assert found[2][-1][0] == 4


def test_a_batch_sampler_in_place_of_batches(rows: Path) -> None:
    """A BatchSampler as sampler, with `batch_size=None`, asks for lists, and so for batches."""
    ds = PackedDataset(rows)
    sampler = BatchSampler(RandomSampler(ds), 300, drop_last=True)
    found = list(DataLoader(ds, batch_size=None, sampler=sampler))
    assert [len(batch["y"]) for batch in found] == [300] * 3
    for batch in found:
        assert torch.equal(batch["x"][:, 0].long(), batch["y"])
    packs = list(DataLoader(ds, batch_sampler=BatchSampler(SequentialSampler(ds), 400, drop_last=False)))
    assert [int(batch["y"][0]) for batch in packs] == [0, 400, 800]


def test_subsets_get_the_gathered_batches(rows: Path) -> None:
    """Train and validation parts, and parts of parts, read batches of the samples of the whole."""
    ds = PackedDataset(rows)
    train, valid = random_split(ds, [800, 200], torch.Generator().manual_seed(0))
    seen = []
    for part in (train, Subset(valid, range(150)), Subset(valid, range(150, 200))):
        batches = _gathered_by(ds)
        for found in DataLoader(part, batch_size=64, shuffle=True):
            assert _is_the_gathered(found, batches[-1])
            seen += found["y"].tolist()
    assert sorted(seen) == list(range(1000))


def test_stacked_datasets_get_the_gathered_batches(packed: Path, rows: Path) -> None:
    """Two datasets side by side give pairs of gathered batches."""
    left, right = PackedDataset(packed, fields=["x"]), PackedDataset(packed, fields=["label", "lr"])
    lefts, rights = _gathered_by(left), _gathered_by(right)
    for a, b in DataLoader(StackDataset(left, right), batch_size=16, shuffle=True):
        assert _is_the_gathered(a, lefts[-1])
        assert _is_the_gathered(b, rights[-1])
    named = next(iter(DataLoader(StackDataset(one=left, two=right), batch_size=16)))
    assert _is_the_gathered(named["one"], lefts[-1])
    assert _is_the_gathered(named["two"], rights[-1])


@pytest.mark.parametrize(
    "transform",
    [
        lambda batch: {"double": batch["x"] * 2, "y": batch["y"]},
        lambda batch: (batch["x"] * 2, batch["y"]),
        lambda batch: [batch["x"] * 2, batch["y"]],
    ],
)
def test_a_transformed_batch_is_handed_on(rows: Path, transform: Any) -> None:
    """A transform sees each batch once; a dict arrives as it made it, of tuples and lists torch joins the items."""
    made = []

    def noted(batch: dict[str, Any]) -> Any:
        made.append(transform(batch))
        return made[-1]

    ds = PackedDataset(rows, batch_transform=noted)
    for found in DataLoader(ds, batch_size=400):
        if isinstance(made[-1], dict):
            assert found is made[-1]
        else:
            assert all(map(torch.equal, found, made[-1]))
    assert len(made) == 3
    for item, number in zip(ds.__getitems__(range(5, 7)), range(5, 7), strict=True):
        double, y = item.values() if isinstance(item, dict) else item
        assert (int(y), double.tolist()) == (number, [2 * number] * 33)
        assert type(copy.copy(item)) is type(transform(PackedDataset(rows)[:2]))


class _Cloud:
    """An object that a transform makes of a batch."""

    def __init__(self, batch: dict[str, Any]) -> None:
        self.pos = batch["x"]


@dataclass
class _Pair:
    x: torch.Tensor
    y: torch.Tensor


def _tensor_dict(batch: dict[str, Any]) -> Any:
    from tensordict import TensorDict  # here, since it imports half of torch, which every later fork would copy

    return TensorDict(dict(batch), batch_size=[len(batch["y"])])


@pytest.mark.parametrize(
    ("transform", "made"),
    [
        (_Cloud, "_Cloud"),
        (lambda batch: _Pair(**batch), "_Pair"),
        (lambda batch: (_Cloud(batch), batch["y"]), "_Cloud"),
        (_tensor_dict, "TensorDict"),
        (lambda batch: batch["x"].mean(), "Tensor"),
        (lambda batch: None, "NoneType"),
    ],
)
def test_an_object_made_of_a_batch_is_no_batch_of_samples(rows: Path, transform: Any, made: str) -> None:
    """DataLoader needs samples: an object that has none is an error. Loader hands it out, and so does a list index."""
    ds = PackedDataset(rows, batch_transform=transform)
    for dataset in (ds, Subset(ds, range(8)), Mix({ds: 1})):
        with pytest.raises(UsageError, match=rf"a batch of 4 and returned a {made}, .* give .*sample_transform="):
            next(iter(DataLoader(dataset, batch_size=4)))
    assert type(next(iter(Loader(ds, 4)))) is type(ds[:4]) is type(transform(PackedDataset(rows)[:4]))


@pytest.mark.parametrize("kind", [OrderedDict, UserDict])
def test_other_dicts_are_batches(rows: Path, kind: Any) -> None:
    """A subclass of dict and a UserDict, as tokenizers make them, are taken apart by key."""
    batch = next(iter(DataLoader(PackedDataset(rows, batch_transform=kind), batch_size=4)))
    assert batch["y"].tolist() == [0, 1, 2, 3]


def test_pinned_batches(packed: Path) -> None:
    """With `pin_memory` every tensor of a batch is page-locked, Ragged and lists among them."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    batch = next(iter(DataLoader(PackedDataset(packed), batch_size=8, pin_memory=True)))
    tensors = [batch["x"], *batch["xyz"], *batch["picture"]]
    assert not [tensor for tensor in tensors if not tensor.is_pinned()]
    assert isinstance(batch["xyz"], Ragged)
