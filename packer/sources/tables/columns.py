"""Columns of numbers as one field: `--columns 'points=part_*:float32:68,2'`."""

from __future__ import annotations

import math
import re
from fnmatch import fnmatchcase

import msgspec

from packer.errors import UsageError, first_few
from packer.format import DTYPES
from packer.sources.dtypes import common_dtype
from packer.sources.options import SourceOptions, columns_by_field
from packer.sources.table import LaidField, Layout

_SHAPE = re.compile(r"[1-9]\d*(,[1-9]\d*)*")


class Members(msgspec.Struct, frozen=True):
    """The `detail` of a field of several columns: a field of each."""

    fields: Layout


def columns_of(layout: Layout) -> Layout:
    """Return a field for each column that a layout is read from."""
    return tuple(field for laid in layout for field in (laid.detail.fields if is_joined(laid) else (laid,)))


def is_joined(laid: LaidField) -> bool:
    """Return whether a field is made of several columns."""
    return isinstance(laid.detail, Members)


def with_joined(layout: Layout, options: SourceOptions) -> Layout:
    """Return a layout with the columns that `--columns` names as one field each, in the place of the first.

    Raises:
        UsageError: a pattern fits no column, a column holds no plain numbers, or the shape has more or fewer values.
    """
    for field, text in columns_by_field(options).items():
        if not field:
            raise UsageError(f"--columns {text}: name the field of these columns, as in --columns NAME={text}")
        patterns, dtype, shape_text, *more = [*text.split(":"), "", ""]
        if any(more) or (shape_text and not _SHAPE.fullmatch(shape_text)) or (dtype and dtype not in DTYPES):
            raise UsageError(
                f"--columns {field}={text}: NAMES[:TYPE[:SHAPE]] is expected, as in a,b:float32 or p_*:int8:4,2"
            )
        members = list[LaidField]()
        for pattern in patterns.split(","):
            fitting = [laid for laid in layout if laid.name == pattern or fnmatchcase(laid.name, pattern)]
            if not fitting:
                raise UsageError(f"--columns {field}: no column is {pattern}; columns are {_names(layout)}")
            members += [laid for laid in fitting if laid not in members]
        is_list = len(members) == 1 and shape_text and members[0].kind == "array" and None in members[0].shape
        if is_list and not is_joined(members[0]):  # of which each row has as many values
            dtype = dtype or members[0].dtype
            lists = members[0]._replace(shape=tuple(map(int, shape_text.split(","))), detail=Members(tuple(members)))
            layout = tuple(lists._replace(name=field, dtype=dtype) if laid == members[0] else laid for laid in layout)
            continue
        if odd := [laid for laid in members if laid.shape or laid.kind != "array" or is_joined(laid)]:
            raise UsageError(
                f"--columns {field}: column {odd[0].name} is {odd[0].in_words}, but one number is expected"
            )
        dtype = dtype or common_dtype(laid.dtype for laid in members) or ""
        if not dtype:
            raise UsageError(
                f"--columns {field}: no type holds all values exactly; name one, as in {field}={patterns}:float64"
            )
        shape = tuple(map(int, shape_text.split(","))) if shape_text else (len(members),)
        if math.prod(shape) != len(members):
            raise UsageError(f"--columns {field}: {len(members):,} columns are no {' x '.join(map(str, shape))} values")
        in_words = f"{dtype} of {len(members)} columns"
        joined = LaidField(field, dtype, shape, in_words, detail=Members(tuple(members)))
        layout = tuple(joined if laid == members[0] else laid for laid in layout if laid not in members[1:])
        if sum(laid.name == field for laid in layout) > 1:
            raise UsageError(f"--columns {field}: there is a column {field}; name the field otherwise")
    return layout


def _names(layout: Layout) -> str:
    return first_few([laid.name for laid in layout])
