"""Memory of one shape for batch after batch, with as few calls as can be."""

from __future__ import annotations

import sys
import sysconfig
from sys import getrefcount

import numpy as np
import torch
from numpy.typing import NDArray

from readers.fresh import fresh

#: References to an array that nobody uses, where `take` counts them: the list's, its own, and up to Python 3.13 that of
#: the call. Not measured, for a debugger that looks on adds to them. Where this is too low, memory is not used again;
#: too high, batches would change. Without the interpreter's lock no count can be relied on.
_UNUSED = 0 if sysconfig.get_config_var("Py_GIL_DISABLED") else 3 if sys.version_info < (3, 14) else 2


class Buffers:
    """Gives tensors of rows, on memory that is used again when nothing refers to it any more.

    Any thread may ask, and let go of tensors at any time. Pictures of 12 kB, 128 at a time, are gathered at 0.94 of the
    speed in RAM into such memory, and at 0.88 by way of a `Pool`, whose bookkeeping is cold behind each copy. torch's
    allocator does as well while it finds the same memory again; where small memory is taken and given back in between
    it came to up to 6,400 page faults in 80 batches.

    Args:
        rows: of a tensor, at most.
        length: elements of a row.
        dtype: of these.
        keep: as many tensors as are in use at a time; memory of more is not used again.
    """

    def __init__(self, rows: int, length: int, dtype: torch.dtype, keep: int) -> None:
        self._rows, self._length, self._dtype, self._keep = rows, length, dtype, keep
        self._arrays: list[NDArray[np.generic]] = []

    def take(self, rows: int) -> torch.Tensor:
        """Memory as a tensor (rows, length); what it holds is left over."""
        for array in self._arrays:
            # torch's storage owns a reference to the array that it was made of, for as long as any tensor is on it. So
            # does this loop, wherever else it runs, that what it has found is found by no other.
            if getrefcount(array) == _UNUSED:
                break
        else:
            array = self._add()
        return torch.from_numpy(array if rows == self._rows else array[:rows])

    def _add(self) -> NDArray[np.generic]:
        """A new array; as many of the oldest are left to those who use them."""
        memory = fresh(self._rows * self._length * self._dtype.itemsize)
        array = memory.view(self._dtype).view(self._rows, self._length).numpy()
        self._arrays.append(array)
        del self._arrays[: -self._keep]
        return array
