"""An order that a torch Sampler gives: weighted, by subset, or the user's own."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import UsageError
from readers.fresh import CPU
from readers.order import check_seed, random_bits


class SamplerOrder:
    """What `sampler` gives, epoch by epoch.

    While it is iterated, torch's random numbers, and those of its own `generator`, start from seed and epoch,
    and are put back afterwards: so its order, too, depends on seed and epoch alone, and every rank sees
    the same. A sampler that draws from elsewhere has to see to that itself, in `set_epoch`.

    Args:
        sampler: gives sample numbers; a torch Sampler or any iterable that starts anew each time, with a length.
        seed: from 0 on.

    Raises:
        UsageError: the sampler is made for one rank of several.
    """

    def __init__(self, sampler: Iterable[int], seed: int = 0) -> None:
        check_seed(seed)
        if getattr(sampler, "num_replicas", 1) > 1:
            raise UsageError(
                f"sampler: {type(sampler).__name__} gives the share of one rank; a sampler of the whole dataset is "
                "expected, of which each rank then takes its share (rank=0, world_size=1 takes all of it)"
            )
        self._sampler = sampler
        self.seed = seed

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]  # torch's Sampler has a length where it can know it

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """The sampler's numbers, (n,).

        Raises:
            UsageError: it gives something else than numbers.
        """
        set_epoch = getattr(self._sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        own = getattr(self._sampler, "generator", None)
        word = int(random_bits(self.seed, epoch).random_raw())
        # The seed that the user gave the sampler's own generator keeps its meaning.
        seeds = {torch.default_generator: word}
        if isinstance(own, torch.Generator):
            seeds[own] = word ^ own.initial_seed()
        states = {generator: generator.get_state() for generator in seeds}
        try:
            for generator, seed in seeds.items():
                generator.manual_seed(seed)
            with CPU:  # samplers of torch mix its CPU generator with whatever its default device is
                return self._numbers()
        finally:
            for generator, state in states.items():
                generator.set_state(state)

    def _numbers(self) -> NDArray[np.int64]:
        try:
            return np.fromiter(map(index, self._sampler), dtype=np.int64)
        except TypeError as error:
            raise UsageError(
                f"sampler: {type(self._sampler).__name__} has to give sample numbers, one by one"
            ) from error
