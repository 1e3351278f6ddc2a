"""Frames of whole samples: large ones in bands, shared ones decoded once, damaged ones and texts refused."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fields import same

from packer.codecs import NAMED
from packer.errors import DamagedError
from packer.format import Field, FrameRule
from readers import PackedDataset
from readers.draws import Asked
from readers.fields import WholeReader
from readers.source import source_of


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("codec", ["none", "zstd", "photo+lz4"])
@pytest.mark.parametrize("sizes", [[(701, 512)] * 3, [(701, 550), (1, 3), (0, 5), (60, 9000), (42, 42), (43, 41)]])
def test_large_pictures_are_read_in_bands(pack: Any, tmp_path: Path, codec: str, sizes: list[tuple[int, int]]) -> None:
    """Samples over 1 MiB are framed by rows, the last band shorter, and come out whole, small ones beside them."""
    rng = np.random.default_rng(0)
    values = [np.repeat(rng.integers(0, 256, (h, -(-w // 5), 3), np.uint8), 5, axis=1)[:, :w] for h, w in sizes]
    shape = (*sizes[0], 3) if len(set(sizes)) == 1 else (None, None, 3)
    field = Field(name="x", dtype="uint8", kind="image", shape=shape, codec=NAMED[codec], frame=FrameRule(rows=42))
    rows = [{"x": value} for value in values]
    ds = PackedDataset(pack(tmp_path / "p", [field], [rows[:2], rows[2:]], chunk_bytes=2**20))
    numbers = [2, 0, *range(len(sizes))]
    for found, number in zip(ds[numbers]["x"], numbers, strict=True):
        assert same(found.permute(1, 2, 0), values[number])


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("is_ragged", [False, True])
def test_a_frame_is_decoded_once_for_a_batch_and_its_neighbours(
    pack: Any, tmp_path: Path, decoded: list[int], is_ragged: bool
) -> None:
    """Samples of one frame, asked for in any order, take one decoding, and the next batch finds them decoded."""
    shape, rule = (None if is_ragged else 8,), FrameRule(samples=10)
    field = Field(name="x", dtype="int64", shape=shape, codec=NAMED["zstd"], frame=rule)
    values = [np.full(i % 7 + 1 if is_ragged else 8, i) for i in range(40)]
    ds = PackedDataset(pack(tmp_path / "p", [field], [[{"x": value} for value in values]]))
    for numbers in ([3, 11, 4, 12, 9, 3], [0, 19]):
        batch = ds[numbers]["x"]
        for found, number in zip(batch.to_list() if is_ragged else batch, numbers, strict=True):
            assert same(found, values[number])
    assert len(decoded) == 2


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("codec", ["lz4", "zstd", "bitshuffle"])
@pytest.mark.parametrize("per_frame", [1, 4])
def test_a_damaged_frame_is_an_error(pack: Any, tmp_path: Path, codec: str, per_frame: int) -> None:
    """Bytes that cannot be decoded raise DamagedError, which names the field and what to do."""
    field = Field(name="x", dtype="int64", shape=(700,), codec=NAMED[codec], frame=FrameRule(samples=per_frame))
    folder = pack(tmp_path / "p", [field], [[{"x": np.arange(700) // 9 * 1000 + i} for i in range(20)]])
    shard = next((folder / "shards").iterdir())
    ds = PackedDataset(folder)
    located = source_of(ds).opened.readers["x"].spans(source_of(ds).opened.readers["x"].locate(Asked(np.array([0]))))
    start = int(located[0, 0] - source_of(ds).opened.addressed[0][0])
    data = bytearray(shard.read_bytes())
    data[start : start + 40] = b"\xff" * 40
    shard.write_bytes(bytes(data))
    for count in (2, 20):
        with pytest.raises(DamagedError, match=r"field 'x'.*packer verify"):
            _ = PackedDataset(folder)[list(range(count))]


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


def test_slots_do_not_change_while_a_batch_is_read(pack: Any, tmp_path: Path) -> None:
    """Room that another loader asks for is made between two batches of other threads, not within one."""
    field = Field(name="x", dtype="int64", shape=(700,), codec=NAMED["lz4"], frame=FrameRule(samples=4))
    folder = pack(tmp_path / "p", [field], [[{"x": np.arange(700) // 9 + i} for i in range(40)]])
    ds = PackedDataset(folder)
    reader = source_of(ds).opened.readers["x"]
    assert isinstance(reader, WholeReader)
    began, go_on = threading.Event(), threading.Event()
    decode = reader.places.codec.decode_frames

    def slowly(*args: Any) -> bool:
        began.set()
        go_on.wait(100)
        return decode(*args)

    reader.places.codec.decode_frames = slowly  # type: ignore[assignment,method-assign]
    with ThreadPoolExecutor(2) as threads:
        batch = threads.submit(ds.__getitem__, [3, 30, 17])
        assert began.wait(100)
        keeping = threads.submit(reader.keep, 4000, 1)
        wait([keeping], 0.1)
        waited = not keeping.done()
        go_on.set()
        assert batch.result()["x"][:, 0].tolist() == [3, 30, 17]
        keeping.result()
    assert waited
    assert reader.places.cache.memory.nbytes >= 4000 * 5600
