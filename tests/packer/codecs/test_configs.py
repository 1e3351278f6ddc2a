"""The contract of every codec: what is encoded comes back, and damaged frames are errors."""

from __future__ import annotations

import json
import pickle
import struct
import tracemalloc
from typing import Any

import lz4.block
import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer.codecs import NAMED, FrameCodec, codec_name, parse_codec
from packer.codecs.frames import LEAST_SAVING
from packer.errors import UsageError
from packer.format import DTYPES

ZLIB = '{"id": "zlib", "level": 6}'
TWO_STAGES = '[{"id": "delta", "dtype": "|u1"}, {"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 1}]'
#: `decimal` is for floats alone: test_decimal.py.
every_codec = pytest.mark.parametrize("text", [*(n for n in NAMED if "decimal" not in n), ZLIB, TWO_STAGES])
dtypes = st.sampled_from(DTYPES).map(np.dtype)
U1 = np.dtype("u1")


@st.composite
def frames(draw: st.DrawFn) -> NDArray[Any]:
    """Frames of every dtype: noise, a constant, or bytes of few values, which shrink."""
    dtype = draw(dtypes)
    size = draw(st.sampled_from([0, 1, 2, 7, 64, 500, 5000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    high = draw(st.sampled_from([1, 2, 256]))
    data = rng.integers(0, 2 if dtype == np.bool_ else high, size * dtype.itemsize, dtype=np.uint8)
    return data.view(dtype)


def compressible(nbytes: int = 4000) -> NDArray[np.uint8]:
    """A frame that every codec makes smaller."""
    return np.repeat(np.arange(nbytes // 8, dtype=np.uint8) % 7, 8)


def stored_frame(codec: FrameCodec, frame: NDArray[Any]) -> bytes:
    return bytes(codec.encode(frame))


# ---------------------------------------------------------------- the contract


@every_codec
@given(frame=frames())
@settings(max_examples=40)
def test_a_frame_comes_back_bit_for_bit(text: str, frame: NDArray[Any]) -> None:
    """Decoding gives the bytes that were encoded, for every dtype and size."""
    codec = FrameCodec(parse_codec(text), frame.dtype)
    stored = memoryview(stored_frame(codec, frame))
    assert bytes(codec.decode(stored, frame.nbytes)) == frame.tobytes()


@every_codec
@given(frame=frames())
@settings(max_examples=40)
def test_a_stored_frame_is_raw_or_clearly_smaller(text: str, frame: NDArray[Any]) -> None:
    """A stored frame as long as the raw one is the raw one; any other saves at least the least saving."""
    stored = stored_frame(FrameCodec(parse_codec(text), frame.dtype), frame)
    if len(stored) == frame.nbytes:
        assert stored == frame.tobytes()
    else:
        assert len(stored) <= frame.nbytes * (1 - LEAST_SAVING)


@every_codec
def test_encoding_twice_gives_the_same_bytes(text: str) -> None:
    """The stored bytes depend on the frame alone."""
    frame = compressible()
    assert stored_frame(FrameCodec(parse_codec(text), U1), frame) == stored_frame(
        FrameCodec(parse_codec(text), U1), frame
    )


@every_codec
def test_encoding_leaves_the_frame_as_it_was(text: str) -> None:
    """The caller's array is only read."""
    frame = compressible()
    FrameCodec(parse_codec(text), U1).encode(frame)
    assert (frame == compressible()).all()


@every_codec
@pytest.mark.parametrize("nbytes", [0, 1, 3999, 4001, 2**20])
def test_another_number_of_bytes_is_an_error(text: str, nbytes: int) -> None:
    """A frame that decodes to fewer or more bytes than expected never passes, nor leaves bytes unwritten."""
    codec = FrameCodec(parse_codec(text), U1)
    stored = stored_frame(codec, compressible(4000))
    with pytest.raises(ValueError, match=r"."):
        codec.decode(memoryview(stored), nbytes)


@every_codec
@pytest.mark.parametrize(
    "stored", [b"", b"\0", b"\xff" * 4, b"\0" * 15, b"\xff" * 16, b"\0" * 200, b"\x28\xb5\x2f\xfd"]
)
def test_bytes_that_are_no_frame_are_an_error(text: str, stored: bytes) -> None:
    """Empty, short and meaningless frames are a ValueError."""
    with pytest.raises(ValueError, match=r"."):
        FrameCodec(parse_codec(text), U1).decode(memoryview(stored), 4000)


@every_codec
def test_a_truncated_frame_is_an_error(text: str) -> None:
    """A frame cut anywhere is a ValueError."""
    codec = FrameCodec(parse_codec(text), U1)
    stored = stored_frame(codec, compressible())
    for length in range(0, len(stored), max(1, len(stored) // 60)):
        with pytest.raises(ValueError, match=r"."):
            codec.decode(memoryview(stored)[:length], 4000)


@every_codec
def test_a_size_in_a_header_is_not_believed(text: str) -> None:
    """Headers that claim 4 GiB cost no memory."""
    codec = FrameCodec(parse_codec(text), U1)
    stored = bytearray(stored_frame(codec, compressible()))
    tracemalloc.start()
    try:
        for start in range(16):
            damaged = bytearray(stored)
            damaged[start : start + 4] = b"\xff\xff\xff\xff"
            try:
                codec.decode(memoryview(damaged), 4000)
            except ValueError:
                continue
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


@every_codec
def test_a_frame_expected_to_be_huge_is_an_error(text: str) -> None:
    """A damaged index that asks for 2**60 bytes is a ValueError, not a MemoryError."""
    with pytest.raises(ValueError, match=r"."):
        FrameCodec(parse_codec(text), U1).decode(memoryview(b"0123456789abcdef"), 2**60)


# ---------------------------------------------------------------- the bytes of each codec


def test_without_a_codec_frames_are_raw() -> None:
    """`none` stores the bytes of the array."""
    assert stored_frame(FrameCodec(NAMED["none"], np.dtype("<u2")), np.array([1, 256], "<u2")) == b"\x01\0\0\x01"


@pytest.mark.parametrize("name", ["lz4", "lz4hc"])
def test_lz4_is_a_size_and_a_block(name: str) -> None:
    """Four bytes of size, little-endian, then one LZ4 block; the same that numcodecs reads."""
    stored = stored_frame(FrameCodec(NAMED[name], U1), compressible())
    assert stored[:4] == struct.pack("<I", 4000)
    assert lz4.block.decompress(stored[4:], uncompressed_size=4000) == compressible().tobytes()
    assert bytes(numcodecs.LZ4().decode(stored)) == compressible().tobytes()


def test_lz4_written_by_numcodecs_is_read() -> None:
    """Frames of numcodecs' own lz4 decode here."""
    stored = numcodecs.LZ4().encode(compressible())
    assert bytes(FrameCodec(NAMED["lz4"], U1).decode(memoryview(stored), 4000)) == compressible().tobytes()


@pytest.mark.parametrize("name", ["zstd", "bitshuffle"])
def test_other_names_are_numcodecs_configs(name: str) -> None:
    """numcodecs alone decodes what they store."""
    (config,) = NAMED[name]
    stored = stored_frame(FrameCodec((config,), U1), compressible())
    assert bytes(numcodecs.get_codec(dict(config)).decode(stored)) == compressible().tobytes()


@pytest.mark.parametrize("name", ["lz4", "zstd", "bitshuffle"])
@pytest.mark.parametrize("size", [200, 255, 256, 65_791, 65_792, 70_000])
def test_frames_say_their_size(name: str, size: int) -> None:
    """Whatever the width of the size in the header, a frame of other bytes is refused by it."""
    codec = FrameCodec(NAMED[name], U1)
    stored = stored_frame(codec, np.zeros(size, np.uint8))
    for other in (size - 1, size + 1):
        with pytest.raises(ValueError, match=f"claims {size} bytes, {other} expected"):
            codec.decode(memoryview(stored), other)


# ---------------------------------------------------------------- naming codecs


@pytest.mark.parametrize(
    "text",
    [
        "nope",
        "{",
        "{}",
        "[1]",
        '{"id": 3}',
        '{"id": "nope"}',
        '{"id": "zstd", "level": "high"}',
        '{"id": "lz4", "acceleration": "x"}',
        '{"id": "blosc", "cname": "nope"}',
        '{"id": "vlen-utf8"}',
        '[{"id": "zstd"}, {"id": "photo"}]',
        json.dumps([{"id": "zlib"}] * 9),
    ],
)
def test_a_codec_that_cannot_be_used_is_named(text: str) -> None:
    """Unknown names, broken JSON and wrong settings are usage errors that show what was asked for."""
    with pytest.raises(UsageError, match="codec"):
        parse_codec(text)


def test_pickle_is_refused() -> None:
    """No frame is ever unpickled, whoever asks."""
    with pytest.raises(UsageError, match="pickle"):
        parse_codec('{"id": "pickle"}')
    with pytest.raises(UsageError, match="pickle"):
        FrameCodec(({"id": "zstd"}, {"id": "pickle"}), U1).decode(memoryview(pickle.dumps(1)), 8)


@pytest.mark.parametrize(
    "config", [{"id": "quantize", "digits": 1, "dtype": "<f4"}, {"id": "delta", "dtype": "<f4"}, {"id": "packbits"}]
)
def test_a_codec_that_loses_bits_is_refused(config: dict[str, Any]) -> None:
    """What goes in comes out, or an error says why: quantised numbers are not packed in silence."""
    frame = np.random.default_rng(0).normal(size=500).astype("<f4")
    with pytest.raises(UsageError, match=config["id"]):
        FrameCodec((config,), frame.dtype).encode(frame)


def test_every_name_is_its_own_codec() -> None:
    """A codec read back from a manifest has the name it was asked for by."""
    for name, configs in NAMED.items():
        assert codec_name(parse_codec(name)) == name == codec_name(list(configs))
    assert codec_name(parse_codec(TWO_STAGES)) == "delta+blosc"


@pytest.mark.parametrize(
    "text", ['{"id": "zstd", "level": 19}', '{"id": "lz4"}', '[{"id": "photo"}, {"id": "zstd", "level": 9}]']
)
def test_a_codec_given_as_json_has_no_name_of_another(text: str) -> None:
    """Its settings are others than those that the name stands for; what is said of it can be given again."""
    assert parse_codec(codec_name(parse_codec(text))) == parse_codec(text)
