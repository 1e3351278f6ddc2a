"""Many frames decoded by one call, by machine code and one by one: the same values and the same errors."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zstandard
from numpy.typing import NDArray
from stored_frames import LIES, OUTSIDE, Guarded, Stored, apart, as_bytes, as_memory, lying, mixed, numbers, stored
from ways import handled

from packer.codecs import NAMED, FrameCodec, FrameError, Frames, compiled, filters, parse_codec, stages

CODECS = ("lz4", "lz4hc", "zstd", "bitshuffle", "shuffle+lz4", "shuffle+zstd")
ZLIB = '{"id": "zlib", "level": 6}'
TWO_STAGES = '[{"id": "delta", "dtype": "<u2"}, {"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 1}]'
every_codec = pytest.mark.parametrize("codec", CODECS)


def decode(one: Stored, out: Any, shapes: Any = None) -> None:
    """Decodes all frames, and undoes the filter if shapes are told."""
    frames = one.frames if shapes is None else one.frames._replace(shapes=numbers(shapes))
    one.codec.decode_frames(as_memory(one.memory), frames, out)


# ---------------------------------------------------------------- good frames


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("codec", [*CODECS, "none", ZLIB, TWO_STAGES])
@pytest.mark.parametrize("count", [0, 1, 30])
def test_every_codec_decodes_many_frames(codec: str, count: int) -> None:
    """One behind the other in the order asked, those among them that are empty or were kept as they are."""
    coder = FrameCodec(parse_codec(codec), np.dtype("u2"))
    raw = mixed(count)
    frames = [bytes(coder.encode(values)) for values in raw]
    ends = np.cumsum([len(frame) for frame in frames], dtype=np.int64)
    spans = np.stack([ends - [len(frame) for frame in frames], ends], axis=1).astype(np.int64)[::-1]
    out = np.zeros(sum(values.nbytes for values in raw), np.uint8)
    sizes = numbers([values.nbytes for values in raw[::-1]])
    coder.decode_frames(as_memory(b"".join(frames)), Frames(spans, sizes), out)
    assert np.array_equal(out, as_bytes(raw[::-1]))


@pytest.mark.usefixtures("way")
@every_codec
def test_frames_go_where_they_are_to_go(codec: str) -> None:
    """Not one behind the other; what lies between their places stays as it was."""
    one, out, wanted = apart(stored(codec, mixed(12)))
    decode(one, out)
    assert np.array_equal(out, wanted)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize(("channels", "many"), [(3, True), (0, True), (3, False)])
def test_the_filter_is_undone_where_shapes_are_told(dtype: str, channels: int, many: bool) -> None:
    """Of images of any sizes and channels, also of as many pixels; else the frames hold them as they were stored."""
    sizes = [(9, 5), (1, 8), (30, 20), (0, 6), (2, 7)] if many else [(4, 6), (6, 4)]
    shapes = [(*size, channels or n + 1) for n, size in enumerate(sizes)]
    rng = np.random.default_rng(0)
    whole = [rng.integers(0, 2**16 if n == 1 else 4, shape).astype(dtype) for n, shape in enumerate(shapes)]
    one = stored("photo+zstd", [filters.store_photo(image[None])[0] for image in whole], channels=channels)
    out = np.empty(len(one.wanted), np.uint8)
    decode(one, out)
    assert np.array_equal(out, one.wanted)
    one.codec.undo_filter(out, numbers(shapes))
    assert np.array_equal(out, as_bytes(whole))
    decode(one, out, shapes)
    assert np.array_equal(out, as_bytes(whole))


@pytest.mark.usefixtures("way")
def test_shapes_of_other_codecs_mean_nothing() -> None:
    """There is no filter to undo."""
    one = stored("zstd", mixed(9, "u1"))
    out = np.empty(len(one.wanted), np.uint8)
    decode(one, out, [(1, 4, 1)] * 9)
    assert np.array_equal(out, one.wanted)


@pytest.mark.usefixtures("by_machine")
@every_codec
def test_machine_code_decodes_what_it_knows(monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    """One call for all frames, and none to Python's decoders."""
    one, calls = stored(codec, mixed(20)), []
    loops = compiled.loading.loops()
    assert loops is not None
    run = loops.decode
    monkeypatch.setattr(loops, "decode", lambda *arguments: calls.append(len(arguments[3])) or run(*arguments))
    monkeypatch.setattr(FrameCodec, "decode", None)
    out = np.empty(len(one.wanted), np.uint8)
    decode(one, out)
    assert np.array_equal(out, one.wanted)
    assert calls == [20]


@pytest.mark.usefixtures("by_machine")
@pytest.mark.parametrize("codec", ["none", ZLIB, TWO_STAGES])
def test_machine_code_is_not_asked_for_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    """Codecs of other libraries, of several stages, and none at all."""
    monkeypatch.setattr(compiled.loading, "loops", lambda: SimpleNamespace(decode=None))
    coder, values = FrameCodec(parse_codec(codec), np.dtype("u2")), np.arange(400, dtype=np.uint16) // 9
    frame, out = bytes(coder.encode(values)), np.empty(800, np.uint8)
    coder.decode_frames(as_memory(frame), Frames(numbers([[0, len(frame)]]), numbers([800])), out)
    assert out.tobytes() == values.tobytes()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("codec", ["lz4", "zstd", "bitshuffle"])
def test_several_threads_at_once(codec: str) -> None:
    """Decoders that hold state while they work are not shared."""
    one = stored(codec, mixed(60), [*range(60)] * 3)

    def is_right(_: int) -> bool:
        out = np.zeros(len(one.wanted), np.uint8)
        decode(one, out)
        return np.array_equal(out, one.wanted)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(is_right, range(24)))


@pytest.mark.usefixtures("by_machine")
def test_a_thread_keeps_its_decoder_of_zstd(monkeypatch: pytest.MonkeyPatch) -> None:
    """To make one takes longer than to decode a small image; no other thread works with it."""
    one, out, loops = stored("zstd", mixed(3)), np.empty(10_000, np.uint8), compiled.loading.loops()
    assert loops is not None
    made: list[Any] = []
    make = loops.ZstdContext
    monkeypatch.setattr(loops, "ZstdContext", lambda: made.append(make()) or made[-1])
    for _ in range(2):
        with ThreadPoolExecutor(1) as thread:
            for _ in range(3):
                thread.submit(decode, one, out).result()
    assert len(made) == 2


# ---------------------------------------------------------------- damaged frames


@pytest.mark.usefixtures("way")
@every_codec
@pytest.mark.parametrize("lie", LIES)
def test_numbers_that_lie_are_errors(codec: str, lie: str) -> None:
    """A frame that is not where its numbers say, or does not fit; nothing is written where none may be."""
    one = stored(codec, [np.arange(400, dtype=np.uint16) // 9] * 3)
    out = Guarded(len(one.wanted))
    with pytest.raises(ValueError, match=r"."):
        decode(one._replace(frames=lying(one, lie)), out.out)
    assert out.is_whole()


@pytest.mark.usefixtures("way")
@every_codec
@pytest.mark.parametrize("lie", OUTSIDE)
def test_frames_stored_as_they_are_may_not_lie_either(codec: str, lie: str) -> None:
    """Nothing is copied from where no memory is, or to there."""
    one = stored(codec, list(np.random.default_rng(0).integers(0, 256, (3, 104), np.uint8)))
    assert (np.diff(one.frames.spans) == 104).all()
    out = Guarded(312)
    with pytest.raises(ValueError, match=r"."):
        decode(one._replace(frames=lying(one, lie)), out.out)
    assert out.is_whole()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("codec", ["zstd", "bitshuffle"])
def test_a_last_frame_of_too_many_bytes_is_an_error_too(codec: str) -> None:
    """Also where there is room for what it holds."""
    one = stored(codec, [np.arange(400, dtype=np.uint16) // 9] * 2)
    with pytest.raises(ValueError, match=r"."):
        decode(one._replace(frames=lying(one, "has very many bytes")), np.empty(len(one.wanted), np.uint8))


DECIMALS = [f'[{{"id": "decimal", "digits": 2}}, {{"id": "{name}"}}]' for name in ("lz4", "zstd", "zlib")]


def good_frames(codec: str) -> tuple[FrameCodec, list[bytes], NDArray[Any]]:
    """Three frames of values that shrink: images, floats that were decimals, or integers."""
    rng, configs = np.random.default_rng(0), parse_codec(codec)
    values = rng.integers(0, 9, (3, 700)).astype(np.uint32)
    if configs[0]["id"] == "photo":
        values = filters.store_photo(rng.integers(0, 3, (3, 40, 33, 3)).cumsum(axis=1).astype(np.uint8))
    elif configs[0]["id"] == "decimal":
        values = (rng.integers(-9, 10, (3, 1600)).cumsum(axis=1) / 100).astype(np.float32)
        values[:, ::97] = np.nan
    coder = FrameCodec(configs, values.dtype, channels=3 if values.ndim == 4 else 0)
    return coder, [bytes(coder.encode(frame)) for frame in values], values


@pytest.mark.parametrize("codec", [*CODECS, ZLIB, TWO_STAGES, "photo+lz4", "photo+zstd", *DECIMALS])
def test_damage_is_the_same_both_ways(codec: str) -> None:
    """Hundreds of frames with flipped, cut and added bytes: the same values, or the same words."""
    chance = random.Random(5)
    coder, stored, values = good_frames(codec)
    assert len(stored[1]) < values[1].nbytes
    sizes, shapes = numbers([values[0].nbytes] * 3), numbers([(40, 33, 3)] * 3)
    errors = 0
    for _ in range(300):
        frame = bytearray(stored[1][: chance.choice((None, None, None, chance.randrange(len(stored[1]))))])
        frame += bytes(chance.choice((0, 0, 0, 5)))
        for _ in range(chance.choice((0, 1, 1, 8)) if frame else 0):
            frame[chance.randrange(min(len(frame), chance.choice((16, 40, 10**6))))] ^= 1 << chance.randrange(8)
        ends = np.cumsum([0, len(stored[0]), len(frame), len(stored[2])])
        frames = Frames(np.stack([ends[:-1], ends[1:]], axis=1), sizes, shapes=shapes)
        found = []
        for machine in (True, False):
            out = Guarded(values.nbytes)
            with handled(machine):
                try:
                    coder.decode_frames(as_memory(stored[0] + frame + stored[2]), frames, out.out)
                    found.append(out.out.tobytes())
                except FrameError as error:
                    found.append(f"frame {error.number}: {error}")
            assert out.is_whole()
        assert found[0] == found[1]
        errors += str(found[0]).startswith("frame 1: ")
    assert 50 < errors < 290


@pytest.mark.usefixtures("way")
def test_the_words_are_those_of_the_frame_that_is_damaged() -> None:
    """They say what is wrong with it."""
    one = stored("zstd", mixed(30, "u1"))
    one.frames.sizes[20] += 1
    with pytest.raises(ValueError, match=rf"claims {one.frames.sizes[20] - 1} bytes, {one.frames.sizes[20]} expected"):
        decode(one, np.empty(len(one.wanted) + 1, np.uint8))


@pytest.mark.usefixtures("way")
def test_what_follows_a_zstd_frame_is_damage() -> None:
    """Another frame, of bytes or of none."""
    coder = FrameCodec(NAMED["zstd"], np.dtype("u1"))
    frame = bytes(coder.encode(np.zeros(1000, np.uint8)))
    for more in (frame, zstandard.compress(b""), b"\0"):
        spans = numbers([[0, len(frame + more)]])
        with pytest.raises(ValueError, match=r"extra|trailing|unused"):
            coder.decode_frames(as_memory(frame + more), Frames(spans, numbers([1000])), np.empty(1000, np.uint8))


@pytest.mark.usefixtures("way")
def test_zstd_frames_say_how_large_they_are() -> None:
    """The format asks for it: one that does not was made by nobody who followed it, or is damaged."""
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    frames = Frames(numbers([[0, len(frame)]]), numbers([1000]))
    with pytest.raises(ValueError, match="how large"):
        FrameCodec(NAMED["zstd"], np.dtype("u1")).decode_frames(as_memory(frame), frames, np.empty(1000, np.uint8))


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("codec", ["lz4", "zstd", "bitshuffle"])
def test_a_lack_of_memory_is_no_damage(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """How large a frame is, is known: where it does not fit into memory, it is not called damaged."""

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    one = stored(codec, mixed(9))
    for kind in (stages.Lz4, stages.Zstd, stages.Blosc):
        monkeypatch.setattr(kind, "decode", fail)
    with pytest.raises(MemoryError):
        decode(one, np.empty(len(one.wanted), np.uint8))
