"""Memory of one shape for batch after batch, with as few calls as can be."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from sys import getrefcount
from typing import Any

import torch
from numpy.typing import NDArray

from readers.fresh import fresh

Shaped = Callable[[NDArray[Any]], NDArray[Any]]

#: References to an array that nobody uses, where `take` counts them: that of its pair, its own, and up to Python 3.13
#: that of the call. Not measured, for a debugger that looks on adds to them. Where this is too low, memory is not used
#: again; too high, batches would change. Without the interpreter's lock no count can be relied on.
_UNUSED = 0 if sysconfig.get_config_var("Py_GIL_DISABLED") else 3 if sys.version_info < (3, 14) else 2


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
        self._kept: list[tuple[torch.Tensor, NDArray[Any]]] = []

    def take(self) -> tuple[torch.Tensor, NDArray[Any]]:
        """Memory to fill, (rows, length), and the same as an array, of which a tensor is to be made by `from_numpy`.

        What it holds is left over. It is in use as long as anything refers to the array itself: not to a part of it.
        """
        for memory, values in self._kept:
            # torch's storage owns a reference to the array that it was made of, for as long as any tensor is on it. So
            # does this loop, wherever else it runs, that what it has found is found by no other.
            if getrefcount(values) == _UNUSED:
                return memory, values
        with torch.inference_mode(False):  # else it could not be filled outside of that mode, in later epochs
            memory = fresh(self._rows * self._length * self._dtype.itemsize).view(self._dtype)
            memory = memory.view(self._rows, self._length)
        values = self._shaped(memory.numpy())
        self._kept.append((memory, values))
        del self._kept[: -self._keep]
        return memory, values
