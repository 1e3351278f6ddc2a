"""What `__getitems__` returns: a list of samples to everyone who looks, and one gathered batch to torch's collate.

`DataLoader(ds, batch_size=128)` passes what `__getitems__` gives to `default_collate`, which looks at the type of
the first item. `Sample` is registered there: items of one batch, all of them and in order, give back the batch
as it was gathered. A collate function of the user's own, `Subset` and `StackDataset` see a sequence of dicts, or
of the tuples or lists that a transform made of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
import torch
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from readers.ragged import Ragged


class Item:
    """What the items of a batch know beside what they hold: the batch they are from, and their number in it."""

    batch: Batch
    number: int
    plain: type[Any]

    def __reduce__(self) -> tuple[type[Any], tuple[Any]]:
        # Alone it is a plain dict; with its batch it would carry all the others through the pipe of a worker.
        return self.plain, (self.plain(self),)


class Sample(Item, dict[str, Any]):
    """One sample of a batch: field name to tensor."""

    plain = dict


class TupleSample(Item, tuple[Any, ...]):
    """One sample of a batch that a transform made a tuple."""

    plain = tuple


class ListSample(Item, list[Any]):
    """One sample of a batch that a transform made a list."""

    plain = list


_KINDS: dict[type, type[Any]] = {kind.plain: kind for kind in (Sample, TupleSample, ListSample)}


class Batch(Sequence[Any]):
    """As many items as were asked for, gathered in one go.

    Args:
        gathered: the whole batch: mapping of field to tensor, `Ragged`, or list; or what a transform made of it.
        size: number of samples.
    """

    def __init__(self, gathered: Any, size: int) -> None:
        self.gathered = gathered
        self._size = size

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._size))]
        number = index + self._size if index < 0 else index
        if not 0 <= number < self._size:
            raise IndexError(f"item {index} of a batch of {self._size}")
        item = item_of(self.gathered, number, self._size)
        kind = _KINDS.get(type(item))
        if kind is None:
            return item
        sample = kind(item)
        sample.batch = self
        sample.number = number
        return sample

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self._size))


def item_of(tree: Any, number: int, size: int) -> Any:
    """Item `number` of everything in `tree` that holds `size` items; what does not is passed as it is.

    A list within a dict, tuple or list holds an item a sample if its length is `size`; any other is a part of the tree.
    """
    if isinstance(tree, list):
        return [_part_of(part, number, size) for part in tree]
    return _part_of(tree, number, size)


def _part_of(tree: Any, number: int, size: int) -> Any:
    if isinstance(tree, Ragged):
        start, stop = tree.offsets[number : number + 2].tolist()
        return tree.values[start:stop]
    if isinstance(tree, torch.Tensor):
        return tree[number] if tree.dim() and len(tree) == size else tree
    if isinstance(tree, Mapping):
        return {key: _part_of(value, number, size) for key, value in tree.items()}
    if isinstance(tree, list):
        return tree[number] if len(tree) == size else item_of(tree, number, size)
    if isinstance(tree, tuple):
        parts = [_part_of(part, number, size) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    if isinstance(tree, np.ndarray):
        return tree[number] if tree.ndim and len(tree) == size else tree
    return tree


def collate_samples(
    samples: Sequence[Any],
    *,
    collate_fn_map: dict[type | tuple[type, ...], Callable[..., Any]] | None = None,
) -> Any:
    """The batch the samples were gathered in, if they are all of it; else the usual collation."""
    if isinstance(samples, Batch):
        return samples.gathered
    batch = getattr(samples[0], "batch", None)
    if batch is not None and [_place(s) for s in samples] == [(id(batch), i) for i in range(len(batch))]:
        return batch.gathered
    return collate([s.plain(s) if isinstance(s, Item) else s for s in samples], collate_fn_map=collate_fn_map)


def _place(sample: Any) -> tuple[int, int]:
    return id(getattr(sample, "batch", None)), getattr(sample, "number", -1)


for _kind in _KINDS.values():
    default_collate_fn_map[_kind] = collate_samples
