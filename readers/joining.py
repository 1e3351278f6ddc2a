"""How samples are joined to a batch: as torch's `default_collate` does, those of unlike lengths as `Ragged`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from packer.errors import UsageError
from readers.batch import Ragged
from readers.gather import CPU


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
