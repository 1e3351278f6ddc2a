"""Columns of tables as fields: which type of Arrow is which field, and which one holds the values of two."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from packer.errors import SourceError
from packer.format import DTYPES, FieldSpec
from packer.sources.files import suffix_of
from packer.sources.options import SourceOptions, naming
from packer.sources.table import LaidField, Layout, SampleTable
from packer.sources.tables.arrow import is_binary, is_file, leaves
from packer.sources.tables.text import CSV, JSON, Odd, odd_values

#: What a column is of which no value is known, that is left out, whose numbers are those of classes, or that is binary.
EMPTY, SKIPPED, CLASS, BINARY = "empty", "skipped", "class", "binary"
#: How the words of a column begin whose values are numbers of classes in the file, too.
NUMBER = "number of class"
#: How a type begins whose values have a shape of their own.
_TENSOR = "extension<arrow.fixed_shape_tensor"
#: Types of Arrow that have another name than the dtype.
_DTYPES = {"halffloat": "float16", "float": "float32", "double": "float64"}


def layout_of(schema: Any, options: SourceOptions) -> Layout:
    """Return the fields of a schema of Arrow; those that are left out are `SKIPPED`."""
    import pyarrow as pa

    metadata = json.loads((schema.metadata or {}).get(b"huggingface", "{}"))
    features = metadata.get("info", {}).get("features", {})
    layout, odd = list[LaidField](), odd_values(schema)
    files = {field.name for field in schema if is_file(field.type)}
    tensors = {field.name: field.type for field in schema if str(field.type).startswith(_TENSOR)}
    kinds = [(field.name, getattr(field.type, "storage_type", field.type)) for field in schema]
    for name, array in leaves(pa.schema(kinds).empty_table()):
        if any(naming(name, [skipped]) for skipped in options.skip):
            layout.append(LaidField(name, "uint8", (), SKIPPED))
            continue
        if name in tensors:
            raise SourceError(
                f"column {name} is {tensors[name]}, which no field holds; make lists of it, or --skip {name}"
            )
        laid = _field(name, array.type)
        if name in files:
            laid = laid._replace(detail=f"{name}.path")
        if laid.dtype == "int64" and (names := _class_names(features, name)):
            laid = laid._replace(in_words=f"{NUMBER} of {len(laid.shape)} axes", detail=names)
        layout.append(laid._replace(detail=odd[name]) if name in odd else laid)
    if twice := [name for name, times in Counter(laid.name for laid in layout).items() if times > 1]:
        raise SourceError(f"two columns, or members of one, are named {twice[0]!r}; rename one")
    return tuple(layout)


def is_class(laid: LaidField) -> bool:
    """Return whether the numbers of a column are those of classes, whose names are its `detail`."""
    return laid.in_words.startswith((CLASS, NUMBER))


def _class_names(features: Any, name: str) -> tuple[str, ...]:
    """Return the names of classes that the features of Hugging Face have for a column, a member, or values of lists."""
    feature = features
    for part in [name] if name in features else name.split("."):
        feature = feature.get(part) if isinstance(feature, dict) else None
        while isinstance(feature, list) or (isinstance(feature, dict) and feature.keys() >= {"feature", "_type"}):
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
    is_known = isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
    return tuple(feature.get("names") or ()) if is_known else ()


def _field(name: str, kind: Any) -> LaidField:
    """Return the field that a column of a type of Arrow is; raises SourceError if it cannot be one."""
    from pyarrow import types

    axes, value = list[int | None](), kind
    while types.is_list(value) or types.is_large_list(value) or types.is_fixed_size_list(value):
        axes.append(value.list_size if types.is_fixed_size_list(value) else None)
        value = value.value_type
    form = f"{value}{f' of {len(axes)} axes' if axes else ''}"
    if types.is_dictionary(value) and not axes:
        value = value.value_type
        if _is_text(value):
            return LaidField(name, "int64", (), CLASS, detail=())
    if types.is_null(value):
        return LaidField(name, "uint8", tuple(axes), EMPTY)
    if _is_text(value) and not axes:
        return LaidField(name, "uint8", (None,), "text", "text")
    if is_binary(value) and not axes:
        return LaidField(name, "uint8", (None, None, None), BINARY, "image")
    if types.is_temporal(value) and not types.is_interval(value):
        dtype = "int64"
    else:
        dtype = _DTYPES.get(str(value), str(value))
        if dtype not in DTYPES:
            advice = "cast it to float64 or text" if types.is_decimal(value) else "make numbers or text of it"
            raise SourceError(f"column {name} is {kind}, which no field holds; {advice}, or --skip {name}")
        form = f"{dtype}{form[len(str(value)) :]}"
    return LaidField(name, dtype, tuple(axes), form)


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view")


def merged(fields: Mapping[str, LaidField], others: Mapping[str, LaidField], path: str) -> dict[str, LaidField]:
    """Return the fields of two pieces or files of text, whose types are those of the values that are there.

    Raises:
        SourceError: JSON holds values of several types under one name.
    """
    merged = dict(fields or others)
    for name, other in others.items() if fields else ():
        one = merged.get(name, other)
        if one.in_words == EMPTY and len(one.shape) <= len(other.shape):
            merged[name] = other
        elif other.in_words == EMPTY and len(other.shape) <= len(one.shape):
            merged[name] = one
        elif "text" in (one.kind, other.kind) and suffix_of(path) in CSV:
            merged[name] = LaidField(name, "uint8", (None,), "text", "text", detail=_odd_of_both(one, other))
        elif one == other:
            merged[name] = one
        elif one.shape == other.shape and {one.dtype, other.dtype} == {"int64", "float64"}:
            merged[name] = one if one.dtype == "float64" else other
        elif suffix_of(path) in CSV:
            merged[name] = LaidField(name, "uint8", (None,), "text", "text")
        else:
            raise SourceError(f"{name} is {one.in_words} in some rows and {other.in_words} in others; fix it", path)
    return merged


def as_fields(table: SampleTable, fields: Mapping[str, FieldSpec]) -> SampleTable:
    """Return rows of text as the fields of a dataset, if these hold their values: whole numbers float64, all text."""
    suffix = suffix_of(table.row(0).path)

    def as_field(laid: LaidField) -> LaidField:
        field = fields.get(laid.name)
        if field is None or laid.detail is not None:
            return laid
        if field.kind == "text" and suffix in CSV:
            return LaidField(laid.name, "uint8", (None,), "text", "text")
        if (laid.dtype, field.dtype) == ("int64", "float64"):
            return laid._replace(dtype="float64", in_words=laid.in_words.replace("int64", "float64"))
        return laid

    return table.relaid(as_field) if suffix in CSV + JSON else table


def _odd_of_both(one: LaidField, other: LaidField) -> Odd | None:
    """Return why a column of CSV is text of which two pieces are these fields."""
    odd = [laid.detail for laid in (one, other) if isinstance(laid.detail, Odd)]
    if not odd:
        return None
    are_all = len(odd) == 2 and all(each.are_all for each in odd)
    return Odd(sum(each.times for each in odd), odd[0].first, all(each.are_commas for each in odd), are_all)


def said_of_text(laid: LaidField, rows: int, path: str) -> list[str]:
    """Return a sentence on a column of CSV that is text, if most of its values are numbers.

    Raises:
        SourceError: all of them are numbers with a decimal comma.
    """
    odd = laid.detail
    if not isinstance(odd, Odd):
        return []
    if odd.are_commas and odd.are_all:
        reason = f"column {laid.name} has a decimal comma in all numbers, as in {odd.first}"
        raise SourceError(f"{reason}; write points, or --skip {laid.name}", path)
    if odd.are_all or (2 * odd.times >= rows and not odd.are_commas):
        return []
    counted = f"{odd.times:,} of {rows:,} values (the first: {odd.first!r})"
    return [f"column {laid.name} is text: {counted} are no numbers that a field holds"]
