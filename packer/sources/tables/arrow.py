"""Files of Parquet and Arrow, and columns of Arrow: which rows lie where, and what a nested column holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from packer.errors import SourceError
from packer.sources.base import BLOCK_BYTES
from packer.sources.files import suffix_of, unreadable
from packer.sources.options import naming

PARQUET, ARROW = (".parquet",), (".arrow", ".feather")


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
        raise SourceError(f"cannot be read as a table ({words}); fix it, or write it again", path) from error
    except OSError as error:
        raise unreadable(error, path) from error


@contextmanager
def opened(path: str) -> Iterator[tuple[Any, Iterator[tuple[int, Any]]]]:
    """Open a file of Parquet or Arrow; yield its schema, and of each group how many rows it has and how to read it."""
    import pyarrow as pa

    if suffix_of(path) in PARQUET:
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            groups = map(file.metadata.row_group, range(file.num_row_groups))
            yield file.schema_arrow, ((g.num_rows, partial(_read_group, file, n, g)) for n, g in enumerate(groups))
        return
    with pa.memory_map(path) as mapped:
        try:
            reader = pa.ipc.open_file(mapped)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        except pa.ArrowInvalid:  # as the package datasets writes them
            mapped.seek(0)
            batches = reader = pa.ipc.open_stream(mapped)
        yield reader.schema, ((batch.num_rows, partial(_select, batch)) for batch in batches)


def _read_group(file: Any, number: int, group: Any, columns: list[str]) -> Iterator[Any]:
    rows = max(1, min(2**20, BLOCK_BYTES * group.num_rows // max(1, group.total_byte_size)))
    batches: Iterator[Any] = file.iter_batches(rows, [number], columns, use_threads=False)
    return batches


def _select(batch: Any, columns: list[str]) -> list[Any]:
    return [batch.select(columns)]


def stored(path: str, start: int, stop: int, names: list[str]) -> Iterator[Any]:
    """Yield the rows start..stop of the columns that have these fields, in batches; groups apart are not read."""
    with opened(path) as (schema, groups):
        columns = [column for column in schema.names if any(naming(name, [column]) for name in names)]
        at = 0
        for rows, read in groups:
            if at + rows <= start or at >= stop:
                at += rows
                continue
            for batch in read(columns):
                begin, end = max(start - at, 0), min(stop - at, batch.num_rows)
                at += batch.num_rows
                if begin < end:
                    yield batch.slice(begin, end - begin)


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
