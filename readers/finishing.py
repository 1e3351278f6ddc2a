"""From a gathered batch to the one that is handed out, and which thread does that.

Functions of the caller's own take any time. Quick ones are called in the caller's thread, where they cost least; slow
ones ahead, in a thread of their own, one batch after another. Either way runs of one seed repeat. A function that
draws from the global generators of torch, numpy or Python, or seeds them, must not run beside a training step that
draws from them too: it stays in the caller's thread. All this is found out with the first batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from readers.batch import Ragged
from readers.draws import Words
from readers.transforms import Transforms, call_own, watch_generators
from readers.valid import remark

#: To hand a batch over from another thread takes about half as long; what is quicker stays in the caller's thread.
QUICK_SECONDS = 1e-4
#: Batches that are tried before that is decided. The first ones are slow: torch loads much at its first use.
TRIED = 4


class Finisher:
    """Makes batches that are handed out.

    Args:
        transforms: of the dataset; an attribute, too.
        collate: makes a batch of the list of its samples; None to join them.
        threads: how many call functions of the caller's own ahead, 0 for the caller's thread; None if the first batches
            decide between one thread and none. An attribute, too.
        channels_last, as_numpy: see `Loader`.
        pinned: whether copies go to page-locked memory.

    Attributes:
        has_functions: whether there are functions of the caller's own.
        copies: whether tensors are copied, each batch by itself.
        takes_runs: whether all batches of a run are finished by one call, as arrays. If neither that nor `copies`, and
            there are no functions, batches are handed out as they are read.
    """

    def __init__(
        self,
        transforms: Transforms,
        collate: Callable[[list[Any]], Any] | None,
        threads: int | None,
        *,
        channels_last: bool,
        as_numpy: bool,
        pinned: bool,
    ) -> None:
        self.transforms, self._collate = transforms, collate
        self.has_functions = bool(transforms) or collate is not None
        self.threads = threads if self.has_functions else 0
        self._changes: list[Callable[[torch.Tensor], Any]] = []
        self.copies = not channels_last
        if self.copies:
            self._changes.append(partial(_make_contiguous, pinned))
        if as_numpy:
            self._changes.append(torch.Tensor.numpy)
        self.takes_runs = as_numpy and not self.copies and not self.has_functions
        self._tried = 0

    def finish(self, batch: Any, size: int, seeds: Words | None) -> Any:
        """Return a batch as it is handed out.

        Args:
            size: samples of the batch.
            seeds: see `Transforms.draw_seeds`.
        """
        if self._collate is not None:
            batch = call_own(self._collate, list(self.transforms.samples_after(batch, size, seeds)))
        elif self.has_functions:
            batch = self.transforms.batch_after(batch, size, seeds)
        for change in self._changes:
            batch = _change_tensors(change, batch)
        return batch

    def try_out(self, batch: Any, size: int, seeds: Words | None) -> Any:
        """Return a batch as `finish` does, one of the first, which decide about `threads`."""
        with watch_generators() as are_used:
            began = time.perf_counter()
            finished = self.finish(batch, size, seeds)
            seconds = time.perf_counter() - began
        self._tried += 1
        if are_used():
            self.threads = 0
            remark(
                "a transform draws from the global generators of torch, numpy or Python, or seeds them, which would "
                "not repeat in a thread: it runs in your own thread, while the next batches wait. Give it a second "
                "parameter `generator` and draw from that; or threads=1, if its draws need not repeat"
            )
        elif seconds < QUICK_SECONDS:
            self.threads = 0
        elif self._tried == TRIED:
            self.threads = 1
        return finished


def _change_tensors(change: Callable[[torch.Tensor], Any], batch: Any) -> Any:
    """Return a batch with each tensor changed."""
    if type(batch) is not dict:
        return _change_value(change, batch)
    # As batches are gathered: without torch's pytree, which takes longer than reading.
    return {
        name: change(value) if type(value) is torch.Tensor else _change_value(change, value)
        for name, value in batch.items()
    }


def _change_value(change: Callable[[torch.Tensor], Any], value: Any) -> Any:
    if type(value) is Ragged:
        return Ragged(change(value.values), change(value.offsets))
    return pytree.tree_map_only(torch.Tensor, change, value)


def _make_contiguous(pinned: bool, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_contiguous():
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device, pin_memory=pinned).copy_(tensor)
