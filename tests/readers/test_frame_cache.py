"""FrameCache: whatever is asked of it, each slot holds the frame it is said to hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from readers.frame_cache import FrameCache, FrameStore, distinct

batches = st.lists(st.lists(st.integers(0, 12), max_size=20), max_size=20)


def fill(cache, frames, failing=()):
    """Fills in frames, each 8 bytes of its number; returns what the slots hold, and what was decoded."""
    decoded = []

    def decode(items, places, memory):
        for item, place in zip(items.tolist(), places.tolist(), strict=True):
            assert 0 <= place <= len(memory) - 8
            slot = memory[place : place + 8]
            if frames[item] in failing:
                slot[:] = 255
                raise ValueError("damaged")
            decoded.append(frames[item])
            slot[:] = frames[item]

    slots = cache.fill(distinct(np.array(frames, np.int64)), decode)
    return cache.slots.numpy().reshape(-1, 8)[slots], decoded


@given(frames=st.lists(st.integers(0, 12), max_size=20))
def test_distinct_frames(frames):
    """Each once, in ascending order, with an item of each and the frame of each item."""
    numbers = np.array(frames, np.int64)
    addresses, item, inverse = distinct(numbers)
    assert addresses.tolist() == sorted(set(frames))
    assert numbers[item].tolist() == addresses.tolist()
    assert addresses[inverse].tolist() == frames


@given(asked=batches, room=st.integers(0, 10))
def test_slots_hold_what_was_asked_for(asked, room):
    """Every item of every batch is in its slot, none is decoded twice for one batch, and none that was just decoded."""
    cache = FrameCache(8, room)
    last: list[int] = []
    for frames in asked:
        held, decoded = fill(cache, frames)
        assert held.tolist() == [[frame] * 8 for frame in frames]
        assert len(decoded) == len(set(decoded))
        assert set(decoded) <= set(frames)
        if frames == last:
            assert decoded == []
        last = frames


@given(asked=batches, failing=st.sets(st.integers(0, 12), max_size=4))
def test_damaged_frames_are_not_kept(asked, failing):
    """After a frame could not be decoded, the cache still gives the right bytes for all others."""
    cache = FrameCache(8, 3)
    for frames in asked:
        if failing & set(frames):
            with pytest.raises(ValueError, match="damaged"):
                fill(cache, frames, failing)
        else:
            assert fill(cache, frames)[0].tolist() == [[frame] * 8 for frame in frames]


def test_frames_that_fit_are_decoded_once():
    """With room for all frames and a batch besides, nothing is decoded a second time."""
    cache = FrameCache(8, 40)
    rng = np.random.default_rng(3)
    decoded = [frame for _ in range(100) for frame in fill(cache, rng.integers(0, 20, 10).tolist())[1]]
    assert sorted(decoded) == list(range(20))


def test_the_oldest_frame_makes_room():
    """A ring: what was decoded first goes first, what the present batch needs stays."""
    cache = FrameCache(8, 4)
    for frames in ([1], [2], [3], [4]):
        fill(cache, frames)
    # 1 is the oldest, but needed now.
    assert fill(cache, [1, 5])[1] == [5]
    assert fill(cache, [1, 3])[1] == []
    assert fill(cache, [2])[1] == [2]


def test_all_that_is_missing_is_asked_for_at_once():
    """One call decodes every frame that is in no slot, each to a slot of its own, and none is made for nothing."""
    cache = FrameCache(8, 10)
    calls = []

    def decode(items, places, memory):
        calls.append(items.tolist())
        assert len(memory) == 80
        assert len(set(places.tolist())) == len(places)
        assert not (places % 8).any()

    for frames in ([5, 2, 5, 9], [9, 2, 5], [1, 2, 9, 4]):
        cache.fill(distinct(np.array(frames)), decode)
    assert calls == [[1, 2, 3], [0, 3]]


def test_growing_keeps_room_for_two_batches():
    """The cache grows to twice what a batch needs, and to what it is told; it never shrinks."""
    cache = FrameCache(8, 0)
    fill(cache, list(range(10)))
    assert len(cache.slots) == 20 * 8
    cache.grow(50)
    cache.grow(5)
    assert len(cache.slots) == 50 * 8


def test_kept_frames_are_decoded_once_and_the_oldest_go_first():
    """A store holds no more bytes than its limit, and gives back what it holds without decoding."""
    store = FrameStore()
    store.limit = 100
    decoded = []

    def get(address):
        def decode():
            decoded.append(address)
            return np.full(30, address, np.uint8)

        return store.get(address, decode)

    for address in (1, 2, 3, 1, 4, 1, 2):
        assert get(address)[0] == address
    assert decoded == [1, 2, 3, 4, 2]


def test_a_store_without_room_keeps_nothing():
    """Unless a block shuffle asks for it, no memory is held between batches."""
    store = FrameStore()
    calls = []
    for _ in range(2):
        store.get(7, lambda: calls.append(7) or np.zeros(5, np.uint8))
    assert calls == [7, 7]


def test_where_memory_does_not_suffice_all_stays_as_it_was(monkeypatch):
    """Frames that are held can be read, and there is room for more when there is memory again."""
    cache = FrameCache(8, 4)

    def decode(items, places, memory):
        for place in places.tolist():
            memory[place : place + 8] = place % 251

    def fail(nbytes):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("readers.frame_cache.fresh", fail)
        with pytest.raises(MemoryError):
            cache.fill(distinct(np.arange(9)), decode)
    slots = cache.fill(distinct(np.arange(9)), decode)
    assert len({*slots.tolist()}) == 9
    assert cache.slots.nbytes >= 9 * 8
