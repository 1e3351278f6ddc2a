"""Files of Parquet and Arrow, and columns of Arrow: which rows lie where, and what a nested column holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from packer.errors import SourceError
from packer.sources.base import BLOCK_BYTES
from packer.sources.files import suffix_of, unreadable
from packer.sources.options import naming

PARQUET, ARROW = (".parquet",), (".arrow", ".feather")
#: The number of `SampleTable` that says which group a file's rows are.
GROUP = "group"
#: Members of a struct that is a file, as Hugging Face has pictures.
_BYTES, _PATH = "bytes", "path"
_PEEKED_ROWS = 16
#: Types whose values lie elsewhere, as polars writes them, and those as which they are taken.
_VIEWS = {"string_view": "large_string", "binary_view": "large_binary"}


@contextmanager
def faults(path: str) -> Iterator[None]:
    """Make errors of pyarrow a SourceError that names the file."""
    import pyarrow as pa

    try:
        yield
    except SourceError as error:
        raise SourceError(error.reason, error.path or path, error.sample) from error
    except pa.ArrowException as error:
        words = str(error).partition("\n")[0]
        if "invalid UTF8" in words:
            advice = f"save it as such, as by iconv -f latin1 -t utf8 {path}"
            raise SourceError(f"is not text in UTF-8; {advice}", path) from error
        raise SourceError(f"cannot be read as a table ({words}); fix it, or write it again", path) from error
    except OSError as error:
        raise unreadable(error, path) from error


def groups_of(path: str) -> tuple[Any, list[int]]:
    """Return the schema of a file of Parquet or Arrow, and how many rows each group has; a stream is one group."""
    import pyarrow as pa

    if suffix_of(path) in PARQUET:
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            groups = range(file.num_row_groups)
            return file.schema_arrow, [file.metadata.row_group(number).num_rows for number in groups]
    with pa.memory_map(path) as mapped:
        # One column is enough to count rows: values of others may be compressed.
        reader = _reader(mapped, [0])
        if isinstance(reader, pa.RecordBatchFileReader):
            rows = [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]
        else:
            rows = [sum(batch.num_rows for batch in reader)]
        return _reader(mapped).schema, rows


def _reader(mapped: Any, columns: Sequence[int] = ()) -> Any:
    """Return a reader of some columns of a file of Arrow, or of a stream as the package datasets writes them."""
    import pyarrow as pa

    options = pa.ipc.IpcReadOptions(included_fields=list(columns))
    mapped.seek(0)
    try:
        return pa.ipc.open_file(mapped, options=options)
    except pa.ArrowInvalid:
        mapped.seek(0)
        return pa.ipc.open_stream(mapped, options=options)


def stored(path: str, group: int, start: int, stop: int, names: Sequence[str]) -> Iterator[Any]:
    """Yield the rows start..stop of a group, of the columns that have these fields, in batches."""
    batches, row = _decoded(path, Path(path).stat().st_mtime_ns, group, tuple(names)), start
    while row < stop and (found := batches.find(row)):
        begin, batch = found
        end = min(stop, begin + batch.num_rows)
        yield batch.slice(row - begin, end - row)
        row = end


class _Batches:
    """The rows of a group, decoded from the first one on as far as they are asked for; the last batch alone is kept.

    To keep all of a group costs more than decoding it: its memory is new, and not in the cache of the processor.
    """

    def __init__(self, decode: Callable[[], Iterator[Any]]) -> None:
        self._decode = decode
        self._rewind()

    def _rewind(self) -> None:
        self._rest, self._begin = self._decode(), 0
        self._batch = next(self._rest, None)

    def find(self, row: int) -> tuple[int, Any] | None:
        """Return the batch that holds a row, and its first row; None if there is none. To go back decodes again."""
        if row < self._begin:
            self._rewind()
        while self._batch is not None and row >= self._begin + self._batch.num_rows:
            self._begin += self._batch.num_rows
            self._batch = next(self._rest, None)
        return None if self._batch is None else (self._begin, self._batch)


def peeked(path: str, group: int, name: str) -> Iterator[Any]:
    """Yield the rows of a group, of the column that has a field, some at a time; no more is read than is asked for."""
    import pyarrow as pa

    if suffix_of(path) in PARQUET:
        import pyarrow.parquet as pq

        with pq.ParquetFile(path, pre_buffer=False) as file:
            columns = [column for column in file.schema_arrow.names if naming(name, [column])]
            yield from file.iter_batches(_PEEKED_ROWS, [group], columns, use_threads=False)
        return
    with pa.memory_map(path) as mapped:
        data = mapped.read_buffer()
    for batch in _arrow_batches(data, group, (name,)):
        yield from pa.Table.from_batches([batch]).to_batches(_PEEKED_ROWS)


@lru_cache(maxsize=1)  # which shards of a group that are packed one after another share, and the rows after a bad one
def _decoded(path: str, _version: int, group: int, names: tuple[str, ...]) -> _Batches:
    import pyarrow as pa

    with pa.memory_map(path) as mapped:  # which saves a copy
        data = mapped.read_buffer()
    decode = _parquet_batches if suffix_of(path) in PARQUET else _arrow_batches
    return _Batches(partial(decode, data, group, names))


def _parquet_batches(data: Any, group: int, names: Sequence[str]) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
    about = file.metadata.row_group(group)
    rows = max(1, min(2**20, BLOCK_BYTES * about.num_rows // max(1, about.total_byte_size)))
    yield from file.iter_batches(rows, [group], _chosen(file.schema_arrow.names, names), use_threads=False)


def _arrow_batches(data: Any, group: int, names: Sequence[str]) -> Iterator[Any]:
    import pyarrow as pa

    file = pa.BufferReader(data)
    schema = _reader(file).schema
    reader = _reader(file, [schema.names.index(name) for name in _chosen(schema.names, names)])
    if isinstance(reader, pa.RecordBatchFileReader):
        yield reader.get_batch(group)
    else:
        yield from reader


def _chosen(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the columns that have some fields: members of structs have their column's name in front."""
    wanted = {name[:end] for name in names for end in (len(name), *(m.start() for m in re.finditer(r"\.", name)))}
    return [column for column in columns if column in wanted]


def leaves(batch: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and array of each column of a batch; members of structs, and of lists of them, one by one."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        yield from _members(name, column)


def _members(name: str, array: Any) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_dictionary(kind) and str(kind.value_type) in _VIEWS:
        text = array.dictionary.cast(_VIEWS[str(kind.value_type)])
        array = pa.DictionaryArray.from_arrays(array.indices, text)
    elif str(kind) in _VIEWS:  # for which pyarrow lacks many functions
        array = array.cast(_VIEWS[str(kind)])
    kind = array.type
    if is_file(kind):
        array, kind = array.flatten()[kind.get_field_index(_BYTES)], pa.null()
    if pa.types.is_struct(kind) and kind.num_fields:
        for field, member in zip(kind, array.flatten(), strict=True):
            yield from _members(f"{name}.{field.name}", member)
    elif pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        absent = array.is_null() if array.null_count else None
        for inner, member in _members(name, array.flatten()):
            bounds = np.append(0, np.cumsum(array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)))
            yield inner, pa.ListArray.from_arrays(bounds.astype(np.int32), member, mask=absent)
    else:
        yield name, array


def is_file(kind: Any) -> bool:
    """Return whether a type of Arrow is a struct of the bytes of a file and its path."""
    import pyarrow as pa

    if not pa.types.is_struct(kind):
        return False
    types = {field.name: field.type for field in kind}
    return {_BYTES, _PATH} >= types.keys() and is_binary(types.get(_BYTES))


def is_binary(kind: Any) -> bool:
    """Return whether values of a type of Arrow are bytes of any number."""
    return str(kind) in ("binary", "large_binary", "binary_view")
