"""Random words of visits, and the numbers and permutations made of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import UsageError
from readers import draws
from readers.draws import ROUNDS, draw_below, draw_permutations, draw_visits, draw_words, visits_of

WORDS = 2 * ROUNDS + 1
#: Six standard deviations: a fair source fails one run in a billion.
SURE = 6


def _words(samples: int, seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return draw_words(visits_of(0, 0, np.arange(samples)), seed, 2, WORDS)


def test_the_words_are_those_of_splitmix64(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that begins at 0 gives the generator's published first words, each fetched by its place."""
    monkeypatch.setattr(draws, "_start", lambda *_: np.uint64(0))
    first = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert visits_of(0, 0, np.array([3, 0, 1, 2])).tolist() == [first[3], *first[:3]]


def test_where_streams_begin_never_changes() -> None:
    """The same crops and points come with every version: these numbers are fixed."""
    words = draw_words(visits_of(3, 7, np.array([0, 5])), 3, 1, 1)
    assert words.tolist() == [[18301677139538503876], [17328777677431619668]]
    assert draw_permutations(_words(2), np.array([10, 3]), 5).tolist() == [[8, 3, 4, 7, 0], [0, 2, 1, 0, 2]]


def test_words_depend_on_seed_epoch_purpose_and_position() -> None:
    """A change of any one of them changes every word."""
    places = np.arange(100)
    ways = [((0, 0), (0, 1)), ((1, 0), (0, 1)), ((0, 1), (0, 1)), ((0, 0), (1, 1)), ((0, 0), (0, 2))]
    found = [draw_words(visits_of(*epoch, places), *own, 4) for epoch, own in ways]
    assert len(np.unique(np.stack(found))) == 400 * len(ways)


def test_new_visits_follow_from_torchs_generator() -> None:
    """One number is drawn for all of them; they are never the same twice, unless torch is seeded again."""
    torch.manual_seed(1)
    first, second = draw_visits(100), draw_visits(100)
    assert len(np.unique(np.concatenate([first, second]))) == 200
    torch.manual_seed(1)
    assert np.array_equal(draw_visits(3), first[:3])
    assert np.array_equal(draw_visits(100), second)


@pytest.mark.parametrize("end", [1, 2, 3, 10, 1000])
def test_numbers_below_an_end_are_equally_likely(end: int) -> None:
    """Each of them comes about as often as any other, and none at or behind the end."""
    words = draw_words(visits_of(0, 0, np.arange(100_000)), 0, 1, 1)
    counts = np.bincount(draw_below(words[:, 0], np.full(100_000, end)), minlength=end)
    assert len(counts) == end
    mean = 100_000 / end
    assert (np.abs(counts - mean) <= SURE * np.sqrt(mean)).all()


@given(ends=st.lists(st.integers(1, 2**32), min_size=1, max_size=9), first=st.integers(1, 300), seed=st.integers(0, 99))
def test_a_permutation_repeats_nothing_before_its_end(ends: list[int], first: int, seed: int) -> None:
    """Numbers lie below their end and differ; where more are asked for than there are, they come evenly often."""
    found = draw_permutations(_words(len(ends), seed), np.array(ends), first)
    assert found.shape == (len(ends), first)
    for row, end in zip(found, ends, strict=True):
        assert row.min() >= 0
        assert row.max() < end
        times = np.unique(row, return_counts=True)[1]
        assert len(times) == min(first, end)
        assert times.max() == -(-first // end)
        assert times.min() >= first // end


@pytest.mark.parametrize("end", [2, 3, 7, 10, 100])
def test_every_number_is_as_likely_at_every_place(end: int) -> None:
    """Over many samples, each number stands at each place of the permutation about equally often."""
    samples = 50_000
    found = draw_permutations(_words(samples), np.full(samples, end), end)
    for place in found.T:
        counts = np.bincount(place, minlength=end)
        assert (np.abs(counts - samples / end) <= SURE * np.sqrt(samples / end)).all()


def test_pairs_are_as_likely_as_any_other() -> None:
    """Which two numbers come first says nothing of how near they are."""
    samples, end = 100_000, 20
    found = draw_permutations(_words(samples), np.full(samples, end), 2)
    counts = np.bincount(found[:, 0] * end + found[:, 1], minlength=end * end).reshape(end, end)
    off = counts[~np.eye(end, dtype=bool)]
    mean = samples / len(off)
    assert (np.diag(counts) == 0).all()
    assert (np.abs(off - mean) <= 1.5 * SURE * np.sqrt(mean)).all()


def test_what_cannot_seed_is_refused() -> None:
    """Negative seeds and epochs."""
    with pytest.raises(UsageError, match="seed -1"):
        visits_of(-1, 0, np.arange(1))
    with pytest.raises(UsageError, match="epoch -1"):
        visits_of(0, -1, np.arange(1))
