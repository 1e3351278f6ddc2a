"""Compares frames with their checksums before anything is decoded or copied from them.

A checked reader stands in front of another and asks it for nothing but where its bytes lie. Whether that one reads
whole samples, crops or subsets of points makes no difference.

The checksums stand in index arrays, whose digest stands in the manifest and is compared when a shard is opened.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from packer.errors import DamagedError
from packer.format import Located, Numbers, distinct
from readers.draws import Visits
from readers.fields import Describe, FieldReader
from readers.gather import Allocate
from readers.opened import Opened

#: Samples that one message names.
SHOWN = 5


class CheckedReader(FieldReader):
    """Another reader, whose frames are checked before it reads them; same values, same memory.

    Args:
        reader: of whole samples or of parts of them.
        opened: where the whole samples lie.
        in_words: gives a sample in words, by its number.
    """

    def __init__(self, reader: FieldReader, opened: Opened, in_words: Describe) -> None:
        super().__init__(reader.field)
        self.run_bytes = reader.run_bytes
        self._reader = reader
        self._whole = opened.places[self.field.name]
        self._in_words = in_words

    def nbytes(self, located: Located) -> Numbers:
        """Return the bytes of each sample when it is read, (n,)."""
        return self._reader.nbytes(located)

    def spans(self, located: Located) -> Numbers:
        """Return the first address that `read` touches for each sample and the one after the last, (n, 2)."""
        return self._reader.spans(located)

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Located:
        """Return the places as the reader has them, and the numbers of their samples."""
        return self._reader.locate(numbers, visits, anchors).adding(number=numbers)

    def read(self, located: Located, allocate: Allocate | None = None) -> Any:
        """Return the values of the samples, once all their frames have been found right.

        Raises:
            DamagedError: a frame has a wrong checksum, or cannot be decoded; the message names field and samples.
        """
        spans, frames = self._reader.spans(located), self._whole.frames(self._whole.locate(located.number))
        first, stop = spans[frames.item].T
        frames = frames[(frames.start < stop) & (frames.start + frames.stored > first)]
        # Each once. None of them is empty: two that start at one place are one.
        _, at, inverse = distinct(frames.start)
        wrong = self._whole.are_wrong(frames[at])[inverse]
        if wrong.any():
            raise self._error(np.unique(located.number[frames.item[wrong]]))
        return self._reader.read(located, allocate)

    def _error(self, numbers: Numbers) -> DamagedError:
        """Return the error for samples with wrong frames; it names the first one's shard."""
        shards = self._whole.shard_of(numbers)
        numbers, path = numbers[shards == shards[0]], self._whole.indexes[int(shards[0])].path
        named = ", ".join(self._in_words(number) for number in numbers[:SHOWN].tolist())
        more = f" and {len(numbers) - SHOWN} more of this batch" if len(numbers) > SHOWN else ""
        return DamagedError(
            f"{path}: field {self.field.name!r}, {named}{more}: the checksum is wrong; "
            "`packer verify` tells what else is damaged, `packer repair` packs the shard again"
        )
