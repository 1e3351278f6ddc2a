"""Several datasets read as one, as those of a `Mix`.

Each reads its samples of a batch, which are then put in order. That costs one copy more than reading them by one call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from packer.format import Located, Numbers, starts_of
from readers.batch import Ragged
from readers.draws import Asked
from readers.fields import FieldReader
from readers.gather import Allocate, fresh


def parts_of(numbers: Numbers, starts: Numbers) -> Numbers:
    """Return the part in which each of the numbers (n,) lies; `starts` is made by `starts_of`."""
    return starts[1:-1].searchsorted(numbers, side="right")


def group_by_part(part_numbers: Numbers) -> list[tuple[int, Numbers]]:
    """Return each part that occurs in `part_numbers` (n,), and where, (m,); if there are no samples, the first part."""
    return [(part, np.flatnonzero(part_numbers == part)) for part in np.unique(part_numbers).tolist() or [0]]


class JoinedReader(FieldReader):
    """One field of several parts. Reads like any other field.

    Args:
        readers: of each part; an attribute, too.
        starts: first number of each part, see `starts_of`.
    """

    def __init__(self, readers: Sequence[FieldReader], starts: Numbers) -> None:
        super().__init__(readers[0].field)
        self.readers = readers
        self.run_bytes = min(reader.run_bytes for reader in readers)
        self._starts = starts

    @property
    def in_words(self) -> str:
        """Return what it reads of a sample in a few words; it is alike in all parts."""
        return self.readers[0].in_words

    def locate(self, asked: Asked) -> Located:
        """Return the `part` of each sample, and where it lies there; other arrays of a part are 0 in other parts."""
        arrays = {"part": parts_of(asked.samples, self._starts)}
        for part, positions in group_by_part(arrays["part"]):
            asked_here = asked[positions]
            asked_here = replace(asked_here, samples=asked_here.samples - self._starts[part])
            part_located = self.readers[part].locate(asked_here)
            for name, values in vars(part_located).items():
                if name not in arrays:
                    arrays[name] = np.zeros((len(asked), *values.shape[1:]), values.dtype)
                arrays[name][positions] = values
        return Located(**arrays)

    def nbytes(self, located: Located) -> Numbers:
        """Return the bytes of each sample when it is read, (n,)."""
        nbytes = np.zeros(len(located), np.int64)
        for part, positions in group_by_part(located.part):
            nbytes[positions] = self.readers[part].nbytes(located[positions])
        return nbytes

    def spans(self, located: Located) -> Numbers:
        """Return the first address that `read` touches for each sample and the one after the last, (n, 2)."""
        spans = np.zeros((len(located), 2), np.int64)
        for part, positions in group_by_part(located.part):
            spans[positions] = self.readers[part].spans(located[positions])
        return spans

    def read(self, located: Located, allocate: Allocate | None = None) -> Any:
        """Return the values of the samples, in new memory or in what `allocate` gives.

        Raises:
            DamagedError: a stored frame cannot be decoded.
        """
        pieces = [
            (positions, self.readers[part].read(located[positions], allocate))
            for part, positions in group_by_part(located.part)
        ]
        return pieces[0][1] if len(pieces) == 1 else join_parts(pieces, len(located), allocate or fresh)


def join_parts(parts: Sequence[tuple[Numbers, Any]], count: int, allocate: Allocate) -> Any:
    """Return the values of one batch from those of its parts.

    Args:
        parts: for each the samples of the batch that it holds (m,), and their values: a tensor (m, ...), `Ragged`, a
            list, or a dict of these.
        count: samples of the batch.
    """
    first = parts[0][1]
    if isinstance(first, dict):
        return {
            name: join_parts([(positions, values[name]) for positions, values in parts], count, allocate)
            for name in first
        }
    if isinstance(first, torch.Tensor):
        out = _allocate_like(first, count, allocate)
        for positions, values in parts:
            out.numpy()[positions] = values.numpy()
        return out
    samples: list[Any] = [None] * count
    for positions, values in parts:
        part_samples = values.to_list() if isinstance(values, Ragged) else values
        for place, value in zip(positions.tolist(), part_samples, strict=True):
            samples[place] = value
    if not isinstance(first, Ragged):
        return samples
    offsets = starts_of([len(sample) for sample in samples])
    out = _allocate_like(first.values, int(offsets[-1]), allocate)
    np.concatenate([sample.numpy() for sample in samples], out=out.numpy())
    return Ragged(out, torch.from_numpy(offsets))


def _allocate_like(like: torch.Tensor, rows: int, allocate: Allocate) -> torch.Tensor:
    """Return a tensor of this many rows like those of another one."""
    shape = like.shape[1:]
    return allocate(rows * math.prod(shape) * like.itemsize).view(like.dtype).view(rows, *shape)
