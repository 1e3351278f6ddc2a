"""Loops over an epoch: in RAM, for comparison, and through Loader and DataLoader.

Every side is timed with the epoch's random order (`torch.randperm` in RAM, its own in `Loader`), cutting it into
batches, and making the batches. A DataLoader over single samples is given its order: making the order of a short epoch
would be counted against it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from benchmark.measuring import Side, checksum, epochs, files_of
from readers import Loader, PackedDataset

Values = NDArray[Any]
#: What `takes` is called in the tables.
TAKES = "np.take, a tensor of each array"


def loader_side(
    dataset: PackedDataset, batch_size: int, expected: int | None = None, name: str = "Loader", **options: Any
) -> Side:
    """Read epochs through `Loader`: over the `sampler` among `options`, or shuffled unless they say otherwise."""
    loader = Loader(dataset, batch_size, **{"shuffle": "sampler" not in options, **options})
    return epochs(name, lambda: loader, len(loader.order), expected, files_of(dataset.path))


def in_ram(
    name: str, samples: int, batch_size: int, take: Callable[[torch.Tensor], Any], expected: int | None = None
) -> Side:
    """Read epochs in RAM: `take` gives the batch of some sample numbers."""
    return epochs(name, lambda: map(take, shuffled(samples, batch_size)), samples, expected)


def indexing(fields: Sequence[Values], batch_size: int) -> Side:
    """Read in RAM by torch's fancy indexing, `x[idx]`."""
    tensors = [torch.from_numpy(values) for values in fields]

    def indexed(numbers: torch.Tensor) -> list[torch.Tensor]:
        return [values[numbers] for values in tensors]

    return in_ram("x[idx]", len(fields[0]), batch_size, indexed, checksum(fields))


def limits(fields: Sequence[Values], batch_size: int) -> tuple[Side, Side]:
    """Read in RAM by `torch.index_select` and by `np.take`, each sample as one flat record: the limit."""
    flat = [values.reshape(len(values), -1) if values.ndim > 1 else values for values in fields]
    tensors = [torch.from_numpy(values) for values in flat]
    samples, expected = len(fields[0]), checksum(fields)

    def selected(numbers: torch.Tensor) -> list[torch.Tensor]:
        return [torch.index_select(values, 0, numbers) for values in tensors]

    def taken() -> Iterator[list[Values]]:
        order = torch.randperm(samples).numpy()  # cut by numpy: tensors of numbers cost as much as tiny batches
        for start in range(0, samples, batch_size):
            numbers = order[start : start + batch_size]
            yield [values.take(numbers, axis=0) for values in flat]

    selecting = in_ram("index_select", samples, batch_size, selected, expected)
    return selecting, epochs("np.take", taken, samples, expected)


def as_tensors(
    samples: int, batch_size: int, take: Callable[..., list[Values]], buffers: Sequence[Values], expected: int
) -> tuple[Side, Side]:
    """Read in RAM, and make a tensor of each array: in new memory, and in two buffers in turn.

    Args:
        take: returns the arrays of some samples, which it puts into the buffers that it is given, or into new memory
            where it is given None.
        buffers: for the largest batch, one a field.
    """
    others = [np.zeros_like(buffer) for buffer in buffers]

    def side(name: str, *turns: Sequence[Values | None]) -> Side:
        def batches() -> Iterator[list[torch.Tensor]]:
            order = torch.randperm(samples).numpy()
            for start, outs in zip(range(0, samples, batch_size), itertools.cycle(turns), strict=False):
                yield [torch.from_numpy(values) for values in take(order[start : start + batch_size], outs)]

        return epochs(name, batches, samples, expected)

    return side("new memory", [None] * len(buffers)), side("two buffers", buffers, others)


def takes(fields: Sequence[Values], batch_size: int) -> tuple[Side, Side]:
    """Read in RAM by `np.take`, each sample as one flat record, with a tensor of each array."""
    flat = [values.reshape(len(values), -1) for values in fields]

    def take(numbers: Values, outs: Sequence[Values | None]) -> list[Values]:
        # Without "clip" numpy takes into memory of its own first.
        parts = [None if out is None else out[: len(numbers)] for out in outs]
        return [values.take(numbers, axis=0, out=out, mode="clip") for values, out in zip(flat, parts, strict=True)]

    buffers = [np.zeros((batch_size, values.shape[1]), values.dtype) for values in flat]
    return as_tensors(len(flat[0]), batch_size, take, buffers, checksum(fields))


def data_loaders(
    dataset: Dataset[Any], numbers: Sequence[int], batch_size: int, expected: int | None, files: Sequence[Path] = ()
) -> list[Side]:
    """Read the samples `numbers` through a DataLoader that makes batches of single samples, by 0 and by 2 workers."""
    options: dict[str, Any] = {"sampler": numbers, "expected": expected, "files": files}
    return [data_loader(dataset, batch_size, workers, **options) for workers in (0, 2)]


def data_loader(
    dataset: Dataset[Any],
    batch_size: int,
    workers: int = 0,
    *,
    name: str = "",
    expected: int | None = None,
    files: Sequence[Path] = (),
    **options: Any,
) -> Side:
    """Read epochs through torch's DataLoader: over the `sampler` among `options`, or over all samples, shuffled.

    Workers stay between epochs; starting them is not counted.
    """
    options = {"shuffle": "sampler" not in options, "persistent_workers": workers > 0, **options}
    loader: Any = DataLoader(dataset, batch_size, num_workers=workers, **options)
    return epochs(name or f"DataLoader, {workers} workers", lambda: loader, len(loader.sampler), expected, files)


def shuffled(n: int, batch_size: int) -> tuple[torch.Tensor, ...]:
    """Return an epoch's sample numbers in batches, in a new random order."""
    batches: tuple[torch.Tensor, ...] = torch.randperm(n).split(batch_size)  # type: ignore[no-untyped-call]
    return batches
