"""Records of one dtype and shape, copied out of a stretch of memory: a few by numpy, many by torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from readers.buffers import Buffers, Shaped
from readers.forks import in_main_thread
from readers.take import AWAKE_BYTES, TEAM_BYTES, TORCH_GRAIN, alone, quicker, take, team_is_awake, together

MakeBuffers = Callable[[int, int, torch.dtype, Shaped], Buffers]

#: Fewer bytes are copied by numpy, which keeps the interpreter's lock meanwhile: 25 us at most. torch lets go of it,
#: and may wait for milliseconds to have it back while another thread is at work. The main thread mostly works alone.
HELD_BYTES = 2**18
#: Items of numpy's own types are no larger.
MOST_ITEM_BYTES = 2**31 - 1


class Window:
    """Records that begin at every element of a stretch of memory; they overlap.

    Args:
        elements: the memory, (n,); writable as far as torch can see, and never to be handed out.
        dtype: that of a record's values.
        shape: that of a record, which has a whole number of elements.
        axes: the order in which tensors have the axes of a record; as they are stored, unless it is given.
    """

    def __init__(
        self, elements: torch.Tensor, dtype: DTypeLike, shape: tuple[int, ...], axes: tuple[int, ...] | None = None
    ) -> None:
        self._record_dtype, self._record_shape = np.dtype(dtype), shape
        order = tuple(range(len(shape))) if axes is None else axes
        # One call makes the tensor that is handed out. Two, `view` and `permute`, take 4 us more behind a large copy.
        self._shape = tuple(shape[axis] for axis in order)
        self._strides = tuple(math.prod(shape[axis + 1 :]) for axis in order)
        self._axes = None if axes is None else (0, *(axis + 1 for axis in axes))
        self._dtype = torch.from_numpy(np.empty(0, dtype)).dtype
        self._nbytes = math.prod(shape) * self._record_dtype.itemsize
        self._length = self._nbytes // elements.itemsize
        records = max(len(elements) - self._length + 1, 0)
        self._rows = elements.as_strided((records, self._length), (1, 1))
        if self._nbytes > MOST_ITEM_BYTES:
            return
        # To numpy each record is one opaque item, and a gather one memcpy an item. With what makes it a batch again
        # 100 of 132 bytes take 2.5 us so, 4.5 as rows of elements, and 5 by torch.
        opaque = np.dtype((np.void, self._nbytes))
        self._items: NDArray[Any] = np.ndarray((records,), opaque, elements.numpy().data, 0, (elements.itemsize,))
        self._item = np.dtype((dtype, shape))

    def array(self, records: NDArray[np.int64]) -> NDArray[Any]:
        """A copy of the records that begin at the elements `records` (n,), (n, *shape)."""
        if self._nbytes > MOST_ITEM_BYTES:
            rows = take(self._rows, records).numpy()
            return rows.view(self._record_dtype).reshape(len(records), *self._record_shape)
        return self._items[records].view(self._item)

    def tensor(self, records: NDArray[np.int64], out: torch.Tensor | None = None) -> torch.Tensor:
        """The same as a tensor, in new memory or in `out`, uint8 of as many bytes."""
        if out is not None:
            rows = _as(self._rows.dtype, out).view(len(records), self._length)
            return self._shaped(take(self._rows, records, rows))
        nbytes = len(records) * self._nbytes
        few = len(records) * self._length < TORCH_GRAIN  # torch spreads no fewer elements
        if few or nbytes < AWAKE_BYTES:
            return self._small(records)
        if not in_main_thread():
            return self._small(records) if nbytes < HELD_BYTES else self._shaped(alone(self._rows, records))
        if nbytes < TEAM_BYTES:  # as `quicker` does it, with fewer calls
            return self._shaped(together(self._rows, records)) if team_is_awake() else self._small(records)
        return quicker(
            nbytes,
            lambda: self._shaped(together(self._rows, records)),
            lambda: self._small(records),
        )

    def gatherer(self, most: int, buffers: MakeBuffers) -> Callable[[torch.Tensor], torch.Tensor]:
        """A function that gives what `tensor` does, of records as a tensor, by torch with as many threads as it likes.

        Args:
            most: records of a call, at most.
            buffers: makes the memory: of so many rows and elements, a dtype, and with a shape to hand it out in.
        """
        rows, dtype, shape, axes = self._rows, self._record_dtype, self._record_shape, self._axes

        def shaped(array: NDArray[Any]) -> NDArray[Any]:
            values = array.view(dtype).reshape(len(array), *shape)
            return values if axes is None else values.transpose(axes)

        select, take_memory = torch.index_select, buffers(most, self._length, rows.dtype, shaped).take

        def gather(records: torch.Tensor) -> torch.Tensor:
            n = records.numel()  # `len` is a function of torch's in Python
            memory, values = take_memory()
            if n == most:
                select(rows, 0, records, out=memory)
                return torch.from_numpy(values)
            # In memory of its own: of a part of the array, a tensor would refer to what is behind it, not to it.
            return torch.from_numpy(shaped(select(rows, 0, records).numpy()))

        return gather

    def copier(self) -> Callable[[NDArray[np.int64]], torch.Tensor]:
        """A function that gives what `tensor` does, by numpy, of records below `MOST_ITEM_BYTES`."""
        items, item, axes = self._items, self._item, self._axes
        if axes is None:
            return lambda records: torch.from_numpy(items[records].view(item))
        return lambda records: torch.from_numpy(items[records].view(item).transpose(axes))

    def _small(self, records: NDArray[np.int64]) -> torch.Tensor:
        values = self.array(records)
        return torch.from_numpy(values if self._axes is None else values.transpose(self._axes))

    def _shaped(self, rows: torch.Tensor) -> torch.Tensor:
        values = _as(self._dtype, rows)
        return values.as_strided((len(rows), *self._shape), (values.shape[1], *self._strides))


def _as(dtype: torch.dtype, values: torch.Tensor) -> torch.Tensor:
    # Where nothing is to change, the call is spared: it takes 1 to 2 us behind a large copy.
    return values if values.dtype == dtype else values.view(dtype)
