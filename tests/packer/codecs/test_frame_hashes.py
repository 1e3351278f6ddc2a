"""Hashes of many frames: those of xxhash, by machine code and one by one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_frames import numbers
from ways import handled

from packer.codecs import compiled, frame_hashes

DATA = np.random.default_rng(0).integers(0, 256, 5000, np.uint8).tobytes()


def one_by_one(spans: Any) -> list[int]:
    """What the package gives for slices of the memory."""
    return [xxhash.xxh3_64_intdigest(DATA[start:end]) for start, end in spans]


@settings(max_examples=25)
@given(edges=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 700)), max_size=9), by_machine=st.booleans())
def test_hashes_are_those_of_xxhash(edges: list[tuple[int, int]], by_machine: bool) -> None:
    """Frames of any length, in any order, several times, and none."""
    spans = [(start, min(start + length, 5000)) for start, length in edges]
    with handled(by_machine):
        found = frame_hashes(memoryview(DATA), numbers(spans).reshape(-1, 2))
    assert found.dtype == np.uint64
    assert found.tolist() == one_by_one(spans)


@pytest.mark.usefixtures("way")
def test_spans_may_be_parts_of_an_array() -> None:
    """Every other row of it, from the last to the first."""
    spans = np.arange(40).reshape(20, 2)[::-2]
    assert frame_hashes(memoryview(DATA), spans).tolist() == one_by_one(spans.tolist())


@pytest.mark.usefixtures("way")
def test_memory_of_no_bytes_has_empty_frames() -> None:
    """As the map of a column that has none."""
    assert frame_hashes(memoryview(b""), numbers([[0, 0]])).tolist() == [xxhash.xxh3_64_intdigest(b"")]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("wrong", [(-3, 9), (-20, -10), (4990, 5001), (6000, 6100), (50, 40), (2**40, 2**41)])
def test_frames_outside_of_the_memory_are_those_that_slices_give(wrong: tuple[int, int]) -> None:
    """None is read beyond it, and those before and behind keep their hashes."""
    spans = [(0, 5000), wrong, (70, 80)]
    assert frame_hashes(memoryview(DATA), numbers(spans)).tolist() == one_by_one(spans)


def test_machine_code_hashes_where_it_is_there(by_machine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """All frames by one call, and none by the package."""
    calls = []

    def hashes(data: Any, spans: Any, found: Any) -> int:
        calls.append(len(spans))
        found[:] = 7
        return len(spans)

    monkeypatch.setattr(compiled.loading, "loops", lambda: SimpleNamespace(hashes=hashes))
    assert frame_hashes(memoryview(DATA), numbers([[0, 9]] * 30)).tolist() == [7] * 30
    assert calls == [30]


@pytest.mark.parametrize("by_machine", [False, True])
def test_time_is_noted_while_frames_are_hashed_one_by_one(by_machine: bool) -> None:
    """It counts towards what loading the loops would take; there is nothing left to load for machine code."""
    with handled(by_machine) as loading:
        frame_hashes(memoryview(DATA), numbers([[0, 5000]] * 50))
    assert (loading.seconds == 0) == by_machine


def test_a_call_hashes_no_more_than_it_may(by_machine: None, monkeypatch: pytest.MonkeyPatch, loops: Any) -> None:
    """Ctrl-C waits for its end."""
    monkeypatch.setattr("packer.codecs.frames.CALL_BYTES", 1000)
    asked, hashes = [], loops.hashes

    def counted(memory: Any, spans: Any, found: Any) -> int:
        asked.append(int((spans[:, 1] - spans[:, 0]).sum()))
        return int(hashes(memory, spans, found))

    monkeypatch.setattr(loops, "hashes", counted)
    memory = np.random.default_rng(0).integers(0, 256, 9000, np.uint8).tobytes()
    spans = np.stack([np.arange(0, 9000, 300), np.arange(300, 9300, 300)], axis=1)
    found = frame_hashes(memoryview(memory), spans)
    assert found.tolist() == [xxhash.xxh3_64_intdigest(memory[a:b]) for a, b in spans.tolist()]
    assert len(asked) == 10
    assert max(asked) <= 1300
