"""What reading one sample may take, and that it is given back."""

from __future__ import annotations

import os
import sys

import pytest

from packer.convert import ConvertOptions
from packer.sources.apart import Limits, memory_within

if sys.platform.startswith("linux"):
    import resource


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone keeps this limit")
@pytest.mark.parametrize("fails", [False, True])
def test_the_limit_holds_for_the_block_alone(fails: bool) -> None:
    """Behind the block the process may take what it could before, also where the block took too much."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    reached = False
    try:
        with memory_within(2**28):
            within = resource.getrlimit(resource.RLIMIT_DATA)
            bytearray(2**30 if fails else 2**10)
    except MemoryError:
        reached = True
    assert reached == fails
    assert within[0] != before[0]
    assert within[1] == before[1]
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert len(bytearray(2**29)) == 2**29


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages of memory are asked for as Linux has them")
@pytest.mark.parametrize(("pages", "expected"), [(2**24, 2**33), (2**18, 2**30)], ids=["64 GiB", "1 GiB"])
def test_an_eighth_of_the_memory_is_the_usual_limit(monkeypatch: pytest.MonkeyPatch, pages: int, expected: int) -> None:
    """On a small machine it is 1 GiB, so that a few bytes of a file cannot take all there is."""
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": pages, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert Limits().nbytes == ConvertOptions().read_bytes == expected
