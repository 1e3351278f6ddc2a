"""What may stand in `ds[...]`: one sample or many, by number or by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import SampleIndexError

Numbers = NDArray[np.int64]
LookUp = Callable[[Sequence[str]], Numbers]


def is_single(index: Any) -> bool:
    """Whether `index` asks for one sample: an int, a str, or a tensor or array without axes."""
    return isinstance(index, (int, str, np.integer)) or getattr(index, "shape", None) == ()


def sample_number(index: Any, samples: int, look_up: LookUp) -> int:
    """Number of the one sample asked for.

    Raises:
        SampleIndexError: outside the dataset.
        MissingNameError: no sample has that name.
        TypeError: neither a number nor a name.
    """
    if isinstance(index, str):
        return int(look_up([index])[0])
    number = _integers(np.asarray(index).reshape(1))
    return int(_within(number, samples)[0])


def sample_numbers(index: Any, samples: int, look_up: LookUp) -> Numbers:
    """Numbers (n,) of the samples asked for, in the order asked.

    Args:
        index: a slice, a range, a sequence of int or of str, an array or tensor of int, or a mask of bool (samples,).

    Raises:
        SampleIndexError: a number outside the dataset, or a mask of another length.
        MissingNameError: no sample has one of the names.
        TypeError: anything else.
    """
    if isinstance(index, slice):
        return np.arange(*index.indices(samples), dtype=np.int64)
    if isinstance(index, torch.Tensor):
        array = index.numpy(force=True)
    elif isinstance(index, np.ndarray):
        array = index
    elif isinstance(index, range):
        array = np.arange(index.start, index.stop, index.step, dtype=np.int64)
    else:
        array = _from_sequence(index, look_up)
    if array.dtype.kind in "UT":
        return look_up(array.tolist())
    if array.dtype.kind == "b":
        if array.shape != (samples,):
            raise SampleIndexError(f"a mask of shape {array.shape} for {samples} samples; ({samples},) is expected")
        return np.flatnonzero(array)
    return _within(_integers(array), samples)


def _from_sequence(index: Any, look_up: LookUp) -> NDArray[Any]:
    if not isinstance(index, Sequence):
        raise TypeError(
            "a dataset is indexed by int, str, slice, or a sequence, array or tensor of them, "
            f"not {type(index).__name__}"
        )
    if len(index) and isinstance(index[0], str):
        if not all(isinstance(item, str) for item in index):
            raise TypeError("names and numbers cannot be mixed in one index")
        return look_up(index)
    return np.asarray(index) if len(index) else np.zeros(0, np.int64)


def _integers(array: NDArray[Any]) -> Numbers:
    if array.ndim != 1:
        raise TypeError(f"an index of {array.ndim} axes; one is expected")
    if array.dtype.kind not in "iu":
        raise TypeError(f"an index of {array.dtype}; integers, names or a mask are expected")
    return np.ascontiguousarray(array, np.int64)


def _within(numbers: Numbers, samples: int) -> Numbers:
    # As unsigned numbers the negative ones are huge: one reduction finds whatever needs a closer look.
    if not len(numbers) or int(numbers.view(np.uint64).max()) < samples:
        return numbers
    wrong = (numbers < -samples) | (numbers >= samples)
    if wrong.any():
        raise SampleIndexError(
            f"sample {int(numbers[wrong][0])} of {samples}: numbers go from {-samples} to {samples - 1}"
        )
    return np.where(numbers < 0, numbers + samples, numbers)
