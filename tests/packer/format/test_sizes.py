"""Predicted sizes against the files that are written."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fields import any_field, any_value
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from packer.codecs import NAMED
from packer.format import Field, FrameRule, ShardWriter, map_size, shard_bytes, sizes
from packer.format.layout import CHUNK_BYTES
from packer.format.sizes import column_sizes


@st.composite
def shards(
    draw: st.DrawFn, encoded: bool = False
) -> tuple[list[Field], dict[str, Any], list[str] | None, dict[str, Any]]:
    """Fields, samples of them, their names, and an origin."""
    fields = [replace(draw(any_field(["array", "image"])), name=f"f{n}") for n in range(draw(st.integers(1, 4)))]
    fields = [field if encoded else replace(field, codec=()) for field in fields]
    count, most = draw(st.sampled_from([0, 1, 2, 5, 60, 300])), draw(st.sampled_from([1, 3, 30]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    block: dict[str, Any] = {}
    for field in fields:
        values = [any_value(rng, field, most) for _ in range(count)]
        block[field.name] = values if field.is_ragged else np.array(values, field.dtype).reshape(count, *field.shape)
    names = [f"{n}" * draw(st.integers(1, 3)) for n in range(count)] if draw(st.booleans()) else None
    return fields, block, names, draw(st.sampled_from([{}, {"kind": "test", "note": "ö" * 700}]))


def written(shard: Any, size: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Bytes of the file, written with the smallest map for a file of so many, which may not grow."""
    fields, block, names, origin = shard
    count = len(block[fields[0].name])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.lmdb")
        options: dict[str, Any] = {"origin": origin, "chunk_bytes": chunk_bytes, "map_size": map_size(size)}
        with ShardWriter(path, 3, fields, named=names is not None, map_limit=map_size(size), **options) as writer:
            for start in range(0, count, 50):
                part = {name: values[start : start + 50] for name, values in block.items()}
                writer.add(part, min(50, count - start), names[start : start + 50] if names is not None else None)
        return path.stat().st_size


def predicted(shard: Any) -> int:
    fields, block, names, origin = shard
    count = len(block[fields[0].name])
    shapes = {
        f.name: np.array([a.shape for a in block[f.name]], np.int64).reshape(count, len(f.shape))
        for f in fields
        if f.is_ragged
    }
    return shard_bytes(3, fields, count, shapes, None if names is None else sum(map(len, names)), origin)[0]


@given(shard=shards())
@settings(max_examples=120)
def test_the_size_of_raw_columns_is_exact(shard: Any) -> None:
    """For any fields, shapes and names the prediction is the file's size, and its map never grows."""
    size = predicted(shard)
    assert written(shard, size) == size


@given(shard=shards(encoded=True))
@settings(max_examples=120)
def test_encoded_columns_are_never_larger_than_predicted(shard: Any) -> None:
    """Frames that do not shrink are kept raw, so the raw size bounds the file, and its map never grows."""
    size = predicted(shard)
    assert written(shard, size) <= size


def test_a_chunk_that_moves_beside_its_key_is_within_the_bound() -> None:
    """A chunk that shrinks may leave its own page and split a leaf, which takes two pages more."""
    fields = [Field(name="a", dtype="uint8", shape=(3,), codec=NAMED["lz4"], frame=FrameRule(samples=1000))]
    noise = np.random.default_rng(0).integers(0, 256, (1000, 3), dtype=np.uint8)
    noise[655:] = 0
    found = set()
    for header in range(1500, 1900, 25):
        shard = (fields, {"a": noise}, None, {"note": "x" * header})
        size = predicted(shard)
        held = written(shard, size)
        assert held <= size
        found.add(held)
    assert len(found) > 1


@pytest.mark.parametrize("seed", range(6))
def test_several_chunks_and_commits_are_exact_too(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small limits in both places, the chunks of several columns come in the predicted order."""
    monkeypatch.setattr(sizes, "COMMIT_BYTES", 150_000)
    monkeypatch.setattr(sizes, "chunk_bytes", lambda fields: 40_000)
    rng = np.random.default_rng(seed)
    fields = [
        Field(name="a", dtype="uint8", shape=(900,), frame=FrameRule(samples=7)),
        Field(name="b", dtype="float32", shape=(None, 3), frame=FrameRule(samples=3)),
        Field(name="c", dtype="uint16", shape=(None, 10), frame=FrameRule(rows=4)),
        Field(name="d", dtype="int64", frame=FrameRule(samples=1000)),
    ]
    ragged = {n: [int(k) for k in rng.integers(0, 90, 1000)] for n in "bc"}
    block = {
        "a": np.zeros((1000, 900), np.uint8),
        "b": [np.zeros((k, 3), "f4") for k in ragged["b"]],
        "c": [np.zeros((k, 10), "u2") for k in ragged["c"]],
        "d": np.zeros(1000, np.int64),
    }
    shard = (fields, block, None, {})
    size = predicted(shard)
    assert written(shard, size, chunk_bytes=40_000) == size
    assert written(shard, 2 * size) != size


def test_chunks_of_a_column_of_many_samples() -> None:
    """Sizes come from arithmetic alone: 20 million labels need none of them."""
    field = Field(name="a", dtype="int64", frame=FrameRule(samples=8192))
    column = column_sizes(field, 20_000_000, None)
    assert sum(column.chunks) == 160_000_000
    assert max(column.chunks) <= CHUNK_BYTES
    assert column.frames == -(-20_000_000 // 8192)


def test_a_sample_larger_than_a_chunk_is_a_chunk() -> None:
    """Such a sample neither splits nor takes others along."""
    field = Field(name="a", dtype="uint8", shape=(None,), frame=FrameRule(samples=1))
    column = column_sizes(field, 4, np.array([[10], [5000], [10], [10]]), limit=100)
    assert column.chunks == [10, 5000, 20]
    assert column.after[:2] == [1, 2]
