"""An open dataset: its fields ready to be read, also with checksums. Made late, once a process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from packer.errors import DamagedError, DatasetError
from packer.format import Located, Manifest, Names, Numbers, Shard, distinct
from readers.draws import Asked
from readers.fields import NAME, Describe, FieldReader, FixedRaw, NameReader, Places, WholeReader, WrappedReader
from readers.gather import Allocate
from readers.shards import OpenShard, Shards

if TYPE_CHECKING:
    from packer.remote import Mirror

#: Samples with wrong checksums that one message names.
SHOWN = 5


class Opened:
    """The shards of a dataset and one reader a field.

    Attributes:
        shards: opened one by one.
        places: by field, where its samples lie.
        readers: by field, of whole samples.
        is_warm: whether a loader's last reads came from memory, not from the disk.

    Args:
        folder: the packed dataset.
        manifest: what it holds.
        fields: names of the fields to open, in order.
        mirror: fetches the shards; None if they are in the folder.
        extras: of these, names are read as a field is.
        closes: whether shards are opened by `open_shard` alone, and closed again; see `Shards`.

    Raises:
        DamagedError: a shard is missing, or cut short.
        DatasetError: the dataset was replaced after its manifest was read, or too many files are open.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        fields: Sequence[str],
        mirror: Mirror | None = None,
        extras: Sequence[str] = (),
        closes: bool = False,
    ) -> None:
        self.shards = shards = Shards(folder, manifest, fields, mirror, NAME in extras, closes)
        self.is_warm = False
        self.places: dict[str, Places] = {}
        self.readers: dict[str, FieldReader] = {}
        for name in fields:
            field, column = manifest.field(name), manifest.columns[name]
            mean = column.raw / max(manifest.samples, 1)
            opening = partial(shards.columns, name)
            self.places[name] = places = Places(field, shards.samples, opening, mean, column.scale)
            self.readers[name] = WholeReader(places) if field.codec or field.is_ragged else FixedRaw(places)
        if NAME in extras:
            self.readers[NAME] = NameReader(shards)

    def open_shard(self, number: int) -> OpenShard:
        """Open a shard, which is closed when nobody keeps what is returned; raises errors as `Shards.open`.

        Whoever locates samples of it or reads them keeps it meanwhile.
        """
        (shard,) = self.shards.open([number])
        for name, places in self.places.items():
            places.add([number], [(shard.indexes[name], shard.start)])
        return shard

    @property
    def addressed(self) -> tuple[Numbers, Sequence[Shard]]:
        """Return the address of the first byte of each shard that is open, (shards,), and these shards, in order."""
        return self.shards.addressed


def open_names(folder: Path, manifest: Manifest) -> Names:
    """Return the names of all samples.

    Raises:
        DatasetError: the samples have no names.
        DamagedError: the table is missing or damaged.
    """
    if manifest.names is None:
        raise DatasetError(f"{folder}: its samples have no names; index them by number")
    return Names(folder, manifest)


def describe(folder: Path, manifest: Manifest, number: int) -> str:
    """Return the dataset and a sample of it in words, for messages."""
    return f"{folder}: {in_words(folder, manifest, number)}"


def in_words(folder: Path, manifest: Manifest, number: int) -> str:
    """Return a sample in words: its number, and its name if it has one that can be read."""
    try:
        name = open_names(folder, manifest).name(number)
    except DatasetError:
        return f"sample {number}"
    return f"sample {number} ({name!r})"


class CheckedReader(WrappedReader):
    """Checks frames before another reader reads them; same values, same memory.

    It needs to know only where that reader's bytes lie, so whole samples, crops and points are all checked alike. The
    checksums stand in index arrays; their digest stands in the manifest and is compared when a shard is first read.

    Args:
        reader: of whole samples or of parts of them.
        whole_places: where the whole samples lie.
        in_words: gives a sample in words, by its number.
    """

    def __init__(self, reader: FieldReader, whole_places: Places, in_words: Describe) -> None:
        super().__init__(reader, reader.field)
        self._whole = whole_places
        self._in_words = in_words

    def locate(self, asked: Asked) -> Located:
        """Return the places that the reader gives, with the numbers of their samples."""
        return self._reader.locate(asked).adding(number=asked.samples)

    def read(self, located: Located, allocate: Allocate | None = None) -> Any:
        """Return the values of the samples, once all their frames have been found right.

        Raises:
            DamagedError: a frame has a wrong checksum, or cannot be decoded; the message names field and samples.
        """
        spans, frames = self._reader.spans(located), self._whole.frames(self._whole.locate(located.number))
        first, stop = spans[frames.item].T
        frames = frames[(frames.start < stop) & (frames.start + frames.stored > first)]
        # Each frame once. None is empty, so two that start at one place are the same.
        _, first_of_frame, frame_of_item = distinct(frames.start)
        wrong = self._whole.are_wrong(frames[first_of_frame])[frame_of_item]
        if wrong.any():
            raise self._error(np.unique(located.number[frames.item[wrong]]))
        return self._reader.read(located, allocate)

    def _error(self, numbers: Numbers) -> DamagedError:
        """Return the error for samples with wrong frames; it names the first one's shard."""
        shards = self._whole.shard_of(numbers)
        numbers, path = numbers[shards == shards[0]], self._whole.path_of(int(shards[0]))
        named = ", ".join(self._in_words(number) for number in numbers[:SHOWN].tolist())
        note = f" and {len(numbers) - SHOWN} more of this batch" if len(numbers) > SHOWN else ""
        return DamagedError(
            f"{path}: field {self.field.name!r}, {named}{note}: the checksum is wrong; "
            "`packer verify` tells what else is damaged, `packer repair` packs the shard again; of a dataset at a URL "
            "delete this file, and it is fetched again"
        )
