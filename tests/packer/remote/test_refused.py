"""What writes into a folder alone refuses a URL, and makes no folder of that name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from packer import stats
from packer.append import append
from packer.errors import NoDatasetError, UsageError
from packer.export import export
from packer.merge import merge
from packer.sources import open_packed
from packer.writer import DatasetWriter

URL = "s3://bucket/set"


def test_urls_are_refused_where_a_folder_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples made in Python, exports and merges go into folders; the message says so."""
    monkeypatch.chdir(tmp_path)
    with DatasetWriter("set.packed") as writer:
        writer.add({"x": np.zeros(3)})
    for write in (
        lambda: DatasetWriter(URL, overwrite=True).__enter__(),
        lambda: export("set.packed", URL, to="hdf5"),
        lambda: merge(["set.packed", "set.packed"], URL),
    ):
        with pytest.raises(UsageError, match="only `packer convert` writes to a URL"):
            write()
    assert [path.name for path in tmp_path.iterdir()] == ["set.packed"]


def test_urls_are_refused_where_a_folder_is_read() -> None:
    """The message says what takes a URL, not that a folder does not exist."""
    for read in (lambda: stats.statistics(URL), lambda: open_packed(URL), lambda: append(URL, "more")):
        with pytest.raises(
            NoDatasetError, match=r"only `packer info`, `verify`, `warm` and PackedDataset take the URL"
        ):
            read()
