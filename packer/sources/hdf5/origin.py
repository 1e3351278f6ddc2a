"""What the manifest keeps of a file next to its samples, and what is said of the rest.

Attributes and single values are JSON values that give dtype and shape back. A str, bool, int64 or float64 scalar is
itself; any other value is `{"dtype": ..., "value": ...}` with nested lists for the axes, NaN and infinities as strings,
and complex numbers as pairs. What is large, of another kind or cannot be read is `{"summary": "..."}`.

Dtypes are what numpy calls them (`>f4`, `|S5`, `|O` for text and lists of any length), of compounds a list of
`[name, dtype]` or `[name, dtype, [axes]]`, of array types `{"array": dtype, "shape": [axes]}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import h5py
import numpy as np

from packer.errors import first_few
from packer.format.schema import DTYPES
from packer.sources.hdf5.choice import is_skipped
from packer.sources.hdf5.listing import SINGLE, Inventory, Listed, has_attributes
from packer.sources.hdf5.types import Column, references_within

#: Objects of one kind that are kept: the manifest is read by people.
MAX_KEPT = 500
#: Larger values are summarised.
_MAX_BYTES = 16 * 2**10
#: Objects carry a handful of attributes; a file with more is hostile or a database.
_MAX_ATTRIBUTES = 1000


def kept_of_rows(
    file: h5py.File, held: Inventory, columns: Sequence[Column], is_kept: Callable[[str], bool]
) -> dict[str, Any]:
    """Return what is kept of a file of rows.

    Attributes by path, which of these are groups, single values by path, what further names stand for, dtypes that the
    fields do not tell by path, and sentences on what is `lost`.

    Args:
        is_kept: tells whether an object is kept, by its path: what is not packed is not read.
    """
    described = [path for path in (["/"] if has_attributes(file) else []) + held.described if is_kept(path)]
    singles = [e.dataset for e in held.entries if e.aside == SINGLE and is_kept(e.dataset)]
    links = [(e.path, e.same) for e in held.entries if e.same is not None]
    dtypes, more = stored_dtypes(file, columns, of_rows=True)
    parts = {
        "attributes": {path: attributes(file[path]) for path in described[:MAX_KEPT]},
        "groups": [path for path in described[:MAX_KEPT] if isinstance(file[path], h5py.Group)],
        "values": {path: _single(file[path]) for path in singles[:MAX_KEPT]},
        "links": dict(links[:MAX_KEPT]),
        "datasets": dtypes,
        "lost": [
            *beyond(len(described), "attributes of {} datasets and groups"),
            *beyond(len(singles), "{} single values"),
            *beyond(len(links), "{} further names of datasets and groups"),
            *beyond(MAX_KEPT + more, "dtypes of {} datasets"),
        ],
    }
    return {name: part for name, part in parts.items() if part}


def beyond(count: int, what: str) -> list[str]:
    """Return a sentence on what is not kept of `count` things, if anything is not."""
    lost = count - MAX_KEPT
    return [f"{what.format(f'{lost:,}')} are not kept: there are more than {MAX_KEPT}"] if lost > 0 else []


def asides(entries: Sequence[Listed], skip: Collection[str], values: Mapping[str, Any]) -> list[str]:
    """Return what is left out, and what becomes of it; first what is not kept at all."""
    lost, linked, kept = [], [], []
    for entry in entries:
        if not entry.aside or is_skipped(entry, skip):
            continue
        if entry.same is not None:
            linked.append(f"{entry.path} {entry.aside}: packed once")
        elif entry.aside != SINGLE:
            lost.append(f"{entry.path} {entry.aside}")
        elif entry.path not in values:
            continue  # `kept_of_rows` says how many these are
        elif (why := _summary(values[entry.path])) is None:
            kept.append(f"{entry.path} is a single value: kept with the attributes")
        else:
            lost.append(f"{entry.path} is a single value, too large or of a kind that is not kept ({why})")
    return [*_first(lost), *_first(linked), *_first(kept)]


def _first(notes: list[str]) -> list[str]:
    return notes if len(notes) <= 10 else [*notes[:10], f"{len(notes) - 10} more datasets left out like these"]


def unkept(described: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence on the attributes, by object, that are summarised."""
    found = [f"{name!r} of {thing}" for thing, some in described.items() for name in some if _summary(some[name])]
    return [f"attributes too large or of a kind that is not kept: {first_few(found)}"] if found else []


# ---------------------------------------------------------------- attributes and single values


def attributes(thing: h5py.HLObject) -> dict[str, Any]:
    """Return all attributes of an object by name; never raises for what is in them."""
    try:
        names = list(thing.attrs)
    except (OSError, RuntimeError, ValueError, LookupError):
        return {"": {"summary": "attributes cannot be read"}}
    found = {
        _printable(name): _value(partial(thing.attrs.get_id, name), partial(thing.attrs.__getitem__, name))
        for name in names[:_MAX_ATTRIBUTES]
    }
    if len(names) > _MAX_ATTRIBUTES:
        found[""] = {"summary": f"{len(names) - _MAX_ATTRIBUTES:,} more attributes left out"}
    return found


def _single(dataset: h5py.Dataset) -> Any:
    """Return the one value of a dataset without axes; never raises for what it is."""
    return _value(lambda: dataset.id, lambda: dataset[()])


def _summary(held: Any) -> str | None:
    """Return what is said of a value that was not kept; None if it was."""
    return held.get("summary") if isinstance(held, dict) else None


def _value(header: Callable[[], Any], read: Callable[[], Any]) -> Any:
    # Whatever a damaged or exotic value raises must not cost the data: it is noted in its place.
    try:
        found = header()
        if references_within(found.get_type()):
            return {"summary": "references to other objects within lists or compounds"}
        dtype, shape = found.dtype, found.shape
        if shape is not None and math.prod(shape) * dtype.itemsize > _MAX_BYTES:
            return {"summary": f"{dtype} of shape {tuple(shape)}"}
        return _json(read(), dtype)
    except Exception as error:
        return {"summary": f"cannot be read: {type(error).__name__}"}


def _json(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a value that h5py reads as JSON; what is large or has no JSON form is summarised, as a whole.

    Args:
        dtype: that of the attribute or dataset, of which the value may have lost the half.
    """
    if isinstance(value, h5py.Empty):
        return {"dtype": str(value.dtype), "value": None}
    text = h5py.check_string_dtype(dtype)
    if text is not None:
        return _strings(value, text.length)
    array = np.asarray(value)
    if array.nbytes <= _MAX_BYTES and dtype.kind in "biufc" and dtype.newbyteorder("=").name in DTYPES:
        is_plain = dtype.name in ("bool", "int64", "float64") and dtype.isnative and not array.ndim
        if is_plain and np.isfinite(array):
            return array.item()
        return {"dtype": dtype.str, "value": _lists(array.tolist())}
    return {"summary": f"{array.dtype} of shape {array.shape}"}


def _strings(value: Any, length: int | None) -> Any:
    """Return strings of any length, or of `length` bytes."""
    array = np.asarray(value, object if length is None else None)
    size = sum(map(len, array.flat))
    if size > _MAX_BYTES:
        return {"summary": f"text of {size:,} characters, beginning {_printable(next(filter(None, array.flat))[:60])}"}
    try:
        held = np.vectorize(_decoded, otypes=[object])(array).tolist() if array.size else array.tolist()
    except UnicodeDecodeError:
        return {"summary": f"text of shape {array.shape} that is not UTF-8"}
    if length is None and not array.ndim:
        return held
    return {"dtype": "str" if length is None else f"S{length}", "value": held}


def _decoded(item: str | bytes) -> str:
    # h5py puts bytes that are no text into str as lone surrogates.
    return (item if isinstance(item, bytes) else item.encode("utf-8", "surrogateescape")).decode()


def _lists(value: Any) -> Any:
    if isinstance(value, list):
        return [_lists(item) for item in value]
    if isinstance(value, complex):
        return [_lists(value.real), _lists(value.imag)]
    # JSON has no NaN; writers would make it null.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _printable(value: str | bytes) -> str:
    """Return text without lone surrogates, which JSON in UTF-8 cannot hold; h5py leaves some names bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value.encode("utf-8", "backslashreplace").decode()


# ---------------------------------------------------------------- dtypes


def stored_dtypes(
    root: h5py.Group | h5py.Dataset, columns: Sequence[Column], of_rows: bool
) -> tuple[dict[str, Any], int]:
    """Return the dtypes of datasets that an export would not choose by itself, and how many more there are.

    By path below `root` the dtype, and the fields made of it with the compound members that lead to each.

    Args:
        root: the file, or the group or dataset that is one sample.
        of_rows: whether the samples are rows: then lists of any length are what an export chooses.
    """
    found: dict[str, Any] = {}
    usual: set[str] = set()
    for column in columns:
        if column.attribute:
            continue
        if column.dataset not in found and column.dataset not in usual:
            dtype = (root[column.dataset.lstrip("/")] if column.dataset else root).dtype
            if _is_usual(dtype, of_rows):
                usual.add(column.dataset)
            else:
                found[column.dataset] = {"dtype": _dtype_json(dtype), "fields": {}}
        if column.dataset in found:
            found[column.dataset]["fields"][column.spec.name] = list(column.members)
    return dict(list(found.items())[:MAX_KEPT]), max(0, len(found) - MAX_KEPT)


def _is_usual(dtype: np.dtype[Any], of_rows: bool) -> bool:
    if dtype.kind == "O":
        return of_rows or h5py.check_string_dtype(dtype) is not None
    return dtype.kind not in "SV" and dtype.isnative


def _dtype_json(dtype: np.dtype[Any]) -> Any:
    if dtype.subdtype is not None:
        return {"array": _dtype_json(dtype.subdtype[0]), "shape": list(dtype.subdtype[1])}
    if dtype.names:
        inner = [(name, dtype[name]) for name in dtype.names]
        return [[name, _dtype_json(type_.base), *([list(type_.shape)] if type_.shape else [])] for name, type_ in inner]
    return dtype.str
