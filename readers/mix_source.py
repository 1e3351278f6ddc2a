"""What is read of several datasets, as those of a `Mix`; to the loader it is like what is read of one.

Samples are numbered over all whole datasets, one after another. Where all datasets hold a field uncompressed and of one
shape, one gather copies it from the memory of all. Else each dataset reads its samples of a batch, which are then put
in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import torch

from packer.errors import UsageError
from packer.format import ColumnIndex, Field, Numbers, Shard, ShardEntry, starts_of
from readers.draws import Asked, Visits
from readers.fields import FieldReader, FixedRaw, KnownReader, Places, gather_samples
from readers.gather import Pool, fresh
from readers.joined import JoinedReader, group_by_part, join_parts, parts_of
from readers.share import ItemShards
from readers.source import Source, by_cache
from readers.transforms import Transforms

#: Field that says which dataset a sample is of.
DATASET = "dataset"
_DATASET_FIELD = Field(name=DATASET, dtype="int64")


class MixSource:
    """What is read of several datasets, as `Source` is for one. Samples are numbered over all whole datasets.

    Args:
        members: what is read of each; an attribute, too.
        has_numbers: whether the number of its dataset is a field; an attribute, too.
    """

    def __init__(self, members: Sequence[Source], has_numbers: bool) -> None:
        self.members = members
        self.has_numbers = has_numbers
        self._opened: MixShards | None = None

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"Mix({', '.join(map(repr, self.members))})"

    @property
    def fields(self) -> dict[str, Field]:
        """Return the fields that are read, by name."""
        fields = {name: reader.field for name, reader in self.members[0].unread.items()}
        return {**fields, **({DATASET: _DATASET_FIELD} if self.has_numbers else {})}

    @property
    def digest(self) -> str:
        """Return a short text that differs for other datasets, or for other items of them."""
        return " ".join(member.digest for member in self.members)

    @property
    def transforms(self) -> Transforms:
        """Return what changes samples and batches.

        Raises:
            UsageError: the datasets have different ones.
        """
        first, *others = [member.transforms for member in self.members]
        if any(other != first for other in others):
            raise UsageError("mix: the datasets have different transforms; give all the same ones")
        return first

    @property
    def draws(self) -> bool:
        """Return whether random parts of samples are read, or a transform gets a generator."""
        return any(member.draws for member in self.members)

    @property
    def asks(self) -> bool:
        """Return whether a function of the caller's says which part of each sample is read."""
        return any(member.asks for member in self.members)

    @property
    def items(self) -> MixedItems:
        """Return which sample of which dataset each number means."""
        return MixedItems(self.members)

    @property
    def is_at_url(self) -> bool:
        """Return whether one of the datasets is at a URL."""
        return any(member.is_at_url for member in self.members)

    @property
    def readers(self) -> dict[str, FieldReader]:
        """Return the reader of each field."""
        return self.opened.readers

    @property
    def opened(self) -> MixShards:
        """Return the mapped shards of all datasets, and their readers; opened once a process."""
        readers = [member.readers for member in self.members]
        if self._opened is None or not all(map(is_, readers, self._opened.member_readers)):  # after a fork
            self._opened = MixShards(self.members, self.has_numbers)
        return self._opened

    @property
    def _too_large(self) -> list[Source]:
        """Return the datasets at URLs that are larger than their caches may be, those that share one together."""
        return [
            member
            for cache, members in by_cache(self.members).items()
            if cache.limit is not None and sum(member.bytes_fetched for member in members) > cache.limit
            for member in members
        ]

    @property
    def exceeds_cache(self) -> bool:
        """Return whether datasets at URLs are larger than their caches may be, those that share one together."""
        return bool(self._too_large)

    @property
    def entries(self) -> list[ShardEntry]:
        """Return the shards that hold samples, of one dataset after another."""
        return [entry for member in self.members for entry in member.entries]

    @property
    def item_shards(self) -> ItemShards:
        """Return in which of `entries` each item lies."""
        parts = [member.item_shards for member in self.members]
        item_starts, shard_starts = self.items.starts, starts_of([len(member.entries) for member in self.members])

        def of(numbers: Numbers) -> Numbers:
            shards = np.empty_like(numbers)
            for part, positions in group_by_part(parts_of(numbers, item_starts)):
                shards[positions] = parts[part].of(numbers[positions] - item_starts[part]) + shard_starts[part]
            return shards

        edges = [
            part.edges[:-1] + start for part, start in zip(parts, item_starts, strict=False) if part.edges is not None
        ]
        return ItemShards(np.concatenate([*edges, item_starts[-1:]]) if len(edges) == len(parts) else None, of)

    def gather(self, numbers: Numbers, visits: Visits | None) -> dict[str, Any]:
        """Return the batch of the items `numbers` (n,), untransformed: field name to values."""
        if self.exceeds_cache:
            return self._gather_by_member(numbers, visits)
        return gather_samples(self.readers, self.items.resolve(numbers, visits), self.opened.pool)

    def join(self, readers: Sequence[Mapping[str, FieldReader]]) -> Mapping[str, FieldReader]:
        """Return the reader of each field from those of each dataset."""
        return join_readers(readers, starts_of([member.items.total for member in self.members]), self.has_numbers)

    def _gather_by_member(self, numbers: Numbers, visits: Visits | None) -> dict[str, Any]:
        """Return the same batch, of which each dataset reads its samples by itself: they are not open side by side."""
        starts, too_large = self.items.starts, self._too_large
        number_of_member = parts_of(numbers, starts)
        parts = []
        for part, positions in group_by_part(number_of_member):
            member, part_visits = self.members[part], None if visits is None else visits[positions]
            values = member.gather(numbers[positions] - starts[part], part_visits, by_shard=member in too_large)
            parts.append((positions, values))
        joined = {
            name: join_parts([(positions, values[name]) for positions, values in parts], len(numbers), fresh)
            for name in parts[0][1]
        }
        return {**joined, DATASET: torch.from_numpy(number_of_member)} if self.has_numbers else joined


#: What `Loader` reads from.
AnySource = Source | MixSource


@dataclass(frozen=True)
class MixedItems:
    """Which sample each number of a mix means, as `Items` is for one dataset."""

    members: Sequence[Source]

    @property
    def starts(self) -> Numbers:
        """Return the first item of each dataset, and the end of the last."""
        return starts_of([len(member.items) for member in self.members])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def resolve(self, numbers: Numbers, visits: Visits | None) -> Asked:
        """Return the samples of items (n,), by their numbers among all samples of all whole datasets."""
        starts = self.starts
        sample_starts = starts_of([member.items.total for member in self.members])
        samples, anchors = np.empty_like(numbers), np.zeros_like(numbers)
        for part, of_part in group_by_part(parts_of(numbers, starts)):
            part_visits = None if visits is None else visits[of_part]
            asked = self.members[part].items.resolve(numbers[of_part] - starts[part], part_visits)
            samples[of_part] = asked.samples + sample_starts[part]
            anchors[of_part] = 0 if asked.anchors is None else asked.anchors
        return Asked(samples, visits, anchors)


def join_readers(
    readers: Sequence[Mapping[str, FieldReader]], starts: Numbers, with_numbers: bool
) -> dict[str, FieldReader]:
    """Return a reader of each field of several datasets, whose samples are numbered one after another.

    Args:
        readers: of each dataset, by field.
        starts: first sample of each dataset, and the end of the last.
        with_numbers: whether the number of its dataset is a field.
    """
    joined: dict[str, FieldReader] = {
        name: JoinedReader([by_field[name] for by_field in readers], starts) for name in readers[0]
    }
    if with_numbers:
        joined[DATASET] = KnownReader(_DATASET_FIELD, lambda asked: parts_of(asked.samples, starts))
    return joined


class MixShards:
    """The shards of several datasets, and a reader of each field for all of them.

    Attributes:
        member_readers: the readers of each dataset, by field.
        pool: memory for batches of torch's DataLoader.
        is_warm: see `Opened`.
        readers: by field. Samples are numbered over all whole datasets, one after another.
    """

    def __init__(self, members: Sequence[Source], has_numbers: bool) -> None:
        self.member_readers = [member.readers for member in members]
        self._opened = [member.opened for member in members]
        self.pool = Pool()
        self.is_warm = False
        starts = starts_of([member.items.total for member in members])
        self.readers = join_readers(self.member_readers, starts, has_numbers)
        for name in self.member_readers[0]:
            if all(by_field[name].raw_places is not None for by_field in self.member_readers):
                self.readers[name] = FixedRaw(self._places(name))  # one gather from the memory of all

    def _places(self, name: str) -> Places:
        """Return where the samples of a field of one shape lie, in the shards of all datasets."""
        shards = [member.shards for member in self._opened]
        starts = starts_of([len(member.samples) for member in shards])

        def opening(numbers: Sequence[int]) -> list[tuple[ColumnIndex, int]]:
            numbers_array = np.array(numbers)
            parts = group_by_part(parts_of(numbers_array, starts))  # which ascend, as the numbers do
            return [
                index
                for part, of_part in parts
                for index in shards[part].columns(name, (numbers_array[of_part] - starts[part]).tolist())
            ]

        field = self._opened[0].places[name].field
        return Places(field, [count for member in shards for count in member.samples], opening, field.fixed_bytes)

    @property
    def addressed(self) -> tuple[Numbers, Sequence[Shard]]:
        """Return the address of the first byte of each shard that is open, (shards,), and these shards, in order."""
        starts, shards = zip(*(member.addressed for member in self._opened), strict=True)
        return np.concatenate(starts), [shard for member in shards for shard in member]
