"""Loops in machine code: what `FrameCodec`, whose tests try both ways, does not show of them."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numcodecs import blosc
from stored_frames import (
    Bytes,
    Guarded,
    Stored,
    as_memory,
    at_the_edge,
    numbers,
    stored,
)

from packer.codecs import NAMED, FrameCodec, Frames, compiled

CODECS = ("lz4", "lz4hc", "zstd", "bitshuffle", "shuffle+lz4", "shuffle+zstd")
MEMORY = Path("/proc/self/statm")
every_codec = pytest.mark.parametrize("codec", CODECS)


def number(codec: str) -> int:
    """What the loops call a codec."""
    found = compiled.number_of(NAMED[codec])
    assert found is not None
    return found


def run(
    loops: ModuleType, codec: str, one: Stored, out: Bytes, heights: Any = None, item: int = 0, channels: int = 0
) -> int:
    """Decodes frames, one behind the other unless it is said where; returns what the loop returns."""
    spans, sizes, places, _ = one.frames
    at = numbers([]) if places is None else places
    rows = sizes if heights is None else numbers(heights)
    context = loops.ZstdContext()
    memory, settings = as_memory(one.memory), (item, channels, 0.0, context.address)
    return int(loops.decode(number(codec), memory, spans, sizes, at, rows, *settings, out))


@pytest.fixture(scope="module")
def context(loops: ModuleType) -> Iterator[int]:
    """The address of a decoder of zstd."""
    kept = loops.ZstdContext()
    yield kept.address
    del kept


# ---------------------------------------------------------------- good frames


@pytest.mark.parametrize("cname", ["lz4", "lz4hc", "zstd", "zlib", "blosclz"])
@settings(max_examples=40, deadline=None)
@given(
    nbytes=st.one_of(st.integers(1, 600), st.integers(601, 20_000)),
    element=st.integers(1, 20),
    shuffle=st.integers(0, 2),
    block=st.sampled_from([0, 1, 100, 128, 999, 4096, 9984, 2**20]),
    high=st.sampled_from([2, 40]),
)
def test_blosc_of_any_settings(
    loops: ModuleType, context: int, cname: str, nbytes: int, element: int, shuffle: int, block: int, high: int
) -> None:
    """Elements, blocks and ends of any size, shuffled or not: as c-blosc decodes them."""
    count = -(-nbytes // element)
    values = np.random.default_rng(nbytes).integers(0, high, count * element, np.uint8)
    frame = np.frombuffer(blosc.compress(values.view(f"V{element}"), cname.encode(), 5, shuffle, block), np.uint8)
    assume(len(frame) != len(values))  # such a frame is stored as it is, and taken for that
    out, one = Guarded(len(values)), numbers([len(values)])
    span = numbers([[0, len(frame)]])
    assert loops.decode(compiled.CODECS["blosc"], frame, span, one, numbers([0]), one, 0, 0, 0.0, context, out.out) == 1
    assert np.array_equal(out.out, values)
    assert out.is_whole()


def test_threads_decode_side_by_side(loops: ModuleType) -> None:
    """Others run while a thread decodes: it does not hold the lock of the interpreter.

    A busy machine may give this thread few turns: then it decodes for longer. With the lock held they stay few.
    """
    for frames in (80 * 4**n for n in range(4)):
        if (turns := _turns_while_decoding(loops, frames)) > 5:
            return
    raise AssertionError(f"{turns} turns of this thread while another decoded {frames} MB by one call")


def _turns_while_decoding(loops: ModuleType, frames: int) -> int:
    """How often this thread runs while another decodes so many frames of a MB."""
    one = stored("bitshuffle", [np.arange(2**18, dtype=np.uint32)])
    spans, sizes = (np.repeat(array, frames, axis=0) for array in (one.frames.spans, one.frames.sizes))
    one = one._replace(frames=Frames(spans, sizes, np.zeros(frames, np.int64)))
    out, began, ended = np.empty(2**20, np.uint8), threading.Event(), threading.Event()

    def decode() -> None:
        began.set()
        assert run(loops, "bitshuffle", one, out) == frames
        ended.set()

    thread = threading.Thread(target=decode)
    thread.start()
    assert began.wait(100)
    turns = 0
    while not ended.wait(0.001):
        turns += 1
    thread.join()
    return turns


@pytest.mark.parametrize("height", [0, -4, 7, 401, 2**62, -(2**62)])
@pytest.mark.parametrize("item", [1, 2])
def test_heights_that_do_not_fit_are_refused(loops: ModuleType, height: int, item: int) -> None:
    """An image of 400 bytes has no such rows; its frame counts as one that cannot be decoded."""
    one = stored("lz4", [np.zeros(400, np.uint8)] * 3)
    out = Guarded(1200)
    assert run(loops, "lz4", one, out.out, [20, height, 20], item, 1) == 1
    assert out.is_whole()


# ---------------------------------------------------------------- damaged frames


@every_codec
def test_frames_of_two_gibibytes_are_left_to_others(loops: ModuleType, context: int, codec: str) -> None:
    """Some decoders take such a size for a smaller one, or for a negative one."""
    one = stored(codec, [np.zeros(400, np.uint8)])
    start, end = one.frames.spans[0].tolist()
    try:
        memory = np.zeros(2**32 + 2**12, np.uint8)  # hardly touched, and so hardly there
    except MemoryError:
        pytest.skip("there is no room for 4 GiB")
    memory[: end - start] = np.frombuffer(one.memory, np.uint8)[start:end]
    at, size, out = numbers([0]), numbers([400]), np.empty(400, np.uint8)

    def decoded(length: int) -> int:
        span = numbers([[0, length]])
        return int(loops.decode(number(codec), memory, span, size, at, size, 0, 0, 0.0, context, out))

    assert decoded(end - start) == 1
    for more in (2**31, 2**32):
        assert decoded(end - start + more) == 0
        as_is = numbers([[0, more]]), numbers([more])
        assert loops.decode(number(codec), memory, *as_is, at, size, 0, 0, 0.0, context, memory) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="memory is taken away as Linux does it")
@every_codec
def test_nothing_behind_the_memory_is_read(loops: ModuleType, context: int, codec: str) -> None:
    """Not by frames that are cut, within their header too, nor by such as lie there."""
    whole = stored(codec, [np.arange(900, dtype=np.uint32) // 9])
    start, end = whole.frames.spans[0].tolist()
    out, at, size = Guarded(3600), numbers([0]), numbers([3600])
    for length in [*range(40), *range(40, end - start, 7), end - start]:
        data = at_the_edge(bytes(whole.memory[start : start + length]))
        found = loops.decode(number(codec), data, numbers([[0, length]]), size, at, size, 0, 0, 0.0, context, out.out)
        assert found == (length == end - start)
    for span in ([length, 0], [length, length], [0, length + 1], [length + 1, length + 9], [length - 20, length]):
        assert loops.decode(number(codec), data, numbers([span]), size, at, size, 0, 0, 0.0, context, out.out) == 0
    assert out.is_whole()


def words(frame: bytes, **changes: int) -> bytes:
    """A blosc frame with other numbers in its header."""
    places = {"element": (3, 1), "raw": (4, 4), "block": (8, 4), "stored": (12, 4)}
    out = bytearray(frame)
    for name, value in changes.items():
        at, width = places[name]
        out[at : at + width] = value.to_bytes(width, "little")
    return bytes(out)


BLOSC = words(bytes(FrameCodec(NAMED["shuffle+lz4"], np.dtype("u2")).encode(np.arange(4000, dtype=np.uint16) // 9)))
ZSTD = bytes(FrameCodec(NAMED["zstd"], np.dtype("u1")).encode(np.arange(8000, dtype=np.uint16).view(np.uint8)[:8000]))
LZ4 = bytes(FrameCodec(NAMED["lz4"], np.dtype("u1")).encode(np.zeros(8000, np.uint8)))


@pytest.mark.parametrize(
    ("codec", "frame"),
    [
        ("shuffle+lz4", words(BLOSC, raw=8001)),
        ("shuffle+lz4", words(BLOSC, raw=7999)),
        ("shuffle+lz4", words(BLOSC, raw=2**32 - 1)),
        ("shuffle+lz4", words(BLOSC, raw=0)),
        ("shuffle+lz4", words(BLOSC, block=8001)),
        ("shuffle+lz4", words(BLOSC, block=2**31)),
        ("shuffle+lz4", words(BLOSC, block=2**32 - 1)),
        ("shuffle+lz4", words(BLOSC, block=0)),
        ("shuffle+lz4", words(BLOSC, stored=len(BLOSC) + 1)),
        ("shuffle+lz4", words(BLOSC, stored=2**31 - 1)),
        ("shuffle+lz4", words(BLOSC, stored=16)),
        ("shuffle+lz4", BLOSC[:15]),
        ("shuffle+lz4", words(BLOSC[:16], stored=16)),
        ("shuffle+lz4", b"\xff" + BLOSC[1:]),
        ("zstd", ZSTD + ZSTD),
        ("zstd", ZSTD + zstandard.compress(b"")),
        ("zstd", zstandard.compress(b"") + ZSTD),
        ("zstd", ZSTD + b"\0"),
        ("zstd", b"\x50\x2a\x4d\x18\x04\0\0\0more" + ZSTD),
        ("zstd", b"\x50\x2a\x4d\x18\x04\0\0\0more"),
        ("zstd", zstandard.compress(bytes(7999))),
        ("zstd", zstandard.compress(bytes(8001))),
        ("zstd", ZSTD[:4]),
        ("lz4", LZ4[:4]),
        ("lz4", LZ4[:3]),
        ("lz4", LZ4[:1]),
        ("lz4", LZ4 + b"\0"),
        ("lz4", LZ4 + LZ4),
    ],
)
def test_headers_that_lie_are_refused(loops: ModuleType, context: int, codec: str, frame: bytes) -> None:
    """Frames that claim other sizes, have blocks larger than the data, are short, or have others before or behind."""
    memory = np.frombuffer(frame + bytes(8000), np.uint8)
    out, none = Guarded(8000), numbers([0])
    found = loops.decode(
        number(codec), memory, numbers([[0, len(frame)]]), numbers([8000]), none, none, 0, 0, 0.0, context, out.out
    )
    assert found == 0
    assert out.is_whole()


@pytest.mark.skipif(not MEMORY.exists(), reason="only Linux tells how much memory a process has")
@pytest.mark.parametrize("is_damaged", [False, True])
def test_memory_of_the_decoder_is_given_back(loops: ModuleType, is_damaged: bool) -> None:
    """Thousands of calls take no more than one, damaged frames or not."""
    one = stored("zstd", [np.zeros(100, np.uint8)] * 2)
    one.frames.sizes[1] -= is_damaged
    out = np.empty(200, np.uint8)
    pages = 0
    for call in range(2000):
        assert run(loops, "zstd", one, out) == 2 - is_damaged
        if call == 99:
            pages = int(MEMORY.read_text().split()[0])
    assert int(MEMORY.read_text().split()[0]) < pages + 5000  # of 20 to 40 a decoder


# ---------------------------------------------------------------- keeping what was compiled


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which numba keeps what it compiles."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.fixture
def twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Compiles a small function as the loops are compiled, as every process does."""
    path = tmp_path / "small_module.py"
    path.write_text("def twice(value):\n    return 2 * value\n")
    spec = importlib.util.spec_from_file_location("small_module", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "small_module", module)

    def compiled_anew() -> Any:
        spec.loader.exec_module(module)
        return compiled.machine_code(numba.types.int64(numba.types.int64))(module.twice)

    return compiled_anew


def test_what_was_compiled_is_kept(kept: Path, twice: Callable[[], Any]) -> None:
    """The next process finds it."""
    assert twice()(4) == 8
    assert len(list(kept.rglob("*.nbc"))) == 1
    again = twice()
    assert again(4) == 8
    assert sum(again.stats.cache_hits.values()) == 1


def test_without_a_folder_to_keep_it_in_it_is_compiled(
    kept: Path, twice: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where neither the package nor the user's home can be written to."""
    njit = numba.njit
    asked = []

    def without_cache(*arguments: Any, **options: Any) -> Any:
        asked.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function 'twice': no locator available for file 'small.py'")
        return njit(*arguments, **options)

    monkeypatch.setattr(numba, "njit", without_cache)
    assert twice()(4) == 8
    assert [options.get("cache", False) for options in asked] == [True, False]
    assert not [options for options in asked if not options["nogil"]]
    assert not kept.exists()


@pytest.mark.parametrize("what", ["*.nbi", "*.nbc"])
@pytest.mark.parametrize("content", [b"", b"nonsense\n"])
def test_damage_of_what_is_kept_does_no_harm(kept: Path, twice: Callable[[], Any], what: str, content: bytes) -> None:
    """A file that a process or a machine left half written is as good as none."""
    twice()
    (file,) = kept.rglob(what)
    file.write_bytes(content)
    assert twice()(4) == 8
