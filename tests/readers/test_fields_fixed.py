"""Fields of one shape come out as they went in: any dtype, shape, codec, frame rule and number of shards."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from packer.codecs import NAMED
from packer.errors import DamagedError
from packer.format import Field, FrameRule
from readers import PackedDataset
from readers.fields import WholeReader

CODECS = ("none", "lz4", "zstd", "bitshuffle")


def _same(found: NDArray[Any], wanted: NDArray[Any]) -> None:
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", ["float64", "complex128", "int32"])
def test_values_within_a_page_of_the_tree_may_lie_at_any_even_address(
    pack: Any, tmp_path: Path, codec: str, dtype: str
) -> None:
    """Shards of a few bytes have chunks inside B-tree pages, out of step with their dtype, and read alike."""
    field = Field(name="x", dtype=dtype, codec=NAMED[codec])
    tag = Field(name="tag", dtype="uint8", shape=(3,))
    values = np.arange(12).astype(dtype)
    rows = [{"tag": np.full(3, i, np.uint8), "x": v} for i, v in enumerate(values)]
    ds = PackedDataset(pack(tmp_path / "p", [tag, field], [[row] for row in rows]))
    _same(ds[::-1]["x"].numpy(), values[::-1])
    assert ds[5]["x"] == 5


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("codec", [*CODECS, "photo+lz4"])
def test_a_large_picture_is_read_in_bands(pack: Any, tmp_path: Path, codec: str) -> None:
    """Samples over 1 MiB are framed by rows, the last band shorter, and come out whole."""
    rng = np.random.default_rng(0)
    images = np.repeat(rng.integers(0, 256, (3, 701, 128, 3), np.uint8), 4, axis=2)
    field = Field(
        name="x", dtype="uint8", kind="image", shape=images.shape[1:], codec=NAMED[codec], frame=FrameRule(rows=42)
    )
    ds = PackedDataset(pack(tmp_path / "p", [field], [[{"x": v} for v in images[:2]], [{"x": images[2]}]]))
    _same(ds[[2, 0, 2, 1]]["x"].permute(0, 2, 3, 1).numpy(), images[[2, 0, 2, 1]])


def _shared_frames(pack: Any, folder: Path, samples: int, per_frame: int) -> PackedDataset:
    field = Field(name="x", dtype="int64", shape=(8,), codec=NAMED["zstd"], frame=FrameRule(samples=per_frame))
    values = [{"x": np.full(8, i)} for i in range(samples)]
    return PackedDataset(pack(folder / "p", [field], [values]))


@pytest.mark.usefixtures("way")
def test_a_frame_is_decoded_once_for_a_batch_and_its_neighbours(pack: Any, tmp_path: Path, decoded: list[int]) -> None:
    """Samples that share a frame are decoded together, and the next batch finds them decoded."""
    ds = _shared_frames(pack, tmp_path, 40, 10)
    assert ds[[3, 11, 4, 12, 9]]["x"][:, 0].tolist() == [3, 11, 4, 12, 9]
    assert ds[[0, 19]]["x"][:, 0].tolist() == [0, 19]
    assert decoded == [640, 640]


def test_reading_everything_keeps_little(pack: Any, tmp_path: Path) -> None:
    """A batch of very many frames is read in pieces: the decoded frames kept do not grow with it."""
    ds = _shared_frames(pack, tmp_path, 995, 10)
    places = ds.opened.places["x"]
    places.cache = type(places.cache)(4 * 640)
    order = np.random.default_rng(0).permutation(995)
    assert ds[order]["x"][:, 3].tolist() == order.tolist()
    assert places.cache.memory.nbytes <= 4 * 640


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("codec", ["lz4", "zstd", "bitshuffle"])
@pytest.mark.parametrize("per_frame", [1, 4])
def test_a_damaged_frame_is_an_error(pack: Any, tmp_path: Path, codec: str, per_frame: int) -> None:
    """Bytes that cannot be decoded raise DamagedError, which names the field and what to do."""
    field = Field(name="x", dtype="int64", shape=(700,), codec=NAMED[codec], frame=FrameRule(samples=per_frame))
    folder = pack(tmp_path / "p", [field], [[{"x": np.arange(700) // 9 * 1000 + i} for i in range(20)]])
    shard = next((folder / "shards").iterdir())
    ds = PackedDataset(folder)
    located = ds.opened.readers["x"].spans(ds.opened.readers["x"].locate(np.array([0])))
    start = int(located[0, 0] - ds.opened.memory.starts[0])
    data = bytearray(shard.read_bytes())
    data[start : start + 40] = b"\xff" * 40
    shard.write_bytes(bytes(data))
    for count in (2, 20):
        with pytest.raises(DamagedError, match=r"field 'x'.*packer verify"):
            _ = PackedDataset(folder)[list(range(count))]


def test_slots_do_not_change_while_a_batch_is_read(pack: Any, tmp_path: Path) -> None:
    """Room that another loader asks for is made between two batches of other threads, not within one."""
    field = Field(name="x", dtype="int64", shape=(700,), codec=NAMED["lz4"], frame=FrameRule(samples=4))
    folder = pack(tmp_path / "p", [field], [[{"x": np.arange(700) // 9 + i} for i in range(40)]])
    ds = PackedDataset(folder)
    reader = ds.opened.readers["x"]
    assert isinstance(reader, WholeReader)
    began, go_on = threading.Event(), threading.Event()
    decode = reader.places.codec.decode_frames

    def slowly(*args: Any) -> bool:
        began.set()
        go_on.wait(30)
        return decode(*args)

    reader.places.codec.decode_frames = slowly  # type: ignore[assignment,method-assign]
    with ThreadPoolExecutor(2) as threads:
        batch = threads.submit(ds.__getitem__, [3, 30, 17])
        assert began.wait(30)
        keeping = threads.submit(reader.keep, 4000)
        wait([keeping], 0.1)
        waited = not keeping.done()
        go_on.set()
        assert batch.result()["x"][:, 0].tolist() == [3, 30, 17]
        keeping.result()
    assert waited
    assert reader.places.cache.memory.nbytes >= 4000 * 5600
