"""The table of samples: some of it is what the same does to a list."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.sources import LaidField, SampleTable
from packer.sources.files import join
from packer.sources.looking import Header, look
from packer.sources.table import Files, bounds_of
from packer.watcher import NOBODY

LAYOUTS = [(LaidField("x", dtype, ("n",), dtype),) for dtype in ("int8", "int16", "int32")]


@st.composite
def tables(draw: Any) -> SampleTable:
    """Tables of samples that are files, several files, or parts of files."""
    count = draw(st.integers(1, 6))
    of_each = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    files = [f"f{number}" for number in range(sum(of_each))]
    spans = np.arange(2 * count).reshape(-1, 2)
    inputs = {
        "a": Files(draw(st.sampled_from(["", "d"])), files, bounds_of(of_each)),
        "b": Files("e", [f"b{number // 2}" for number in range(count)], roots=list("uvwxyz"[:count]), spans=spans),
    }
    layout_of = np.array(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), np.uint32)
    return SampleTable(
        count=count,
        inputs=inputs,
        names=[f"n{number}" for number in range(count)],
        layouts=draw(st.permutations(LAYOUTS)),
        layout_of=draw(st.sampled_from([None, layout_of])),
        numbers={"n": np.arange(count)},
        further={join(inputs["a"].folder, file): [f"{file}.more"] for file in files[::2]},
    )


def facts(table: SampleTable) -> list[Any]:
    """All that is said of each sample, with the files that are read further."""
    rows = list(table.rows())
    further = [[more for path in row.paths["a"] for more in table.further.get(path, ())] for row in rows]
    assert set(table.files()) == {
        *(path for row in rows for paths in row.paths.values() for path in paths),
        *(path for paths in further for path in paths),
    }
    spans = [{name: span.tolist() for name, span in row.spans.items()} for row in rows]
    return [
        (name, row._replace(spans={}), span, more)
        for name, row, span, more in zip(table.names or (), rows, spans, further, strict=True)
    ]


@settings(max_examples=60, deadline=None)
@given(tables(), st.data())
def test_some_samples_are_those_samples(table: SampleTable, data: Any) -> None:
    """A slice, and any choice in any order."""
    expected = facts(table)
    start = data.draw(st.integers(0, table.count))
    stop = data.draw(st.integers(start, table.count))
    assert facts(table.slice(start, stop)) == expected[start:stop]
    numbers = data.draw(st.lists(st.integers(0, table.count - 1), max_size=8))
    assert facts(table.take(numbers)) == [expected[number] for number in numbers]


@st.composite
def tables_of_rows(draw: Any) -> SampleTable:
    """Tables whose samples are rows of files: all of a file, or those from some row on."""
    rows = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    firsts = np.array(draw(st.lists(st.integers(0, 9), min_size=len(rows), max_size=len(rows))))
    files = [f"f{number}" for number in range(len(rows))]
    ends = np.cumsum(rows)
    layout_of = np.array(draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows))), np.uint32)
    return SampleTable(
        count=int(ends[-1]),
        inputs={"": Files("d", files, ends=ends, firsts=draw(st.sampled_from([None, firsts])))},
        layouts=draw(st.permutations(LAYOUTS)),
        layout_of=draw(st.sampled_from([None, layout_of])),
        numbers={"n": np.arange(len(rows))},
    )


def rows_of(table: SampleTable) -> list[Any]:
    """File and row of each sample, with all that is said of the file."""
    files = table.inputs[""]
    assert files.ends is not None
    starts = np.zeros(len(files.files), int) if files.firsts is None else files.firsts
    counts = np.diff(files.ends, prepend=0)
    return [
        (table.row(number), row)
        for number, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True))
        for row in range(start, start + count)
    ]


@settings(max_examples=100, deadline=None)
@given(tables_of_rows(), st.data())
def test_some_rows_are_those_rows(table: SampleTable, data: Any) -> None:
    """A slice, any choice in any order, and those of some files; also of a table that is a part itself."""
    numbers = data.draw(st.lists(st.integers(0, table.count - 1), min_size=1, max_size=8))
    start = data.draw(st.integers(0, table.count - 1))
    stop = data.draw(st.integers(start + 1, table.count))
    for part in (table, table.slice(start, stop), table.take(numbers)):
        expected = rows_of(part)
        assert len(expected) == part.count
        begin = data.draw(st.integers(0, part.count))
        end = data.draw(st.integers(begin, part.count))
        assert rows_of(part.slice(begin, end)) == expected[begin:end]
        some = data.draw(st.lists(st.integers(0, part.count - 1), max_size=8))
        assert rows_of(part.take(some)) == [expected[number] for number in some]
        files = len(part.inputs[""].files)
        are_kept = np.array(data.draw(st.lists(st.booleans(), min_size=files, max_size=files)), bool)
        if are_kept.any():
            of_each = np.repeat(are_kept, np.diff(np.asarray(part.inputs[""].ends), prepend=0))
            kept = part.keep(are_kept)
            assert (kept.count, rows_of(kept)) == (of_each.sum(), [expected[n] for n in np.flatnonzero(of_each)])
    assert rows_of(table.slice(start, stop)) == rows_of(table)[start:stop]
    assert rows_of(table.take(numbers)) == [rows_of(table)[number] for number in numbers]


def test_numbers_of_headers_keep_their_values() -> None:
    """Columns take the smallest type that holds all their numbers, also negative ones."""
    table = SampleTable(count=3, inputs={"": Files("", ["a", "b", "c"])})
    for numbers in ([-1, 0, 255], [-129, 5, 6], [0, 255, 256], [-(2**62), 0, 2**62]):
        found = look(table, [Header(LAYOUTS[0], {"n": number}) for number in numbers], NOBODY)
        assert found.numbers["n"].tolist() == numbers
