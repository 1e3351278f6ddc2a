"""Attributes of files, groups and datasets, and single values, as JSON values that give dtype and shape back.

A str, bool, int64 or float64 scalar is itself; any other value is `{"dtype": ..., "value": ...}` with nested
lists for the axes, NaN and infinities as strings, complex numbers as pairs; `"charset"` and `"enum"` stand beside
where strings are not the usual ones and numbers have names. Compounds, and bytes that are no text, are
`{"type": ..., "shape": [...], "hex": "..."}` with the type as in `stored_types`; of values of an array type `"axes"`
are those of each, and the type is that of its items. What is large or cannot be read is `{"summary": "..."}`, as a
whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.format.schema import DTYPES
from packer.sources.hdf5.choice import is_skipped
from packer.sources.hdf5.listing import SINGLE, Inventory, Listed, has_attributes
from packer.sources.hdf5.types import Column, references_within

#: Larger values are summarised: the manifest is read by people.
_MAX_BYTES = 16 * 2**10
#: Objects carry a handful of attributes; a file with more is hostile or a database.
_MAX_ATTRIBUTES = 1000


def attributes(thing: h5py.HLObject) -> dict[str, Any]:
    """All attributes of an object by name; never raises for what is in them."""
    try:
        names = list(thing.attrs)
    except (OSError, RuntimeError, ValueError, LookupError):
        return {"": {"summary": "attributes cannot be read"}}
    found = {_printable(name): _attribute(thing, name) for name in names[:_MAX_ATTRIBUTES]}
    if len(names) > _MAX_ATTRIBUTES:
        found[""] = {"summary": f"{len(names) - _MAX_ATTRIBUTES:,} more attributes left out"}
    return found


def single(dataset: h5py.Dataset) -> Any:
    """The one value of a dataset without axes; never raises for what it is."""
    return _value(lambda: dataset.id, lambda: dataset[()])


def summary(held: Any) -> str | None:
    """What is said of a value that was not kept; None where it was."""
    return held.get("summary") if isinstance(held, dict) else None


def _attribute(thing: h5py.HLObject, name: str | bytes) -> Any:
    return _value(lambda: thing.attrs.get_id(name), lambda: thing.attrs[name])


def _value(header: Callable[[], Any], read: Callable[[], Any]) -> Any:
    # Whatever a damaged or exotic value raises must not cost the data: it is noted in its place.
    try:
        found = header()
        if references_within(found.get_type()):
            return {"summary": "references to other objects within lists or compounds"}
        dtype, shape = found.dtype, found.shape
        if shape is not None and math.prod(shape) * dtype.itemsize > _MAX_BYTES:
            return {"summary": f"{dtype} of shape {tuple(shape)}"}
        return json_value(read(), dtype)
    except Exception as error:
        return {"summary": f"cannot be read: {type(error).__name__}"}


def json_value(value: Any, dtype: np.dtype[Any]) -> Any:
    """A value as h5py gives it, as JSON; what is large or has no JSON form is summarised, as a whole.

    Args:
        dtype: that of the attribute or dataset, of which the value may have lost the half.
    """
    if isinstance(value, h5py.Empty):
        return {"dtype": str(value.dtype), "value": None}
    text = h5py.check_string_dtype(dtype)
    if text is not None:
        return _strings(value, dtype, text)
    array = np.asarray(value)
    if array.nbytes > _MAX_BYTES:
        return {"summary": f"{array.dtype} of shape {array.shape}"}
    plain = dtype.name in ("bool", "int64", "float64") and dtype.isnative and array.ndim == 0
    enum = h5py.check_enum_dtype(dtype)
    if plain and not enum and np.isfinite(array):
        return array.item()
    if dtype.kind in "biufc" and dtype.newbyteorder("=").name in DTYPES:  # Python has no number for long doubles
        names = {"enum": {str(name): int(number) for name, number in enum.items()}} if enum else {}
        return {"dtype": dtype.str, **names, "value": _lists(array.tolist())}
    if dtype.kind == "V" and _has_bytes(dtype.base):
        return _raw(array.astype(dtype.base), dtype)
    return {"summary": f"{array.dtype} of shape {array.shape}"}


def _strings(value: Any, dtype: np.dtype[Any], text: Any) -> Any:
    """Strings: those of any length in UTF-8 are the usual ones."""
    array = np.asarray(value, object if text.length is None else dtype)
    size = sum(map(len, array.flat))
    if size > _MAX_BYTES:
        return {"summary": f"text of {size:,} characters, beginning {_printable(next(filter(None, array.flat))[:60])}"}
    try:
        held = _lists(np.vectorize(_decoded, otypes=[object])(array).tolist() if array.size else array.tolist())
    except UnicodeDecodeError:
        return _raw(array, dtype) if text.length else {"summary": f"text of shape {array.shape} that is not UTF-8"}
    if (text.encoding, text.length, array.ndim) == ("utf-8", None, 0):
        return held
    is_usual = text.encoding == ("utf-8" if text.length is None else "ascii")
    charset = {} if is_usual else {"charset": text.encoding}
    return {"dtype": "str" if text.length is None else f"S{text.length}", **charset, "value": held}


def _decoded(item: str | bytes) -> str:
    # h5py puts bytes that are no text into str as lone surrogates.
    return (item if isinstance(item, bytes) else item.encode("utf-8", "surrogateescape")).decode()


def _raw(array: NDArray[Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    # What lies between the members is chance, and must not make manifests differ.
    clean = np.zeros(array.shape, dtype.base)
    _copy(clean, array)
    axes = {"axes": list(dtype.shape)} if dtype.shape else {}
    shape = array.shape[: array.ndim - len(dtype.shape)]
    return {"type": type_json(dtype.base), **axes, "shape": list(shape), "hex": clean.tobytes().hex()}


def _copy(to: NDArray[Any], values: NDArray[Any]) -> None:
    for name in values.dtype.names or ():
        _copy(to[name], values[name])
    if not values.dtype.names:
        to[...] = values


def _has_bytes(dtype: np.dtype[Any]) -> bool:
    """Whether the bytes of values say all of them and nothing else; long doubles are padded with chance."""
    if dtype.names:
        return all(_has_bytes(dtype[name].base) for name in dtype.names)
    return dtype.kind in "SV" or dtype.newbyteorder("=").name in DTYPES


def _lists(value: Any) -> Any:
    if isinstance(value, list):
        return [_lists(item) for item in value]
    if isinstance(value, complex):
        return [_lists(value.real), _lists(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no NaN; writers would make it null.
        return str(value)
    if isinstance(value, (bytes, str)):
        return _printable(value)
    return value


def _printable(value: str | bytes) -> str:
    """`value` as text without lone surrogates, which JSON in UTF-8 cannot hold; h5py leaves some names bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value.encode("utf-8", "backslashreplace").decode()


#: Datasets whose types are kept: the manifest is read by people.
_MAX_TYPES = 500


def stored_types(root: h5py.Group, columns: Sequence[Column], of_rows: bool) -> tuple[dict[str, dict[str, Any]], int]:
    """By path of each dataset below `root` whose type an export would not choose by itself: the type, and the fields
    made of it, with the compound members that lead to each; and how many more of these datasets there are.

    Args:
        of_rows: whether the samples are rows of the datasets, for which names of enumerations are kept elsewhere, and
            arrays of any length are no dataset of a sample's own.
    """
    found: dict[str, dict[str, Any]] = {}
    for column in columns:
        known = found.get(column.dataset)
        if known is None:
            held = type_json(root[column.dataset.lstrip("/")].dtype)
            if not _is_usual(held, of_rows):
                known = found[column.dataset] = {"type": held, "fields": {}}
        if known is not None:
            known["fields"][column.spec.name] = list(column.members)
    return dict(list(found.items())[:_MAX_TYPES]), max(0, len(found) - _MAX_TYPES)


def type_json(dtype: np.dtype[Any]) -> Any:
    """A datatype as h5py gives it, as JSON."""
    text = h5py.check_string_dtype(dtype)
    if text is not None:
        return {"text": text.encoding, "length": text.length}
    enum = h5py.check_enum_dtype(dtype)
    if enum is not None:
        return {"enum": {str(name): int(number) for name, number in enum.items()}, "dtype": dtype.str}
    base = h5py.check_vlen_dtype(dtype)
    if base is not None:
        return {"list": type_json(np.dtype(base))}
    if dtype.subdtype is not None:
        return {"array": type_json(dtype.subdtype[0]), "shape": list(dtype.subdtype[1])}
    if dtype.names:
        return _compound(dtype)
    return dtype.str


def _compound(dtype: np.dtype[Any]) -> dict[str, Any]:
    # What values of any length take differs between memory and file, and with it all offsets behind them.
    fixed = not dtype.hasobject
    assert dtype.fields is not None
    members = [[name, type_json(dtype[name]), dtype.fields[name][1] if fixed else None] for name in dtype.names or ()]
    return {"compound": members, "size": dtype.itemsize if fixed else None}


def _is_usual(held: Any, of_rows: bool) -> bool:
    """Whether a dataset gets this type where nothing is known of its source."""
    match held:
        case str(plain):
            return np.dtype(plain).isnative
        case {"text": "utf-8", "length": None}:
            return True
        case {"list": str(plain)} | {"enum": _, "dtype": str(plain)}:
            return of_rows and np.dtype(plain).isnative
    return False


#: Objects of one kind that are kept: the manifest is read by people.
MAX_KEPT = 500


def origin(
    file: h5py.File, held: Inventory, columns: Sequence[Column], is_kept: Callable[[str], bool]
) -> dict[str, Any]:
    """Attributes by path, which of these are groups, single values by path, what further names stand for, unusual
    datatypes by path, and sentences on what is `lost`.

    Args:
        is_kept: tells whether an object is kept, by its path: what is not packed is not read.
    """
    described = [path for path in (["/"] if has_attributes(file) else []) + held.described if is_kept(path)]
    singles = [e.dataset for e in held.entries if e.aside == SINGLE and is_kept(e.dataset)]
    links = [(e.path, e.same) for e in held.entries if e.same is not None]
    types, more_types = stored_types(file, columns, of_rows=True)
    parts = {
        "attributes": {path: attributes(file[path]) for path in described[:MAX_KEPT]},
        "values": {path: single(file[path]) for path in singles[:MAX_KEPT]},
        "links": dict(links[:MAX_KEPT]),
        "datasets": types,
        "lost": [
            *beyond(len(described), "attributes of {} datasets and groups"),
            *beyond(len(singles), "{} single values"),
            *beyond(len(links), "{} further names of datasets and groups"),
            *beyond(MAX_KEPT + more_types, "datatypes of {} datasets"),
        ],
    }
    # The groups stand beside attributes even where there are none: early versions did not say which they are.
    groups = {"groups": [p for p in described[:MAX_KEPT] if isinstance(file[p], h5py.Group)]} if described else {}
    return {name: part for name, part in parts.items() if part} | groups


def beyond(count: int, what: str) -> list[str]:
    """A sentence on what is not kept of `count` things, if anything is not."""
    lost = count - MAX_KEPT
    return [f"{what.format(f'{lost:,}')} are not kept: there are more than {MAX_KEPT}"] if lost > 0 else []


def asides(entries: list[Listed], skip: Collection[str], values: Mapping[str, Any]) -> list[str]:
    """What is left out, and what becomes of it; first what is not kept at all."""
    lost, linked, kept = [], [], []
    for entry in entries:
        if not entry.aside or is_skipped(entry, skip):
            continue
        if entry.same is not None:
            linked.append(f"{entry.path} {entry.aside}: packed once")
        elif entry.aside != SINGLE:
            lost.append(f"{entry.path} {entry.aside}")
        elif entry.path not in values:
            continue  # `origin` says how many these are
        elif (why := summary(values[entry.path])) is None:
            kept.append(f"{entry.path} is a single value: kept with the attributes")
        else:
            lost.append(f"{entry.path} is a single value, too large or of a kind that is not kept ({why})")
    return [*_some(lost), *_some(linked), *_some(kept)]


def _some(notes: list[str]) -> list[str]:
    return notes if len(notes) <= 10 else [*notes[:10], f"{len(notes) - 10} more datasets left out like these"]
