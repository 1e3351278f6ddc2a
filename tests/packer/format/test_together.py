"""Many zstd frames decoded by one call: the same values as one by one, and the same errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import zstandard
from numpy.typing import NDArray

from packer.format import stages, together
from packer.format.codecs import NAMED, FrameCodec

Stored = tuple[memoryview, NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]


def frames(count: int, noisy: int = 3) -> Stored:
    """Memory with `count` frames of other sizes, in no order; every `noisy`-th is stored as it is.

    Returns:
        the memory, where frames lie, their sizes, and what they decode to.
    """
    rng, codec = np.random.default_rng(count), FrameCodec(NAMED["zstd"], np.dtype("u1"))
    raw = [rng.integers(0, 256 if n % noisy == 0 else 3, 1000 + 7 * n, dtype=np.uint8) for n in range(count)]
    stored = [bytes(codec.encode(values)) for values in raw]
    ends = np.cumsum([len(one) for one in stored])
    spans = np.stack([ends - [len(one) for one in stored], ends], axis=1)
    order = rng.integers(0, count, 2 * count)
    memory = memoryview(b"".join(stored))
    sizes = np.array([len(values) for values in raw])
    return memory, spans[order], sizes[order], np.concatenate([raw[n] for n in order])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Frames of each call of `decode_together`."""
    made: list[int] = []
    decode = together.decode_together

    def counted(decompressor: Any, memory: memoryview, spans: NDArray[np.int64], *rest: Any) -> None:
        made.append(len(spans))
        decode(decompressor, memory, spans, *rest)

    monkeypatch.setattr(together, "decode_together", counted)
    return made


@pytest.mark.parametrize("noisy", [1, 3, 10**6])
@pytest.mark.parametrize("group", [500, 4000, together.GROUP_BYTES])
def test_values_are_those_of_frames_one_by_one(
    monkeypatch: pytest.MonkeyPatch, calls: list[int], noisy: int, group: int
) -> None:
    """In groups of any size, with frames that are stored as they are and such as come several times."""
    memory, spans, sizes, wanted = frames(30, noisy)
    codec = FrameCodec(NAMED["zstd"], np.dtype("u1"))
    out = np.zeros(len(wanted), np.uint8)
    monkeypatch.setattr(stages.together, "pays", lambda sizes: True)
    monkeypatch.setattr(together, "GROUP_BYTES", group)
    codec.decode_frames(memory, spans, sizes, out)
    assert np.array_equal(out, wanted)
    assert calls == [60]


def test_few_frames_and_large_ones_are_decoded_one_by_one(calls: list[int]) -> None:
    """A call takes longer than what it spares of few; of large ones there is nothing to spare."""
    codec = FrameCodec(NAMED["zstd"], np.dtype("u1"))
    for count in (together.LEAST_FRAMES // 2 - 1, together.LEAST_FRAMES // 2):
        memory, spans, sizes, wanted = frames(count)
        out = np.zeros(len(wanted), np.uint8)
        codec.decode_frames(memory, spans, sizes, out)
        assert np.array_equal(out, wanted)
    assert calls == [together.LEAST_FRAMES]
    assert together.pays(np.full(100, together.GROUP_BYTES // together.LEAST_FRAMES))
    assert not together.pays(np.full(100, together.GROUP_BYTES // together.LEAST_FRAMES + 1))


def test_a_library_that_decodes_no_groups(monkeypatch: pytest.MonkeyPatch, calls: list[int]) -> None:
    """Frames are decoded one by one then."""
    monkeypatch.setattr(zstandard, "backend_features", set())
    monkeypatch.setattr(stages, "_zstd", stages._Zstd)
    memory, spans, sizes, wanted = frames(30)
    out = np.zeros(len(wanted), np.uint8)
    FrameCodec(NAMED["zstd"], np.dtype("u1")).decode_frames(memory, spans, sizes, out)
    assert np.array_equal(out, wanted)
    assert calls == []


@pytest.mark.parametrize("change", ["flipped", "longer", "shorter", "cut"])
def test_damaged_frames_are_errors(change: str) -> None:
    """A frame that cannot be decoded, or holds another number of bytes than it should."""
    memory, spans, sizes, wanted = frames(30, noisy=10**6)
    data = bytearray(memory)
    if change == "flipped":
        data[int(spans[7, 0])] ^= 255
    elif change == "cut":
        spans[7, 1] -= 3
    else:
        sizes[7] += 1 if change == "longer" else -1
    out = np.zeros(len(wanted) + 1, np.uint8)
    with pytest.raises(ValueError, match="ZstdError"):
        FrameCodec(NAMED["zstd"], np.dtype("u1")).decode_frames(memoryview(data), spans, sizes, out[: int(sizes.sum())])


def test_several_threads_at_once(calls: list[int]) -> None:
    """Each has a decompressor of its own."""
    memory, spans, sizes, wanted = frames(200)
    codec = FrameCodec(NAMED["zstd"], np.dtype("u1"))

    def decoded(_: int) -> bool:
        out = np.zeros(len(wanted), np.uint8)
        codec.decode_frames(memory, spans, sizes, out)
        return np.array_equal(out, wanted)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(decoded, range(40)))
    assert len(calls) == 40


@pytest.mark.parametrize("name", ["none", "lz4", "bitshuffle", "zstd", "shuffle+zstd"])
@pytest.mark.parametrize("count", [0, 1, 30])
def test_every_codec_decodes_many_frames(name: str, count: int) -> None:
    """Frames of any codec, one behind the other in the order asked."""
    codec, rng = FrameCodec(NAMED[name], np.dtype("u2")), np.random.default_rng(0)
    raw = [rng.integers(0, 65536 if n % 3 == 0 else 4, 500 + n, dtype=np.uint16) for n in range(count)]
    stored = [bytes(codec.encode(values)) for values in raw]
    ends = np.cumsum([len(one) for one in stored], dtype=np.int64)
    spans = np.stack([ends - [len(one) for one in stored], ends], axis=1).astype(np.int64)[::-1]
    sizes = np.array([values.nbytes for values in raw], np.int64)[::-1]
    out = np.zeros(int(sizes.sum()), np.uint8)
    codec.decode_frames(memoryview(b"".join(stored)), spans, sizes, out)
    assert out.tobytes() == b"".join(values.tobytes() for values in raw[::-1])


def test_frames_that_end_before_they_begin_are_errors() -> None:
    """Also far before: the library would take the length for one of 2**64 bytes."""
    memory, spans, sizes, wanted = frames(30)
    out = np.zeros(len(wanted), np.uint8)
    for first, end in ((500, 499), (500, 0), (-5, 40)):
        lying = spans.copy()
        lying[3] = first, end
        with pytest.raises(ValueError, match="ends before it begins"):
            FrameCodec(NAMED["zstd"], np.dtype("u1")).decode_frames(memory, lying, sizes, out)


def test_a_lack_of_memory_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are those of the schema: where they do not fit into memory, no frame is called damaged."""

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(together, "decode_together", fail)
    memory, spans, sizes, wanted = frames(30)
    with pytest.raises(MemoryError):
        FrameCodec(NAMED["zstd"], np.dtype("u1")).decode_frames(memory, spans, sizes, np.zeros(len(wanted), np.uint8))
