"""The samples that are shown: some of a dataset, chosen by name, by chance, or evenly spread."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.manifest import Manifest
from packer.format.names import Names
from packer.sources.base import count
from packer.sources.packed.source import PackedSource


@dataclass(frozen=True)
class Sample:
    """One sample: its number, its name or None, and its values by field, text as str."""

    number: int
    name: str | None
    values: dict[str, Any]

    @property
    def title(self) -> str:
        return str(self.number) if self.name is None else self.name


@dataclass(frozen=True)
class Choice:
    """Which samples: those of these names, or else `count`, by chance where there is a seed, or else evenly spread."""

    count: int
    names: Sequence[str] = ()
    seed: int | None = None


def chosen_samples(folder: Path, manifest: Manifest, choice: Choice) -> list[Sample]:
    """The samples of a choice, in the order of their numbers, or of the names asked for.

    Raises:
        UsageError: names are asked for where samples have none.
        MissingNameError: no sample has one of the names.
        DamagedError: a shard or the table of names cannot be read.
    """
    with contextlib.ExitStack() as opened:
        table = None
        if manifest.names is not None:
            table = opened.enter_context(contextlib.closing(Names(folder / manifest.names.file, manifest.names)))
        numbers = _numbers(manifest, table, choice)
        names = [table.name(number) if table else None for number in numbers.tolist()]
    columns = list(enumerate(manifest.fields))
    source = PackedSource(str(folder), manifest.shards, columns, numbers, None, {})
    values = [{name: block[name][place] for name in block} for block in source.read() for place in range(count(block))]
    return [Sample(*found) for found in zip(numbers.tolist(), names, values, strict=True)]


def _numbers(manifest: Manifest, table: Names | None, choice: Choice) -> NDArray[np.int64]:
    if choice.names:
        if table is None:
            raise UsageError("the samples have no names, so that --names finds none; take --samples and --seed")
        return table.numbers(choice.names)
    count = min(choice.count, manifest.samples)
    if choice.seed is None:
        return np.linspace(0, manifest.samples - 1, count).round().astype(np.int64)
    chance = np.random.default_rng(choice.seed)
    return np.sort(chance.choice(manifest.samples, count, replace=False)).astype(np.int64)
