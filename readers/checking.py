"""Compares frames with their checksums before anything is decoded or copied from them.

A checked reader stands in front of another and asks it for nothing but where its bytes lie. Whether that one reads
whole samples, crops or subsets of points makes no difference.

The checksums stand in index arrays, whose digest stands in the manifest and is compared when a shard is opened.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from packer.codecs import frame_hashes
from packer.errors import DamagedError
from packer.format import LocatedFrames, Numbers
from readers.draws import Visits
from readers.fields import Describe, FieldReader, distinct
from readers.gather import Allocate
from readers.opened import Opened

#: Samples that one message names.
SHOWN = 5


class CheckedReader(FieldReader):
    """Another reader, whose frames are checked before it reads them; same values, same memory.

    Args:
        reader: of whole samples, of parts of them, or of chosen points: the first columns of its places are those of
            the whole samples.
        opened: where these lie.
        in_words: gives a sample in words, by its number.
    """

    def __init__(self, reader: FieldReader, opened: Opened, in_words: Describe) -> None:
        super().__init__(reader.field)
        self._reader = reader
        self._places = opened.places[self.field.name]
        self._opened = opened
        self._in_words = in_words

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Numbers:
        """Return the places as the reader has them, and the numbers of their samples, (n, m + 1)."""
        return np.column_stack([self._reader.locate(numbers, visits, anchors), numbers])

    def spans(self, located: Numbers) -> Numbers:
        """Return the address and size of the bytes that `read` will touch, (n, 2)."""
        return self._reader.spans(located)

    def read(self, located: Numbers, allocate: Allocate | None = None) -> Any:
        """Return the values of the samples, once all their frames have been found right.

        Raises:
            DamagedError: a frame has a wrong checksum, or cannot be decoded; the message names field and samples.
        """
        numbers, spans = located[:, -1], self.spans(located)
        # Not of each sample once: two visits may touch other frames of it.
        frames = self._places.frames(located)
        starts, ends = spans[frames.item, 0], spans.sum(axis=1)[frames.item]
        touched = (frames.spans[:, 0] < ends) & (frames.spans[:, 1] > starts)
        frames = LocatedFrames(*(part[touched] for part in frames))
        # Each once. None of them is empty: two that start at one place are one.
        _, at, inverse = distinct(frames.spans[:, 0])
        found = frame_hashes(self._places.memory.array.data, frames.spans[at])
        wrong = found[inverse] != self._places.checksums(located, frames)
        if wrong.any():
            raise self._error(np.unique(numbers[frames.item[wrong]]))
        return self._reader.read(located, allocate)

    def _error(self, numbers: Numbers) -> DamagedError:
        """Return the error for samples with wrong frames; it names the first one's shard."""
        shards = self._places.shard_of(numbers)
        numbers, path = numbers[shards == shards[0]], self._opened.shards[int(shards[0])].path
        named = ", ".join(self._in_words(number) for number in numbers[:SHOWN].tolist())
        more = f" and {len(numbers) - SHOWN} more of this batch" if len(numbers) > SHOWN else ""
        return DamagedError(
            f"{path}: field {self.field.name!r}, {named}{more}: the checksum is wrong; "
            "`packer verify` tells what else is damaged, `packer repair` packs the shard again"
        )
