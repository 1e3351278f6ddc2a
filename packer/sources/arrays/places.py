"""Where many trees of arrays lie, and which rows of each are read: in columns, so that a file takes some bytes.

The objects by which a tree is opened are made when it is opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import as_text
from packer.sources.arrays.fields import ArrayLeaf
from packer.sources.arrays.tree import PartFiles, TreePlace
from packer.sources.files import join
from packer.sources.units import folder_of


class FileColumn(NamedTuple):
    """Files of many trees: one or more of each.

    Attributes:
        base: the path at which the arrays of a tree's files begin, which are parts of one another; None if each file
            is named for itself.
        folder: the folder that `files` count from.
        files: relative paths, those of one tree after those of another.
        bounds: (trees + 1,) where the files of each tree begin, and the end.
        axis: the axis along which parts follow one another.
    """

    base: str | None
    folder: str
    files: Sequence[str]
    bounds: NDArray[np.uint32]
    axis: int = 0

    @classmethod
    def one_each(cls, base: str | None, folder: str, files: Sequence[str], axis: int = 0) -> FileColumn:
        """Return the column of trees of one file each."""
        return cls(base, folder, files, np.arange(len(files) + 1, dtype=np.uint32), axis)

    def parts(self, number: int) -> tuple[PartFiles, ...]:
        """Return the files of a tree, in the form in which it is opened."""
        files = self.files[self.bounds[number] : self.bounds[number + 1]]
        paths = tuple(join(self.folder, file) for file in files)
        if self.base is None:
            return tuple(PartFiles(_own_base(path), (path,)) for path in paths)
        return (PartFiles(self.base, paths, self.axis),)

    def cut(self, start: int, stop: int) -> FileColumn:
        bounds = self.bounds[start : stop + 1]
        return self._replace(files=self.files[bounds[0] : bounds[-1]], bounds=bounds - bounds[0])

    def take(self, numbers: NDArray[np.int64]) -> FileColumn:
        spans = zip(self.bounds[numbers].tolist(), self.bounds[numbers + 1].tolist(), strict=True)
        files = [file for first, last in spans for file in self.files[first:last]]
        return self._replace(files=files, bounds=bounds_of(np.diff(self.bounds)[numbers]))


def bounds_of(counts: Iterable[int]) -> NDArray[np.uint32]:
    """Return where the files of each tree begin, and the end, (trees + 1,), from the number of files of each."""
    return np.cumsum([0, *counts], dtype=np.uint32)


@dataclass(frozen=True)
class Places(Sequence[TreePlace]):
    """The files of many trees. A tree is there once for each unit in it, one after another."""

    columns: tuple[FileColumn, ...]

    def __len__(self) -> int:
        return len(self.columns[0].bounds) - 1

    def __getitem__(self, number: Any) -> Any:
        return tuple(part for column in self.columns for part in column.parts(number))

    @property
    def firsts(self) -> Iterator[str]:
        """Return the first file of each tree, from the folder of the first column."""
        column = self.columns[0]
        return (column.files[first] for first in column.bounds[:-1])

    def path(self, number: int) -> str:
        """Return the path of the first file of a tree."""
        column = self.columns[0]
        return join(column.folder, column.files[column.bounds[number]])

    def paths(self) -> list[str]:
        """Return the paths of all files, each once."""
        return [join(column.folder, file) for column in self.columns for file, _ in groupby(column.files)]

    def cut(self, start: int, stop: int) -> Places:
        """Return the trees start..stop."""
        return Places(tuple(column.cut(start, stop) for column in self.columns))

    def take(self, numbers: NDArray[np.int64]) -> Places:
        """Return the trees of these numbers, which ascend and may be there several times."""
        if np.array_equal(numbers, np.arange(len(self))):
            return self
        return Places(tuple(column.take(numbers) for column in self.columns))

    def apart(self) -> list[Places]:
        """Return the files of the one tree, each that is named for itself alone, and parts of one array together."""
        columns: list[FileColumn] = []
        for base, folder, files, _, axis in self.columns:
            if base is None:
                columns += [FileColumn.one_each(_own_base(file), folder, [file]) for file in files]
            else:
                columns.append(FileColumn.one_each(base, folder, files, axis))
        return [Places((column,)) for column in columns]


def _own_base(path: str) -> str:
    """Return the path of a file's arrays: the name of a `.npy`; members of a `.npz` have names of their own."""
    return "" if path.lower().endswith(".npz") else f"/{without_suffix(path).rpartition('/')[2]}"


def without_suffix(path: str) -> str:
    """Return a path without its last suffix; a `Path` of each of many files would fill a table of Python's own."""
    return os.path.splitext(path)[0]  # noqa: PTH122


def relative_names(tables: Sequence[Places]) -> list[str]:
    """Return the paths of first files relative to the folder that holds all; a file that has this name is returned."""
    firsts = [(places.columns[0].folder, places) for places in tables]
    above = ""
    for folder, places in firsts:
        for inner, _ in groupby(map(folder_of, places.firsts)):
            parent = os.path.abspath(join(folder, inner))  # noqa: PTH100 - links stay
            above = os.path.commonpath([above, parent]) if above else parent
    names = []
    for folder, places in firsts:
        for file in places.firsts:
            name = as_text(os.path.relpath(join(folder, file), above).replace(os.sep, "/"))
            names.append(file if name == file else name)
    return names


class TreeRows(NamedTuple):
    """The rows start..stop of a tree; or a unit by its root, which is one sample.

    Attributes:
        leaves: the fields in this tree; all runs of one table have the same, but for what scales their numbers.
    """

    place: TreePlace
    root: str
    start: int
    stop: int
    leaves: tuple[ArrayLeaf, ...]


class RowTable(NamedTuple):
    """Rows that lie in runs, one run after another, each in one tree; a unit is a run of one row.

    Attributes:
        places: the tree of each run.
        roots: of each run, the path of the unit; none if all are whole trees.
        ends: (runs,) the rows up to the end of each run.
        layouts: fields that many runs have.
        layout_of: (runs,) the number of the layout of each.
        files: by run, further files that are read.
        first: the row of the first run at which the table begins; all other runs are whole.
    """

    places: Places
    roots: Sequence[str]
    ends: NDArray[np.int64]
    layouts: Sequence[tuple[ArrayLeaf, ...]]
    layout_of: NDArray[np.uint32]
    files: Mapping[int, tuple[str, ...]] = {}
    first: int = 0

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return the rows of each run, (runs,)."""
        return np.diff(self.ends, prepend=0)

    def run(self, number: int) -> TreeRows:
        """Return a run, in the form in which it is read."""
        start, before = (0, int(self.ends[number - 1])) if number else (self.first, 0)
        stop = start + int(self.ends[number]) - before
        return TreeRows(self.places[number], self.roots[number] if self.roots else "", start, stop, self.leaves(number))

    def leaves(self, number: int) -> tuple[ArrayLeaf, ...]:
        """Return the fields of a run."""
        return self.layouts[int(self.layout_of[number])]

    def cut(self, start: int, stop: int) -> RowTable:
        """Return the rows start..stop."""
        first = int(self.ends.searchsorted(start, "right"))
        last = min(len(self.ends), int(self.ends.searchsorted(stop)) + 1)
        before = int(self.ends[first - 1]) if first else -self.first
        return self._replace(
            places=self.places.cut(first, last),
            roots=self.roots[first:last],
            ends=np.minimum(self.ends[first:last], stop) - start,
            layout_of=self.layout_of[first:last],
            files={number - first: files for number, files in self.files.items() if first <= number < last},
            first=start - before,
        )
