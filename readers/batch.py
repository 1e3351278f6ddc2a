"""What `__getitems__` returns: a list of samples to everyone who looks, and one gathered batch to torch's collate.

`DataLoader(ds, batch_size=128)` passes what `__getitems__` gives to `default_collate`, which looks at the type of
the first item. `Sample` is registered there: items of one batch, all of them and in order, give back the batch
as it was gathered. A collate function of the user's own, `Subset` and `StackDataset` see a sequence of dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import torch
from torch.utils import _pytree as pytree
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from readers.ragged import Ragged


class Sample(dict[str, Any]):
    """One sample of a batch: field name to tensor; knows the batch it is from."""

    batch: Batch
    number: int

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        # Alone it is a dict; with its batch it would carry all the others through the pipe of a worker.
        return dict, (dict(self),)


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
        if not isinstance(item, dict):
            return item
        sample = Sample(item)
        sample.batch = self
        sample.number = number
        return sample

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self._size))


def item_of(tree: Any, number: int, size: int) -> Any:
    """Item `number` of everything in `tree` that holds `size` items; what does not is passed as it is."""

    def pick(leaf: Any) -> Any:
        if isinstance(leaf, Ragged):
            start, stop = leaf.offsets[number : number + 2].tolist()
            return leaf.values[start:stop]
        if isinstance(leaf, torch.Tensor):
            return leaf[number] if leaf.dim() and len(leaf) == size else leaf
        if isinstance(leaf, list):
            return leaf[number] if len(leaf) == size else leaf
        try:
            return leaf[number] if len(leaf) == size and hasattr(leaf, "dtype") else leaf
        except TypeError:
            return leaf

    if isinstance(tree, Mapping):
        return {key: item_of(value, number, size) for key, value in tree.items()}
    return pytree.tree_map(pick, tree, is_leaf=lambda node: isinstance(node, Ragged | list))


def collate_samples(
    samples: Sequence[Sample],
    *,
    collate_fn_map: dict[type | tuple[type, ...], Callable[..., Any]] | None = None,
) -> Any:
    """The batch the samples were gathered in, if they are all of it; else the usual collation of dicts."""
    if isinstance(samples, Batch):
        return samples.gathered
    batch = getattr(samples[0], "batch", None)
    if batch is not None and [_place(s) for s in samples] == [(id(batch), i) for i in range(len(batch))]:
        return batch.gathered
    return collate([dict(sample) for sample in samples], collate_fn_map=collate_fn_map)


def _place(sample: Any) -> tuple[int, int]:
    return id(getattr(sample, "batch", None)), getattr(sample, "number", -1)


default_collate_fn_map[Sample] = collate_samples
