"""What torch's `DataLoader` gets: a list of samples, which its own collation takes for the batch that it is.

`DataLoader(ds, batch_size=128)` passes the result of `__getitems__` to `default_collate`, which looks at the type of
the first item. `Sample` is registered there: given all items of one batch, in order and unchanged, it returns the
gathered batch. A collate function of the user's own, `Subset` and `StackDataset` see a sequence of dicts.

Two kinds of batches are collated item by item, as those of any other dataset: where a transform returned a tuple, list
or tensor, and where something else was put into an item. (The tensors of an item are views of the batch. Values changed
in place change in the batch too; a shape changed in place, as by `unsqueeze_`, goes unnoticed.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import is_
from typing import Any, NamedTuple, overload

import torch
from torch.utils import _pytree as pytree
from torch.utils.data._utils.collate import default_collate_fn_map

from readers.samples import Several, check_items, flatten_results, item_of, join

#: Types of values that hold no others.
_FLAT = frozenset((torch.Tensor, str))


class Origin(NamedTuple):
    """The gathered batch and the place in it that an item was made from.

    It does not refer to the `Batch`, which refers to its items: such a cycle would keep the batch's memory for long.

    Attributes:
        gathered: the whole batch.
        size: items of that batch.
        number: which of them it is.
        leaves, tree: its contents when it was made, as `_flatten` gives them.
    """

    gathered: Any
    size: int
    number: int
    leaves: list[Any]
    tree: Any


class Sample(dict[str, Any]):
    """One sample of a batch, field name to tensor, which knows its batch if it is as it was gathered."""

    origin: Origin | None = None

    def __reduce__(self) -> tuple[type[Any], tuple[Any]]:
        # Alone it is a plain dict; with its batch it would carry all the others through the pipe of a worker.
        return dict, (dict(self),)


class SampleTuple(tuple[Any, ...]):
    """What a transform returned for one sample, which `default_collate` joins by `join`; elsewhere a plain tuple."""

    __slots__ = ()

    def __reduce__(self) -> tuple[type[Any], tuple[Any]]:
        return tuple, (tuple(self),)


class SampleList(list[Any]):
    """The same of a list."""

    def __reduce__(self) -> tuple[type[Any], tuple[Any]]:
        return list, (list(self),)


class SampleTensor(torch.Tensor):
    """The same of a tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # results are plain tensors


class Batch(Sequence[Any]):
    """The items of one batch, gathered in one go.

    Args:
        gathered: the whole batch: mapping of field to tensor, `Ragged`, or list; or what a transform returned for it.
        size: number of samples.
    """

    def __init__(self, gathered: Any, size: int) -> None:
        self.gathered = gathered
        self._size = size
        self._items: dict[int, Any] = {}

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
        # Kept, so that changes to an item are still there when it is asked for again.
        item = self._items.get(number)
        if item is None:
            item = self._items[number] = _item(self.gathered, self._size, number)
        return item

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self._size))

    def is_as_gathered(self) -> bool:
        """Return whether the items handed out are unchanged."""
        return all(map(_is_unchanged, self._items.values()))


def batch_of(gathered: Any, size: int) -> Sequence[Any]:
    """Return a batch for torch's `DataLoader`: a `Batch`, or a list of items, which torch joins one by one.

    It is a list if a transform returned something other than a dict.

    Raises:
        UsageError: the transform returned an object that has no items.
    """
    batch = Batch(gathered, size)
    if type(gathered) is dict:
        return batch
    check_items(gathered, size)
    return list(batch)


def _item(gathered: Any, size: int, number: int) -> Any:
    contents = item_of(gathered, number, size)
    if type(contents) is not dict:
        return contents
    item = Sample(contents)
    item.origin = Origin(gathered, size, number, *_flatten(contents))
    return item


def _flatten(contents: dict[str, Any]) -> tuple[list[Any], Any]:
    """Return what torch's pytree does: the leaves, and what tells how they lie; without it if none holds others."""
    if _FLAT.issuperset(map(type, contents.values())):
        return list(contents.values()), list(contents)
    return pytree.tree_flatten(dict(contents))


def _is_unchanged(item: Any) -> bool:
    """Return whether an item holds the very objects that it was made with; an equal copy counts as a change."""
    leaves, tree = _flatten(item)
    assert item.origin is not None, "items of a batch know it"
    same: bool = tree == item.origin.tree and all(map(is_, leaves, item.origin.leaves))
    return same


def collate_samples(
    samples: Sequence[Any],
    *,
    collate_fn_map: dict[type | tuple[type, ...], Callable[..., Any]] | None = None,
) -> Any:
    """Return the gathered batch if the samples are all of its items, unchanged; else collate them as torch does."""
    if isinstance(samples, Batch):
        if samples.is_as_gathered():
            return samples.gathered
    else:
        origin = samples[0].origin if isinstance(samples[0], Sample) else None
        if origin is not None and _are_whole_batch(samples, origin):
            return origin.gathered
    return join([_PLAIN.get(type(s), lambda same: same)(s) for s in flatten_results(samples)], collate_fn_map)


#: Samples as callers know them.
_PLAIN: dict[type, Callable[[Any], Any]] = {
    Sample: dict,
    SampleTuple: tuple,
    SampleList: list,
    SampleTensor: lambda tensor: tensor.as_subclass(torch.Tensor),
}


def as_sample(result: Any) -> Any:
    """Return what a transform returned for a sample, known to `default_collate` as a sample of ours."""
    if type(result) is dict:
        return Sample(result)
    if type(result) in (tuple, list):
        return SampleTuple(result) if type(result) is tuple else SampleList(result)
    return result.as_subclass(SampleTensor) if type(result) is torch.Tensor else result


def _are_whole_batch(samples: Sequence[Any], first: Origin) -> bool:
    """Return whether these are all items of the batch of the first one, in order and as they were made."""
    if len(samples) != first.size:
        return False
    gathered = first.gathered
    for number, sample in enumerate(samples):
        origin = getattr(sample, "origin", None)
        if origin is None or origin.gathered is not gathered or origin.number != number or not _is_unchanged(sample):
            return False
    return True


for kind in (Several, *_PLAIN):
    default_collate_fn_map[kind] = collate_samples
