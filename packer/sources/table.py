"""Which samples there are and where each lies: arrays and text only, for every kind of files.

    SampleTable                        samples 0, 1, 2, ...
        inputs["image"].files          a.png b.png c.png          one file each, or with `bounds` several
        inputs[""].files               part0.h5 part1.h5          or with `ends` files whose rows are the samples
        names                          a b c
        layouts, layout_of             what many headers have in common, there once; and the number of each one's
        numbers["image[0]"]            720 1080 720               a number of each sample, such as the length of an axis

A million files take some bytes each, in memory and in the plan that parts share (`encode_source`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.format import FieldSpec
from packer.sources.files import join

Numbers: TypeAlias = Sequence[int] | NDArray[Any]
#: Samples whose numbers are taken out of their columns together.
_AT_ONCE = 1024
#: `slice`, which the classes here have as a method.
_Span: TypeAlias = slice


class LaidField(NamedTuple):
    """What one field of a sample is, as the headers of its files say it. Samples of one dataset have the same words.

    Attributes:
        shape: of each axis its length, the name of the column of `SampleTable.numbers` that holds it, or None if only
            reading shows it.
        in_words: what must be the same for all samples, as in `int16 of 3 axes`.
        kind: as in `FieldSpec`.
        detail: what reading has to know besides, for one kind of files: plain values, or a record of
            `Kind.detail`.
        notes: what is not kept as it is in the file, a sentence each.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]
    in_words: str
    kind: str = "array"
    detail: Any = None
    notes: tuple[str, ...] = ()


#: The fields of a sample.
Layout = tuple[LaidField, ...]


class Row(NamedTuple):
    """Where one sample lies, or one file of samples; made when it is looked at or read.

    Attributes:
        paths: by input, the paths of its files.
        roots: by input, what of each of its files it is: the path of a group, the key of a value; none of whole files.
        spans: by input, offset and size of the bytes that it is in each of its files; none of whole files.
        numbers: those of the table, by name.
        layout: its fields; empty before it was looked at.
    """

    paths: Mapping[str, tuple[str, ...]]
    roots: Mapping[str, Sequence[str]] = {}
    spans: Mapping[str, NDArray[np.int64]] = {}
    numbers: Mapping[str, int] = {}
    layout: Layout = ()

    @property
    def path(self) -> str:
        """Return the path of the first file."""
        return next(paths[0] for paths in self.paths.values() if paths)

    @property
    def root(self) -> str:
        """Return what of its one file the sample is; empty for all of it."""
        return next((roots[0] for roots in self.roots.values()), "")

    def shape(self, field: LaidField) -> tuple[int | None, ...]:
        """Return the shape of a field in this sample; None for an axis that only reading shows."""
        return tuple([self.numbers[axis] if isinstance(axis, str) else axis for axis in field.shape])


class Files(msgspec.Struct, frozen=True):
    """The files of one input, in the order of the samples.

    Attributes:
        folder: the folder that `files` count from; empty for the current one.
        files: relative paths.
        bounds: (samples + 1,) where the files of each sample begin, and the end; None if each sample has one file.
        ends: (files,) the rows up to the end of each file, if rows of files are the samples; else None.
        firsts: (files,) with `ends`, the row of its file with which each begins; None for the first row.
        roots: of each of `files` what of it is meant, as in `Row`; None if all are whole.
        spans: (files, 2) offset and size of the bytes that are meant; None if files are whole.
    """

    folder: str
    files: list[str]
    bounds: NDArray[Any] | None = None
    ends: NDArray[Any] | None = None
    firsts: NDArray[Any] | None = None
    roots: list[str] | None = None
    spans: NDArray[Any] | None = None

    @property
    def is_more_than_files(self) -> bool:
        """Return whether a sample is not simply one whole file."""
        return any(column is not None for column in (self.bounds, self.ends, self.roots, self.spans))

    def of(self, number: int) -> _Span:
        """Return which files are those of a sample; with `ends`, the file of this number."""
        bounds = self.bounds
        return slice(number, number + 1) if bounds is None else slice(int(bounds[number]), int(bounds[number + 1]))

    def paths_of(self, number: int) -> tuple[str, ...]:
        """Return the paths of the files of a sample; with `ends`, of the file of this number."""
        if self.bounds is None:
            return (join(self.folder, self.files[number]),)
        return tuple(join(self.folder, file) for file in self.files[self.of(number)])

    def paths(self) -> list[str]:
        """Return the paths of all files, in order; a file of several samples that follow one another once."""
        return [join(self.folder, file) for file, _ in groupby(self.files)]

    def slice(self, start: int, stop: int) -> Files:
        """Return those of the samples start..stop."""
        if self.ends is not None:
            span = self.span(start, stop)
            firsts = np.zeros(len(self.files), np.int64)[span] if self.firsts is None else self.firsts[span].copy()
            firsts[:1] += start - (int(self.ends[span.start - 1]) if span.start else 0)
            return self._picked(span, ends=np.minimum(self.ends[span], stop) - start, firsts=firsts)
        if self.bounds is None:
            return self._picked(slice(start, stop))
        bounds = self.bounds[start : stop + 1]
        return self._picked(slice(int(bounds[0]), int(bounds[-1])), bounds=bounds - bounds[0])

    def span(self, start: int, stop: int) -> _Span:
        """Return which files hold the rows start..stop."""
        ends = np.zeros(0) if self.ends is None else self.ends
        first = int(ends.searchsorted(start, "right"))
        return slice(first, max(first, min(len(ends), int(ends.searchsorted(stop)) + 1)) if stop > start else first)

    def take(self, numbers: NDArray[np.int64]) -> Files:
        """Return those of some samples, in any order."""
        if self.ends is not None:
            begins, file_of = self.stretches(numbers)
            rows = numbers[begins] - np.append(0, self.ends)[file_of]
            rows += 0 if self.firsts is None else self.firsts[file_of]
            return self._picked(file_of, ends=np.append(begins, len(numbers))[1:], firsts=rows)
        if self.bounds is None:
            return self._picked(numbers)
        counts = np.diff(self.bounds)[numbers]
        bounds = bounds_of(counts)
        within = np.arange(bounds[-1]) + np.repeat(self.bounds[numbers] - bounds[:-1], counts)
        return self._picked(within, bounds=bounds)

    def _picked(self, files: Any, **columns: NDArray[Any]) -> Files:
        """Return some of the files, given by a slice or by numbers."""
        return Files(
            self.folder,
            some(self.files, files),
            roots=self.roots and some(self.roots, files),
            spans=None if self.spans is None else self.spans[files],
            **columns,
        )

    def stretches(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where stretches of rows of one file begin, (s,), and the file of each, (s,)."""
        file_of: NDArray[Any] = np.zeros(0) if self.ends is None else self.ends.searchsorted(numbers, "right")
        is_first = np.ones(len(numbers), bool)
        is_first[1:] = (np.diff(file_of) != 0) | (np.diff(numbers) != 1)
        begins: NDArray[Any] = np.flatnonzero(is_first)
        return begins, file_of[begins]


def some(items: list[str], numbers: Any) -> list[str]:
    """Return some items, given by a slice or by an array of numbers."""
    return items[numbers] if isinstance(numbers, slice) else [items[number] for number in numbers.tolist()]


def bounds_of(counts: Numbers) -> NDArray[np.int64]:
    """Return where the files of each sample begin, and the end, (samples + 1,), from the number of files of each."""
    return np.append(0, np.cumsum(counts, dtype=np.int64))


class SampleTable(msgspec.Struct, frozen=True, kw_only=True):
    """Where samples lie, and what their headers say.

    Attributes:
        count: how many samples there are.
        inputs: the files, by the field for which they were given; empty where none was named.
        names: of the samples; None if they have none.
        layouts: each once.
        layout_of: (samples,) the number of the layout of each; of files whose rows are the samples, (files,) of the
            first input. None if all have the first one.
        numbers: by name a number for each sample, or file of samples, as `layout_of`.
        further: by the path of a file, further files that are read with it.
    """

    count: int
    inputs: dict[str, Files]
    names: list[str] | None = None
    layouts: list[Layout] = []
    layout_of: NDArray[Any] | None = None
    numbers: dict[str, NDArray[Any]] = {}
    further: dict[str, list[str]] = {}

    @property
    def has_rows(self) -> bool:
        """Return whether rows of files are the samples."""
        return any(files.ends is not None for files in self.inputs.values())

    def row(self, number: int) -> Row:
        """Return a sample; or, where rows are the samples, the first input's file of this number."""
        return Row(
            {field: files.paths_of(number) for field, files in self.inputs.items()},
            {field: files.roots[files.of(number)] for field, files in self.inputs.items() if files.roots},
            {field: files.spans[files.of(number)] for field, files in self.inputs.items() if files.spans is not None},
            {name: int(column[number]) for name, column in self.numbers.items()},
            self.layout(number) if self.layouts else (),
        )

    def rows(self) -> Rows:
        """Return every sample, as `row` gives it."""
        return Rows(self)

    @property
    def rows_or_samples(self) -> int:
        rows = self._first_of_rows
        return self.count if rows is None else len(rows.files)

    def layout(self, number: int) -> Layout:
        """Return the fields of a sample; arguments as for `row`."""
        return self.layouts[0 if self.layout_of is None else int(self.layout_of[number])]

    def in_words(self) -> list[dict[str, str]]:
        """Return of each layout its fields in words, which all samples must share."""
        return [{laid.name: laid.in_words for laid in layout} for layout in self.layouts]

    def counts(self) -> dict[int, int]:
        """Return how many samples, or files of samples, have each layout, by its number, in the order of the first."""
        numbers, firsts, counts = np.unique(self.numbers_of_layouts(), return_index=True, return_counts=True)
        order = np.argsort(firsts)
        return dict(zip(numbers[order].tolist(), counts[order].tolist(), strict=True))

    def relaid(self, change: Callable[[LaidField], LaidField]) -> SampleTable:
        """Return the table with changes of its fields."""
        layouts = [tuple(map(change, layout)) for layout in self.layouts]
        return msgspec.structs.replace(self, layouts=layouts)

    def files(self) -> list[str]:
        """Return the paths of all files, sample after sample, and then those that are read with them."""
        columns = list(self.inputs.values())
        if len(columns) > 1 and not self.has_rows and not any(column.roots for column in columns):
            if all(column.bounds is None for column in columns):
                of_each = [[join(column.folder, "") + file for file in column.files] for column in columns]
                paths = list(chain.from_iterable(zip(*of_each, strict=True)))
            else:
                paths = [path for number in range(self.count) for column in columns for path in column.paths_of(number)]
        else:
            paths = [path for column in columns for path in column.paths()]
        further = [path for more in self.further.values() for path in more]
        return list(dict.fromkeys([*paths, *further])) if further else paths

    def specs(self, are_ragged: bool = False) -> tuple[FieldSpec, ...]:
        """Return what each field is: an axis has a length if it is the same in all samples.

        Args:
            are_ragged: whether an axis whose length a column holds has none in any case.

        Raises:
            ValueError: a field cannot be as it is.
        """
        lengths: dict[str, int | None] = {}
        for name, column in self.numbers.items():
            is_one = not are_ragged and len(column) > 0 and bool((column == column[0]).all())
            lengths[name] = int(column[0]) if is_one else None
        return tuple(
            FieldSpec(
                name=field.name,
                dtype=field.dtype,
                kind=field.kind,  # type: ignore[arg-type]
                shape=tuple(lengths[axis] if isinstance(axis, str) else axis for axis in field.shape),
            )
            for field in self.layouts[0]
        )

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        """Return the shape of a field in every sample, (samples, axes); None if only reading shows it."""
        (laid,) = (laid for laid in self.layouts[0] if laid.name == field)
        if None in laid.shape:
            return None
        shapes = np.empty((self.count, len(laid.shape)), np.int64)
        rows = self._first_of_rows
        for number, axis in enumerate(laid.shape):
            lengths: Any = self.numbers[axis] if isinstance(axis, str) else axis
            if rows is not None and isinstance(axis, str):
                lengths = np.repeat(lengths, np.diff(np.asarray(rows.ends), prepend=0))
            shapes[:, number] = lengths
        return shapes

    def slice(self, start: int, stop: int) -> SampleTable:
        """Return the samples start..stop."""
        samples = slice(start, stop)
        inputs = {field: files.slice(start, stop) for field, files in self.inputs.items()}
        rows = self._first_of_rows
        return self._picked(inputs, stop - start, samples, samples if rows is None else rows.span(start, stop))

    def take(self, numbers: Numbers) -> SampleTable:
        """Return some of the samples, in any order."""
        samples = np.asarray(numbers, np.int64)
        if np.array_equal(samples, np.arange(self.count)):
            return self
        inputs = {field: files.take(samples) for field, files in self.inputs.items()}
        rows = self._first_of_rows
        return self._picked(inputs, len(samples), samples, samples if rows is None else rows.stretches(samples)[1])

    def keep(self, is_kept: NDArray[np.bool_]) -> SampleTable:
        """Return the samples, or files of samples, for which a mask is true, (n,) as `layout_of`."""
        numbers: NDArray[Any] = np.flatnonzero(is_kept)
        rows = self._first_of_rows
        if rows is None:
            return self.take(numbers)
        ((name, files),) = self.inputs.items()
        ends = np.cumsum(np.diff(np.asarray(rows.ends), prepend=0)[numbers])
        firsts = np.zeros(len(files.files), np.int64) if files.firsts is None else files.firsts
        inputs = {name: files._picked(numbers, ends=ends, firsts=firsts[numbers])}
        return self._picked(inputs, int(ends[-1]) if len(ends) else 0, numbers, numbers)

    @property
    def _first_of_rows(self) -> Files | None:
        """Return the first input if its rows are the samples, whose files have the layouts then."""
        first = next(iter(self.inputs.values()))
        return None if first.ends is None else first

    def _picked(self, inputs: dict[str, Files], count: int, samples: Any, laid: Any) -> SampleTable:
        """Return the table of some samples.

        Args:
            samples: a slice, or numbers, of samples; `laid`: of what `layout_of` counts.
        """
        paths = {path for files in inputs.values() for path in files.paths()} if self.further else set[str]()
        layouts, layout_of = self.layouts, self.layout_of
        if layout_of is not None:
            used, layout_of = np.unique(layout_of[laid], return_inverse=True)
            layouts = [layouts[number] for number in used.tolist()]
        return SampleTable(
            count=count,
            inputs=inputs,
            names=self.names and some(self.names, samples),
            layouts=layouts,
            layout_of=None if layout_of is None or len(layouts) < 2 else layout_of.astype(np.uint32),
            numbers={name: column[laid] for name, column in self.numbers.items()},
            further={path: more for path, more in self.further.items() if path in paths},
        )

    def numbers_of_layouts(self) -> NDArray[Any]:
        """Return the number of the layout of every sample, or file of samples."""
        return np.zeros(self.rows_or_samples, np.uint32) if self.layout_of is None else self.layout_of


class Rows(Sequence[Row]):
    """The samples of a table, each made when it is asked for; or the files of samples."""

    def __init__(self, table: SampleTable) -> None:
        self._table = table

    def __len__(self) -> int:
        return self._table.rows_or_samples

    def __getitem__(self, number: Any) -> Any:
        return self._table.row(number)

    def __iter__(self) -> Iterator[Row]:
        table = self._table
        if any(f.is_more_than_files for f in table.inputs.values()):
            yield from map(table.row, range(len(self)))
            return
        heads = [(name, join(files.folder, ""), files.files) for name, files in table.inputs.items()]
        for start in range(0, table.count, _AT_ONCE):
            stop = min(table.count, start + _AT_ONCE)
            columns = {name: column[start:stop].tolist() for name, column in table.numbers.items()}
            layouts = table.layouts or [()]
            layout_of = [0] * (stop - start) if table.layout_of is None else table.layout_of[start:stop].tolist()
            for at, number in enumerate(range(start, stop)):
                paths = {name: (head + files[number],) for name, head, files in heads}
                numbers = {name: column[at] for name, column in columns.items()}
                yield Row(paths, {}, {}, numbers, layouts[layout_of[at]])
