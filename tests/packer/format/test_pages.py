"""The arithmetic of pages and file sizes against what LMDB itself reports and writes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from packer.errors import UsageError
from packer.format import PAGE_SIZE, LmdbAppender, map_size, sizes
from packer.format.sizes import file_bytes

#: Bytes of all values of one random file: keeps a file's test near 0.1 s.
FILE_BUDGET = 12_000_000
LARGEST = memoryview(bytes(FILE_BUDGET))
#: So many bytes between two commits that there is one alone.
ONE_COMMIT = 2**40

Entries = list[tuple[int, int]]
Commits = Callable[[int], None]


@pytest.fixture(autouse=True)
def commit_every(monkeypatch: pytest.MonkeyPatch) -> Commits:
    """Sets how many bytes are put between two commits; until it is called there is one commit."""
    monkeypatch.setattr(sizes, "COMMIT_BYTES", ONE_COMMIT)
    return lambda nbytes: monkeypatch.setattr(sizes, "COMMIT_BYTES", nbytes)


def write(path: Path, entries: Entries, room: int) -> int:
    """Appends keys and values of these sizes to a file whose map may not grow; returns the size of the file."""
    with LmdbAppender(path, room, map_limit=room) as appender:
        for number, (key_bytes, value_bytes) in enumerate(entries):
            appender.put(number.to_bytes(4, "big").ljust(key_bytes, b"k"), LARGEST[:value_bytes])
    return path.stat().st_size


def random_entries(rng: random.Random) -> Entries:
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


def random_commits(rng: random.Random, entries: Entries) -> int:
    """Bytes between two commits: a commit after every put, after a few, after many, or one alone."""
    mean = max(1, sum(map(sum, entries)) // max(1, len(entries)))
    return rng.choice([1, 1, mean, 3 * mean, 7 * mean, 100 * mean, ONE_COMMIT])


@pytest.mark.parametrize("seed", range(80))
def test_the_calculated_size_is_that_of_the_file_in_the_smallest_map(
    tmp_path: Path, commit_every: Commits, seed: int
) -> None:
    """Random sizes and commits: the size is exact, and `map_size` of it is enough."""
    rng = random.Random(seed)
    entries = random_entries(rng)
    commit_every(random_commits(rng, entries))
    expected = file_bytes(entries)
    assert write(tmp_path / "file", entries, map_size(expected)) == expected


@pytest.mark.parametrize("seed", range(0, 80, 8))
def test_a_map_one_page_smaller_is_full(tmp_path: Path, commit_every: Commits, seed: int) -> None:
    """Nothing is spared: with many commits too, one page less does not hold the file."""
    rng = random.Random(seed)
    entries = random_entries(rng)
    commit_every(random_commits(rng, entries))
    too_small = map_size(file_bytes(entries)) - PAGE_SIZE
    with pytest.raises(UsageError, match="needs a larger map"):
        write(tmp_path / "file", entries, too_small)


@pytest.mark.parametrize("key_bytes", [4, 8, 9, 511])
def test_values_move_to_pages_of_their_own_at_the_very_byte_where_lmdb_moves_them(
    tmp_path: Path, key_bytes: int
) -> None:
    """From half a page on, and page by page from there: every size around these bounds."""
    inline = max(n for n in range(PAGE_SIZE) if file_bytes([(key_bytes, n)]) == 3 * PAGE_SIZE)
    bounds = (inline, *(PAGE_SIZE * count - 16 for count in (1, 2, 3, 300)))
    for value_bytes in (bound + more for bound in bounds for more in (-1, 0, 1, 2)):
        entries = [(key_bytes, value_bytes)]
        assert write(tmp_path / "file", entries, 2**22) == file_bytes(entries)


@pytest.mark.parametrize(("key_bytes", "value_bytes"), [(8, 500), (511, 10), (8, 5000), (8, 20_000)])
def test_thousands_of_commits_stay_exact(
    tmp_path: Path, commit_every: Commits, key_bytes: int, value_bytes: int
) -> None:
    """3,000 commits of one put each add no more than two of them do."""
    entries = [(key_bytes, value_bytes)] * 3000
    commit_every(1)
    expected = file_bytes(entries)
    assert write(tmp_path / "file", entries, map_size(expected)) == expected


def test_a_file_without_puts_has_its_meta_pages_alone(tmp_path: Path) -> None:
    """Commits of nothing write nothing."""
    assert file_bytes([]) == write(tmp_path / "file", [], 2**20) == 2 * PAGE_SIZE
