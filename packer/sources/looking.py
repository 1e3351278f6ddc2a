"""What the headers of samples say: the third step of opening a source.

It is kept in columns (numpy arrays), and each layout, all that many headers have in common, once. So a million files
take some bytes each.
"""

from __future__ import annotations

import contextlib
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, first_few
from packer.sources.table import Layout, SampleTable
from packer.watcher import Watcher


class Header(NamedTuple):
    """What the headers of one sample say.

    Attributes:
        layout: its fields; samples often have equal ones, which are kept once.
        numbers: the lengths of axes, and whatever else is a number of this sample, by name.
        root: as in `Row.roots`, if a file holds several samples.
        span: as in `Row.spans`, of a sample that is some bytes of its file.
        rows: how many samples there are, if rows of the file are the samples.
    """

    layout: Layout
    numbers: Mapping[str, int] = {}
    root: str = ""
    span: tuple[int, int] | None = None
    rows: int | None = None


#: Columns of what files lack, or have too much of, which `say_of_all` says: the pieces of a field that were never
#: written, such as `chunk`; the samples of a file of rows that lack any; the bytes of a file of a field after its end.
UNWRITTEN, LACKING, AFTER = "{}: unwritten {}", "samples with unwritten values", "{}: bytes after the end"
AFTER_END = "bytes after the end of files are not looked at"
NEVER_WRITTEN = "values that were never written are packed as the fill value; --unwritten refuse makes them an error"

#: What a kind says of a row: one sample; or those of a file, and the errors of those that are bad.
Looked = Header | Sequence[Header | SourceError]


def look(table: SampleTable, looked_at: Iterable[Looked | SourceError], watcher: Watcher) -> SampleTable:
    """Return the samples whose headers are good, with what these say.

    Args:
        looked_at: what the headers of each row of the table say, or the error of one that is bad.

    Raises:
        SourceError: what `watcher.bad` raises, which is called with every error.
    """
    numbers, layout_of, columns = array("q"), array("I"), Columns()
    layouts: dict[Layout, int] = {}
    last: Layout = ()
    code = 0
    roots, spans, rows = list[str](), array("q"), array("q")
    for number, looked in enumerate(looked_at):
        for header in [looked] if isinstance(looked, Header | SourceError) else looked:
            if isinstance(header, SourceError):
                watcher.bad(_of_empty(header))
                continue
            columns.put(len(numbers), header.numbers)
            numbers.append(number)
            if header.layout != last or not layouts:  # mostly it is the same object
                last = header.layout
                code = layouts.setdefault(last, len(layouts))
            layout_of.append(code)
            if header.root:
                roots.append(header.root)
            spans.extend(header.span or ())
            if header.rows is not None:
                rows.append(header.rows)
    taken = table.take(np.array(numbers, np.int64))
    if roots or spans:
        taken = _within(taken, roots, np.array(spans, np.int64).reshape(-1, 2) if spans else None, table.count > 1)
    if rows:
        ends = np.cumsum(rows, dtype=np.int64)
        ((name, files),) = taken.inputs.items()
        inputs = {name: msgspec.structs.replace(files, ends=ends)}
        taken = msgspec.structs.replace(taken, count=int(ends[-1]), inputs=inputs, names=None)
    of_headers = columns.arrays(len(numbers))
    return msgspec.structs.replace(
        taken,
        layouts=list(layouts),
        layout_of=np.array(layout_of, np.uint32) if len(layouts) > 1 else None,
        numbers={**{name: narrowed(column) for name, column in taken.numbers.items()}, **of_headers},
    )


def _of_empty(error: SourceError) -> SourceError:
    """Return the error of a file, whatever its kind says of one that has no bytes."""
    is_empty = False
    if error.path is not None:
        with contextlib.suppress(OSError, ValueError):  # not all paths are those of files
            is_empty = Path(error.path).is_file() and not Path(error.path).stat().st_size
    return SourceError("is empty (0 bytes); download it again", error.path, error.sample) if is_empty else error


def _within(table: SampleTable, roots: list[str], spans: NDArray[np.int64] | None, are_many: bool) -> SampleTable:
    """Return samples that are parts of their files, of one input.

    Args:
        are_many: whether there are many files; then the names of samples begin with theirs.
    """
    ((name, files),) = table.inputs.items()
    if len(roots) != table.count or (spans is not None and len(spans) != table.count):
        raise TypeError("a kind of files says of some samples what of their files they are, and of others not")
    inputs = {name: msgspec.structs.replace(files, roots=roots, spans=spans)}
    if table.names is None:
        return msgspec.structs.replace(table, inputs=inputs)
    names = [f"{home}/{root}" if are_many else root for home, root in zip(table.names, roots, strict=True)]
    return msgspec.structs.replace(table, inputs=inputs, names=[text.strip("/") for text in names])


class Columns(dict[str, "array[int]"]):
    """Columns of integers by name, filled row by row; rows in which a column has no number have 0."""

    def put(self, row: int, numbers: Mapping[str, int]) -> None:
        """Put a number into each column named; rows ascend."""
        for name, number in numbers.items():
            column = self.get(name)
            (column if column is not None and len(column) == row else self._filled(name, row)).append(number)

    def arrays(self, rows: int) -> dict[str, NDArray[Any]]:
        """Return the columns, (rows,) each, in the smallest type that holds its numbers."""
        return {name: narrowed(np.array(self._filled(name, rows), np.int64)) for name in self}

    def _filled(self, name: str, rows: int) -> array[int]:
        column = self.setdefault(name, array("q"))
        if len(column) < rows:
            column.extend([0] * (rows - len(column)))
        return column


def narrowed(column: NDArray[Any]) -> NDArray[Any]:
    """Return integers in the smallest type that holds them all."""
    ends = (column.min(), column.max()) if len(column) else (0, 0)
    return column.astype(np.result_type(*map(np.min_scalar_type, ends)))


# ---------------------------------------------------------------- what is odd in files

#: What names of files say that are parts of one set, as the package datasets writes them.
_PART_OF = re.compile(r"(.*?)(\d+)-of-(\d+)(.*)", re.DOTALL)


def lost_parts(table: SampleTable) -> list[str]:
    """Return sentences on sets of files that lack some, as names such as `train-00000-of-00003.parquet` count them."""
    parts: dict[tuple[str, str, str], set[int]] = {}
    for files in table.inputs.values():
        for file in files.files:
            if "-of-" in file and (found := _PART_OF.fullmatch(file)):
                parts.setdefault((found[1], found[3], found[4]), set()).add(int(found[2]))
    return [
        f"{len(numbers):,} of the {int(total):,} parts {start}*-of-{total}{end} are there: the others are not packed"
        for (start, total, end), numbers in parts.items()
        if len(numbers) < int(total)
    ]


def notes_of(table: SampleTable) -> list[str]:
    """Return sentences on what is not kept as it is in the files, and in how many of them."""
    counts: dict[tuple[str, str], int] = {}
    for number, count in table.counts().items():
        for laid in table.layouts[number]:
            for note in laid.notes:
                counts[laid.name, note] = counts.get((laid.name, note), 0) + count
    return [f"field {name}, {n} {'file' if n == 1 else 'files'}: {note}" for (name, note), n in counts.items()]


def say_of_all(
    table: SampleTable, remarks: list[str], in_words: Callable[[SampleTable, int], str] | None = None
) -> SampleTable:
    """Add to remarks what is odd in files, one for a cause; return the samples without the columns that say so.

    Args:
        in_words: returns what is said of a sample, or file of samples, that lacks pieces; by default its path.
    """
    counts = counts_of(table)
    remarks += [*notes_of(table), *_unwritten_of(table, counts, in_words), *_after_of(table, counts)]
    return msgspec.structs.replace(table, numbers={n: c for n, c in table.numbers.items() if n not in counts})


def counts_of(table: SampleTable) -> dict[str, NDArray[Any]]:
    """Return the columns of what files lack, or have too much of."""
    parts = [text.format("", "") for text in (UNWRITTEN, LACKING, AFTER)]
    return {name: column for name, column in table.numbers.items() if any(part in name for part in parts)}


def _after_of(table: SampleTable, counts: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return a sentence that names the files with bytes after their end."""
    files = []
    for name, column in counts.items():
        field, is_after, _ = name.partition(AFTER.format(""))
        for number in np.flatnonzero(column).tolist() if is_after else ():
            paths = table.row(number).paths
            path = paths.get(field, next(iter(paths.values())))[0]
            files.append(f"{path.rpartition('/')[2]} ({column[number]:,} bytes)")
    return [f"{AFTER_END}: {first_few(files)}"] if files else []


def _unwritten_of(
    table: SampleTable, counts: Mapping[str, NDArray[Any]], in_words: Callable[[SampleTable, int], str] | None
) -> list[str]:
    """Return a sentence that counts the pieces of files (chunks, tiles) that were never written; none if all were."""
    totals: Counter[str] = Counter()
    lacks = np.zeros(table.rows_or_samples, bool)
    for name, column in counts.items():
        _, is_unwritten, piece = name.partition(UNWRITTEN.format("", ""))
        if is_unwritten:
            totals[piece] += int(column.sum())
            lacks |= column > 0
    if not lacks.any():
        return []
    count, first = int(lacks.sum()), int(lacks.argmax())
    counted = " and ".join(f"{total:,} {piece}{'s' * (total > 1)}" for piece, total in totals.items())
    rows = counts.get(LACKING)
    of_samples = count if rows is None else int(rows.sum())
    samples = f"{of_samples:,} sample{'s' * (of_samples != 1)}"
    samples += "" if rows is None else f" in {count:,} file{'s' * (count > 1)}"
    of_first = in_words(table, first) if in_words else table.row(first).path
    return [f"{NEVER_WRITTEN}: {counted} of {samples}, the first: {of_first}"]


def unwritten_error(in_words: str, path: str) -> SourceError:
    """Return the error of a file that lacks pieces, where these are refused."""
    return SourceError(f"{in_words}; write them, or leave out --unwritten refuse to pack the fill value", path)
