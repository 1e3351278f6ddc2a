"""Samples in files, of every kind: the table says where each lies, the kind reads it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError, as_text
from packer.format import FieldSpec
from packer.sources.arrays import KeptFile
from packer.sources.base import Block, LargeArray, Source, changed, count, faults_of, fits, joined
from packer.sources.kinds import Kind, all_kinds
from packer.sources.options import SourceOptions
from packer.sources.table import LaidField, Numbers, Row, SampleTable

#: Bytes of rows in another order that are read at once, about, and what text and ragged fields are taken to have.
_SORTED_BYTES, _TEXT_BYTES, _RAGGED_BYTES = 64 * 2**20, 2**10, 2**18


@dataclass(eq=False)
class TableSource(Source):
    """The samples of a table.

    Attributes:
        table: of at least one sample.
        kind: of the files, its name.
        options: with which they are read.
    """

    table: SampleTable
    kind: str
    options: SourceOptions
    fields: tuple[FieldSpec, ...]
    origin: Mapping[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    splits: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, table: SampleTable, kind: Kind, options: SourceOptions, remarks: list[str]) -> TableSource:
        """Return the samples of a table, with their fields.

        Raises:
            UsageError: a field cannot have its name.
        """
        try:
            fields = (*table.specs(kind.are_ragged), *kind.more)
        except ValueError as error:
            raise UsageError(str(error)) from error
        origin = dict(kind.origin(options, table))
        if table.has_rows:
            (files,) = table.inputs.values()
            counts = np.diff(np.asarray(files.ends), prepend=0).tolist()
            pieces = groupby(zip(files.files, counts, strict=True), itemgetter(0))
            origin["files"] = [KeptFile(as_text(file), sum(n for _, n in of_file)) for file, of_file in pieces]
        return cls(table, kind.name, options, fields, origin, remarks)

    @property
    def reader(self) -> Kind:
        """Return the record of the kind."""
        return all_kinds()[self.kind]

    @property
    def cuts(self) -> NDArray[np.int64] | None:  # type: ignore[override]
        if not self.table.has_rows or self.reader.read_rows is None:
            return None
        (files,) = self.table.inputs.values()
        return np.append(0, np.asarray(files.ends))[:-1]

    @property
    def has_files_of_slices(self) -> bool:  # type: ignore[override]
        return self.reader.files_in is None

    @property
    def names(self) -> list[str] | None:  # type: ignore[override]
        return self.table.names

    def __len__(self) -> int:
        return self.table.count

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        return self.table.shapes(field)

    def slice(self, start: int, stop: int) -> TableSource:
        return self._with(self.table.slice(start, stop))

    def take(self, numbers: Numbers) -> TableSource:
        """Return some of the samples, in the order given, as `slice` does."""
        return self._with(self.table.take(numbers))

    def in_order(self, numbers: Numbers) -> TableSource:
        """Return some of the samples, in the order given, with all that is said of the source."""
        return replace(self, table=self.table.take(numbers))

    def named(self, names: list[str] | None) -> TableSource:
        """Return the samples with other names, or with none."""
        return replace(self, table=msgspec.structs.replace(self.table, names=names))

    def only(self, names: Collection[str]) -> TableSource:
        """Return the samples with some of their fields; of a table no other column is read."""
        layouts = [tuple(laid for laid in layout if laid.name in names) for layout in self.table.layouts]
        fields = tuple(spec for spec in self.fields if spec.name in names)
        return replace(self, table=msgspec.structs.replace(self.table, layouts=layouts), fields=fields)

    def _with(self, table: SampleTable) -> TableSource:
        return replace(self, table=table, origin={}, remarks=[], constants={}, splits={})

    def files(self) -> list[str]:
        paths, files_in = self.table.files(), self.reader.files_in
        return paths if files_in is None else [file for path in paths for file in files_in(path)]

    def read(self) -> Iterator[Block]:
        if self.reader.read_table is not None:
            return self.reader.read_table(self.table, self.fields, self.options)
        if self.table.has_rows:
            return self._rows() if self._is_in_order() else self._rows_in_other_order()
        return joined(self._samples(), self.fields, self.reader.block_bytes)

    def _rows(self) -> Iterator[Block]:
        (files,) = self.table.inputs.values()
        read_rows, ends = self.reader.read_rows, files.ends
        if read_rows is None or ends is None:
            raise UsageError(f"the kind {self.kind} has no function read_rows; its package is wrong")
        starts = np.zeros_like(ends) if files.firsts is None else files.firsts
        before = 0
        for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            row, done = self.table.row(number), before
            try:
                for block in read_rows(row, start, start + end - before, self.options):
                    yield block
                    done += count(block)
                if done != end:
                    reason = f"had {end - before:,} rows when its header was read, and has {done - before:,} now"
                    raise SourceError(f"{reason}; run again")
            except SourceError as error:
                sample = None if error.sample is None else done + error.sample
                if sample is not None and sample > done:  # the rows before the bad one
                    at = start + done - before
                    yield from read_rows(row, at, at + sample - done, self.options)
                raise SourceError(error.reason, error.path or row.path, sample) from error
            before = end

    def _stretches(self) -> tuple[NDArray[np.int64], ...]:
        """Return of each stretch of rows: its first row, the numbers that the kind gave it, and the file."""
        (files,) = self.table.inputs.values()
        file_number = {path: number for number, path in enumerate(dict.fromkeys(files.files))}
        firsts = np.zeros(len(files.files), np.int64) if files.firsts is None else files.firsts
        paths = np.fromiter(map(file_number.__getitem__, files.files), np.int64, len(files.files))
        return (firsts, *self.table.numbers.values(), paths)

    def _is_in_order(self) -> bool:
        stretches = self._stretches()
        return bool((np.lexsort(stretches) == np.arange(len(stretches[0]))).all())

    def _rows_in_other_order(self) -> Iterator[Block]:
        """Yield many rows at once, read as they lie: a group of rows is decoded, or text parsed, as a whole."""
        row_bytes = sum(
            _TEXT_BYTES if spec.kind == "text" else _RAGGED_BYTES if spec.is_ragged else spec.fixed_bytes
            for spec in self.fields
        )
        size = max(1, _SORTED_BYTES // max(1, row_bytes))
        for start in range(0, len(self), size):
            try:
                yield from self.slice(start, min(start + size, len(self)))._sorted()
            except SourceError as error:
                sample = None if error.sample is None else start + error.sample
                raise SourceError(error.reason, error.path, sample) from error

    def _sorted(self) -> Iterator[Block]:
        (files,) = self.table.inputs.values()
        counts = np.diff(np.asarray(files.ends), prepend=0)
        within = np.arange(len(self)) - np.repeat(np.cumsum(counts) - counts, counts)
        order = np.lexsort((within, *(np.repeat(numbers, counts) for numbers in self._stretches())))
        try:
            blocks = list(self.take(order)._rows())
        except SourceError as error:
            if error.sample is None:
                raise
            bad = int(order[error.sample])
            yield from self.slice(0, bad).read() if bad else ()  # one before it may be bad, too
            raise SourceError(error.reason, error.path, bad) from error
        back = np.argsort(order)
        block: dict[str, Any] = {}
        for spec in self.fields:
            parts: list[Any] = [part[spec.name] for part in blocks]
            if all(isinstance(part, np.ndarray) for part in parts):
                block[spec.name] = np.concatenate(parts)[back]
            else:
                values = [value for part in parts for value in part]
                block[spec.name] = [values[number] for number in back.tolist()]
        yield block

    def _samples(self) -> Iterator[dict[str, Any]]:
        read = self.reader.read
        if read is None:
            raise UsageError(f"the kind {self.kind} has no function read; its package is wrong")
        for number, row in enumerate(self.table.rows()):
            with faults_of(sample=number):
                sample = read(row, self.options)
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
