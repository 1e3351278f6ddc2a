"""Functions of the caller's own that change samples and batches, and the generators that they draw from."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from inspect import Parameter, signature
from typing import Any, TypeVar

import numpy as np
import torch

from packer.errors import UsageError
from readers.data_loader import as_sample, batch_of
from readers.draws import BATCHES, SAMPLES, Visits, Words, draw_words
from readers.samples import Several, as_result, flatten_results, items_of, join, only_item

Transform = Callable[..., Any]
Result = TypeVar("Result")


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

    @cached_property
    def draw(self) -> bool:
        """Return whether one of them gets a generator."""
        return self._sample_draws or self._batch_draws

    def draw_seeds(self, visits: Visits | None) -> Words | None:
        """Return what seeds the generators of samples at visits (n,), and of batches that begin with them, (n, 2).

        None if neither function gets a generator.
        """
        if visits is None or not self.draw:
            return None
        return np.concatenate([draw_words(visits, 0, purpose, 1) for purpose in (SAMPLES, BATCHES)], axis=1)

    @cached_property
    def _sample_draws(self) -> bool:
        return takes_generator(self.sample)

    @cached_property
    def _batch_draws(self) -> bool:
        return takes_generator(self.batch)

    def batch_after(self, batch: dict[str, Any], size: int, seeds: Words | None) -> Any:
        """Return a gathered batch after both: samples are changed and joined first, then the whole batch.

        Args:
            size: samples of the batch.
            seeds: of the samples, (size, 2), see `draw_seeds`; None if neither draws.

        Raises:
            UsageError: samples are to be changed, and there is none before or after that.
        """
        return self._apply(batch, size, seeds)[0]

    def sample_after(self, batch: dict[str, Any], seeds: Words | None) -> Any:
        """Return the only sample of a gathered batch of one, after both; if they made several, the list."""
        if self.batch is None:
            return self._change_samples(batch, 1, seeds)[0]
        result, size, are_several = self._apply(batch, 1, seeds)
        return Several(batch_of(result, size)) if are_several else only_item(result)

    def samples_after(self, batch: dict[str, Any], size: int, seeds: Words | None) -> Sequence[Any]:
        """Return the samples of a gathered batch, after both, in the form that torch's DataLoader takes."""
        if self.sample is not None and self.batch is None:
            # DataLoader joins them, by its `collate_fn`; the default one joins those of unlike lengths as `Ragged`.
            return list(map(as_sample, self._change_samples(batch, size, seeds)))
        result, size, _ = self._apply(batch, size, seeds)
        return batch_of(result, size)

    def _apply(self, batch: dict[str, Any], size: int, seeds: Words | None) -> tuple[Any, int, bool]:
        """Return a gathered batch after both, its samples then, and whether one was made `Several`."""
        are_several = False
        if self.sample is not None:
            if not size:
                raise UsageError("sample_transform: the index asks for no samples, and an empty batch cannot be joined")
            results = self._change_samples(batch, size, seeds)
            samples = flatten_results(results)
            are_several = samples is not results
            batch, size = join(samples), len(samples)
        if self.batch is not None:
            batch = change_batch(self.batch, batch, seeds if self._batch_draws else None)
        return batch, size, are_several

    def _change_samples(self, batch: dict[str, Any], size: int, seeds: Words | None) -> list[Any]:
        """Return the samples of a gathered batch, each as it was changed, or `Several`."""
        samples = items_of(batch, size)
        if self.sample is None:
            return samples
        return list(map(as_result, change_samples(self.sample, samples, seeds if self._sample_draws else None)))


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


def change_samples(function: Transform, samples: Sequence[Any], seeds: Words | None) -> list[Any]:
    """Return samples, each changed by a function; `seeds` (n, 2) are given if it takes a generator."""
    if seeds is None:
        return call_own(lambda: [function(sample) for sample in samples])
    generator = torch.Generator("cpu")  # one for all: to make it takes longer than to seed it
    seeded = zip(samples, seeds[:, 0].tolist(), strict=True)
    return call_own(lambda: [function(sample, generator=generator.manual_seed(seed)) for sample, seed in seeded])


def change_batch(function: Transform, batch: Any, seeds: Words | None) -> Any:
    """Return a batch, changed by a function; if it takes a generator, that of the first sample of `seeds` (n, 2)."""
    if seeds is None:
        return call_own(function, batch)
    seed = int(seeds[0, 1]) if len(seeds) else 0
    return call_own(function, batch, generator=torch.Generator("cpu").manual_seed(seed))


def call_own(function: Callable[..., Result], *values: Any, **generator: Any) -> Result:
    """Call a function of the caller's own, or one that calls it.

    Raises:
        RuntimeError: it raised StopIteration, which would end a loop over batches without a word.
    """
    try:
        return function(*values, **generator)
    except StopIteration as error:
        raise RuntimeError(
            "a function that makes samples or batches raised StopIteration, as next() does of what is through: give "
            "next() a default, or take itertools.cycle"
        ) from error


#: Functions that seed the generator of torch, numpy or Python, or set its state.
_SEEDING = (
    (torch, "manual_seed"),
    (torch, "set_rng_state"),
    (torch.random, "manual_seed"),
    (torch.random, "set_rng_state"),
    (np.random, "seed"),
    (np.random, "set_state"),
    (random, "seed"),
    (random, "setstate"),
)


@contextmanager
def watch_generators() -> Iterator[Callable[[], bool]]:
    """Watch the generators of torch, numpy and Python.

    Yields:
        A function that returns whether one of them was drawn from or seeded since, also if its state was put back.
    """
    states_before, calls = _global_states(), []
    functions = [getattr(module, name) for module, name in _SEEDING]

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            calls.append(function)
            return function(*args, **kwargs)

        return noted

    try:
        for (module, name), function in zip(_SEEDING, functions, strict=True):
            setattr(module, name, noting(function))
        yield lambda: bool(calls) or _global_states() != states_before
    finally:
        for (module, name), function in zip(_SEEDING, functions, strict=True):
            setattr(module, name, function)


def _global_states() -> Sequence[Any]:
    """Return the states of torch's, numpy's and Python's own generators."""
    _, words, *place = np.random.get_state()  # the one that others draw from
    return [torch.get_rng_state().numpy().tobytes(), np.asarray(words).tobytes(), place, random.getstate()]
