"""Fields and text come out as they went in: any dtype, axes, codec, frame rule and number of shards."""

from __future__ import annotations

import itertools
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fields import any_field, any_value
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from ways import handled

from packer.codecs import NAMED
from packer.errors import DamagedError
from packer.format import Field, FrameRule, Tree, column_key, index_arrays
from readers import PackedDataset, Ragged

CODECS = ("none", "lz4", "zstd", "bitshuffle")


def _listed(field: Field, batch: Any) -> list[NDArray[Any]]:
    """The samples of a batch as arrays in the order of their axes on disk."""
    assert isinstance(batch, Ragged) == (field.ragged_axes == (0,) and field.kind != "image")
    assert isinstance(batch, torch.Tensor) == (not field.is_ragged)
    parts = batch.to_list() if isinstance(batch, Ragged) else batch
    return [_rows_first(field, part) for part in parts]


def _rows_first(field: Field, sample: torch.Tensor) -> NDArray[Any]:
    return (sample.permute(1, 2, 0) if field.kind == "image" else sample).numpy()


def _same(found: list[NDArray[Any]], wanted: list[NDArray[Any]]) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()


@settings(max_examples=100)
@given(
    field=any_field(["array", "array", "array", "image"]),
    counts=st.lists(st.integers(0, 7), min_size=1, max_size=4).filter(any),
    chunk_bytes=st.sampled_from([8, 100, None]),
    seed=st.integers(0, 99),
    by_machine=st.booleans(),
)
def test_what_goes_in_comes_out(
    pack: Any, field: Field, counts: list[int], chunk_bytes: int, seed: int, by_machine: bool
) -> None:
    """All samples, some in any order and more than once, none, and one, have the very bits that were packed."""
    rng = np.random.default_rng(seed)
    shards = [[{"x": any_value(rng, field)} for _ in range(count)] for count in counts]
    values = [sample["x"] for shard in shards for sample in shard]
    with tempfile.TemporaryDirectory() as folder, handled(by_machine):
        ds = PackedDataset(pack(Path(folder) / "p", [field], shards, chunk_bytes=chunk_bytes))
        for numbers in (list(range(len(ds))), rng.integers(0, len(ds), 12).tolist(), []):
            _same(_listed(field, ds[numbers]["x"]), [values[i] for i in numbers])
        _same([_rows_first(field, ds[-1]["x"])], values[-1:])


@settings(max_examples=15)
@given(shards=st.lists(st.lists(st.text(max_size=9), max_size=5), min_size=1, max_size=3).filter(any))
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_text_comes_out_as_text(pack: Any, codec: str, shards: list[list[str]]) -> None:
    """Any text, the empty one and those beyond ASCII among them."""
    field = Field(name="x", dtype="uint8", kind="text", shape=(None,), codec=NAMED[codec], frame=FrameRule(samples=3))
    texts = list(itertools.chain(*shards))
    with tempfile.TemporaryDirectory() as folder:
        ds = PackedDataset(pack(Path(folder) / "p", [field], [[{"x": text} for text in shard] for shard in shards]))
        assert ds[:]["x"] == texts
        assert ds[::-1]["x"] == texts[::-1]
        assert [sample["x"] for sample in ds] == texts


def test_bytes_that_are_no_text_are_an_error(pack: Any, tmp_path: Path) -> None:
    """Damaged text is found where it is no longer UTF-8, and no letter is replaced in silence."""
    field = Field(name="x", dtype="uint8", kind="text", shape=(None,))
    folder = pack(tmp_path / "p", [field], [[{"x": "findme"}, {"x": "good"}]])
    shard = next((folder / "shards").iterdir())
    shard.write_bytes(shard.read_bytes().replace(b"findme", b"find\xffe"))
    ds = PackedDataset(folder)
    with pytest.raises(DamagedError, match=r"field 'x'.*text"):
        _ = ds[[0, 1]]
    assert ds[1]["x"] == "good"


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("codec", [*CODECS, "photo+lz4"])
def test_large_pictures_of_many_sizes_are_read_in_bands(pack: Any, tmp_path: Path, codec: str) -> None:
    """Samples over 1 MiB are framed by rows, the last band shorter, and come out whole, small ones beside them."""
    rng = np.random.default_rng(0)
    sizes = [(701, 550), (1, 3), (0, 5), (60, 9000), (42, 42), (43, 41)]
    values = [np.repeat(rng.integers(0, 256, (h, -(-w // 5), 3), np.uint8), 5, axis=1)[:, :w] for h, w in sizes]
    shape = (None, None, 3)
    field = Field(name="x", dtype="uint8", kind="image", shape=shape, codec=NAMED[codec], frame=FrameRule(rows=42))
    rows = [{"x": value} for value in values]
    ds = PackedDataset(pack(tmp_path / "p", [field], [rows[:3], rows[3:]], chunk_bytes=2**20))
    numbers = [5, 0, 3, 0, 1, 2, 4]
    _same(_listed(field, ds[numbers]["x"]), [values[i] for i in numbers])


@pytest.mark.usefixtures("way")
def test_a_shared_frame_is_decoded_once_a_batch(pack: Any, tmp_path: Path, decoded: list[int]) -> None:
    """Samples of one frame, asked for in any order, take one decoding."""
    rule = FrameRule(samples=10)
    field = Field(name="x", dtype="int64", shape=(None,), codec=NAMED["zstd"], frame=rule)
    values = [np.full(i % 7 + 1, i) for i in range(40)]
    ds = PackedDataset(pack(tmp_path / "p", [field], [[{"x": value} for value in values]]))
    numbers = [3, 31, 7, 30, 3, 39, 5]
    _same(_listed(field, ds[numbers]["x"]), [values[i] for i in numbers])
    assert len(decoded) == 2


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("rule", [FrameRule(samples=1), FrameRule(samples=4), FrameRule(rows=2)], ids=str)
def test_a_damaged_index_is_an_error(pack: Any, tmp_path: Path, codec: str, rule: FrameRule) -> None:
    """A wrong number anywhere in an index array raises DamagedError, or leaves the samples as they were."""
    field = Field(name="x", dtype="int16", shape=(None, 2), codec=NAMED[codec], frame=rule)
    values = [np.full((7 * (i % 5), 2), i, np.int16) for i in range(12)]
    folder = pack(tmp_path / "p", [field], [[{"x": value} for value in values]])
    shard = next((folder / "shards").iterdir())
    data = bytearray(shard.read_bytes())
    places = {value.key: value for value in Tree(memoryview(bytes(data)), str(shard)).values()}
    errors = 0
    for array in index_arrays(field):
        if array == "checksums":  # those are for packer verify
            continue
        place = places[column_key(0, array)]
        for at in {0, 1, place.size // 16, place.size // 8 - 1}:
            for wrong in (1, 10**6, 2**62, 2**63, 2**64 - 8):
                changed = data.copy()
                struct.pack_into("<Q", changed, place.offset + 8 * at, wrong)
                shard.write_bytes(changed)
                try:
                    found = [PackedDataset(folder)[[i]]["x"].to_list()[0].numpy() for i in range(12)]
                except DamagedError:
                    errors += 1
                else:
                    _same(found, values)
    assert errors > 40
