"""Advice: exactly the bytes that are wanted are asked for, of the right files, and only while reading is cold."""

import os
from types import SimpleNamespace

import numpy as np
import pytest

from readers import Loader, PackedDataset
from readers import readahead as advice
from readers.readahead import GAP_BYTES, PIECE_BYTES, ask

PAGE = advice.PAGE_SIZE


@pytest.fixture
def calls(monkeypatch):
    """Calls of posix_fadvise, as (descriptor, offset, length)."""
    made = []

    def pretend(descriptor, offset, length, kind):
        assert kind == os.POSIX_FADV_WILLNEED
        made.append((descriptor, offset, length))

    monkeypatch.setattr(os, "posix_fadvise", pretend)
    return made


def maps_at(*starts):
    """Pretended maps at these addresses; the descriptor of map i is 10 + i."""
    memory = SimpleNamespace(starts=np.array(starts, np.int64))
    return SimpleNamespace(memory=memory, shards=[SimpleNamespace(fd=10 + i) for i in range(len(starts))])


def spans(*pairs):
    """Start and end of stretches, from start and size of each."""
    return np.array([(start, start + size) for start, size in pairs], np.int64).reshape(-1, 2)


@pytest.fixture
def disk(monkeypatch):
    """Sets whether each look at it finds that blocks were read from the disk since the last one."""
    blocks, reads = [0], [0]

    def look():
        blocks[0] += reads[0]
        return blocks[0]

    monkeypatch.setattr(advice, "_blocks_read", look)
    return lambda is_read: reads.__setitem__(0, int(is_read))


def test_whole_pages_of_the_right_file_are_asked_for(calls):
    """A stretch is asked for from its first page on, at its offset in the file that holds it."""
    ask(maps_at(100 * PAGE, 0), spans((102 * PAGE + 10, 50), (3 * PAGE, PAGE + 1)))
    assert calls == [(11, 3 * PAGE, PAGE + 1), (10, 2 * PAGE, 60)]


def test_near_stretches_are_one_call_and_far_ones_two(calls):
    """Stretches with a gap of up to GAP_BYTES are joined, whatever order they come in."""
    far = 10 * PAGE + GAP_BYTES + PAGE
    ask(maps_at(0), spans((far, 10), (8 * PAGE, 2 * PAGE), (0, 10)))
    assert calls == [(10, 0, 10), (10, 8 * PAGE, 2 * PAGE), (10, far, 10)]
    calls.clear()
    ask(maps_at(0), spans((3 * PAGE, 10), (0, 10), (PAGE, 5), (0, PAGE)))
    assert calls == [(10, 0, 3 * PAGE + 10)]


def test_files_side_by_side_in_memory_are_asked_for_one_by_one(calls):
    """Where the map of one file ends at the beginning of another's, each file is asked for its own bytes."""
    ask(maps_at(4 * PAGE, 0), spans((3 * PAGE, PAGE), (4 * PAGE, PAGE)))
    assert calls == [(11, 3 * PAGE, PAGE), (10, 0, PAGE)]


def test_samples_of_no_bytes_ask_for_nothing(calls):
    """A length of 0 means the rest of the file to the kernel, and is never given."""
    ask(maps_at(0), spans((0, 0), (PAGE, 0)))
    ask(maps_at(0), spans())
    assert calls == []
    ask(maps_at(0), spans((0, 0), (100 * PAGE, 7), (900 * PAGE, 0)))
    assert calls == [(10, 100 * PAGE, 7)]


def test_long_stretches_are_asked_for_in_pieces(calls):
    """Kernels drop what is beyond their read-ahead, so no call asks for more than PIECE_BYTES."""
    ask(maps_at(0), spans((PAGE, 2 * PIECE_BYTES + 5), (2**30, PIECE_BYTES)))
    assert calls == [
        (10, PAGE, PIECE_BYTES),
        (10, PAGE + PIECE_BYTES, PIECE_BYTES),
        (10, PAGE + 2 * PIECE_BYTES, 5),
        (10, 2**30, PIECE_BYTES),
    ]


def covered(calls, opened):
    """Bytes asked for in each file, as a mask, by descriptor."""
    masks = {shard.fd: np.zeros(len(shard.bytes), bool) for shard in opened.shards}
    for descriptor, offset, length in calls:
        assert 0 < length <= PIECE_BYTES
        assert offset % PAGE == 0
        assert 0 <= offset <= offset + length <= len(masks[descriptor])
        masks[descriptor][offset : offset + length] = True
    return masks


def assert_covered(masks, opened, wanted):
    """Holds the masks against the spans wanted, one at a time."""
    starts = opened.memory.starts
    for start, end in wanted[wanted[:, 1] > wanted[:, 0]].tolist():
        shard = int(np.where(starts <= start, starts, -1).argmax())
        first = int(starts[shard])
        assert masks[opened.shards[shard].fd][start - first : end - first].all()


def test_every_byte_of_a_batch_is_covered(packed, calls):
    """Every stored byte of every kind of field is asked for, and none beyond the end of its file."""
    opened = PackedDataset(packed).opened
    numbers = np.random.default_rng(1).permutation(60)[:20]
    wanted = np.concatenate([r.spans(r.locate(numbers)) for r in opened.readers.values()])
    assert ask(opened, wanted)
    masks = covered(calls, opened)
    assert_covered(masks, opened, wanted)


def test_advice_is_given_while_reading_is_cold(rows, calls, disk, monkeypatch):
    """The first run of all is asked for; the others only while blocks are read from the disk."""
    monkeypatch.setattr("readers.fields.COPIED_RUN_BYTES", 1400)
    monkeypatch.setattr(advice, "GAP_BYTES", 0)
    loader = Loader(PackedDataset(rows), 10, shuffle=True)
    asked = []
    for is_read in (False, False, True, True, False, False):
        disk(is_read)
        calls.clear()
        assert sorted(n for batch in loader for n in batch["y"].tolist()) == list(range(1000))
        asked.append(len(calls))
    assert 2 * 10 >= asked[0] > 0  # of two fields
    assert asked[1] == asked[5] == 0
    assert min(asked[2:4]) > 10 * asked[0]
    assert 0 < asked[4] < 10 * asked[0]


def test_advice_runs_ahead_of_reading(rows, calls, disk, monkeypatch):
    """While it stays cold, what the next batches need is asked for before they are read."""
    disk(True)
    monkeypatch.setattr("readers.fields.COPIED_RUN_BYTES", 25 * 140)
    monkeypatch.setattr(advice, "COLD_BYTES", 50 * 140)
    dataset = PackedDataset(rows)
    places = dataset.opened.readers["x"]
    loader = Loader(dataset, 25, shuffle=True)
    order = loader.order.epoch(0)
    for step, _ in enumerate(loader):
        if 8 < step < 39:
            masks = covered(calls, dataset.opened)
            next_batch = order[25 * (step + 1) : 25 * (step + 2)]
            assert_covered(masks, dataset.opened, places.spans(places.locate(next_batch)))


@pytest.mark.parametrize("missing", ["posix_fadvise", "resource"])
def test_platforms_without_the_call_work(rows, disk, monkeypatch, missing):
    """Where there is no posix_fadvise or no count of blocks read, batches come all the same."""
    if missing == "resource":
        monkeypatch.setattr(advice, "resource", None)
    else:
        monkeypatch.delattr(os, "posix_fadvise")
        disk(True)
    numbers = [n for batch in Loader(PackedDataset(rows), 10) for n in batch["y"].tolist()]
    assert numbers == list(range(1000))


def test_file_systems_that_take_no_advice_work(rows, disk, monkeypatch):
    """A refusal by the file system is taken for a no, once an epoch."""
    disk(True)
    refusals = []

    def refuse(descriptor, offset, length, kind):
        if kind == os.POSIX_FADV_WILLNEED:
            refusals.append(1)
            raise OSError("not here")

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    assert len(list(Loader(PackedDataset(rows), 10))) == 100
    assert refusals == [1]
