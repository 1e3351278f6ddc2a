"""Random permutations without an array: the number at any place is worked out from a key.

A place is written as row and column of a table of about n places. Rows and columns are shifted in turn, each by an
amount that looks random and depends on the other (a Feistel network; Luby and Rackoff 1988). A result past the end is
permuted again until it falls inside (cycle walking; Black and Rogaway 2002).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer.format import Numbers
from readers.compiled import loading

#: Rounds of the network; each shifts columns and rows once.
ROUNDS = 4
#: Odd numbers that mix the bits of a product well (lowbias32 of Chris Wellons' hash-prospector).
_MIX, _MIX_AGAIN = np.uint64(0x7FEB352D), np.uint64(0x846CA68B)
_WORD, _HALF, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(15)


class Permutation:
    """A permutation of 0 to `size` - 1 that a key chooses.

    Args:
        size: from 1 to 2**60.
        seeds: numbers from 0 on that make the key.
    """

    def __init__(self, size: int, *seeds: int) -> None:
        words = np.random.SeedSequence(seeds).generate_state(2 * ROUNDS + 2, np.uint32).astype(np.uint64)
        self._keys = words[: 2 * ROUNDS]
        # Places are turned first, so that those of a short permutation are equally likely whatever the rounds do.
        self._turn = int(words[-2] << _HALF | words[-1]) % size
        self._bits = np.uint64(max(size - 1, 1).bit_length() // 2)
        self._rows = np.uint64(-(-size // (1 << int(self._bits))))
        self._size = np.uint64(size)

    def at(self, places: Numbers) -> Numbers:
        """Return the numbers at some places (n,), each from 0 to `size` - 1."""
        numbers = (places + self._turn).view(np.uint64)
        numbers -= self._size * (numbers >= self._size)
        walking = np.arange(len(numbers))
        while len(walking):
            permuted = numbers if len(walking) == len(numbers) else numbers[walking]
            _permute(permuted, self._rows, self._bits, self._keys)
            if permuted is not numbers:
                numbers[walking] = permuted
            walking = walking[permuted >= self._size]
        return numbers.view(np.int64)


def _permute_by_numpy(places: NDArray[np.uint64], rows: np.uint64, bits: np.uint64, keys: NDArray[np.uint64]) -> None:
    """Put places of the table (n,) through the network, in place."""
    columns = np.uint64(1) << bits
    row, column = places >> bits, places & (columns - np.uint64(1))
    for number in range(ROUNDS):
        _shift(column, row, columns, keys[2 * number])
        _shift(row, column, rows, keys[2 * number + 1])
    places[:] = row << bits | column


def _shift(values: NDArray[np.uint64], other: NDArray[np.uint64], end: np.uint64, key: np.uint64) -> None:
    """Shift values (n,) modulo `end`, in place, each by an amount that looks random for each value of `other`."""
    word = ((other ^ key) * _MIX) & _WORD
    word ^= word >> _SHIFT
    word *= _MIX_AGAIN
    word &= _WORD
    word *= end
    word >>= _HALF
    values += word
    values -= end * (values >= end)


_permute = loading.loop("permute", _permute_by_numpy)
