"""How a batch, or what a transform returned for it, is cut into samples."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from packer.errors import UsageError
from readers.batch import Ragged

#: Types of values in the result of a transform that may be meant for every sample of the batch.
_VALUES = (torch.Tensor, np.ndarray, np.generic, str, bytes, int, float, complex, type(None))


def items_of(batch: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """Return all items of a gathered batch, as `item_of` does; each field is cut by one call, which takes a fifth."""
    items: list[dict[str, Any]] = [{} for _ in range(size)]
    for name, values in batch.items():
        for number, value in enumerate(_cut(values, size)):
            items[number][name] = value
    return items


def _cut(values: Any, size: int) -> Sequence[Any]:
    if type(values) is torch.Tensor and values.ndim and values.shape[0] == size:
        return values.unbind()
    if type(values) is Ragged:
        return values.to_list()
    return [_part_of(values, number, size) for number in range(size)]


def item_of(tree: Any, number: int, size: int) -> Any:
    """Return item `number` of everything in `tree` that holds `size` items, and the rest as it is.

    A list within a dict, tuple or list holds an item a sample if its length is `size`; any other is a part of the tree.
    """
    if isinstance(tree, list):
        return [_part_of(part, number, size) for part in tree]
    return _part_of(tree, number, size)


def _part_of(tree: Any, number: int, size: int) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree[number] if tree.ndim and tree.shape[0] == size else tree
    if isinstance(tree, Ragged):
        start, stop = tree.offsets[number : number + 2].tolist()
        return tree.values[start:stop]
    if isinstance(tree, (dict, Mapping)):  # dict first: to ask for Mapping takes long
        return {key: _part_of(value, number, size) for key, value in tree.items()}
    if isinstance(tree, list):
        return tree[number] if len(tree) == size else item_of(tree, number, size)
    if isinstance(tree, tuple):
        parts = [_part_of(part, number, size) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    if isinstance(tree, np.ndarray):
        return tree[number] if tree.ndim and len(tree) == size else tree
    return tree


def only_item(result: Any) -> Any:
    """Return the only item of what a transform returned for a batch of one; raises an error as `check_items` does."""
    check_items(result, 1)
    return item_of(result, 0, 1)


def check_items(result: Any, size: int) -> None:
    """Check that what a transform returned for a batch of `size` samples can be cut into them.

    Raises:
        UsageError: it is an object that has no items.
    """
    if type(result) is dict:
        return
    for value in _parts_without_items(result, size):
        raise UsageError(
            f"batch_transform was given a batch of {size} and returned a {type(value).__name__}, which cannot be taken "
            "apart into samples; give PackedDataset(..., sample_transform=f) instead, where f is given one sample, or "
            "read by Loader, which hands out whatever batch_transform returned"
        )


def _parts_without_items(tree: Any, size: int) -> Iterator[Any]:
    """Yield the parts of a transform's result without an item per sample; values in a nest may be for all samples."""
    if isinstance(tree, dict | UserDict):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        for part in tree:
            if not isinstance(part, _VALUES):
                yield from _parts_without_items(part, size)
    # Other mappings, such as a TensorDict, would come back as a dict.
    elif isinstance(tree, Mapping) or item_of(tree, 0, size) is tree:
        yield tree
