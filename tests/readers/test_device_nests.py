"""Nests of tensors."""

import time
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import default_collate

from readers.batch import Batch
from readers.device import map_tensors

Pair = namedtuple("Pair", "a b")


class Typed(NamedTuple):
    a: Any
    b: Any


class SubPair(Pair):
    """A named tuple with a method of its own."""


class Item(dict):
    """A dict with an attribute."""

    note = None


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


@dataclass(frozen=True)
class Slotted:
    __slots__ = ("x",)
    x: Any


def one():
    return torch.ones(2)


class Row(tuple):
    """A tuple of another name, which says how it is to be made."""

    def __new__(cls, *values):
        row = super().__new__(cls, *values)
        row.note = "kept"
        return row


NESTS = {
    "tensor": one,
    "dict": lambda: {"a": one(), "b": {"c": one()}},
    "list": lambda: [one(), [one()]],
    "tuple": lambda: (one(), (one(),)),
    "named tuple": lambda: Pair(one(), [one()]),
    "typed named tuple": lambda: Typed(one(), {"k": one()}),
    "named tuple's subclass": lambda: SubPair(one(), one()),
    "tuple's subclass": lambda: Row([one(), 3]),
    "OrderedDict": lambda: OrderedDict(b=one(), a=one()),
    "defaultdict": lambda: defaultdict(list, a=[one()]),
    "deque": lambda: deque([one(), Plain(one())]),
    "dict's subclass": lambda: Item(a=one()),
    "UserDict": lambda: UserDict(a=one()),
    "list's subclass": lambda: Rows([one()]),
    "dataclass": lambda: Plain(one(), [one()]),
    "frozen dataclass": lambda: Frozen({"k": one()}),
    "dataclass with slots": lambda: Slotted(one()),
    "dataclasses in containers": lambda: {"a": [Plain((one(), Pair(1, Frozen(one()))))]},
}


def tensors_of(tree):
    found = []
    map_tensors(lambda t: found.append(t) or t, tree)
    return found


@pytest.mark.parametrize("name", NESTS)
def test_every_tensor_is_changed(name):
    """Every tensor of a nest is changed, types stay, and the nest that was given stays as it was."""
    tree = NESTS[name]()
    result = map_tensors(lambda t: t + 1, tree)
    assert type(result) is type(tree)
    found = tensors_of(result)
    assert found
    assert not [t for t in found if not torch.equal(t, torch.full_like(t, 2))]
    assert not [t for t in tensors_of(tree) if not torch.equal(t, torch.ones_like(t))]
    assert len(found) == len(tensors_of(tree))


def test_how_many_tensors_are_found():
    """Tensors in frozen dataclasses, in fields outside __init__, and deep inside are found."""
    assert len(tensors_of(NESTS["frozen dataclass"]())) == 2
    assert len(tensors_of(NESTS["dataclasses in containers"]())) == 3


@pytest.mark.parametrize("leaf", ["text", b"bytes", 3, None, 2.5, {1, 2}, object(), Plain, torch.Size([1, 2])])
def test_other_leaves_are_left_alone(leaf):
    """What is no tensor stays the same object."""
    assert map_tensors(torch.neg, {"a": leaf})["a"] is leaf


def test_order_and_attributes_stay():
    """The order of keys, a default factory and attributes of a subclass are kept."""
    item = Item(z=one(), a=one())
    item.note = "kept"
    result = map_tensors(torch.neg, item)
    assert list(result) == ["z", "a"]
    assert result.note == "kept"
    assert map_tensors(torch.neg, defaultdict(list, a=one())).default_factory is list


def test_tuples_of_other_kinds():
    """Attributes of a subclass are kept; shapes in any container and what the system returns stay as they are."""
    assert map_tensors(torch.neg, Row([one()])).note == "kept"
    tree = OrderedDict(shape=torch.Size([2, 3]), x=one(), time=time.gmtime(0))
    result = map_tensors(torch.neg, tree)
    assert type(result["shape"]) is torch.Size
    assert result["time"] is tree["time"]
    assert result["x"].tolist() == [-1] * len(tree["x"])


def test_samples_become_plain():
    """A sample of a batch no longer says that it is of that batch, whose tensors are others."""
    x = torch.arange(3)
    for gathered, kind in (({"x": x}, dict), ([x, x], list), ((x, x), tuple)):
        items = [map_tensors(lambda t: t + 1, item) for item in Batch(gathered, 3)]
        assert {type(item) for item in items} == {kind}
        found = default_collate(items)
        assert found["x" if kind is dict else 0].tolist() == [1, 2, 3]


def test_packed_sequence_is_a_leaf():
    """A packed sequence, whose batch sizes must stay on the CPU, is left alone."""
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    assert map_tensors(torch.neg, [packed])[0] is packed
