"""What a batch is: tensors, `Ragged` and lists by field.

A tensor holds samples of one shape, a `Ragged` samples that differ in the length of their first axis, and a list all
others, and texts.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from packer.errors import UsageError

#: torch cannot gather unsigned integers of several bytes, so they are viewed as signed ones of the same size.
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
#: Lengths of samples that the printed form shows.
_SHOWN_LENGTHS = 8


def _make_operators(operation: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the two methods of `Ragged` for an operation: with the operand on the right, and on the left."""
    return (
        lambda ragged, operand: ragged._apply(operation, operand),
        lambda ragged, operand: ragged._apply(operation, operand, operand_first=True),
    )


class Ragged:
    """Values of a whole batch. torch's pytree takes it for a nest of two tensors, and `DataLoader` pins it.

    `len(ragged)` is B, `ragged[i]` are the rows of sample i, a view, `ragged[1:3]` the Ragged of two samples.
    Arithmetic and comparisons are those of `values`: `ragged / 255`, `ragged > 0`, or `ragged - centre` with a tensor
    or an array of one row.

    It is neither a tuple nor an `Iterable`: frameworks look for the batch size in these, and would find the length of
    `values`.

    With `Loader(as_numpy=True)` both are arrays; methods that make tensors, such as `to_padded()`, do not work then.

    Attributes:
        values: (sum of n_i, ...); sample i has the rows offsets[i] to offsets[i + 1].
        offsets: (B + 1,) int64, beginning with 0.
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: Tensor, offsets: Tensor) -> None:
        self.values = values
        self.offsets = offsets

    def __repr__(self) -> str:
        if not hasattr(self.values, "shape"):  # a nest of something else, as torch's pytree makes it
            return f"Ragged(values={self.values!r}, offsets={self.offsets!r})"
        lengths = ", ".join(map(str, self.lengths[:_SHOWN_LENGTHS].tolist()))
        more = ", ..." if len(self) > _SHOWN_LENGTHS else ""
        device = getattr(self.values, "device", "cpu")
        place = "" if str(device) == "cpu" else f", device={str(device)!r}"
        return (
            f"Ragged(batch_size={len(self)}, lengths=[{lengths}{more}], values={tuple(self.values.shape)}, "
            f"dtype={self.dtype}{place})"
        )

    def __len__(self) -> int:
        return self.batch_size

    @overload
    def __getitem__(self, number: int) -> Tensor: ...
    @overload
    def __getitem__(self, number: slice) -> Ragged: ...
    def __getitem__(self, number: int | slice) -> Tensor | Ragged:
        chosen = range(len(self))[number]
        if isinstance(chosen, range):
            if chosen.step != 1:
                raise TypeError(
                    f"a slice of a Ragged takes samples one after another, not with a step of {chosen.step}"
                )
            offsets = self.offsets[chosen.start : max(chosen.stop, chosen.start) + 1]
            return Ragged(self.values[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])
        start, stop = self.offsets[chosen:][:2].tolist()
        return self.values[start:stop]

    def _with_values(self, values: Tensor) -> Ragged:
        return Ragged(values, self.offsets)

    def _apply(self, operation: Callable[[Any, Any], Any], operand: Any, operand_first: bool = False) -> Any:
        """Return it with the values that an operation with something else gives."""
        if operand is None or isinstance(operand, str):
            return NotImplemented  # so that `ragged == None` is False, as of other objects
        if isinstance(operand, Ragged):
            raise TypeError("two Ragged cannot be combined: their samples may differ in length; combine their values")
        if isinstance(operand, np.ndarray) and isinstance(self.values, Tensor):
            operand = torch.from_numpy(operand)
        return self._with_values(operation(operand, self.values) if operand_first else operation(self.values, operand))

    __add__, __radd__ = _make_operators(operator.add)
    __sub__, __rsub__ = _make_operators(operator.sub)
    __mul__, __rmul__ = _make_operators(operator.mul)
    __truediv__, __rtruediv__ = _make_operators(operator.truediv)
    __floordiv__, __rfloordiv__ = _make_operators(operator.floordiv)
    __mod__, __rmod__ = _make_operators(operator.mod)
    __pow__, __rpow__ = _make_operators(operator.pow)
    __lt__, __gt__ = _make_operators(operator.lt)[0], _make_operators(operator.gt)[0]
    __le__, __ge__ = _make_operators(operator.le)[0], _make_operators(operator.ge)[0]
    __eq__, __ne__ = _make_operators(operator.eq)[0], _make_operators(operator.ne)[0]
    __hash__ = object.__hash__
    __array_ufunc__ = None  # an array or a number of numpy leaves operations to the methods above

    def __neg__(self) -> Ragged:
        return self._with_values(-self.values)

    def __abs__(self) -> Ragged:
        return self._with_values(abs(self.values))

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of `values`."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Return the device of `values`."""
        return self.values.device

    def to(self, *args: Any, **kwargs: Any) -> Ragged:
        """Return it with `values` and `offsets` moved as by `Tensor.to`; a dtype changes that of `values` alone."""
        values = self.values.to(*args, **kwargs)
        return Ragged(values, self.offsets.to(values.device, non_blocking=kwargs.get("non_blocking", False)))

    def pin_memory(self) -> Ragged:
        """Return it in page-locked memory."""
        return Ragged(self.values.pin_memory(), self.offsets.pin_memory())

    @property
    def lengths(self) -> Tensor:
        """Return the rows of each sample, (B,) int64."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def ptr(self) -> Tensor:
        """Return `offsets`, (B + 1,) int64, as PyTorch Geometric calls them."""
        return self.offsets

    @property
    def offset(self) -> Tensor:
        """Return where each sample ends, (B,) int64, as Pointcept has it: `offsets` without the 0; a view."""
        return self.offsets[1:]

    @property
    def batch_size(self) -> int:
        """Return the number of samples of the batch."""
        return len(self.offsets) - 1

    def batch_index(self) -> Tensor:
        """Return which sample of the batch each row is of, (sum of n_i,) int64, as PyTorch Geometric's `batch`."""
        numbers = torch.arange(self.batch_size, device=self.offsets.device)
        return numbers.repeat_interleave(self.lengths, output_size=len(self.values))

    def cells(self, size: float) -> Tensor:
        """Return the cell of a grid that each point lies in, (sum of n_i, 3) int32, counted from 0 in each sample.

        As Pointcept's `GridSample`: floor(x / size), worked out in float64, less the lowest cell of the cloud, axis by
        axis. Points chosen by `VoxelSample(size)` have the same cells as in the whole cloud.

        Args:
            size: edge of a cell, in the unit of the coordinates, which are the first three columns.

        Raises:
            UsageError: a point lies in no cell that int32 counts: NaN, infinite or too far away.
        """
        cells = (self.values[:, :3].double() / size).floor()
        sample = self.batch_index()
        lowest = cells.new_full((len(self), 3), math.inf)
        cells -= lowest.scatter_reduce(0, sample[:, None].expand_as(cells), cells, "amin")[sample]
        if not (cells < 2**31).all():
            raise UsageError(f"cells: a point lies in no cell of size {size}: NaN, infinite or too far away")
        return cells.int()

    def to_list(self) -> list[Tensor]:
        """Return one tensor a sample, views of `values`."""
        return [self.values[a:b] for a, b in itertools.pairwise(self.offsets.tolist())]

    def to_padded(self, fill: complex = 0) -> Tensor:
        """Return (B, longest, ...), with `fill` after the rows of the shorter samples."""
        lengths = self.lengths
        longest = int(lengths.max()) if len(lengths) else 0
        padded = self.values.new_full((len(lengths), longest, *self.values.shape[1:]), fill)
        inside = torch.arange(longest, device=lengths.device) < lengths[:, None]
        plain = SIGNED.get(self.values.dtype, self.values.dtype)
        padded.view(plain)[inside] = self.values.view(plain)
        return padded

    def to_nested(self) -> Tensor:
        """Return a nested tensor of layout `torch.jagged`, sharing `values`."""
        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets)

    def float(self) -> Ragged:
        """Return it with `values` as float32."""
        return self._with_values(self.values.float())


pytree.register_pytree_node(
    Ragged,
    lambda ragged: ([ragged.values, ragged.offsets], None),
    lambda parts, _: Ragged(*parts),
    serialized_type_name="readers.Ragged",
)


class SharedTensors(list[torch.Tensor]):
    """Tensors of one storage and dtype, pickled as one; becomes a plain list on the other side.

    torch would send a file descriptor with every tensor.
    """

    def __reduce__(self) -> Any:
        # A transform may have put others in.
        storages = {(tensor.untyped_storage().data_ptr(), tensor.dtype) for tensor in self}
        if len(storages) != 1:
            return list, (list(self),)
        storage = torch.empty(0, dtype=self[0].dtype, device=self[0].device).set_(self[0].untyped_storage())
        return rebuild_tensors, (storage, [(t.storage_offset(), t.shape, t.stride()) for t in self])


def rebuild_tensors(
    storage: torch.Tensor, places: Sequence[tuple[int, torch.Size, tuple[int, ...]]]
) -> list[torch.Tensor]:
    """Return the tensors of a storage that have these offsets, shapes and strides."""
    return [storage.as_strided(shape, strides, offset) for offset, shape, strides in places]
