"""The size arithmetic against what LMDB itself reports."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lmdb
import pytest

from packer.format import pages
from packer.format.pages import file_bytes


def write(path: Path, entries: list[tuple[int, int]], map_size: int = 2**28) -> dict[str, Any]:
    """One commit of appended entries, keys numbered and padded to size; returns LMDB's own statistics."""
    with lmdb.open(str(path), subdir=False, lib_version=0, lock=False, sync=False, map_size=map_size) as env:
        with env.begin(write=True) as txn:
            for i, (key_bytes, value_bytes) in enumerate(entries):
                assert txn.put(i.to_bytes(4, "big").ljust(key_bytes, b"k"), bytes(value_bytes), append=True)
        return dict(env.stat())


def entries(seed: int) -> list[tuple[int, int]]:
    rng = random.Random(seed)
    largest = rng.uniform(0.5, 5)
    return [(rng.randint(4, 511), int(10 ** rng.uniform(0, largest))) for _ in range(rng.randint(1, 600))]


@pytest.mark.parametrize("key_bytes", [4, 8, 9, 511])
def test_a_value_moves_to_overflow_pages_at_the_very_byte_where_lmdb_moves_it(tmp_path: Path, key_bytes: int) -> None:
    """The largest value beside its key is inline for LMDB too, and one byte more is not."""
    largest = max(n for n in range(pages.PAGE_SIZE) if pages.is_inline(key_bytes, n))
    assert write(tmp_path / "a", [(key_bytes, largest)])["overflow_pages"] == 0
    assert write(tmp_path / "b", [(key_bytes, largest + 1)])["overflow_pages"] == 1


@pytest.mark.parametrize("count", [1, 2, 3, 300])
def test_overflow_pages_have_one_header_for_the_whole_run(tmp_path: Path, count: int) -> None:
    """A run of m pages holds PAGE_SIZE * m - 16 bytes and not one more."""
    full = pages.PAGE_SIZE * count - 16
    for value_bytes in (full, full + 1):
        said = write(tmp_path / str(value_bytes), [(8, value_bytes)])["overflow_pages"]
        assert pages.overflow_pages(value_bytes) == said
    assert pages.overflow_pages(full) == count
    assert pages.overflow_pages(full + 1) == count + 1


@pytest.mark.parametrize("seed", range(12))
def test_tree_pages_are_those_that_lmdb_counts(tmp_path: Path, seed: int) -> None:
    """Leaves, branches and overflow pages of one commit add up to LMDB's statistics."""
    said = write(tmp_path / "file", entries(seed))
    assert pages.tree_pages(entries(seed)) == said["leaf_pages"] + said["branch_pages"] + said["overflow_pages"]


def test_no_entries_take_no_pages() -> None:
    """An empty tree has no root page."""
    assert pages.tree_pages([]) == 0


@pytest.mark.parametrize("seed", range(100, 108))
def test_the_map_size_is_enough_and_one_page_less_is_not(tmp_path: Path, seed: int) -> None:
    """The map holds the file with nothing to spare."""
    needed = pages.map_size(file_bytes([entries(seed)]))
    write(tmp_path / "fits", entries(seed), needed)
    with pytest.raises(lmdb.MapFullError):
        write(tmp_path / "too small", entries(seed), needed - pages.PAGE_SIZE)
