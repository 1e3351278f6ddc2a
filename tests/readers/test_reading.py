"""Batches that are located in groups and read in runs are those that were asked for, one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from readers import Loader, PackedDataset
from readers.finishing import Finisher
from readers.gather import Pool
from readers.indexing import Items
from readers.order import Sequential
from readers.reading import ReadPlan, read_batches
from readers.share import GROUP_SAMPLES, Share
from readers.source import source_of


@pytest.fixture(scope="module")
def dataset(rows):
    """The dataset `rows`, its files open before a test begins."""
    dataset = PackedDataset(rows)
    assert source_of(dataset).opened
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
    got = list(Loader(dataset, batch_size, sampler=numbers, threads=threads))
    assert [batch["y"].tolist() for batch in got] == parts(numbers, batch_size)
    assert not [batch for batch in got if not (batch["x"] == batch["y"][:, None]).all()]
    assert not [batch for batch in got if batch["x"].shape != (len(batch["y"]), 33)]


@given(sizes=st.lists(st.integers(1, 40), max_size=60), threads=st.sampled_from([0, 0, 2]), seed=st.integers(0, 99))
def test_batches_of_many_sizes(dataset, sizes, threads, seed):
    """A sampler of batches may give as many samples for each as it likes."""
    rng = np.random.default_rng(seed)
    batches = [rng.integers(0, 1000, size).tolist() for size in sizes]
    assert [batch["y"].tolist() for batch in Loader(dataset, batch_sampler=batches, threads=threads)] == batches


def test_pinned_batches_are_read_where_they_stay(dataset):
    """Into pinned memory each batch is read by itself, however small: parts of one piece would be copied once more."""

    class Pinned(Pool):
        """Gives other memory, as there may be no CUDA."""

        def allocate(self, nbytes):
            given.append(np.empty(nbytes, np.uint8))
            return torch.from_numpy(given[-1])

    given = []
    finisher = Finisher(source_of(dataset).transforms, None, 0, channels_last=True, as_numpy=False, pinned=True)
    order = Sequential(40).batches(0, Share(4), 0)
    batches = list(read_batches(ReadPlan(source_of(dataset), order, None, Pinned(pinned=True), finisher)))
    assert [batch["y"].tolist() for batch in batches] == parts(np.arange(40), 4)
    found = {tensor.data_ptr() for batch in batches for tensor in batch.values()}
    assert found == {memory.ctypes.data for memory in given}


def test_first_batch_comes_before_the_rest_is_located(dataset, monkeypatch):
    """Only a few batches are located for the first one, and no more than about GROUP_SAMPLES ahead of any other."""
    located = []
    resolve = Items.resolve
    monkeypatch.setattr(
        Items, "resolve", lambda items, numbers, visits: located.append(len(numbers)) or resolve(items, numbers, visits)
    )
    batches = iter(Loader(dataset, 100, sampler=np.arange(40_000) % 1000))
    next(batches)
    assert sum(located) <= 400
    for handed in range(2, 401):
        next(batches)
        assert sum(located) <= handed * 100 + 2 * GROUP_SAMPLES + 200
    batches.close()
    assert len(located) < 20
