"""Checks counts, flags, seeds and names of fields that callers give; and remarks."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Sequence
from functools import cache

import numpy as np

from packer.errors import UsageError


def check_count(name: str, count: object, maximum: float = math.inf, minimum: int = 1) -> None:
    """Raise UsageError if `count` is no whole number from `minimum` to `maximum`."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or not minimum <= count <= maximum:
        raise UsageError(f"{name} {count!r}: a whole number from {minimum} on is expected")


def check_flags(caller: str, **flags: object) -> None:
    """Raise UsageError if one of `flags` is no bool: texts such as "no", of a file of settings, would count as true."""
    for name, flag in flags.items():
        if not isinstance(flag, bool | np.bool_):
            raise UsageError(f"{caller}: {name} {flag!r}: True or False is expected")


def check_choice(name: str, choice: object, choices: Sequence[str]) -> None:
    """Raise UsageError if `choice` is none of `choices`."""
    if not isinstance(choice, str) or choice not in choices:
        raise UsageError(f"{name} {choice!r}: {' or '.join(map(repr, choices))} is expected")


def check_seed(seed: int) -> None:
    """Raise UsageError if `seed` cannot seed the generator."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise UsageError(f"seed {seed!r}: a whole number from 0 on is expected")


def make_tuples(options: object, *names: str) -> None:
    """Replace lists in attributes of a frozen dataclass by tuples: YAML has only lists."""
    for name in names:
        value = getattr(options, name)
        if isinstance(value, Sequence) and not isinstance(value, str):
            object.__setattr__(options, name, tuple(value))


def check_read(caller: str, names: Iterable[str], fields: Collection[str]) -> None:
    """Raise UsageError if one of `names` is not the name of a field that is read."""
    for name in names:
        if name not in fields:
            raise UsageError(f"{caller}: no field {name!r} is read; there are {', '.join(fields)}")


@cache
def remark(sentence: str) -> None:
    """Log a sentence, once in a process."""
    logging.getLogger(__name__).warning(sentence)
