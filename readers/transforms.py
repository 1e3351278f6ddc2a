"""Functions of the caller's own that change samples and batches: the generator of each visit, and whether one draws."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Any

import numpy as np
import torch

from readers.draws import BATCHES, SAMPLES, Visits, draw_words
from readers.gather import CPU

Transform = Callable[..., Any]


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
