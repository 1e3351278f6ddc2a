"""Stream: batches that are located in groups and read in runs are those that were asked for, one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from readers import PackedDataset, fields
from readers import stream as runs
from readers.gather import Pool
from readers.indexing import Items
from readers.stream import Stream


@pytest.fixture(scope="module")
def dataset(rows):
    """The dataset `rows`, its files open before a test begins."""
    dataset = PackedDataset(rows)
    assert dataset.opened
    return dataset


def parts(numbers, batch_size):
    """Batches as they are to come."""
    return [numbers[at : at + batch_size].tolist() for at in range(0, len(numbers), batch_size)]


@given(
    samples=st.integers(0, 5000),
    batch_size=st.integers(1, 300),
    threads=st.sampled_from([0, 0, 0, 1, 2]),
    seed=st.integers(0, 99),
)
def test_batches_of_any_size(dataset, samples, batch_size, threads, seed):
    """Batches of any size, the last one smaller, come as they were asked for."""
    numbers = np.random.default_rng(seed).integers(0, 1000, samples)
    got = list(Stream(dataset, Pool(), threads).batches(numbers, batch_size))
    assert [batch["y"].tolist() for batch in got] == parts(numbers, batch_size)
    assert all((batch["x"] == batch["y"][:, None]).all() for batch in got)
    assert all(batch["x"].shape == (len(batch["y"]), 33) for batch in got)


def test_pinned_batches_are_read_where_they_stay(dataset):
    """Into pinned memory each batch is read by itself, however small: parts of one piece would be copied once more."""

    class Pinned(Pool):
        """Gives other memory, as there may be no CUDA."""

        def allocate(self, nbytes):
            given.append(np.empty(nbytes, np.uint8))
            return torch.from_numpy(given[-1])

    given = []
    batches = list(Stream(dataset, Pinned(pinned=True)).batches(np.arange(40), 4))
    assert [batch["y"].tolist() for batch in batches] == parts(np.arange(40), 4)
    found = {tensor.data_ptr() for batch in batches for tensor in batch.values()}
    assert found == {memory.ctypes.data for memory in given}


def test_first_batch_comes_before_the_rest_is_located(dataset, monkeypatch):
    """Only a few batches are located for the first one, and no more than about GROUP_SAMPLES ahead of any other."""
    located = []
    of = Items.of
    monkeypatch.setattr(Items, "of", lambda items, numbers: located.append(len(numbers)) or of(items, numbers))
    batches = Stream(dataset, Pool()).batches(np.arange(40_000) % 1000, 100)
    next(batches)
    assert sum(located) <= 400
    for handed in range(2, 401):
        next(batches)
        assert sum(located) <= handed * 100 + 2 * runs.GROUP_SAMPLES + 200
    batches.close()
    assert len(located) < 20


def test_how_many_are_located_at_once(rows, monkeypatch):
    """One batch, so that it comes soon, and then as many as may be."""
    located = []
    of = Items.of
    monkeypatch.setattr(Items, "of", lambda items, numbers: located.append(len(numbers)) or of(items, numbers))
    list(Stream(PackedDataset(rows), Pool()).batches(np.arange(1000), 2))
    assert located == [2, 998]


def test_calls_of_small_batches_are_shared(dataset, monkeypatch):
    """Small batches are read several at a time; a large one alone."""
    reader = type(dataset.opened.readers["x"])
    counts = []
    read = reader.read
    monkeypatch.setattr(
        reader, "read", lambda self, places, *args: counts.append(len(places)) or read(self, places, *args)
    )
    assert len(list(Stream(dataset, Pool()).batches(np.arange(20_000) % 1000, 10))) == 2000
    assert 0 < len(counts) < 2 * 2000 / 20
    row_bytes = 33 * 4 + 8
    assert max(counts) * row_bytes <= fields.COPIED_RUN_BYTES
    counts.clear()
    list(Stream(dataset, Pool()).batches(np.arange(10_000) % 1000, 5000))
    assert counts == [5000] * 4


def test_finish_is_applied_to_each_batch(dataset):
    """What finish makes of a batch is handed out, with threads or without."""
    for threads in (0, 2):
        stream = Stream(dataset, Pool(), threads, finish=lambda batch: int(batch["y"].sum()))
        assert list(stream.batches(np.arange(100), 2)) == [4 * i + 1 for i in range(50)]
