"""A dataset in a bucket, read through the cache."""

from __future__ import annotations

import numpy as np
from readers import PackedDataset


def test_what_is_read_is_what_was_packed(dataset, s3, samples, tmp_path) -> None:
    """Every value comes as it was packed, and every file is fetched once."""
    ds = PackedDataset(dataset, cache=tmp_path / "cache")
    assert s3.proxy.gets(".lmdb") == 0
    assert np.array_equal(ds[:]["x"], np.stack([sample["x"] for sample in samples]))
    again = PackedDataset(dataset, cache=tmp_path / "cache")
    assert again[7]["label"] == 7
    assert [s3.proxy.gets(f"shards/{n:05}.lmdb") for n in range(4)] == [1, 1, 1, 1]
