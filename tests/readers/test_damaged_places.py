"""Indexes made to deceive those who compare checksums: an error before memory is taken for what they claim."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from packer.errors import DamagedError
from packer.format.column_index import ColumnIndex
from packer.format.schema import Field, FrameRule
from readers.checking import Checker
from readers.places import Places


def test_no_more_frames_are_looked_at_than_there_are(monkeypatch):
    """Samples of no bytes that claim all frames of the column each are an error."""
    field = Field(name="x", dtype="uint8", shape=(None, 0), frame=FrameRule(rows=1))
    arrays = {
        "checksums": [0] * 6,
        "chunks": [[0, 6, 0]],
        "sample_frames": [0, 6, 0, 6],
        "sample_offsets": [0, 0, 0, 0],
        "shapes": [6, 0, 6],
    }
    memory = np.concatenate([np.array(value, np.uint64).reshape(-1) for value in arrays.values()])
    parts = np.split(memory, np.cumsum([np.size(value) for value in arrays.values()])[:-1])
    index = dict(zip(arrays, parts, strict=True)) | {"chunks": parts[1].reshape(-1, 3)}
    held = SimpleNamespace(starts=np.zeros(1, np.int64), array=memory.view(np.uint8), bytes=memory.view(np.uint8).data)
    places = Places(field, [ColumnIndex(field, index, np.zeros(1, np.int64), 3)], held)
    checker = Checker(SimpleNamespace(places={"x": places}, shards=[SimpleNamespace(path="a.lmdb")]), "x", str, None)
    checker.check(np.array([0]), np.array([[0, 0]]))
    monkeypatch.setattr(Places, "frames", lambda *_: pytest.fail("frames were looked at"))
    with pytest.raises(DamagedError, match="field 'x': an index of its column is damaged"):
        checker.check(np.array([0, 2]), np.array([[0, 0], [0, 0]]))
