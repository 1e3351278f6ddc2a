"""Functions of the caller's own that change samples and batches, and the generators that they draw from."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from typing import Any

import numpy as np
import torch

from packer.errors import UsageError
from readers.batch import Sample, Several, as_result, batch_of, flatten_results, item_of, join, only_item
from readers.draws import BATCHES, SAMPLES, Visits, draw_words
from readers.gather import CPU

Transform = Callable[..., Any]


@dataclass(frozen=True)
class Transforms:
    """Two functions that change a gathered batch: one is called with each sample, and then the other with the batch.

    It is true if one of them is there.

    Attributes:
        sample: `sample_transform` of `PackedDataset`; None if there is none.
        batch: `batch_transform`, likewise.
    """

    sample: Transform | None = None
    batch: Transform | None = None

    def __bool__(self) -> bool:
        return self.sample is not None or self.batch is not None

    @property
    def draw(self) -> bool:
        """Return whether one of them gets a generator."""
        return self._sample_draws or self._batch_draws

    @cached_property
    def _sample_draws(self) -> bool:
        return takes_generator(self.sample)

    @cached_property
    def _batch_draws(self) -> bool:
        return takes_generator(self.batch)

    def batch_after(self, batch: dict[str, Any], size: int, visits: Visits | None) -> Any:
        """Return a gathered batch after both: samples are changed and joined first, then the whole batch.

        Args:
            size: samples of the batch.
            visits: of the samples, (size,); None if nothing is drawn by them.

        Raises:
            UsageError: samples are to be changed, and there is none before or after that.
        """
        return self._apply(batch, size, visits)[0]

    def sample_after(self, batch: dict[str, Any], visits: Visits | None) -> Any:
        """Return the only sample of a gathered batch of one, after both; if they made several, the list."""
        if self.batch is None:
            return self._change_samples(batch, 1, visits)[0]
        result, size, are_several = self._apply(batch, 1, visits)
        return Several(batch_of(result, size)) if are_several else only_item(result)

    def samples_after(self, batch: dict[str, Any], size: int, visits: Visits | None) -> Sequence[Any]:
        """Return the samples of a gathered batch, after both, in the form that torch's DataLoader takes."""
        if self.sample is not None and self.batch is None:
            # DataLoader joins them, by its `collate_fn`; the default one joins those of unlike lengths as `Ragged`.
            samples = self._change_samples(batch, size, visits)
            return [Sample(sample) if type(sample) is dict else sample for sample in samples]
        result, size, _ = self._apply(batch, size, visits)
        return batch_of(result, size)

    def _apply(self, batch: dict[str, Any], size: int, visits: Visits | None) -> tuple[Any, int, bool]:
        """Return a gathered batch after both, its samples then, and whether one was made `Several`."""
        are_several = False
        if self.sample is not None:
            if not size:
                raise UsageError("sample_transform: the index asks for no samples, and an empty batch cannot be joined")
            results = self._change_samples(batch, size, visits)
            are_several, samples = any(isinstance(result, Several) for result in results), flatten_results(results)
            batch, size = join(samples), len(samples)
        if self.batch is not None:
            batch = change_batch(self.batch, batch, visits if self._batch_draws else None)
        return batch, size, are_several

    def _change_samples(self, batch: dict[str, Any], size: int, visits: Visits | None) -> list[Any]:
        """Return the samples of a gathered batch, each as it was changed, or `Several`."""
        samples = [item_of(batch, number, size) for number in range(size)]
        if self.sample is None:
            return samples
        return list(map(as_result, change_samples(self.sample, samples, visits if self._sample_draws else None)))


def takes_generator(function: Transform | None) -> bool:
    """Return whether the second parameter of a function is named `generator`, and the caller did not bind it."""
    if function is None:
        return False
    try:
        parameters = signature(function.forward if isinstance(function, torch.nn.Module) else function).parameters
    except (TypeError, ValueError):  # such as `set`, which has none
        return False
    second = list(parameters.values())[1:2]
    return any(
        parameter.name == "generator"
        and (parameter.kind is Parameter.POSITIONAL_OR_KEYWORD or parameter.default is Parameter.empty)
        for parameter in second
    )


def change_samples(function: Transform, samples: Sequence[Any], visits: Visits | None) -> list[Any]:
    """Return samples, each changed by a function; visits (n,) are given if it takes a generator."""
    if visits is None:
        return list(map(function, samples))
    seeds = draw_words(visits, 0, SAMPLES, 1)[:, 0].tolist()
    return [function(sample, generator=_seed_generator(seed)) for sample, seed in zip(samples, seeds, strict=True)]


def change_batch(function: Transform, batch: Any, visits: Visits | None) -> Any:
    """Return a batch, changed by a function; if it takes a generator, that of the first visit of `visits` (n,)."""
    if visits is None:
        return function(batch)
    seeds = draw_words(visits[:1], 0, BATCHES, 1)[:, 0].tolist() or [0]
    return function(batch, generator=_seed_generator(seeds[0]))


def _seed_generator(seed: int) -> torch.Generator:
    with CPU:
        return torch.Generator().manual_seed(seed)


def has_drawn(states_before: Sequence[Any]) -> bool:
    """Return whether the generator of torch, numpy or Python left its state in `states_before`, of `global_states`."""
    return global_states() != states_before


def global_states() -> Sequence[Any]:
    """Return the states of torch's, numpy's and Python's own generators."""
    _, words, *place = np.random.get_state()  # the one that others draw from
    return [torch.get_rng_state().numpy().tobytes(), np.asarray(words).tobytes(), place, random.getstate()]
