"""Memory of one shape for batch after batch, with as few calls as can be."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from sys import getrefcount
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from readers.fresh import fresh

Shaped = Callable[[NDArray[Any]], NDArray[Any]]

Pair = tuple[torch.Tensor, NDArray[Any]]

# By its own name, for it is asked for every batch.
_is_compiling = torch.compiler.is_dynamo_compiling


def _references_to_unused() -> int:
    """References to an array that nobody uses, where `take` counts them; 0 where no count can be relied on.

    They are that of its pair, its own, and up to Python 3.13 that of the call. A debugger that looks on adds to what is
    measured, code that was compiled beforehand takes some away. With too low a number memory is not used again; with
    one too high, batches would change.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return 0
    references = 3 if sys.version_info < (3, 14) else 2
    for pair in [(None, np.empty(0))]:
        _, values = pair
        references = min(references, getrefcount(values))
    return references


_UNUSED = _references_to_unused()


class Buffers:
    """Memory of one shape, used again when nothing refers any more to what was handed out of it.

    Any thread may ask, and let go of tensors at any time. Pictures of 12 kB, 128 at a time, are gathered at 0.94 of the
    speed in RAM into such memory, and at 0.88 by way of a `Pool`, whose bookkeeping is cold behind each copy. torch's
    allocator does as well while it finds the same memory again; where small memory is taken and given back in between
    it came to up to 6,400 page faults in 80 batches.

    Args:
        rows, length, dtype: of the memory as it is filled.
        shaped: gives the same memory as it is handed out, of an array (rows, length).
        keep: as many tensors as are in use at a time; memory of more is not used again.
    """

    def __init__(self, rows: int, length: int, dtype: torch.dtype, shaped: Shaped, keep: int) -> None:
        self._rows, self._length, self._dtype, self._shaped, self._keep = rows, length, dtype, shaped, keep
        self._kept: list[Pair] = []

    def take(self) -> Pair:
        """Memory to fill, (rows, length), and the same as an array, of which a tensor is to be made by `from_numpy`.

        What it holds is left over. It is in use as long as anything refers to the array itself: not to a part of it.
        """
        # What torch.compile has made of this function keeps other arrays than it hands out.
        is_compiling = _is_compiling()
        for pair in () if is_compiling else self._kept:
            memory, values = pair  # `pair` stays, should another thread let it go meanwhile
            # torch's storage owns a reference to the array that it was made of, for as long as any tensor is on it. So
            # does this loop, wherever else it runs, that what it has found is found by no other.
            if getrefcount(values) == _UNUSED:
                return memory, values
        memory, values = self._made()
        # Nor does a tensor that stands for another, as within torch.func.functionalize, lie where its array does.
        if not is_compiling and (memory.data_ptr() == values.ctypes.data or not values.size):
            self._kept.append((memory, values))
            del self._kept[: -self._keep]
        return memory, values

    def _made(self) -> Pair:
        with torch.inference_mode(False):  # else it could not be filled outside of that mode, in later epochs
            memory = fresh(self._rows * self._length * self._dtype.itemsize).view(self._dtype)
            memory = memory.view(self._rows, self._length)
        return memory, self._shaped(memory.numpy())
