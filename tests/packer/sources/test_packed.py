"""Packed datasets as sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.convert import convert
from packer.sources import open_packed, packed
from packer.sources.packed import Shard


def test_few_shards_are_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a block, shards that are not open are opened, in place of those unused for longest; parts share them."""
    samples = [{"x": np.full(1024, number, np.int32)} for number in range(120)]
    convert(samples, tmp_path / "d", shard_size=12 * 4096, workers=0, codec="none")
    opened = []

    def counted(path: Path, *rest: Any) -> Shard:
        opened.append(path.name)
        return Shard(path, *rest)

    monkeypatch.setattr(packed, "Shard", counted)
    monkeypatch.setattr(packed, "MOST_OPEN", 8)
    monkeypatch.setattr(packed, "BLOCK_BYTES", 40 * 4096)
    source = open_packed(tmp_path / "d", seed=3)
    values = [int(x[0]) for block in source.read() for x in block["x"]]
    assert values == source.numbers.tolist()
    assert len(set(opened)) == 10
    assert len(opened) == 10 + 2 * 2  # three blocks, each of samples of all shards
    monkeypatch.undo()
    opened.clear()
    monkeypatch.setattr(packed, "Shard", counted)
    source = open_packed(tmp_path / "d", seed=4)
    for start in range(0, 120, 12):  # as the shards of a repack take them
        list(source.slice(start, start + 12).read())
    assert len(opened) == 10
