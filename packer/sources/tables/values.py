"""Values of a column of Arrow as those of a field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from packer.errors import SourceError, UsageError, first_few
from packer.sources.dtypes import convert
from packer.sources.options import SourceOptions
from packer.sources.table import LaidField
from packer.sources.tables.columns import Members
from packer.sources.tables.fields import CLASS
from packer.sources.tables.pictures import images_of


def filled(array: Any, laid: LaidField, count: int, options: SourceOptions, is_csv: bool = False) -> Any:
    """Return a column with what `--fill` gives for missing values, and classes as their numbers.

    Args:
        is_csv: whether empty text is missing, if `--fill` names the column: CSV writes both as one.
    """
    import pyarrow as pa
    from pyarrow import compute

    array = pa.nulls(count) if array is None else array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    is_class = laid.in_words == CLASS and not pa.types.is_integer(array.type)
    if laid.name in options.fill:
        if is_csv and laid.kind == "text":
            array = compute.if_else(compute.equal(array, ""), None, array)
        kind = array.type
        if pa.types.is_null(kind):
            kind = pa.string() if laid.kind == "text" or is_class else pa.from_numpy_dtype(np.dtype(laid.dtype))
        try:
            array = array.cast(kind).fill_null(pa.scalar(options.fill[laid.name]).cast(kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            reason = f"--fill {laid.name}={options.fill[laid.name]}: a value of {laid.in_words} is expected"
            raise UsageError(reason) from None
    if is_class and not pa.types.is_null(array.type):
        numbers = compute.index_in(array, value_set=pa.array(laid.detail, array.type))
        if unknown := compute.and_(numbers.is_null(), array.is_valid()).index(True).as_py() + 1:
            reason = f"{laid.name} is {array[unknown - 1]}, which is none of the classes {first_few(laid.detail)}"
            raise UsageError(f"{reason}; --fill takes one of these")
        return numbers
    return array


def first_null(array: Any) -> int | None:
    """Return the first row that is missing, or has a missing value in its list."""
    import pyarrow as pa

    row = None
    if array.null_count:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        array = array[:row]
    if isinstance(array, pa.FixedSizeListArray):
        inner = first_null(array.flatten())
        return row if inner is None else inner // array.type.list_size
    if isinstance(array, pa.ListArray | pa.LargeListArray):
        inner = first_null(array.flatten())
        return (
            row
            if inner is None
            else int((array.offsets.to_numpy() - array.offsets[0].as_py()).searchsorted(inner, "right")) - 1
        )
    return row


def values_of(rows: Mapping[str, Any], laid: LaidField, options: SourceOptions) -> Any:
    """Return the values of a field in some rows, whose columns are given by name.

    Raises:
        ValueError, DoesNotFitError: one does not fit.
        SourceError: a picture is damaged, or is not as most are.
    """
    if isinstance(laid.detail, Members):
        shape = [n or 0 for n in laid.shape if not isinstance(n, str)]
        if laid.detail.fields[0].shape:
            lists = [convert(values, laid.dtype) for values in _nested(rows[laid.detail.fields[0].name])]
            for values in lists:
                if values.shape not in (tuple(shape), (math.prod(shape),)):
                    counts = (" x ".join(map(str, numbers)) for numbers in (values.shape, shape))
                    raise SourceError("column {} has {} values, where {} are expected".format(laid.name, *counts))
            return np.stack(lists).reshape(len(lists), *shape)
        values = np.stack([convert(_nested(rows[field.name]), laid.dtype) for field in laid.detail.fields], axis=1)
        return values.reshape(len(values), *shape)
    array = rows[laid.name]
    if laid.kind == "image":
        return images_of(array, laid, options)
    if laid.kind == "text":
        return array.to_pylist()
    values = _nested(array)
    if isinstance(values, list):
        return [convert(value, laid.dtype) for value in values]
    return convert(values, laid.dtype)


def _nested(array: Any) -> Any:
    """Return an array (n, ...) of values, or a list of n arrays if the lengths of lists may differ."""
    import pyarrow as pa

    if isinstance(array, pa.FixedSizeListArray):
        values, size = _nested(array.flatten()), array.type.list_size
        if isinstance(values, list):
            return [np.stack(values[n : n + size]) for n in range(0, len(values), size)]
        return values.reshape(len(array), size, *values.shape[1:])
    if isinstance(array, pa.ListArray | pa.LargeListArray):
        bounds, values = (array.offsets.to_numpy() - array.offsets[0].as_py()).tolist(), _nested(array.flatten())
        parts = [values[begin:end] for begin, end in pairwise(bounds)]
        if isinstance(values, list):
            axes, value = 1, array.type.value_type
            while not pa.types.is_primitive(value):
                axes, value = axes + 1, value.value_type
            none = np.zeros((0,) * axes, np.int8)
            return [np.stack(part) if part else none for part in parts]
        return parts
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.int8)
    if pa.types.is_temporal(array.type):
        array = array.view(f"int{array.type.bit_width}")
    return array.to_numpy(zero_copy_only=False)
