"""Tensors on their way to a device: pinned, copied on a stream of their own, one batch ahead.

    side stream     copy 0 | copy 1 |        copy 2 |        copy 3 |
    current stream           wait 0 | compute 0       wait 1 | compute 1

While the device computes on one batch, the next one is copied.
"""

from __future__ import annotations

from collections import UserDict, deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Size, Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from packer.errors import UsageError

Tree = TypeVar("Tree")


def move_ahead(batches: Iterable[Tree], device: torch.device | str) -> Iterator[Tree]:
    """Return the batches on `device`, each one copied while the one before is in use.

    It takes one batch ahead of the caller from `batches`. If that raises, the exception is raised when its batch is
    asked for. Without CUDA (`device="cpu"`) each batch is moved when it is asked for. Copies of pageable tensors block
    the caller.

    Raises:
        UsageError: there is no such device here.
    """
    target = resolve_device(device)
    if target.type != "cuda":
        return (to_device(batch, target) for batch in batches)
    number = torch.cuda.current_device() if target.index is None else target.index
    return _move_one_ahead(iter(batches), torch.device("cuda", number))


def _move_one_ahead(batches: Iterator[Tree], device: torch.device) -> Iterator[Tree]:
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types here
    # Sources are kept until their copies are done: with its last tensor memory goes back to its pool, which must not
    # hand it out again too early.
    sources: deque[tuple[torch.cuda.Event, Any]] = deque()
    # A queue, and no name for the batch handed out: the caller alone decides how long its memory is held.
    staged: deque[tuple[Tree, list[Tensor], torch.cuda.Event]] = deque()

    def start(batch: Tree) -> None:
        while sources and sources[0][0].query():  # type: ignore[no-untyped-call]
            sources.popleft()
        current = torch.cuda.current_stream(device)
        tensors: list[Tensor] = []

        def move(tensor: Tensor) -> Tensor:
            # A tensor that is on a device already may still be computed, on the caller's stream.
            with torch.cuda.stream(side if tensor.device.type == "cpu" else current):
                tensors.append(tensor.to(device, non_blocking=True))
            return tensors[-1]

        moved = map_tensors(move, batch)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(side)
        sources.append((copied, batch))
        staged.append((moved, tensors, copied))

    def hand_over() -> Tree:
        moved, tensors, copied = staged.popleft()
        current = torch.cuda.current_stream(device)
        current.wait_event(copied)  # that stream, not the caller, waits for the copy
        for tensor in tensors:
            # The memory belongs to the side stream; it may be used again only after the caller's work on it.
            tensor.record_stream(current)
        return moved

    failure: Exception | None = None
    has_more = True
    try:
        while has_more:
            try:
                start(next(batches))
            except StopIteration:
                has_more = False
            except Exception as error:
                failure, has_more = error, False
            if len(staged) == 2 or (staged and not has_more):
                yield hand_over()
        if failure is not None:
            raise failure
    finally:
        failure = None  # it refers to this frame, and this frame to it
        if sources:
            sources[-1][0].synchronize()
            sources.clear()


def to_device(tree: Tree, device: torch.device | str, non_blocking: bool = True) -> Tree:
    """Return the same nest of dict, list, tuple, named tuple, dataclass and whatever torch's pytree knows, on `device`.

    Whatever is not a tensor is left alone. With `non_blocking`, copies from pinned memory return at once; a copy to the
    CPU always waits, since its memory would be handed out before it is filled.
    """
    target = torch.device(device)
    at_once = non_blocking and target.type != "cpu"
    moved: Tree = map_tensors(lambda tensor: tensor.to(target, non_blocking=at_once), tree)
    return moved


def resolve_device(device: torch.device | str) -> torch.device:
    """Return the device of this name.

    Raises:
        UsageError: there is none of this name, or not here.
    """
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"torch does not know the device {device!r}; give 'cuda', 'cuda:1' or 'cpu'") from error
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UsageError(f"device {str(target)!r}: torch finds {count} CUDA devices here; 'cpu' works everywhere")
    if target.type not in ("cpu", "cuda"):
        try:
            torch.empty(0, device=target)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise UsageError(
                f"device {str(target)!r}: torch cannot use it here ({reason}); 'cpu' works everywhere"
            ) from error
    return target


def map_tensors(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Return the same nest with each tensor changed; other leaves are the same objects, and `tree` stays as it is.

    Besides what torch's pytree knows, subclasses of dict and list, UserDicts and dataclasses are nests: a copy is made,
    without `__init__`, and its parts are set. A sample of a batch becomes a plain dict. A `PackedSequence` is a leaf:
    one of its tensors has to stay on the CPU.
    """

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return change(leaf)
        result = leaf
        if isinstance(leaf, dict | UserDict | list):
            result = copy(leaf)
            for key, value in enumerate(leaf) if isinstance(leaf, list) else leaf.items():
                result[key] = map_tensors(change, value)
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            result = copy(leaf)
            for field in fields(leaf):  # not setattr: the class may be frozen
                object.__setattr__(result, field.name, map_tensors(change, getattr(leaf, field.name)))
        return result

    # pytree would make a tuple of a shape.
    return pytree.tree_map(changed, tree, is_leaf=lambda node: isinstance(node, Size | PackedSequence))
