"""How a batch, or what a transform returned for it, is cut into samples, and how samples are joined to a batch.

They are joined as torch's `default_collate` does it; those of unlike lengths become a `Ragged`.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from packer.errors import UsageError
from readers.batch import Ragged
from readers.gather import CPU

#: Types of values in the result of a transform that may be meant for every sample of the batch.
_VALUES = (Tensor, np.ndarray, np.generic, str, bytes, int, float, complex, type(None))


# ---------------------------------------------------------------- cutting


def items_of(batch: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """Return all items of a gathered batch, as `item_of` does; each field is cut by one call, which takes a fifth."""
    items: list[dict[str, Any]] = [{} for _ in range(size)]
    for name, values in batch.items():
        for number, value in enumerate(_cut(values, size)):
            items[number][name] = value
    return items


def _cut(values: Any, size: int) -> Sequence[Any]:
    if type(values) is Tensor and values.ndim and values.shape[0] == size:
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
    if isinstance(tree, Tensor):
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


# ---------------------------------------------------------------- joining


class Several(list[Any]):
    """Samples that `sample_transform` made of one. A batch holds each; `default_collate` joins them all."""


def as_result(result: Any) -> Any:
    """Return what a transform returned for a sample: a list of mappings as `Several` samples, others as they are."""
    is_several = type(result) is list and all(isinstance(entry, Mapping) for entry in result)
    return Several(result) if is_several else result


def flatten_results(results: Sequence[Any]) -> Sequence[Any]:
    """Return the samples of a batch from what was returned for each; the same list if none of these is `Several`.

    Raises:
        UsageError: there are none.
    """
    if Several not in map(type, results):
        return results
    samples = [sample for result in results for sample in (result if isinstance(result, Several) else (result,))]
    if not samples:
        raise UsageError("sample_transform: it returned an empty list for every sample of a batch")
    return samples


def join(samples: Sequence[Any], collate_fn_map: Mapping[Any, Callable[..., Any]] | None = None) -> Any:
    """Return samples as a batch, as torch's `default_collate` does; tensors of different shapes as whole samples are.

    That is a `Ragged` if they differ in their first axis alone, else a list.

    Raises:
        UsageError: tensors differ in the number of their axes.
    """
    functions = {**(collate_fn_map or default_collate_fn_map), Tensor: _stack}
    first = samples[0]
    if type(first) is not dict or dict in functions:
        return collate(list(samples), collate_fn_map=functions)
    # As torch does, which looks for the kinds of dicts and tensors for longer than it joins small ones.
    columns = {name: [sample[name] for sample in samples] for name in first}
    return {
        name: _stack(values) if type(values[0]) is Tensor else collate(values, collate_fn_map=functions)
        for name, values in columns.items()
    }


def _stack(tensors: Sequence[Tensor], *, collate_fn_map: Any = None) -> Any:
    """Return the tensors of all samples as one; `Ragged` if they differ in their first axis alone, else a list."""
    function = default_collate_fn_map[Tensor]
    try:
        if function is collate_tensor_fn and get_worker_info() is None:
            return torch.stack(list(tensors))  # as that function does outside of workers, in two thirds of its time
        return function(tensors, collate_fn_map=collate_fn_map)
    except RuntimeError:  # of different shapes, which are most often the same
        shapes = {tensor.shape for tensor in tensors}
        if len(shapes) == 1:
            raise
    if len({len(shape) for shape in shapes}) > 1:
        shape, other_shape, *_ = sorted(map(list, shapes), key=len)
        raise UsageError(
            f"sample_transform: tensors of shapes {shape} and {other_shape} make no batch: as many axes are expected "
            "of all samples"
        )
    if len({shape[1:] for shape in shapes}) > 1:
        return list(tensors)
    lengths = torch.tensor([0, *map(len, tensors)], device=CPU)
    return Ragged(torch.cat(list(tensors)), lengths.cumsum(0))
