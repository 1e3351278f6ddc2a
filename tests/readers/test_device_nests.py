"""Nests of tensors, as `to_device` moves them: here to a device that holds no values."""

import time
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import default_collate

from readers import PackedDataset, to_device
from readers.device import map_tensors

Pair = namedtuple("Pair", "a b")


class Typed(NamedTuple):
    a: Any
    b: Any


class SubPair(Pair):
    """A named tuple with a method of its own."""


class Item(dict):
    """A dict with an attribute."""

    note = "none"


class Rows(list):
    """A list of its own type."""


@dataclass
class Plain:
    x: Any
    y: Any = 3


@dataclass(frozen=True)
class Frozen:
    x: Any
    late: Any = field(init=False, default=None)

    def __post_init__(self):
        object.__setattr__(self, "late", torch.ones(1))


@dataclass(frozen=True, slots=True)
class Slotted:
    x: Any


def one():
    return torch.ones(2)


#: Nests, each with how many tensors it holds.
NESTS = {
    "tensor": (one, 1),
    "dict": (lambda: {"a": one(), "b": {"c": one()}}, 2),
    "list": (lambda: [one(), [one()]], 2),
    "tuple": (lambda: (one(), (one(),)), 2),
    "named tuple": (lambda: Pair(one(), [one()]), 2),
    "typed named tuple": (lambda: Typed(one(), {"k": one()}), 2),
    "named tuple's subclass": (lambda: SubPair(one(), one()), 2),
    "OrderedDict": (lambda: OrderedDict(b=one(), a=one()), 2),
    "defaultdict": (lambda: defaultdict(list, a=[one()]), 1),
    "deque": (lambda: deque([one(), Plain(one())]), 2),
    "dict's subclass": (lambda: Item(a=one()), 1),
    "UserDict": (lambda: UserDict(a=one()), 1),
    "list's subclass": (lambda: Rows([one()]), 1),
    "dataclass": (lambda: Plain(one(), [one()]), 2),
    "frozen dataclass": (lambda: Frozen({"k": one()}), 2),
    "dataclass with slots": (lambda: Slotted(one()), 1),
    "dataclasses in containers": (lambda: {"a": [Plain((one(), Pair(1, Frozen(one()))))]}, 3),
}


def devices(tree):
    found = []
    map_tensors(lambda t: found.append(t.device.type) or t, tree)
    return found


@pytest.mark.parametrize("name", NESTS)
def test_every_tensor_is_moved(name):
    """Every tensor of a nest is moved, types stay, and the nest that was given stays as it was."""
    make, count = NESTS[name]
    tree = make()
    moved = to_device(tree, "meta")
    assert type(moved) is type(tree)
    assert devices(moved) == ["meta"] * count
    assert devices(tree) == ["cpu"] * count


@pytest.mark.parametrize(
    "leaf",
    [
        *["text", b"bytes", 3, None, {1, 2}, object(), Plain, torch.Size([1, 2]), time.gmtime(0)],
        pack_sequence([torch.ones(3), torch.ones(2)]),  # whose batch sizes must stay on the CPU
    ],
    ids=lambda leaf: type(leaf).__name__,
)
def test_other_leaves_are_left_alone(leaf):
    """What is no tensor stays the same object."""
    assert to_device({"a": leaf}, "meta")["a"] is leaf


def test_order_and_attributes_stay():
    """The order of keys, a default factory and attributes of a subclass are kept."""
    item = Item(z=one(), a=one())
    item.note = "kept"
    moved = to_device(item, "meta")
    assert (list(moved), moved.note) == (["z", "a"], "kept")
    assert to_device(defaultdict(list, a=one()), "meta").default_factory is list


def test_samples_become_plain(rows):
    """A sample of a batch no longer says that it is of that batch, whose tensors are others."""
    items = [map_tensors(lambda tensor: tensor + 1, item) for item in PackedDataset(rows).__getitems__([4, 2])]
    assert {type(item) for item in items} == {dict}
    assert default_collate(items)["y"].tolist() == [5, 3]
