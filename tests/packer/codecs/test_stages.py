"""Stages of codecs: what numcodecs leaves open, and decoding in several threads."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace

import numcodecs
import numpy as np
import pytest
from numcodecs import blosc
from numpy.typing import NDArray

from packer.codecs import NAMED, FrameCodec
from packer.codecs.stages import make_stage

F4 = np.dtype("f4")


def coordinates(count: int) -> NDArray[np.float32]:
    """Numbers that share their high bits and no bytes: little shrinks them unless they are shuffled."""
    return np.round(np.random.default_rng(count).uniform(100, 101, count), 4).astype(F4)


@pytest.mark.parametrize("count", [*range(3000, 3009), 200_003])
def test_frames_of_any_number_of_elements_are_shuffled(count: int) -> None:
    """c-blosc shuffles whole eights by bits; what has others is shuffled all the same, and any blosc decodes it."""
    values = coordinates(count)
    stored = bytes(FrameCodec(NAMED["bitshuffle"], F4).encode(values))
    assert len(stored) < 0.8 * values.nbytes
    assert numcodecs.Blosc().decode(stored) == values.tobytes()


@pytest.mark.parametrize("count", [3000, 3008])
def test_whole_eights_are_shuffled_by_bits(count: int) -> None:
    """What c-blosc can do is left to it."""
    (config,) = NAMED["bitshuffle"]
    assert make_stage(config).encode(coordinates(count)) == numcodecs.get_codec(dict(config)).encode(coordinates(count))


STREAMS = ("zlib", "gzip", "bz2", "lzma")


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("before", [(), ({"id": "shuffle", "elementsize": 4},)])
def test_a_frame_that_inflates_takes_no_more_than_is_expected(name: str, before: tuple[dict[str, object], ...]) -> None:
    """A small frame that decodes to much is refused at the first byte beyond what the index says."""
    stored = numcodecs.get_codec({"id": name}).encode(bytes(2**26))
    codec = FrameCodec((*before, {"id": name}), F4)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"a {name} frame holds more than"):
            codec.decode(memoryview(stored), 4000)
        assert tracemalloc.get_traced_memory()[1] < 2**24  # lzma's own window is half of that
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", STREAMS)
def test_streams_end_where_their_frames_end(name: str) -> None:
    """What numcodecs encodes comes back; a frame that is cut short, or followed by something, is damage."""
    values = coordinates(1000).astype("i4")
    codec = FrameCodec(({"id": name},), values.dtype)
    stored = bytes(codec.encode(values))
    assert stored == bytes(numcodecs.get_codec({"id": name}).encode(values))
    assert bytes(codec.decode(memoryview(stored), values.nbytes)) == values.tobytes()
    for wrong in (stored[:-1], stored + b"x"):
        with pytest.raises(ValueError, match=f"a {name} frame is cut short, or something follows it"):
            codec.decode(memoryview(wrong), values.nbytes)


def few_colours() -> NDArray[np.uint8]:
    """Twenty words of thirteen bytes, each many times: shuffled by bits they are hard to find again."""
    words = np.random.default_rng(0).integers(0, 256, (20, 13), np.uint8)
    return words[np.random.default_rng(1).integers(0, 20, 3000)].reshape(-1)


def photograph() -> NDArray[np.uint8]:
    """Bytes whose high bits are alike, and whose low bits are noise: nothing but shuffling by bits shrinks them."""
    return (np.random.default_rng(0).integers(0, 16, 30_000) + 64).astype(np.uint8)


@pytest.mark.parametrize(("make", "shuffle"), [(few_colours, 0), (photograph, 2)])
@pytest.mark.parametrize("dtype", ["u1", "i1"])
def test_bytes_are_shuffled_where_that_makes_them_smaller(
    make: Callable[[], NDArray[np.uint8]], shuffle: int, dtype: str
) -> None:
    """The smaller of both is kept, and any blosc decodes it."""
    values = make().view(dtype)
    (config,) = NAMED["bitshuffle"]
    both = {way: bytes(numcodecs.get_codec({**config, "shuffle": way}).encode(values)) for way in (0, 2)}
    assert len(both[shuffle]) < 0.9 * len(both[2 - shuffle])
    stored = bytes(make_stage(config).encode(values))
    assert stored == both[shuffle]
    assert numcodecs.Blosc().decode(stored) == values.tobytes()


def test_bytes_of_larger_numbers_are_shuffled_by_bits_as_before() -> None:
    """Only of single bytes both are tried."""
    values = few_colours()[: 8 * 3000].view("u2")
    (config,) = NAMED["bitshuffle"]
    assert make_stage(config).encode(values) == numcodecs.get_codec(dict(config)).encode(values)


def test_blosc_that_shuffles_otherwise_is_left_alone() -> None:
    """Whoever asks for another shuffle, or none, gets it."""
    for shuffle in (0, 1):
        config = {**NAMED["bitshuffle"][0], "shuffle": shuffle}
        assert make_stage(config).encode(photograph()) == numcodecs.get_codec(dict(config)).encode(photograph())


def test_blosc_has_its_threads_outside_of_our_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others in this process use blosc with threads, as numcodecs does by default; our bytes never depend on them."""
    monkeypatch.setattr(blosc, "use_threads", None)  # zarr sets it
    stage = make_stage({"id": "blosc", "cname": "zstd", "clevel": 1, "shuffle": 1, "blocksize": 2**14})
    values = np.random.default_rng(0).integers(0, 9, 2**20).astype(np.int32)
    seen = []
    encode = stage.codec.encode
    stage.codec = SimpleNamespace(
        encode=lambda value: seen.append(blosc.use_threads) or encode(value), decode=stage.codec.decode, shuffle=1
    )
    stored = stage.encode(values)
    assert bytes(stage.decode(memoryview(stored), values.nbytes)) == values.tobytes()
    assert (seen, blosc.use_threads) == ([False], None)
