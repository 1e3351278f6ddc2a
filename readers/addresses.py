"""Where the samples of uncompressed fields of fixed shape lie: all fields of a dataset at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from readers.places import Numbers, Places, common_finder


class Addresses:
    """Turns sample numbers into addresses: one search for their chunks, one product and one sum for all fields.

    Field by field, 100 samples of two fields take 9 us; together 5.

    Args:
        fields: where the samples of each field lie.
        at: for each field and chunk, the address that sample 0 of the dataset would have, in elements, (chunks,) each.
        lengths: elements of a sample of each field.
    """

    def __init__(self, fields: Sequence[Places], at: Sequence[Numbers], lengths: Sequence[int]) -> None:
        self._finder = common_finder(fields)
        starts = self._finder.starts
        self._at: NDArray[np.int64] = np.zeros((len(fields), len(starts)), np.int64)
        for row, places, known in zip(self._at, fields, at, strict=True):
            if len(known):  # samples of no bytes may have no chunk
                row[:] = known[places.chunk_of(starts)]
        self._several = len(starts) > 1
        self._lengths = np.array(lengths, np.int64)[:, None]

    def of_all(self, numbers: Numbers) -> Numbers:
        """Address of each sample in each field, in elements, (fields, n)."""
        addresses: Numbers = numbers * self._lengths
        if self._several:
            addresses += self._at.take(self._finder.find(numbers), 1)
        else:
            addresses += self._at
        return addresses

    def of(self, field: int, numbers: Numbers) -> Numbers:
        """Address of each sample in one field, in elements, (n,)."""
        addresses: Numbers = numbers * self._lengths[field]
        addresses += self._at[field].take(self._finder.find(numbers))
        return addresses
