"""Nests of tensors: dict, list, tuple, named tuple, dataclass and what torch's pytree knows."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass
from operator import is_
from typing import Any, TypeVar

from torch import Size, Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

Tree = TypeVar("Tree")


def map_tensors(change: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """The same nest with each tensor changed; other leaves are the same objects, and `tree` stays as it is.

    A dataclass is copied and its fields set, without `__init__`, so frozen ones and fields outside `__init__` are kept.
    Subclasses keep their type and attributes; a sample of a batch becomes a plain dict, list or tuple. A
    `PackedSequence` is a leaf: one of its tensors has to stay on the CPU.
    """
    return _map(change, tree)  # type: ignore[no-any-return]


def _map(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return change(tree)
    # Plain containers without pytree: 2 us for a dict of two tensors, where pytree takes 14.
    kind = type(tree)
    if kind is dict:
        return {key: _map(change, value) for key, value in tree.items()}
    if kind is list or kind is tuple:
        return kind([_map(change, value) for value in tree])
    if kind in pytree.SUPPORTED_NODES and kind is not Size:  # pytree would make a tuple of a shape
        return pytree.tree_map(lambda leaf: _map(change, leaf), tree, is_leaf=lambda part: isinstance(part, Size))
    return _map_unregistered(change, tree)


def _map_unregistered(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """What pytree takes for a leaf: subclasses of containers, named tuples, dataclasses; or a true leaf."""
    if isinstance(tree, dict | UserDict | list):
        result = copy(tree)
        for key, value in enumerate(tree) if isinstance(tree, list) else tree.items():
            result[key] = _map(change, value)
        return result
    if isinstance(tree, tuple) and not isinstance(tree, PackedSequence):
        return _map_tuple(change, tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        return _map_dataclass(change, tree)
    return tree


def _map_tuple(change: Callable[[Tensor], Tensor], tree: tuple[Any, ...]) -> tuple[Any, ...]:
    values = [_map(change, value) for value in tree]
    if all(map(is_, values, tree)):  # a shape, or what the system returns, such as a time
        return tree
    plain = getattr(tree, "plain", None)
    if plain is tuple:  # a sample, which would claim to be still of the batch it was made of
        return tuple(values)
    # Not its own `__new__`, which may take anything.
    result = tuple.__new__(type(tree), values)
    if hasattr(tree, "__dict__"):
        result.__dict__.update(tree.__dict__)
    return result


def _map_dataclass(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    # Not copy(): it fails on a frozen class with slots. `object.__setattr__` is the way around `frozen=True`.
    result = object.__new__(type(tree))
    if hasattr(tree, "__dict__"):
        result.__dict__.update(tree.__dict__)
    for field in fields(tree):
        if hasattr(tree, field.name):
            object.__setattr__(result, field.name, _map(change, getattr(tree, field.name)))
    return result
