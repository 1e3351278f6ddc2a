"""Orders of samplers that the caller gives."""

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, Sampler, WeightedRandomSampler

from packer.errors import UsageError
from readers import Loader, PackedDataset
from readers.samplers import SamplerOrder


def test_sampler_leaves_no_trace():
    """Drawing from a sampler changes neither torch's random numbers nor the sampler's own generator."""
    own = torch.Generator().manual_seed(1)
    states = torch.get_rng_state(), own.get_state()
    SamplerOrder(WeightedRandomSampler([1.0, 2.0], 10, generator=own), 2).epoch(0)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(own.get_state(), states[1])


def test_sampler_is_told_the_epoch():
    """A sampler that has set_epoch is told the epoch first."""
    sampler = DistributedSampler(range(50), num_replicas=1, rank=0, seed=4)
    order = SamplerOrder(sampler, 50)
    assert not np.array_equal(order.epoch(0), order.epoch(1))
    sampler.set_epoch(1)
    assert order.epoch(1).tolist() == list(sampler)


def test_weighted_sampler_keeps_weights():
    """A weighted sampler's weights hold."""
    numbers = SamplerOrder(WeightedRandomSampler([0.0, 1.0, 3.0], 4000), 3).epoch(0)
    counts = np.bincount(numbers, minlength=3)
    assert counts[0] == 0
    assert 2.5 < counts[2] / counts[1] < 3.6


def test_bad_samplers_are_refused():
    """One rank's sampler, and one that gives lists, are refused with what to do."""
    with pytest.raises(UsageError, match="share of one rank"):
        SamplerOrder(DistributedSampler(range(50), num_replicas=2, rank=0), 50)
    with pytest.raises(UsageError, match="sample numbers are expected"):
        SamplerOrder([[1, 2], [3]], 4).epoch(0)


@pytest.mark.parametrize("given", [3, 7])
@pytest.mark.parametrize("argument", ["sampler", "batch_sampler"])
def test_a_sampler_gives_as_many_as_its_length_says(rows, argument, given):
    """One that gives fewer or more is refused: by its length an epoch is shared among ranks, and resumed."""

    class Wrong(Sampler):
        """Says that it gives five."""

        def __len__(self):
            return 5

        def __iter__(self):
            return iter([[n] if argument == "batch_sampler" else n for n in range(given)])

    with pytest.raises(UsageError, match=f"^{argument}: Wrong gave {given} .* its length is 5"):
        list(Loader(PackedDataset(rows), **{argument: Wrong()}))


@pytest.mark.parametrize("argument", ["sampler", "batch_sampler"])
def test_samplers_without_a_length_are_refused(rows, argument):
    """Nobody could say how many batches an epoch has; the message says what to give."""

    class Endless(Sampler):
        """Gives numbers, and never says how many."""

        def __iter__(self):
            return iter([[0], [1]] if argument == "batch_sampler" else [0, 1])

    with pytest.raises(UsageError, match=f"^{argument}: Endless has no length.*give it a __len__"):
        Loader(PackedDataset(rows), **{argument: Endless()})
