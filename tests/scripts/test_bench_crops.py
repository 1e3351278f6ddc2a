"""The benchmark's rows of crops, on pictures of a small size."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark import rows as _rows  # noqa: F401  # registers them
from benchmark.inputs.store import TINY, Store
from benchmark.measuring import ROWS, Bench, Rounds, chosen


@pytest.mark.parametrize("title", ["crops of 64 px, rowdelta+zstd, Loader | decoding", "large pictures"])
def test_rows_of_crops_end_to_end(tmp_path: Path, title: str) -> None:
    """Inputs are made, crops at given places are those of the source, and there is a figure."""
    bench = Bench(Store(tmp_path, quiet=True), TINY, Rounds(least=1, most=1, seconds=0.0))
    found = chosen(ROWS, [title])
    assert found
    for one in found:
        assert one.measure(bench).value > 0
