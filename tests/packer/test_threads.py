"""Calls that wait for a disk are made by several threads; those that compute by one."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from packer.threads import ITEMS_AT_ONCE, THREADS, in_threads


def test_calls_that_wait_are_made_at_once() -> None:
    """The first calls are made one by one; once they have waited, several are under way, and results stay in order."""
    at_once, most = set[int](), 0

    def wait(item: int) -> int:
        nonlocal most
        at_once.add(item)
        most = max(most, len(at_once))
        time.sleep(0.0005)
        at_once.remove(item)
        return -item

    count = 10 * ITEMS_AT_ONCE + 1
    assert list(in_threads(wait, range(count))) == [-item for item in range(count)]
    assert 1 < most <= THREADS


def test_calls_that_compute_take_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would only hinder each other: a second in which a thread computed is none in which it waited."""
    clock = SimpleNamespace(perf_counter=itertools.count().__next__, thread_time=itertools.count().__next__)
    monkeypatch.setattr("packer.threads.time", clock)
    names = set(in_threads(lambda item: threading.current_thread().name, range(10 * ITEMS_AT_ONCE)))
    assert names == {threading.current_thread().name}


def test_items_are_taken_as_they_are_needed() -> None:
    """There may be millions; a caller that stops leaves the others, and an error comes in its place."""
    taken = []

    def items() -> Iterator[int]:
        for item in range(10**9):
            taken.append(item)
            yield item

    def call(item: int) -> int:
        time.sleep(0.0003)
        if item == 3 * ITEMS_AT_ONCE:
            raise ValueError(item)
        return item

    results = in_threads(call, items())
    with pytest.raises(ValueError, match="192"):
        list(results)
    assert len(taken) < 3 * THREADS * ITEMS_AT_ONCE
