"""Parquet as the package datasets writes it: OUT/data-00000.parquet, ...; a row a sample, a column a field.

Pictures are structs of `bytes`, the JPEG file that the dataset keeps or a PNG, and `path`. The metadata says so to
`datasets.load_dataset`, and the names of classes. Names of samples are a column `name`.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Generator
from typing import Any

import numpy as np

from packer.codecs import file_of
from packer.errors import UsageError
from packer.export.files import Files, Writer, meanings_in
from packer.export.png import check_image, write_png
from packer.format import FieldSpec
from packer.sources import TABLES, Block, PackedSource, all_kinds

#: A file is closed once it holds so many bytes as arrays; rows of a group have about so many bytes.
_FILE_BYTES, _GROUP_BYTES = 2**30, 2**25
_NAME = "name"
#: Types of times, as the origin of tables has them.
_TIME = re.compile(r"(timestamp|duration|time32|time64|date32|date64)\[(\w+)(?:, tz=(.+))?\]")


class ParquetWriter(Writer):
    """Writes tables of some thousand samples."""

    names_files = False

    def __init__(self, source: PackedSource, files: Files) -> None:
        all_kinds()[TABLES].check_package()
        import pyarrow as pa

        meanings = meanings_in(source)
        columns, features = dict[str, Any](), dict[str, Any]()
        for spec in source.fields:
            meaning = meanings.get(spec.name, "")
            columns[spec.name] = _type_of(spec, meaning if isinstance(meaning, str) else "")
            if spec.kind == "image":
                features[spec.name] = {"_type": "Image"}
            elif isinstance(meaning, list) and spec.dtype == "int64":
                features[spec.name] = _feature(spec, {"names": meaning, "_type": "ClassLabel"})
        super().__init__(source, files)
        is_time = [
            name for name, meaning in meanings.items() if isinstance(meaning, str) and columns[name] != pa.int64()
        ]
        self.kept_meanings = {*features, *is_time}
        self._named = source.names is not None and _NAME not in columns
        if self._named:
            columns = {_NAME: pa.string(), **columns}
            self.notes.append(f"names of samples are the column {_NAME}")
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        self._schema = pa.schema(list(columns.items()), metadata)

    def write(self) -> Generator[Block]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        for number, blocks in enumerate(self._blocks_of_files(_FILE_BYTES)):
            with (
                self._files.create(f"data-{number:05d}", ".parquet") as file,
                pq.ParquetWriter(file, self._schema) as out,
            ):
                group = list[Any]()
                for block, names in blocks:
                    columns = {_NAME: pa.array(names, pa.string())} if self._named else {}
                    for spec in self._source.fields:
                        columns[spec.name] = _column(spec, block[spec.name], names, self._schema.field(spec.name).type)
                    group.append(pa.record_batch(columns, self._schema))
                    if sum(batch.nbytes for batch in group) > _GROUP_BYTES:
                        out.write_table(pa.Table.from_batches(group))
                        group.clear()
                    yield block
                if group:
                    out.write_table(pa.Table.from_batches(group))


def _type_of(spec: FieldSpec, time: str) -> Any:
    """Return the type of a column; raises UsageError if there is none."""
    import pyarrow as pa

    if spec.kind == "image":
        check_image(spec)
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    if spec.kind == "text":
        return pa.string()
    try:
        kind = pa.from_numpy_dtype(spec.np_dtype)
    except (pa.ArrowNotImplementedError, TypeError):
        kind = None
    if kind is None or 0 in spec.shape or (None in spec.shape[1:] and len(spec.shape) > 2):
        raise UsageError(f"field {spec.name!r} is {spec.in_words}, which no column holds; export to hdf5")
    if not spec.shape and (match := _TIME.fullmatch(time)) and spec.dtype == "int64":
        name, unit, zone = match.groups()
        if name == "timestamp":
            return pa.timestamp(unit, zone)
        return getattr(pa, name)(unit) if name in ("duration", "time32", "time64") else getattr(pa, name)()
    for length in reversed(spec.shape):
        kind = pa.list_(kind) if length is None else pa.list_(kind, length)
    return kind


def _feature(spec: FieldSpec, feature: dict[str, Any]) -> dict[str, Any]:
    """Return what Hugging Face calls a field whose single values are this feature."""
    for length in reversed(spec.shape):
        feature = {"feature": feature, "length": -1 if length is None else length, "_type": "Sequence"}
    return feature


def _column(spec: FieldSpec, values: Any, names: Any, kind: Any) -> Any:
    """Return the values of a field in some samples as an array of Arrow."""
    import pyarrow as pa

    if spec.kind == "image":
        return pa.array([_picture(spec, value, name) for value, name in zip(values, names, strict=True)], kind)
    if spec.kind == "text":
        return pa.array(values, kind)
    if spec.is_ragged:
        return _lists([np.asarray(value) for value in values], spec, names, kind)
    array = np.asarray(values)
    flat = pa.array(array.reshape(-1))
    if pa.types.is_temporal(kind):
        return flat.cast(f"int{kind.bit_width}").view(kind)
    return _nested(flat, kind)


def _nested(flat: Any, kind: Any) -> Any:
    """Return plain values as lists of fixed lengths, in each other."""
    import pyarrow as pa

    if not pa.types.is_fixed_size_list(kind):
        return flat
    return pa.FixedSizeListArray.from_arrays(_nested(flat, kind.value_type), type=kind)


def _lists(values: list[Any], spec: FieldSpec, names: Any, kind: Any) -> Any:
    """Return arrays of any length as lists: ragged along the first axis, or along both of two."""
    import pyarrow as pa

    def offsets(lengths: list[int]) -> Any:
        return pa.array(np.append(0, np.cumsum(lengths)), pa.int32())

    flat = pa.array(np.concatenate([value.reshape(-1) for value in values]), pa.from_numpy_dtype(spec.np_dtype))
    if spec.shape[1:] == (None,):
        lost = next(
            (name for value, name in zip(values, names, strict=True) if not len(value) and value.shape[1]), None
        )
        if lost is not None:
            raise UsageError(f"field {spec.name!r}, sample {lost!r}: lists lose the shape of no rows; export to hdf5")
        rows = [value.shape[1] for value in values for _ in range(len(value))]
        flat = pa.ListArray.from_arrays(offsets(rows), flat)
    else:
        flat = _nested(flat, kind.value_type)
    if spec.shape[0] is None:
        return pa.ListArray.from_arrays(offsets([len(value) for value in values]), flat, type=kind)
    return pa.FixedSizeListArray.from_arrays(flat, type=kind)


def _picture(spec: FieldSpec, image: Any, name: str) -> dict[str, Any]:
    data, suffix = file_of(image), "jpg"
    if not data:
        if 0 in image.shape:
            raise UsageError(
                f"field {spec.name!r}, sample {name!r}: no picture has {image.shape[:2]} pixels; export to hdf5"
            )
        file = io.BytesIO()
        write_png(file, np.asarray(image))
        data, suffix = file.getvalue(), "png"
    return {"bytes": data, "path": f"{name}.{suffix}"}
