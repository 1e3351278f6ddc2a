"""Blocks of the samples of a table, out of what a kind of files reads: one sample, or rows of one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.format import FieldSpec
from packer.sources.base import Block, LargeArray, changed, count, faults_of, fits, joined
from packer.sources.options import SourceOptions
from packer.sources.table import LaidField, Row, SampleTable

#: Bytes of rows in another order that are read at once, about, and what text and ragged fields are taken to have.
_SORTED_BYTES, _TEXT_BYTES, _RAGGED_BYTES = 64 * 2**20, 2**10, 2**18

#: What a kind has to read its files, as `Kind` says: a sample, rows of a file, or all samples of a table.
ReadSample: TypeAlias = Callable[[Row, SourceOptions], dict[str, Any]]
ReadRows: TypeAlias = Callable[[Row, int, int, SourceOptions], Iterator[Block]]
ReadTable: TypeAlias = Callable[[SampleTable, Sequence[FieldSpec], SourceOptions], Iterator[Block]]


# ---------------------------------------------------------------- samples


def read_samples(
    read: ReadSample, block_bytes: int, table: SampleTable, fields: Sequence[FieldSpec], options: SourceOptions
) -> Iterator[Block]:
    """Yield the samples of a table, each read by itself, as `Source.read` does.

    Args:
        block_bytes: bytes of a block, about.
    """
    return joined(_samples(read, table, options), fields, block_bytes)


def _samples(read: ReadSample, table: SampleTable, options: SourceOptions) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(table.rows()):
        with faults_of(sample=number):
            sample = read(row, options)
            for laid in row.layout:
                _check(laid, row, sample[laid.name])
        for value in sample.values():
            if isinstance(value, LargeArray):
                value.number = number
        yield sample


def _check(laid: LaidField, row: Row, value: Any) -> None:
    """Raise SourceError if the value of a field is not what its header said."""
    if laid.kind == "text":
        return
    shape = row.shape(laid)
    if value.dtype != laid.dtype or not fits(value.shape, shape):
        raise changed(laid.dtype, shape, value, row.paths.get(laid.name, (row.path,))[0])


# ---------------------------------------------------------------- rows of files


def read_stretches(
    read_rows: ReadRows, table: SampleTable, fields: Sequence[FieldSpec], options: SourceOptions
) -> Iterator[Block]:
    """Yield the samples of a table, which are rows of files, stretch by stretch, as `Source.read` does."""
    stretches = _stretches(table)
    if (np.lexsort(stretches) == np.arange(len(stretches[0]))).all():
        yield from _in_order(read_rows, table, options)
        return
    row_bytes = sum(
        _TEXT_BYTES if spec.kind == "text" else _RAGGED_BYTES if spec.is_ragged else spec.fixed_bytes for spec in fields
    )
    size = max(1, _SORTED_BYTES // max(1, row_bytes))
    for start in range(0, table.count, size):
        some = table.slice(start, min(start + size, table.count))
        try:
            yield from _sorted(read_rows, some, fields, options)
        except SourceError as error:
            sample = None if error.sample is None else start + error.sample
            raise SourceError(error.reason, error.path, sample) from error


def _stretches(table: SampleTable) -> tuple[NDArray[np.int64], ...]:
    """Return of each stretch of rows: its first row, the numbers that the kind gave it, and the file."""
    (files,) = table.inputs.values()
    file_number = {path: number for number, path in enumerate(dict.fromkeys(files.files))}
    firsts = np.zeros(len(files.files), np.int64) if files.firsts is None else files.firsts
    paths = np.fromiter(map(file_number.__getitem__, files.files), np.int64, len(files.files))
    return (firsts, *table.numbers.values(), paths)


def _in_order(read_rows: ReadRows, table: SampleTable, options: SourceOptions) -> Iterator[Block]:
    """Yield rows as they follow one another."""
    (files,) = table.inputs.values()
    ends = np.asarray(files.ends)
    starts = np.zeros_like(ends) if files.firsts is None else files.firsts
    before = 0
    for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        row, done = table.row(number), before
        try:
            for block in read_rows(row, start, start + end - before, options):
                yield block
                done += count(block)
            if done != end:
                reason = f"had {end - before:,} rows when its header was read, and has {done - before:,} now"
                raise SourceError(f"{reason}; run again")
        except SourceError as error:
            sample = None if error.sample is None else done + error.sample
            if sample is not None and sample > done:  # the rows before the bad one
                at = start + done - before
                yield from read_rows(row, at, at + sample - done, options)
            raise SourceError(error.reason, error.path or row.path, sample) from error
        before = end


def _sorted(
    read_rows: ReadRows, table: SampleTable, fields: Sequence[FieldSpec], options: SourceOptions
) -> Iterator[Block]:
    """Yield all rows as one block, read as they lie: a group of rows is decoded, or text parsed, as a whole."""
    (files,) = table.inputs.values()
    counts = np.diff(np.asarray(files.ends), prepend=0)
    within = np.arange(table.count) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.lexsort((within, *(np.repeat(numbers, counts) for numbers in _stretches(table))))
    try:
        blocks = list(_in_order(read_rows, table.take(order), options))
    except SourceError as error:
        if error.sample is None:
            raise
        bad = int(order[error.sample])
        if bad:  # one before it may be bad, too
            yield from read_stretches(read_rows, table.slice(0, bad), fields, options)
        raise SourceError(error.reason, error.path, bad) from error
    back = np.argsort(order)
    block: dict[str, Any] = {}
    for spec in fields:
        parts: list[Any] = [part[spec.name] for part in blocks]
        if all(isinstance(part, np.ndarray) for part in parts):
            block[spec.name] = np.concatenate(parts)[back]
        else:
            values = [value for part in parts for value in part]
            block[spec.name] = [values[number] for number in back.tolist()]
    yield block
