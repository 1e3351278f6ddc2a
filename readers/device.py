"""Tensors on their way to a device: pinned, copied on a stream of their own, one batch ahead.

    side stream     copy 0 | copy 1 |        copy 2 |        copy 3 |
    current stream           wait 0 | compute 0       wait 1 | compute 1

While the device computes on one batch, the next one is copied. `ahead` does all of it; `Stager` is its parts.
"""

from __future__ import annotations

from collections import UserDict, deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from operator import is_
from typing import Any, Generic, TypeVar

import torch
from torch import Size, Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from packer.errors import UsageError

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class Staged(Generic[Tree]):
    """A batch whose copy to the device has been started.

    Attributes:
        batch: the nest, with its tensors on the device; to be used after `Stager.hand_over` only.
        tensors: all tensors of it.
        copied: event behind the copies.
    """

    batch: Tree
    tensors: list[Tensor]
    copied: torch.cuda.Event


class Stager:
    """Copies batches to a CUDA device on a stream of its own.

    What a batch is copied from is kept alive until its copy is done, so that memory that goes back to a
    pool with its last tensor is not written again too early. Call `drain` before giving the stager up.

    Raises:
        UsageError: `device` is no CUDA device of this machine.
    """

    def __init__(self, device: torch.device | str) -> None:
        target = device_of(device)
        if target.type != "cuda":
            raise UsageError(f"device {str(target)!r}: a CUDA device is expected; to_device moves to any other")
        self.device = torch.device("cuda", torch.cuda.current_device() if target.index is None else target.index)
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch has no types here
        self._sources: deque[tuple[torch.cuda.Event, Any]] = deque()

    def stage(self, batch: Tree) -> Staged[Tree]:
        """Starts the copy of `batch`, a nest as for `to_device`. Pageable tensors hold up the caller."""
        self._release()
        current = torch.cuda.current_stream(self.device)
        tensors: list[Tensor] = []

        def move(tensor: Tensor) -> Tensor:
            if tensor.device.type == "cpu":
                moved = tensor.to(self.device, non_blocking=True)
            else:  # what is on a device already may still be computed, on the caller's stream
                with torch.cuda.stream(current):
                    moved = tensor.to(self.device, non_blocking=True)
            tensors.append(moved)
            return moved

        with torch.cuda.stream(self._stream):
            moved = map_tensors(move, batch)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        self._sources.append((copied, batch))
        return Staged(moved, tensors, copied)

    def hand_over(self, staged: Staged[Tree]) -> Tree:
        """The batch, for use on the caller's current stream: that stream, not the caller, waits for the copy."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(staged.copied)
        for tensor in staged.tensors:
            # The memory belongs to the side stream; it may be used again only behind the caller's work on it.
            tensor.record_stream(current)
        return staged.batch

    def drain(self) -> None:
        """Waits until every copy that was started is done, and lets go of what was copied."""
        if self._sources:
            self._sources[-1][0].synchronize()
            self._sources.clear()

    def _release(self) -> None:
        while self._sources and self._sources[0][0].query():  # type: ignore[no-untyped-call]
            self._sources.popleft()


def ahead(batches: Iterable[Tree], device: torch.device | str) -> Iterator[Tree]:
    """The batches on `device`, each one copied while the one before is in use.

    One batch more than was handed out has been taken from `batches`. An exception raised there comes when its own batch
    is asked for. Without CUDA (`device="cpu"`) each batch is moved when it is asked for.

    Raises:
        UsageError: there is no such device here.
    """
    target = device_of(device)
    if target.type != "cuda":
        return (to_device(batch, target) for batch in batches)
    return _one_ahead(Stager(target), iter(batches))


def _one_ahead(stager: Stager, batches: Iterator[Tree]) -> Iterator[Tree]:
    # A queue, and no name for the batch handed out: the caller alone decides how long its memory is held.
    staged: deque[Staged[Tree]] = deque()
    failure: Exception | None = None
    more = True
    try:
        while more:
            try:
                staged.append(stager.stage(next(batches)))
            except StopIteration:
                more = False
            except Exception as error:
                failure, more = error, False
            if len(staged) == 2 or (staged and not more):
                yield stager.hand_over(staged.popleft())
        if failure is not None:
            raise failure
    finally:
        failure = None  # it refers to this frame, and this frame to it
        stager.drain()


def to_device(tree: Tree, device: torch.device | str, non_blocking: bool = True) -> Tree:
    """The same nest of dict, list, tuple, named tuple, dataclass and whatever torch's pytree knows, on `device`.

    Leaves that are no tensors are left alone. With `non_blocking`, copies from pinned memory return at once;
    a copy to the CPU always waits, since its memory would be handed out before it is filled.
    """
    target = torch.device(device)
    at_once = non_blocking and target.type != "cpu"
    return map_tensors(lambda tensor: tensor.to(target, non_blocking=at_once), tree)


def device_of(device: torch.device | str) -> torch.device:
    """The device of this name.

    Raises:
        UsageError: there is none of this name, or no CUDA.
    """
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"torch knows no device {device!r}; give 'cuda', 'cuda:1' or 'cpu'") from error
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise UsageError(f"device {str(target)!r}: torch finds {found} CUDA devices here; 'cpu' works everywhere")
    return target


# Nests of tensors: dict, list, tuple, named tuple, dataclass and what torch's pytree knows.


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
