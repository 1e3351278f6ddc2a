"""FrameCache: whatever is asked of it, each frame lies where it is said to lie."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.format.frame_cache import FrameCache

#: Frames of 1 to 13 bytes, by their numbers.
batches = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=20), max_size=20)


def fill(cache, frames, failing=(), size=lambda frame: frame + 1):
    """Fills in frames, each of bytes with its number; returns the bytes of each, and what was decoded."""
    addresses, inverse = np.unique(np.array(frames, np.int64), return_inverse=True)
    sizes = np.array([size(frame) for frame in addresses.tolist()], np.int64)
    decoded = []

    def decode(some, places, memory):
        ends = places + sizes[some]
        assert (places >= 0).all()
        assert (ends <= len(memory)).all()
        for frame, place, end in zip(addresses[some].tolist(), places.tolist(), ends.tolist(), strict=True):
            memory[place:end] = 255
            if frame in failing:
                raise ValueError("damaged")
            decoded.append(frame)
            memory[place:end] = frame

    places = cache.fill(addresses, sizes, decode)
    memory = cache.memory
    found = [memory[at : at + nbytes].tolist() for at, nbytes in zip(places.tolist(), sizes.tolist(), strict=True)]
    return [found[i] for i in inverse.tolist()], decoded


def whole(frames, size=lambda frame: frame + 1):
    return [[frame] * size(frame) for frame in frames]


@given(asked=batches, room=st.integers(0, 80))
def test_the_cache_holds_what_was_asked_for(asked, room):
    """Every frame of every batch is whole, none is decoded twice for one batch, and none that was just decoded."""
    cache = FrameCache()
    cache.grow(room)
    last, just = [], set()
    for frames in asked:
        held, decoded = fill(cache, frames)
        assert held == whole(frames)
        assert len(decoded) == len(set(decoded))
        assert set(decoded) <= set(frames)
        if frames == last:
            assert not just & set(decoded)
        last, just = frames, set(decoded)


@given(asked=batches, failing=st.sets(st.integers(0, 12), max_size=4))
def test_damaged_frames_are_not_kept(asked, failing):
    """After a frame could not be decoded, it fails again, and the cache still gives the right bytes for all others."""
    cache = FrameCache()
    for frames in asked:
        if failing & set(frames):
            for _ in range(2):
                with pytest.raises(ValueError, match="damaged"):
                    fill(cache, frames, failing)
        else:
            assert fill(cache, frames)[0] == whole(frames)


def test_frames_that_fit_are_decoded_once():
    """With room for all frames, those of a batch and one, nothing is decoded a second time."""
    cache = FrameCache()
    cache.grow(31 * 8)
    rng = np.random.default_rng(3)
    asked = [rng.integers(0, 20, 10).tolist() for _ in range(100)]
    decoded = [frame for frames in asked for frame in fill(cache, frames, size=lambda _: 8)[1]]
    assert sorted(decoded) == list(range(20))


def test_the_oldest_frames_make_room():
    """What was decoded first goes first."""
    cache = FrameCache()
    cache.grow(6 * 8)
    for frame in (1, 2, 3, 4, 5, 6):
        fill(cache, [frame], size=lambda _: 8)
    assert fill(cache, [5, 6], size=lambda _: 8)[1] == []
    assert fill(cache, [1], size=lambda _: 8)[1] == [1]


def test_growing_keeps_room_for_two_batches():
    """The cache grows to what it is told, and so that the next batch finds the frames of this one; never smaller."""
    cache = FrameCache()
    assert fill(cache, list(range(10)))[1] == list(range(10))
    assert fill(cache, [2, 5, 9, 12])[1] == [12]
    cache.grow(500)
    cache.grow(5)
    assert len(cache.memory) == 500


def test_where_memory_does_not_suffice_all_stays_as_it_was():
    """Frames that are held can be read, and there is room for more when there is memory again."""
    cache = FrameCache()
    fill(cache, [1, 2])
    with pytest.raises(MemoryError):
        cache.grow(2**60)
    assert fill(cache, [1, 2]) == (whole([1, 2]), [])
    assert fill(cache, list(range(13)))[0] == whole(range(13))
