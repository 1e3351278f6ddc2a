"""Compares frames with their checksums before anything is decoded or copied from them.

A checked reader stands in front of another and asks it for nothing but where its bytes lie. Whether that one reads
whole samples, crops or subsets of points makes no difference.

Index arrays have no checksums. Most need none: a frame that a wrong index leads to does not have its checksum, and the
size of a sample has to be that of its shape. Only a shape of several ragged axes, or one of no bytes, can be wrong and
fit all the same. Before the first such shape of a shard is used, the digest of its whole file is compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from packer.codecs.frames import frame_hashes
from packer.errors import DamagedError
from packer.format.column import FRAMES, LocatedFrames, Numbers
from packer.format.shard import Shard
from readers.draws import Visits
from readers.fields import Describe, FieldReader, distinct
from readers.gather import Allocate
from readers.opened import Opened

#: Samples that one message names.
SHOWN = 5


def check_digests(opened: Opened, shards: Numbers) -> None:
    """Check the digests of the shards of some samples (n,), each when it is first asked for.

    Raises:
        DamagedError: something other than frames was changed in one. Wrong frames are found when they are read.
    """
    for number in set(shards.tolist()) - opened.checked:
        shard, entry = opened.shards[number], opened.entries[number]
        if xxhash.xxh3_128_hexdigest(shard.bytes) != entry.digest and not _has_wrong_frames(opened, number):
            raise DamagedError(
                f"{shard.path}: its digest is wrong, though all frames are right: an index, a page or the padding "
                "changed; `packer repair` packs the shard again"
            )
        opened.checked.add(number)


def _has_wrong_frames(opened: Opened, number: int) -> bool:
    entry = opened.entries[number]
    with Shard(Path(opened.shards[number].path), entry.bytes) as shard:
        columns = [shard.column(number, field, entry.samples) for number, field in enumerate(opened.fields)]
        return any(len(wrong) for column in columns for _, wrong in column.check_frames())


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
        self._frames = sum(index.frames for index in self._places.indexes)
        whole = self._places.field
        self._shapes_may_be_wrong = len(whole.ragged_axes) > 1 or (whole.is_ragged and not whole.fixed_bytes)

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Numbers:
        """Return the places as the reader has them, and the numbers of their samples, (n, m + 1).

        Raises:
            DamagedError: frames say nothing of the shapes of samples, and an index may be wrong.
        """
        if self._shapes_may_be_wrong:
            check_digests(self._opened, self._places.shard_of(numbers))
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
        # Frames hold whole samples, or belong to one: a sound index does not name more than there are.
        each = np.unique(numbers, return_index=True)[1]
        if self._places.field.frame.samples is None and located[each, FRAMES].sum() > self._frames:
            raise self._places.damaged()
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
