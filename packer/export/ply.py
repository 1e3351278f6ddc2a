"""PLY files, one a sample: OUT/NAME.ply. The PLY source reads the same fields from them again.

    xyz (n, 3), label (n,)             vertex x y z label; also normal, rgb, rgba
    f_rest (n, 45)                     vertex f_rest_0 to f_rest_44
    NAME with NAME_size                lists, whose lengths are NAME_size
    face, face_NAME                    face vertex_indices NAME, lists if a row has several numbers

The files are written by plyfile.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.export.files import Files, Writer
from packer.format import FieldSpec
from packer.sources import Block, PackedSource
from packer.sources.ply import TYPES, CountType, property_names

_FACE = "face"


@dataclass(frozen=True)
class _Property:
    """One property of an element: the values of a field, or one column of it; `count_dtype` is set for lists."""

    element: str
    name: str
    field: str
    column: int | None = None
    count_dtype: CountType | None = None


class PlyWriter(Writer):
    """Writes a file for each sample, in binary."""

    text = False

    def __init__(self, source: PackedSource, files: Files) -> None:
        if find_spec("plyfile") is None:
            raise UsageError("PLY files are written by plyfile: pip install '.[ply]' in a clone of packer")
        super().__init__(source, files)
        self._properties = _make_properties(source.fields)

    def write(self) -> Generator[Block]:
        for block, names in self._blocks():
            for number, name in enumerate(names):
                sample = {field: values[number] for field, values in block.items()}
                with self._files.create(name, ".ply") as file:
                    try:
                        _write_file(file, self._properties, sample, self.text)
                    except UsageError as error:
                        raise UsageError(f"sample {name!r}: {error}") from None
            yield block


class PlyTextWriter(PlyWriter):
    """The same as text."""

    text = True


def _make_properties(fields: Sequence[FieldSpec]) -> list[_Property]:
    """Return the properties of PLY files that hold these fields; the inverse of what the PLY source does.

    Raises:
        UsageError: a field cannot be a property of vertices or faces.
    """
    names = {spec.name for spec in fields}
    one_axis = {spec.name for spec in fields if len(spec.shape) == 1}
    lists = {name for name in one_axis if f"{name}_size" in one_axis} | {_FACE}
    properties: list[_Property] = []
    for spec in fields:
        if spec.name.endswith("_size") and spec.name.removesuffix("_size") in lists & names:
            continue
        _check_field(spec)
        width = spec.shape[1] if len(spec.shape) == 2 else None
        is_face = spec.name == _FACE or (_FACE in names and spec.name.startswith(f"{_FACE}_"))
        element = _FACE if is_face else "vertex"
        name = "vertex_indices" if spec.name == _FACE else spec.name.removeprefix("face_") if is_face else spec.name
        if spec.name in lists or width == 0 or (is_face and width is not None):
            count_dtype: CountType = "uint8" if width is not None and width < 256 else "int32"
            properties.append(_Property(element, name, spec.name, None, count_dtype))
        elif width is None:
            properties.append(_Property(element, name, spec.name))
        else:
            columns = enumerate(property_names(name, width))
            properties += [_Property(element, column_name, spec.name, i) for i, column_name in columns]
    return properties


def _check_field(spec: FieldSpec) -> None:
    problem = ""
    if spec.kind != "array" or not 1 <= len(spec.shape) <= 2 or (len(spec.shape) == 2 and spec.shape[1] is None):
        problem = "is not a list of points, (N,) or (N, k)"
    elif spec.dtype not in TYPES.values():
        problem = f"is {spec.dtype}, but PLY has only {', '.join(dict.fromkeys(TYPES.values()))}"
    elif not spec.name.isascii() or len(spec.name.split()) != 1:
        problem = "has a name that PLY cannot hold: ASCII without spaces is expected"
    if problem:
        raise UsageError(f"field {spec.name!r} {problem}; name other fields with --fields, or export to hdf5")


def _write_file(file: BinaryIO, properties: Sequence[_Property], sample: Mapping[str, Any], text: bool) -> None:
    """Write one sample; `plyfile`, which is GPL, is imported only here."""
    from plyfile import PlyData, PlyElement

    elements = []
    for name in dict.fromkeys(prop.element for prop in properties):
        rows, columns = _columns([prop for prop in properties if prop.element == name], sample)
        data = np.empty(rows, [(p.name, values.dtype, values.shape[1:]) for p, values in columns])
        for prop, values in columns:
            data[prop.name] = values
        lists = [prop for prop, _ in columns if prop.count_dtype]
        count_dtypes = {prop.name: np.dtype(str(prop.count_dtype)).str[1:] for prop in lists}
        value_dtypes = {prop.name: sample[prop.field].dtype.str[1:] for prop in lists}
        elements.append(PlyElement.describe(data, name, len_types=count_dtypes, val_types=value_dtypes))
    PlyData(elements, text=text, byte_order="=" if text else "<").write(file)


def _columns(properties: Sequence[_Property], sample: Mapping[str, Any]) -> tuple[int, list[tuple[_Property, Any]]]:
    """Return how many rows an element has, and its columns. An empty column is omitted if others have rows.

    A column is empty if the source file of the sample lacked a property that other files have.
    """
    columns = [(prop, _column(prop, sample)) for prop in properties]
    rows = max(len(values) for _, values in columns)
    for prop, values in columns:
        if len(values) not in (0, rows):
            raise UsageError(
                f"field {prop.field!r} has {len(values)} rows, but others of element {prop.element} have {rows}; "
                "name fields of one length with --fields, or export to hdf5"
            )
    return rows, [(prop, values) for prop, values in columns if len(values) == rows]


def _column(prop: _Property, sample: Mapping[str, Any]) -> NDArray[Any]:
    """Return the values of a property: (rows,); (rows, length) for lists of one length; (rows,) arrays for others."""
    values: NDArray[Any] = sample[prop.field]
    if prop.count_dtype is None:
        return values if prop.column is None else values[:, prop.column]
    if values.ndim == 2 and values.shape[1]:
        return values
    sizes: NDArray[Any] = np.zeros(len(values), np.int64)
    if values.ndim == 1:
        if f"{prop.field}_size" not in sample:
            raise UsageError(f"field {prop.field!r} needs the field {prop.field}_size to be written as lists; name it")
        sizes = sample[f"{prop.field}_size"]
        if int(sizes.sum()) != len(values) or (sizes < 0).any():
            raise UsageError(f"the lengths in {prop.field}_size do not add up to {prop.field!r}; export to hdf5")
    lists: NDArray[Any] = np.empty(len(sizes), np.dtype(object))
    for row, entries in enumerate(np.split(values, np.cumsum(sizes)[:-1]) if len(sizes) else ()):
        lists[row] = entries
    return lists
