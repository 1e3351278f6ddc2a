"""Orders that the caller gives: numbers, a sampler, or a sampler of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format import Numbers
from readers.gather import CPU
from readers.order import Order, check_epoch, check_within, digest
from readers.share import Batches, GivenBatches, Share
from readers.valid import check_seed


@dataclass(frozen=True, eq=False)
class Given(Order):
    """The numbers of a subset, in the order given, in every epoch; a number may come more than once.

    Args:
        indices: integers, (m,).
        samples: of the dataset.

    Raises:
        UsageError: these are not integers in one axis; or, from `epoch`, no sample has one of them.
    """

    indices: Numbers
    samples: int

    def __post_init__(self) -> None:
        array = np.asarray(self.indices)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise UsageError(
                f"sampler: one axis of sample numbers is expected, not {array.dtype} of shape {array.shape}; "
                "for a mask, pass np.flatnonzero(mask)"
            )
        object.__setattr__(self, "indices", array.astype(np.int64))

    def __len__(self) -> int:
        return len(self.indices)

    def epoch(self, epoch: int) -> Numbers:
        """Return the numbers, (m,)."""
        return check_within(self.indices.copy(), self.samples, "sampler: the array")

    @property
    def words(self) -> str:
        return f"{super().words}, numbers {digest(self.indices)}"


class SamplerOrder(Order):
    """The numbers of a sampler, epoch by epoch.

    While it is iterated, torch's default generator and the sampler's own `generator` are seeded by seed and epoch.
    Their states are restored afterwards. So its order, too, depends on seed and epoch alone, and every rank sees the
    same. Other threads must not draw from torch meanwhile. A sampler that draws from elsewhere has to seed that itself,
    in `set_epoch`.

    Args:
        sampler: gives sample numbers; a torch Sampler or any iterable that starts again each time, with a length.
        samples: of the dataset.
        seed: from 0 on.

    Raises:
        UsageError: the sampler is made for one rank of several, or has no length.
    """

    #: The argument of `Loader`, and what it gives, for messages.
    _argument, _unit = "sampler", "numbers"

    def __init__(self, sampler: Iterable[Any], samples: int, seed: int = 0) -> None:
        check_seed(seed)
        if isinstance(sampler, Iterator) and not hasattr(sampler, "__len__"):  # Lightning's starts again, and has one
            raise UsageError(
                f"{self._argument}: a {type(sampler).__name__} gives its numbers once, and every epoch asks for them; "
                "give a list or a torch Sampler"
            )
        if getattr(sampler, "num_replicas", 1) > 1:
            raise UsageError(
                f"sampler: {type(sampler).__name__} gives the share of one rank; give a sampler of the whole "
                "dataset: each rank then takes its share of it (with rank=0, world_size=1 all)"
            )
        try:
            len(sampler)  # type: ignore[arg-type]  # torch's Sampler has a length if it can know it
        except (TypeError, NotImplementedError):
            raise UsageError(
                f"{self._argument}: {type(sampler).__name__} has no length, and a loader must know how long an epoch "
                "is; give it a __len__, or give a list of what it gives"
            ) from None
        self._sampler = sampler
        self._samples = samples
        self.seed = seed

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]

    def epoch(self, epoch: int) -> NDArray[Any]:
        """Return the sampler's numbers, (n,).

        Raises:
            UsageError: it gives something other than numbers of samples.
        """
        check_epoch(epoch)
        word = int(np.random.PCG64(np.random.SeedSequence([self.seed, epoch])).random_raw())
        seeds = {torch.default_generator: word}
        # A sampler of batches takes its numbers from another sampler.
        for sampler in (self._sampler, getattr(self._sampler, "sampler", None)):
            set_epoch = getattr(sampler, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
            sampler_generator = getattr(sampler, "generator", None)
            # The seed that the user gave the sampler's own generator keeps its meaning.
            if isinstance(sampler_generator, torch.Generator):
                seeds[sampler_generator] = word ^ sampler_generator.initial_seed()
        states = {generator: generator.get_state() for generator in seeds}
        try:
            for generator, seed in seeds.items():
                generator.manual_seed(seed)
            with CPU:  # torch's samplers use its CPU generator, but the default device, which may be another
                numbers = self._numbers()
        finally:
            for generator, state in states.items():
                generator.set_state(state)
        if len(numbers) != len(self):
            raise UsageError(
                f"{self._argument}: {type(self._sampler).__name__} gave {len(numbers):,} {self._unit}, but its length "
                f"is {len(self):,}, by which epochs are shared and resumed; let its __len__ return what it gives"
            )
        return numbers

    def _numbers(self) -> NDArray[Any]:
        return self._checked_numbers(self._sampler)

    def _checked_numbers(self, numbers: Any) -> Numbers:
        """Return the sampler's items as numbers (n,); raises UsageError if they are something else."""
        source = f"{self._argument}: {type(self._sampler).__name__}"
        try:
            samples = np.fromiter(map(index, numbers), dtype=np.int64)
        except TypeError as error:
            raise UsageError(f"{source} gives {numbers!r:.60}; sample numbers are expected") from error
        return check_within(samples, self._samples, source)


class BatchOrder(SamplerOrder):
    """The batches of a sampler of batches, epoch by epoch. `done` counts batches here, not samples.

    Args:
        batches: gives the numbers of each batch; a torch BatchSampler, or any iterable with a length that starts
            again each time.
        samples: of the dataset.
        seed: see `SamplerOrder`.
    """

    _argument, _unit = "batch_sampler", "batches"

    @cached_property
    def words(self) -> str:
        if not isinstance(self._sampler, list | tuple | np.ndarray):
            return super().words
        batches = self._numbers()
        return f"{super().words}, batches {digest(np.concatenate([[len(batch), *batch] for batch in batches] or [[]]))}"

    def batches(self, epoch: int, share: Share, done: int) -> Batches:
        """Return the batches of an epoch that are left: they are this rank's."""
        batches = self.epoch(epoch)
        share.check_done(len(batches), done)
        return GivenBatches(batches[done:].tolist(), sum(map(len, batches[:done])))

    def _numbers(self) -> NDArray[Any]:
        batches = [self._checked_numbers(batch) for batch in self._sampler]
        order = np.empty(len(batches), object)
        for number, batch in enumerate(batches):
            if not len(batch):
                raise UsageError(f"{self._argument}: {type(self._sampler).__name__} gives an empty batch")
            order[number] = batch
        return order
