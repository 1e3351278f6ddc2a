"""Advice: the bytes that are wanted are asked for, of the right files, and only while reading is cold."""

import resource
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from packer.format import PAGE_SIZE, Shard
from packer.writer import DatasetWriter
from readers import Loader, Mix, PackedDataset
from readers.source import source_of

#: Most kernels read no more for one call.
PIECE = 128 * 2**10


@pytest.fixture
def calls(monkeypatch):
    """Bytes that were asked for, as (path, offset, length): each from a page on, within its file, and not long."""
    made = []

    def pretend(shard, offset, length):
        path = Path(shard.path)
        assert offset % PAGE_SIZE == 0
        assert 0 < length <= PIECE  # a length of 0 means the rest of the file
        assert offset + length <= path.stat().st_size
        made.append((path, offset, length))

    monkeypatch.setattr(Shard, "load_ahead", pretend)
    return made


@pytest.fixture
def disk(monkeypatch):
    """Sets whether each look at it finds that blocks were read from the disk since the last one."""
    blocks, reads = [0], [1]

    def look(_):
        blocks[0] += reads[0]
        return SimpleNamespace(ru_inblock=blocks[0])

    monkeypatch.setattr(resource, "getrusage", look)
    return lambda is_read: reads.__setitem__(0, int(is_read))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """120 samples x of 200 kB, far apart for batches of a few; y is the number; every other cloud has no points."""
    folder = tmp_path_factory.mktemp("readahead") / "large"
    with DatasetWriter(folder, codec="none", shard_size=2**23) as writer:
        for number in range(120):
            cloud = np.zeros((number % 2, 3))
            writer.add(
                {
                    "x": np.full(200_000, number, np.uint8),
                    "y": np.int64(number),
                    "cloud": cloud,
                    "near": np.zeros(6000, np.uint8),
                }
            )
    return folder


def opened_for_small_runs(folder, fields):
    """A dataset whose batches are read one by one, so that an epoch of 24 MB has many runs."""
    dataset = PackedDataset(folder, fields)
    for reader in source_of(dataset).readers.values():
        reader.run_bytes = 2**20
    return dataset


def chunks_of(folder, field):
    """Where the stored bytes of a field lie: path, start and end of each chunk."""
    dataset = PackedDataset(folder)
    number = list(dataset.fields).index(field)
    for entry in dataset.manifest.shards:
        with Shard(folder / entry.file) as shard:
            index = shard.index(number, dataset.fields[field], entry.samples)
            sizes = np.diff(index.arrays["chunks"][:, 2].astype(np.int64), prepend=0)
            yield from ((Path(shard.path), at, at + size) for at, size in zip(index.chunk_at, sizes, strict=True))
            del index


def covered(calls, path, start, end):
    """Whether every byte from `start` to `end` of a file was asked for."""
    asked = np.zeros(path.stat().st_size, bool)
    for of, offset, length in calls:
        if of == path:
            asked[offset : offset + length] = True
    return asked[start:end].all()


@pytest.mark.usefixtures("disk")
def test_every_byte_of_a_batch_is_asked_for_by_few_calls(packed, large, calls):
    """Of every kind of field, stretches that lie near each other by one call; none for samples of no bytes."""
    for dataset in (PackedDataset(packed), Mix({PackedDataset(packed): 1, PackedDataset(packed): 1})):
        list(Loader(dataset, len(dataset), shuffle=True))
        for field in dataset.fields:
            assert not [chunk for chunk in chunks_of(packed, field) if not covered(calls, *chunk)]
        assert len(calls) < 6 * len(PackedDataset(packed).manifest.shards)
        calls.clear()
    list(Loader(PackedDataset(large, "cloud"), 12, sampler=np.arange(0, 120, 2)))
    assert calls == []


@pytest.mark.usefixtures("disk")
def test_stretches_that_lie_far_apart_are_asked_for_alone(large, calls):
    """Each in pieces that the kernel takes, and nothing of what lies between them."""
    list(Loader(PackedDataset(large, ["x"]), 4, sampler=[0, 9, 50, 110]))
    assert 4 * 200_000 <= sum(length for _, _, length in calls) < 4 * (200_000 + PAGE_SIZE)
    calls.clear()
    list(Loader(PackedDataset(large, "near"), 4, sampler=[0, 6, 2, 4]))
    assert len(calls) == 1  # what lies between them is read sooner than asked for


@pytest.mark.usefixtures("disk")
def test_stretches_within_one_another_are_asked_for_whole(tmp_path, calls):
    """Points of one large cloud, drawn anew for each visit."""
    with DatasetWriter(tmp_path / "p", codec="none") as writer:
        writer.add({"n": np.arange(50_000)})
        writer.add({"n": np.arange(3)})
    batch = next(iter(Loader(PackedDataset(tmp_path / "p", points=2), 40, sampler=[0] * 40)))
    ((path, start, _),) = chunks_of(tmp_path / "p", "n")
    for number in batch["n"].view(-1).tolist():
        assert covered(calls, path, start + 8 * number, start + 8 * number + 8)


def test_advice_is_given_while_reading_is_cold(large, calls, disk):
    """The first run of all is asked for; the others only while blocks are read from the disk."""
    dataset, asked = opened_for_small_runs(large, ["x", "y"]), []
    for is_read in (False, False, True, True, False, False):
        disk(is_read)
        calls.clear()
        assert sorted(n for batch in Loader(dataset, 4, shuffle=True) for n in batch["y"].tolist()) == list(range(120))
        asked.append(sum(length for _, _, length in calls))
    assert 0 < asked[0] <= 4 * 220_000
    assert asked[1] == asked[5] == 0
    assert asked[3] >= 120 * 200_000 > asked[2] > 10 * asked[0]  # a warm loop looks at every other run
    assert 0 < asked[4] < asked[2]


@pytest.mark.usefixtures("disk")
def test_advice_runs_ahead_of_reading(large, calls):
    """While it stays cold, what the next batches need is asked for before they are read."""
    loader = Loader(opened_for_small_runs(large, ["x"]), 4, shuffle=True)
    order = loader.order.epoch(0)
    (*chunks,) = chunks_of(large, "x")
    starts = [(path, at) for path, start, end in chunks for at in range(start, end, 200_000)]
    for step, _ in enumerate(loader):
        if 8 < step < 28:
            for number in order[4 * (step + 1) : 4 * (step + 2)]:
                path, at = starts[number]
                assert covered(calls, path, at, at + 200_000)


@pytest.mark.usefixtures("disk")
def test_bytes_are_asked_for_in_the_order_of_reading(large, calls):
    """Wherever the kernel maps the shards."""
    (*chunks,) = chunks_of(large, "x")
    starts = [(path, at) for path, start, end in chunks for at in range(start, end, 200_000)]
    numbers = [50, 110, 4, 90, 12, 70]
    list(Loader(PackedDataset(large, ["x"]), 6, sampler=numbers))
    for number, (path, offset, _) in zip(numbers, calls[:: len(calls) // 6], strict=True):
        assert (path, offset) == (starts[number][0], starts[number][1] // PAGE_SIZE * PAGE_SIZE)


@pytest.mark.usefixtures("disk")
def test_advice_reaches_8_mib_ahead_of_reading(large, calls):
    """And one run more, at most; at first no further than 1 MiB and a run, or the first batch would come late."""
    ahead = [
        sum(length for _, _, length in calls) - 200_000 * 4 * (step + 1)
        for step, _ in enumerate(Loader(PackedDataset(large, ["x"]), 4, shuffle=True))
    ]
    assert ahead[0] < 2**20 + 2 * 900_000
    assert 2**22 < max(ahead) < 2**23 + 2 * 900_000


@pytest.mark.parametrize("missing", ["madvise", "resource"])
@pytest.mark.usefixtures("disk")
def test_platforms_without_the_call_work(rows, monkeypatch, missing):
    """Where there is no advice for maps or no count of blocks read, batches come all the same."""
    if missing == "resource":
        monkeypatch.setattr("readers.readahead.resource", None)
    else:
        monkeypatch.delattr("mmap.MADV_WILLNEED")
    numbers = [n for batch in Loader(PackedDataset(rows), 10) for n in batch["y"].tolist()]
    assert numbers == list(range(1000))


@pytest.mark.usefixtures("disk")
def test_file_systems_that_take_no_advice_work(rows, monkeypatch):
    """A refusal by the file system is taken for a no, once an epoch."""
    refusals = []

    def refuse(*_):
        refusals.append(1)
        raise OSError("not here")

    monkeypatch.setattr(Shard, "load_ahead", refuse)
    assert len(list(Loader(PackedDataset(rows), 10))) == 100
    assert refusals == [1]


def test_the_kernel_takes_the_advice(rows):
    """A map of a shard takes the call that asks for its bytes; nothing is returned, and nothing raised."""
    with Shard(next((rows / "shards").iterdir())) as shard:
        shard.load_ahead(PAGE_SIZE, 100)
