"""Small packed datasets that are made without a source."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from packer.writer import DatasetWriter


def written(folder: Path, prefix: str, count: int, named: bool = True, codec: str = "lz4", width: int = 600) -> Path:
    """Write a dataset of samples named by a prefix and a number, in several shards; the values depend on the prefix."""
    rng = np.random.default_rng(sum(prefix.encode()))
    with DatasetWriter(folder, shard_size=8192, codec=codec) as writer:
        for n in range(count):
            writer.add({"x": rng.integers(0, 9, width), "y": np.float32(n)}, name=f"{prefix}{n}" if named else None)
    return folder
