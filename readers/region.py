"""Any region of one sample: some rows and columns of an image or array, or a run of the points of a cloud."""

from __future__ import annotations

import numpy as np
import torch

from packer.errors import UsageError
from packer.format.schema import Field
from readers.checking import Checker
from readers.fixed import TORCH_DTYPES
from readers.rows import SampleRows, Wanted


def read_region(
    source: SampleRows, number: int, rows: slice | None, columns: slice | None, checker: Checker | None = None
) -> torch.Tensor:
    """Rows `rows` (first axis) and columns `columns` (second axis) of sample `number`, in the order of its axes.

    Only the frames that hold these rows are read. Slices are those of Python, cut off at the sample's edges; they may
    step, and what lies between the steps is read where the steps are of columns. With a `checker` the frames are
    compared with their checksums first.

    Raises:
        UsageError: the field is text or has no such axes, or a slice is none that a tensor takes.
        DamagedError: what is stored cannot be decoded.
    """
    field = source.field
    _check(field, rows, columns)
    if checker:
        checker.check_shapes(np.array([number], np.int64))
    located = source.locate(np.array([number], np.int64))
    shape = source.shapes(located)[0].tolist()
    wanted_rows = np.arange(shape[0])[rows or slice(None)]
    first, stop, step = (columns or slice(None)).indices(shape[1] if len(shape) > 1 else 1)
    stop = max(first, stop)
    cell = field.itemsize * int(np.prod(shape[2:], dtype=np.int64))
    if checker and len(wanted_rows):
        spans = source.spans(located, wanted_rows[:1], wanted_rows[-1:])
        checker.check(np.array([number], np.int64), spans)
    wanted = Wanted(wanted_rows[None], np.array([first * cell]), (stop - first) * cell)
    flat = source.read(located, wanted).view(-1).view(TORCH_DTYPES[field.dtype])
    if len(shape) == 1:
        return flat
    region = flat.view(len(wanted_rows), stop - first, *shape[2:])
    return region if step == 1 else region[:, ::step].contiguous()


def _check(field: Field, rows: slice | None, columns: slice | None) -> None:
    if field.kind == "text":
        raise UsageError(f"field {field.name!r} is text, which has no rows; ds[i] reads it")
    for axis, (name, wanted) in enumerate((("rows", rows), ("columns", columns))):
        if wanted is None:
            continue
        if not isinstance(wanted, slice):
            raise UsageError(f"{name} {wanted!r}: a slice is expected, such as slice(0, 64)")
        if len(field.shape) <= axis:
            raise UsageError(f"field {field.name!r} has {len(field.shape)} axes and so no {name}; leave {name} out")
        if wanted.step is not None and wanted.step < 1:
            raise UsageError(f"{name} {wanted!r}: steps from 1 on are expected; tensors have no others")
