"""Functions of the caller's own that change samples and batches, and the generators that they draw from."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from inspect import Parameter, signature
from typing import Any

import numpy as np
import torch

from packer.errors import UsageError
from readers.batch import Several, as_result, as_sample, batch_of, flatten_results, item_of, join, only_item
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
            return list(map(as_sample, self._change_samples(batch, size, visits)))
        result, size, _ = self._apply(batch, size, visits)
        return batch_of(result, size)

    def collated(self, collate: Transform, batch: dict[str, Any], size: int, visits: Visits | None) -> Any:
        """Return what a function makes of the list of samples of a gathered batch, after both, as in DataLoader."""
        with _no_stop_iteration():
            return collate(list(self.samples_after(batch, size, visits)))

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
    with _no_stop_iteration():
        if visits is None:
            return [function(sample) for sample in samples]
        seeds = draw_words(visits, 0, SAMPLES, 1)[:, 0].tolist()
        return [function(sample, generator=_seed_generator(seed)) for sample, seed in zip(samples, seeds, strict=True)]


def change_batch(function: Transform, batch: Any, visits: Visits | None) -> Any:
    """Return a batch, changed by a function; if it takes a generator, that of the first visit of `visits` (n,)."""
    with _no_stop_iteration():
        if visits is None:
            return function(batch)
        seeds = draw_words(visits[:1], 0, BATCHES, 1)[:, 0].tolist() or [0]
        return function(batch, generator=_seed_generator(seeds[0]))


class _no_stop_iteration:  # noqa: N801  # a context manager, which contextlib would make slower
    """Raises RuntimeError for StopIteration, which would end a loop over batches without a word."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, StopIteration):
            raise RuntimeError(
                "a transform raised StopIteration, as next() does of what is through: give next() a default, or take "
                "itertools.cycle"
            ) from error


def _seed_generator(seed: int) -> torch.Generator:
    with CPU:
        return torch.Generator().manual_seed(seed)


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
