"""The table of samples: some of it, and several one after another, is what the same does to a list."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.sources import LaidField, SampleTable
from packer.sources.table import Files, bounds_of

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
        layouts=LAYOUTS,
        layout_of=draw(st.sampled_from([None, layout_of])),
        numbers={"n": np.arange(count)},
    )


def facts(table: SampleTable) -> list[Any]:
    """All that is said of each sample."""
    rows = list(table.rows())
    spans = [{name: span.tolist() for name, span in row.spans.items()} for row in rows]
    return [
        (name, row._replace(spans={}), span) for name, row, span in zip(table.names or (), rows, spans, strict=True)
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


@settings(max_examples=60, deadline=None)
@given(tables(), tables())
def test_tables_one_after_another(first: SampleTable, second: SampleTable) -> None:
    """What is said of each sample stays."""
    assert facts(SampleTable.concat([first, second])) == facts(first) + facts(second)
