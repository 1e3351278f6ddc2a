"""Stream: batches that are located in groups and read in runs are those that were asked for, one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from readers import PackedDataset, stream
from readers.pool import Pool
from readers.stream import Stream


@pytest.fixture(scope="module")
def dataset(rows):
    """The dataset `rows`, its files open before a test begins."""
    dataset = PackedDataset(rows)
    assert dataset.opened
    return dataset


@given(sizes=st.lists(st.integers(0, 300), max_size=40), threads=st.sampled_from([0, 0, 0, 1, 2]), data=st.data())
def test_batches_of_any_sizes(dataset, sizes, threads, data):
    """Batches of any sizes, empty ones too, come as they were asked for."""
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    asked = [rng.integers(0, 1000, size) for size in sizes]
    got = list(Stream(dataset, Pool(), threads).batches(asked))
    assert [batch["y"].tolist() for batch in got] == [numbers.tolist() for numbers in asked]
    assert all((batch["x"] == batch["y"][:, None]).all() for batch in got)
    assert all(batch["x"].shape == (len(numbers), 33) for batch, numbers in zip(got, asked, strict=True))


def test_first_batch_comes_before_the_rest_is_asked_for(dataset):
    """Only a few batches are located for the first one, and no more than about GROUP_SAMPLES ahead of any other."""
    taken = []

    def numbers():
        for i in range(400):
            taken.append(1)
            yield np.arange(100) + i % 9

    batches = Stream(dataset, Pool()).batches(numbers())
    next(batches)
    assert len(taken) <= 4
    for handed in range(2, 401):
        next(batches)
        assert len(taken) * 100 <= handed * 100 + 2 * stream.GROUP_SAMPLES + 200
    batches.close()


def test_calls_of_small_batches_are_shared(dataset, monkeypatch):
    """Small batches are read several at a time; a large one alone."""
    reader = type(dataset.opened.readers["x"])
    counts = []
    read = reader.read
    monkeypatch.setattr(
        reader, "read", lambda self, places, *args: counts.append(len(places)) or read(self, places, *args)
    )
    asked = [np.arange(10)] * 2000
    assert len(list(Stream(dataset, Pool()).batches(asked))) == 2000
    assert len(counts) < 2 * 2000 / 20
    row_bytes = 33 * 4 + 8
    assert max(counts) * row_bytes <= stream.RUN_BYTES
    counts.clear()
    many = np.resize(np.arange(1000), 5000)
    list(Stream(dataset, Pool()).batches([many, many]))
    assert counts == [5000] * 4


def test_finish_is_applied_to_each_batch(dataset):
    """What finish makes of a batch is handed out, with threads or without."""
    asked = [np.array([i, i + 1]) for i in range(50)]
    for threads in (0, 2):
        made = Stream(dataset, Pool(), threads, finish=lambda batch: int(batch["y"].sum())).batches(asked)
        assert list(made) == [2 * i + 1 for i in range(50)]
