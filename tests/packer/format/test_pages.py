"""The arithmetic of pages and file sizes against what LMDB itself reports and writes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lmdb
import pytest

from packer.format.sizes import META_PAGES, PAGE_SIZE, PageReplay, map_size

Transactions = list[list[tuple[int, int]]]

#: Bytes of all values of one random file: keeps a file's test near 0.1 s.
FILE_BUDGET = 12_000_000
LARGEST = memoryview(bytes(FILE_BUDGET))


def replayed(transactions: Transactions) -> PageReplay:
    """A replay of these puts and commits."""
    replay = PageReplay()
    for transaction in transactions:
        for key_bytes, value_bytes in transaction:
            replay.put(key_bytes, value_bytes)
        replay.commit()
    return replay


def file_bytes(transactions: Transactions) -> int:
    """Size of the file that these puts and commits make."""
    return replayed(transactions).file_bytes


def write(path: Path, transactions: Transactions, room: int) -> int:
    """Appends and commits as told; returns the size of the file."""
    env = lmdb.open(str(path), subdir=False, lib_version=0, lock=False, sync=False, map_size=room)
    number = 0
    with env:
        for transaction in transactions:
            with env.begin(write=True) as txn:
                for key_bytes, value_bytes in transaction:
                    key = number.to_bytes(4, "big").ljust(key_bytes, b"k")
                    assert txn.put(key, LARGEST[:value_bytes], append=True)
                    number += 1
    return path.stat().st_size


def sizes(rng: random.Random) -> list[tuple[int, int]]:
    """Key and value sizes of a file: from 1 byte to several MB, keys of one size or of many."""
    key_bytes = rng.choice([4, 8, 8, 511, None])
    largest = rng.uniform(0.3, 6.8)
    found, room = [], FILE_BUDGET
    for _ in range(rng.choice([rng.randint(1, 50), rng.randint(50, 2000)])):
        value_bytes = int(10 ** rng.uniform(0, largest))
        room -= value_bytes
        if room < 0:
            break
        found.append((key_bytes or rng.randint(4, 511), value_bytes))
    return found


def cut(rng: random.Random, entries: list[tuple[int, int]]) -> Transactions:
    """Commits after every so many puts, or at random, or once; some commits are empty."""
    every = rng.choice([1, 1, 2, 3, 7, 100, len(entries), None])
    transactions: Transactions = [[]]
    for entry in entries:
        transactions[-1].append(entry)
        if len(transactions[-1]) == every or (every is None and rng.random() < 0.3):
            transactions += [[]] * rng.choice([1, 1, 1, 2])
            transactions[-1] = []
    return transactions


@pytest.mark.parametrize("seed", range(80))
def test_the_calculated_size_is_that_of_the_file_in_the_smallest_map(tmp_path: Path, seed: int) -> None:
    """Random sizes and commits: the size is exact, and `map_size` of it is enough."""
    rng = random.Random(seed)
    transactions = cut(rng, sizes(rng))
    expected = file_bytes(transactions)
    assert write(tmp_path / "file", transactions, map_size(expected)) == expected


@pytest.mark.parametrize("seed", range(0, 80, 8))
def test_a_map_one_page_smaller_is_full(tmp_path: Path, seed: int) -> None:
    """Nothing is spared: with many commits too, one page less does not hold the file."""
    rng = random.Random(seed)
    transactions = cut(rng, sizes(rng))
    too_small = map_size(file_bytes(transactions)) - PAGE_SIZE
    with pytest.raises(lmdb.MapFullError):
        write(tmp_path / "file", transactions, too_small)


@pytest.mark.parametrize(("key_bytes", "value_bytes"), [(8, 500), (511, 10), (8, 5000), (8, 20_000)])
def test_thousands_of_commits_stay_exact(tmp_path: Path, key_bytes: int, value_bytes: int) -> None:
    """3,000 commits of one put each add no more than two of them do."""
    transactions = [[(key_bytes, value_bytes)]] * 3000
    expected = file_bytes(transactions)
    assert write(tmp_path / "file", transactions, map_size(expected)) == expected


def test_one_commit_makes_two_meta_pages_and_a_tree() -> None:
    """Without a second commit nothing is retired, so the file is the tree and the meta pages."""
    entries = sizes(random.Random(5))
    assert file_bytes([entries]) == PAGE_SIZE * (META_PAGES + replayed([entries]).tree_pages)


def test_a_file_without_puts_has_its_meta_pages_alone(tmp_path: Path) -> None:
    """Commits of nothing write nothing."""
    assert file_bytes([[], []]) == write(tmp_path / "file", [[], []], 2**20) == 2 * PAGE_SIZE


def test_putting_step_by_step_is_the_same_as_all_at_once() -> None:
    """`PageReplay` gives the size of what has been committed so far at every commit."""
    transactions = cut(random.Random(9), [(8, n) for n in range(0, 9000, 100)])
    replay = PageReplay()
    for done, transaction in enumerate(transactions, 1):
        for key_bytes, value_bytes in transaction:
            replay.put(key_bytes, value_bytes)
        replay.commit()
        assert replay.file_bytes == file_bytes(transactions[:done])


def statistics(path: Path, entries: list[tuple[int, int]], room: int = 2**28) -> dict[str, Any]:
    """One commit of appended entries, keys numbered and padded to size; returns LMDB's own statistics."""
    with lmdb.open(str(path), subdir=False, lib_version=0, lock=False, sync=False, map_size=room) as env:
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
    largest = max(n for n in range(PAGE_SIZE) if replayed([[(key_bytes, n)]]).tree_pages == 1)
    assert statistics(tmp_path / "a", [(key_bytes, largest)])["overflow_pages"] == 0
    assert statistics(tmp_path / "b", [(key_bytes, largest + 1)])["overflow_pages"] == 1


@pytest.mark.parametrize("count", [1, 2, 3, 300])
def test_overflow_pages_have_one_header_for_the_whole_run(tmp_path: Path, count: int) -> None:
    """A run of m pages holds PAGE_SIZE * m - 16 bytes and not one more."""
    full = PAGE_SIZE * count - 16
    for value_bytes in (full, full + 1):
        said = statistics(tmp_path / str(value_bytes), [(8, value_bytes)])["overflow_pages"]
        assert said == count + (value_bytes > full)
        assert replayed([[(8, value_bytes)]]).tree_pages == 1 + said


@pytest.mark.parametrize("seed", range(12))
def test_tree_pages_are_those_that_lmdb_counts(tmp_path: Path, seed: int) -> None:
    """Leaves, branches and overflow pages of one commit add up to LMDB's statistics."""
    said = statistics(tmp_path / "file", entries(seed))
    assert replayed([entries(seed)]).tree_pages == said["leaf_pages"] + said["branch_pages"] + said["overflow_pages"]


def test_no_entries_take_no_pages() -> None:
    """An empty tree has no root page."""
    assert replayed([]).tree_pages == 0


@pytest.mark.parametrize("seed", range(100, 108))
def test_the_map_size_is_enough_and_one_page_less_is_not(tmp_path: Path, seed: int) -> None:
    """The map holds the file with nothing to spare."""
    needed = map_size(file_bytes([entries(seed)]))
    statistics(tmp_path / "fits", entries(seed), needed)
    with pytest.raises(lmdb.MapFullError):
        statistics(tmp_path / "too small", entries(seed), needed - PAGE_SIZE)
