"""Episodes out of flat rows: `--samples episodes:PATH`, where PATH is an array that says where each episode ends.

    episodes:meta/episode_ends        diffusion_policy: the number of rows up to the end of each episode, ascending
    episodes:terminals,timeouts       D4RL: true in the last row of each episode; in one of several arrays
    episodes:episode_index            the number of the episode of each row, as in LeRobot

Rows after the last true one are an episode as well: nothing is skipped. No such episode goes from one file into the
next. Without PATH all rows of all files follow one another, as those of weather do, a file a year: one episode, or
several of one length where it would be larger than a sample can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.format import MAX_CHUNK_BYTES, FieldSpec
from packer.sources.base import LARGE_BYTES, Block, DerivedSource, LargeArray, count, joined
from packer.sources.source import TableSource

if TYPE_CHECKING:
    from typing_extensions import Self  # which typing has from Python 3.11 on


def is_table(values: NDArray[Any]) -> bool:
    """Return whether an array lists the ends of episodes, rather than a value for each row."""
    is_rising = values.dtype.kind in "iu" and len(values) > 0 and bool((values[1:] > values[:-1]).all())
    return is_rising and int(values[0]) > 0 and int(values[-1]) > len(values)


def ends_of(marks: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Return the row after each episode of a file, ascending, (episodes,); the last is the number of rows.

    Args:
        marks: the arrays of one axis that say where episodes end, by path.

    Raises:
        SourceError: they do not.
    """
    names, (first, *others) = ", ".join(marks), marks.values()
    if min(map(len, marks.values())) == 0:
        raise SourceError(f"{names}: there is no value, so no episode ends anywhere")
    if not others and is_table(first):
        return first.astype(np.int64)
    if not others and len(fallen := _not_rising(first)):
        at, times = int(fallen[0]) + 1, len(fallen)
        more = f", and so do {times - 1:,} more" if times > 1 else ""
        raise SourceError(
            f"{names}: ends of episodes rise, but entry {at} is {first[at]} after {first[at - 1]}{more}; mend the array"
        )
    is_end = np.append(first[1:] != first[:-1], True)
    if len({len(values) for values in marks.values()}) == 1 and all(map(_is_flag, marks.values())):
        is_last = np.logical_or.reduce([values != 0 for values in marks.values()])
        is_last[-1] = True
        is_number = not others and first.dtype.kind in "iu" and not (first[1:] < first[:-1]).any()
        if is_number and (is_last != is_end).any():
            raise SourceError(
                f"{names}: integers of 0 and 1 that only rise may mark the last row of each episode, or number two "
                "episodes; write marks as bool, and numbers from 1 on"
            )
        return np.flatnonzero(is_last) + 1
    if others or first.dtype.kind not in "iu":
        raise SourceError(
            f"{names}: one array of ascending ends or of numbers of episodes, or arrays that are true (or 1) in the "
            "last row of an episode and false (or 0) in all others, are expected"
        )
    return np.flatnonzero(is_end) + 1


def _not_rising(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the entries of a list of ends that the next one does not exceed; none if it is no such list.

    Ends count rows, so that the last ones exceed their own number; and numbers of the episodes of rows mostly repeat.
    """
    if values.dtype.kind not in "iu" or int(values[0]) <= 0 or int(values.max()) <= len(values):
        return np.zeros(0, np.int64)
    fallen: NDArray[np.int64] = np.flatnonzero(values[1:] <= values[:-1])
    return fallen if 4 * len(fallen) < len(values) else fallen[:0]


def _is_flag(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "biuf" and bool(((values == 0) | (values == 1)).all())


def _row_bytes(spec: FieldSpec) -> int:
    """Return the bytes of a row: the axis of steps, which is None, is left out."""
    return int(np.dtype(spec.dtype).itemsize * math.prod(length for length in spec.shape if length is not None))


def _bounds_of_one(rows: int, row_bytes: int) -> NDArray[np.int64]:
    """Return where episodes begin, and the last ends: one of all rows, or as few of one length as can be samples."""
    parts = max(1, -(-rows // max(1, MAX_CHUNK_BYTES // max(row_bytes, 1))))
    step = max(1, -(-rows // parts))
    return np.append(np.arange(0, max(rows, 1), step), rows)


@dataclass(eq=False)
class EpisodeSource(DerivedSource):
    """Runs of rows of a source, one sample a run; every field gets an axis of steps before its own.

    Attributes:
        bounds: the first row of each episode, and the end of the last, (episodes + 1,).
        pattern: paths of the arrays that say where episodes end, with commas between them; empty for none.
        marked: the files that hold these arrays.
    """

    bounds: NDArray[np.int64]
    pattern: str
    marked: list[str]

    @classmethod
    def of(
        cls, rows: TableSource, ends: Sequence[NDArray[np.int64]], pattern: str, marked: Sequence[str]
    ) -> EpisodeSource:
        """Return the episodes of some rows.

        Args:
            ends: for each file the row after each of its episodes, ascending, as `ends_of` returns them; none if the
                rows of all files follow one another.

        Raises:
            UsageError: a field is text, or its rows differ in shape.
        """
        for spec in rows.fields:
            if spec.is_ragged:
                reason = "text" if spec.kind == "text" else "of another shape in each row"
                raise UsageError(f"field {spec.name} is {reason}, which no episode can hold; leave it out with --skip")
        if ends:
            starts = np.cumsum([0, *(of_file[-1] for of_file in ends)])
            bounds = np.concatenate([[0], *(of_file + start for of_file, start in zip(ends, starts[:-1], strict=True))])
        else:
            bounds = _bounds_of_one(len(rows), max(map(_row_bytes, rows.fields)))
        steps = np.diff(bounds)
        how = f"{len(steps):,} episodes of {steps.min():,} to {steps.max():,} rows"
        remark = f"{pattern} says where each episode ends: {how}"
        if not ends:
            remark = (
                "the rows of all files, one after another, are one episode: windows run from one file into the next"
            )
            if len(steps) > 1:
                remark = (
                    "the rows of all files, one after another, have more bytes than a sample can have: they are "
                    f"{how}, and no window lies in two of them"
                )
        episodes = cls(rows, bounds, pattern, list(marked))
        episodes.remarks = [*rows.remarks, remark]
        return episodes

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kind, self.names, self.cuts = "episodes", None, None
        self.origin = {"samples": ":".join(filter(None, ("episodes", self.pattern))), "rows": dict(self.origin)}
        self.fields = tuple(msgspec.structs.replace(spec, shape=(None, *spec.shape)) for spec in self.fields)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def shapes(self, field: str) -> NDArray[np.int64]:
        (spec,) = (spec for spec in self.fields if spec.name == field)
        steps = np.diff(self.bounds)
        return np.column_stack([steps, *(np.full_like(steps, length) for length in spec.shape[1:])])

    def slice(self, start: int, stop: int) -> Self:
        bounds = self.bounds[start : stop + 1]
        rows = self.source.slice(int(bounds[0]), int(bounds[-1]))
        return replace(self, source=rows, bounds=bounds - bounds[0])

    def files(self) -> list[str]:
        return list(dict.fromkeys([*self.source.files(), *self.marked]))

    def read(self) -> Iterator[Block]:
        longest = int(np.diff(self.bounds).max(initial=0))
        is_large = longest * max(map(_row_bytes, self.fields)) > LARGE_BYTES
        yield from joined(self._large() if is_large else self._episodes(), self.fields)

    def _large(self) -> Iterator[dict[str, Any]]:
        """Yield episodes whose rows are read when they are asked for, each field by itself."""
        for number, (begin, end) in enumerate(pairwise(self.bounds.tolist())):
            yield {spec.name: self._large_array(spec, begin, end, number) for spec in self.fields}

    def _large_array(self, spec: FieldSpec, begin: int, end: int, number: int) -> LargeArray:
        assert isinstance(self.source, TableSource), "rows of files"
        source, shape = self.source.only([spec.name]), tuple(length or 0 for length in spec.shape[1:])

        def read(start: int, stop: int) -> NDArray[Any]:
            try:
                blocks = [block[spec.name] for block in source.slice(begin + start, begin + stop).read()]
            except SourceError as error:
                raise SourceError(error.reason, error.path, number) from error
            return np.concatenate([np.empty((0, *shape), spec.dtype), *blocks])

        return LargeArray(np.dtype(spec.dtype), (end - begin, *shape), read)

    def _episodes(self) -> Iterator[dict[str, Any]]:
        number, steps = 0, 0
        parts: list[Block] = []
        try:
            for block in self.source.read():
                first, rows = 0, count(block)
                while first < rows:
                    stop = min(rows, first + int(self.bounds[number + 1]) - int(self.bounds[number]) - steps)
                    parts.append({name: values[first:stop] for name, values in block.items()})
                    steps, first = steps + stop - first, stop
                    if steps == self.bounds[number + 1] - self.bounds[number]:
                        yield {spec.name: np.concatenate([part[spec.name] for part in parts]) for spec in self.fields}
                        number, steps, parts = number + 1, 0, []
        except SourceError as error:
            raise SourceError(error.reason, error.path, None if error.sample is None else number) from error
