"""Arrays of numbers, and ways to look up and to copy many things by one call each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

#: Numbers, sizes or addresses.
Numbers = NDArray[np.int64]

#: With more ends of stretches between two entries of a table, a search is as fast; and so it is for so few numbers.
_MOST_ENDS, _FEW_NUMBERS = 3, 32


def finder(ends: Numbers) -> Callable[[Numbers], Numbers]:
    """Return a function that gives the stretch of each number (n,); `ends` are those of all stretches but the last.

    It returns `ends.searchsorted(numbers, side="right")`, which costs 25 to 50 ns for a random number: the processor
    cannot predict the branches. A table with the stretch of every 2**k-th number costs 5. A few comparisons with the
    next ends put its answer right.
    """
    if len(ends) and ends[-1] >= len(ends):
        shift = (int(ends[-1]) // len(ends)).bit_length() - 1
        table = ends.searchsorted(np.arange((int(ends[-1]) >> shift) + 2) << shift, side="right")
        most, bounds = int(np.diff(table).max()), np.append(ends, np.iinfo(np.int64).max)
        if most <= _MOST_ENDS:

            def find(numbers: Numbers) -> Numbers:
                if len(numbers) <= _FEW_NUMBERS:
                    return ends.searchsorted(numbers, side="right")
                stretches = table.take(numbers >> shift, mode="clip")
                for _ in range(most):
                    stretches += numbers >= bounds.take(stretches)
                return stretches

            return find
    return lambda numbers: ends.searchsorted(numbers, side="right")


def distinct(frames: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return the distinct addresses of `frames` (n,), (m,); an item at each, (m,); and which is each item's, (n,).

    As np.unique with return_index and return_inverse, but faster.
    """
    ordered = np.sort(frames)
    addresses = ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered
    inverse = addresses.searchsorted(frames)
    item = np.empty(len(addresses), np.int64)
    item[inverse] = np.arange(len(frames))
    return addresses, item, inverse


def starts_of(sizes: Sequence[int] | Numbers) -> Numbers:
    """Return where each of some parts (n,) starts if they lie one after another, and where the last stops, (n + 1,)."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def join(memory: NDArray[np.uint8], starts: Numbers, sizes: Numbers, out: NDArray[np.uint8]) -> None:
    """Copy stretches of `memory` into `out`, one after another, by one call; neighbours are one stretch."""
    ends = starts + sizes
    apart = starts[1:] != ends[:-1]
    if not apart.all():
        starts, ends = starts[np.append(True, apart)], ends[np.append(apart, True)]
    if len(starts):
        np.concatenate([memory[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)], out=out)


def take_rows(memory: NDArray[np.uint8], rows: Numbers, out: NDArray[np.uint8]) -> None:
    """Copy rows (n,) of `memory`, rows one after another, into `out` (n, length)."""
    length = out.shape[1]
    items = memory[: len(memory) // length * length].view(np.dtype((np.void, length)))
    items.take(rows, out=out.reshape(-1).view(items.dtype), mode="clip")


def items_of(memory: NDArray[np.uint8], nbytes: int) -> NDArray[np.void]:
    """Return memory as overlapping items of `nbytes` bytes, one beginning at each byte, (len(memory) - nbytes + 1,).

    To numpy each is one opaque item, so a gather is one memcpy an item.
    """
    count = max(len(memory) - nbytes + 1, 0)
    return np.ndarray((count,), np.dtype((np.void, nbytes)), memory.data, 0, (1,))
