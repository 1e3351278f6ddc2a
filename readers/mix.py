"""Mix: several datasets as one, by weight, for `Loader`.

    for batch in Loader(Mix({photos: 3, drawings: 1}), batch_size=128, shuffle=True):
        ...

A mix looks like a dataset to the loader. Its numbers are those of its datasets one after another; `order.Mixed` says
which come when. A batch is read by one call a field and dataset, and put together in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset

from packer.errors import UsageError, first_few
from packer.format import ColumnIndex, Field, Numbers, Shard, ShardEntry, starts_of
from readers.composed import Mixed
from readers.dataset import PackedDataset, reads_batches
from readers.draws import Asked, Visits, Words, draw_visits
from readers.fields import FieldReader, FixedRaw, KnownReader, Places, gather_samples
from readers.gather import Pool, fresh
from readers.indexing import is_single, resolve_number, resolve_numbers
from readers.joined import JoinedReader, group_by_part, join_parts, parts_of
from readers.order import Order
from readers.share import ItemShards
from readers.source import Source, by_cache, source_of
from readers.transforms import Transforms
from readers.valid import check_choice

#: Field that says which dataset a sample is of.
DATASET = "dataset"
_DATASET_FIELD = Field(name=DATASET, dtype="int64")


class Mix(Dataset[Any]):
    """Several datasets of the same fields, read together by weight; for `Loader`.

    `mix[number]` is one sample; numbers are those of the datasets one after another.

    Args:
        datasets: each with its weight, above 0: how often one of its samples comes, compared with the others. Or a list
            of datasets, and their `weights`. Their fields must have the same names, kinds, dtypes and fixed axes, after
            crops and windows; codecs may differ. All have the same `batch_transform` and `sample_transform`, or none.
        stop: with `"first"` an epoch ends when one of the datasets has been read once; it has as many samples of the
            others as the weights say, different ones each time. With `"all"` it ends when all have been read; the
            shorter ones begin again, in another order.
        batches: `"mixed"` draws each batch from all datasets; with `"one"` all samples of a batch, on all ranks, are
            from one dataset, and every batch is full. The order of an epoch then also depends on batch size and ranks,
            and a saved state fits only these.
        extras: `("dataset",)` adds the field `dataset`, int64 (B,): the number of the dataset that a sample is from,
            counted from 0. For names and numbers, give each dataset its own `extras`; they count within that dataset.
        weights: those of a list of datasets, in its order.

    Raises:
        UsageError: the datasets cannot be mixed; the message names the difference.
    """

    def __init__(
        self,
        datasets: Mapping[PackedDataset, float] | Sequence[PackedDataset],
        stop: str = "first",
        batches: str = "mixed",
        extras: Sequence[str] = (),
        *,
        weights: Sequence[float] | None = None,
    ) -> None:
        pairs = _pair_weights(datasets, weights)
        _check_arguments(pairs, stop, batches, extras)
        self.datasets: tuple[PackedDataset, ...] = tuple(dataset for dataset, _ in pairs)
        self.weights = tuple(float(weight) for _, weight in pairs)
        self.stop = stop
        self.batches = batches
        self.extras = (extras,) if isinstance(extras, str) else tuple(extras)
        self._source = MixSource(list(map(source_of, self.datasets)), bool(self.extras))
        for number, dataset in enumerate(self.datasets):
            if not len(dataset):
                raise UsageError(f"mix: dataset {number} has no samples: {dataset!r}")
            _check_alike(self.datasets[0], dataset)
        if not extras and type(self) is Mix:
            _check_classes(self.datasets)
        _ = self._source.transforms
        if extras and DATASET in source_of(self.datasets[0]).unread:
            raise UsageError(f"mix: there is a field {DATASET!r} already; leave it out, or leave out extras")

    def __len__(self) -> int:
        """Return the samples of all datasets; an epoch may have fewer or more."""
        return sum(map(len, self.datasets))

    def __getitem__(self, index: int) -> Any:
        """Return one sample.

        Raises:
            SampleIndexError: a number outside the mix.
        """
        if not is_single(index):
            raise TypeError("a Mix gives one sample by its number; batches come from Loader or DataLoader")
        number = resolve_number(index, len(self), _no_names)
        return self._source.transforms.sample_after(*self._gather(np.array([number])))

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """Return a batch for torch's DataLoader, which takes it as one."""
        numbers = resolve_numbers(indices, len(self), _no_names)
        batch, seeds = self._gather(numbers)
        return self._source.transforms.samples_after(batch, len(numbers), seeds)

    def _gather(self, numbers: Numbers) -> tuple[dict[str, Any], Words | None]:
        """Return the batch of the items `numbers` (n,), untransformed, and what its transforms draw from."""
        visits = draw_visits(len(numbers)) if self._source.draws else None
        return self._source.gather(numbers, visits), self._source.transforms.draw_seeds(visits)

    def __add__(self, other: Dataset[Any]) -> Dataset[Any]:  # type: ignore[override]  # torch's gives a ConcatDataset
        """Return the samples of this and of another dataset, one after another; each once, without the weights."""
        return add_datasets(self, other)

    def __getstate__(self) -> dict[str, Any]:
        # Mapped memory cannot be pickled; the datasets open it again.
        return {name: value for name, value in vars(self).items() if name != "_source"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._source = MixSource(list(map(source_of, self.datasets)), bool(self.extras))

    def __repr__(self) -> str:
        weighted = ", ".join(
            f"{dataset!r}: {weight:g}" for dataset, weight in zip(self.datasets, self.weights, strict=True)
        )
        return f"Mix({{{weighted}}}, stop={self.stop!r}, batches={self.batches!r})"

    @property
    def fields(self) -> dict[str, Field]:
        """Return the fields that are read, by name."""
        return self._source.fields

    def set_epoch(self, epoch: int) -> None:
        """Call `set_epoch` of every dataset."""
        for dataset in self.datasets:
            dataset.set_epoch(epoch)


def mixed_order(mix: Mix, shuffle: bool, seed: int, global_batch_size: int, orders: Sequence[Order] = ()) -> Mixed:
    """Return the order of the epochs of a mix.

    Args:
        global_batch_size: samples that all ranks together take for one batch each.
        orders: see `Mixed`.
    """
    sizes = tuple(map(len, mix.datasets))
    together = global_batch_size if mix.batches == "one" else 1
    return Mixed(sizes, mix.weights, seed, shuffle, mix.stop == "all", together, tuple(orders))


class Sum(Mix):
    """Datasets one after another, as `first + second` makes it: an epoch holds each sample once, in any order."""

    def __init__(self, datasets: Sequence[PackedDataset]) -> None:
        super().__init__(datasets, weights=list(map(len, datasets)))

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.datasets))


def add_datasets(first: Dataset[Any], second: Dataset[Any]) -> Dataset[Any]:
    """Return the samples of two datasets, one after another, as `first + second` does.

    Packed datasets that can be read together make a `Sum`, of which whole batches are gathered. Others make torch's
    ConcatDataset.
    """
    summands: list[Any] = []
    for summand in (first, second):
        summands += summand.datasets if isinstance(summand, Mix) and not summand.extras else [summand]
    try:
        total = Sum(summands)
    except (UsageError, TypeError):  # of other fields or transforms, without samples, or no packed datasets
        return ConcatDataset([first, second])
    _check_classes(total.datasets)
    return total


def _no_names(names: Sequence[str]) -> Numbers:
    raise UsageError(f"mix: samples are asked for by number, not by the name {names[0]!r}")


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
            values = member.gather(numbers[positions] - starts[part], None, part_visits, by_shard=member in too_large)
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


def _pair_weights(datasets: Any, weights: Any) -> list[tuple[Any, Any]]:
    """Return each dataset with its weight, from a dict, or from a list and the weights of its datasets."""
    if isinstance(datasets, Mapping) and datasets and weights is None:
        return list(datasets.items())
    if isinstance(datasets, Sequence) and isinstance(weights, Sequence | np.ndarray):
        if datasets and len(datasets) == len(weights):
            return list(zip(datasets, weights, strict=True))
        raise UsageError(f"mix: {len(datasets)} datasets and {len(weights)} weights; one for each is expected")
    raise UsageError(
        "mix: a dict of datasets and their weights is expected, as in Mix({one: 3, other: 1}), or a list and its "
        "weights: Mix([one, other], weights=[3, 1])"
    )


def _check_arguments(pairs: Sequence[tuple[Any, Any]], stop: str, batches: str, extras: Sequence[str]) -> None:
    for dataset, weight in pairs:
        if not reads_batches(dataset):
            raise UsageError(
                f"mix: only PackedDatasets can be mixed, not a {type(dataset).__name__}; nor can subclasses that have "
                "their own __getitem__"
            )
        if isinstance(weight, bool) or not isinstance(weight, int | float | np.number) or not 0 < weight < math.inf:
            raise UsageError(f"mix: {dataset!r} has the weight {weight!r}; a number above 0 is expected")
    check_choice("mix: stop", stop, ("first", "all"))
    check_choice("mix: batches", batches, ("mixed", "one"))
    if extras != DATASET and not set(extras) <= {DATASET}:
        raise UsageError(
            f"mix: extras {extras!r}: only ({DATASET!r},) is possible; ask the datasets for names and numbers"
        )


def _check_alike(first: PackedDataset, other: PackedDataset) -> None:
    """Raise UsageError if samples of two datasets cannot be in one batch; names the difference."""
    fields, other_fields = (
        {name: reader.in_words for name, reader in source_of(dataset).unread.items()} for dataset in (first, other)
    )
    for name in {**fields, **other_fields}:
        first_words, other_words = fields.get(name, "missing"), other_fields.get(name, "missing")
        if first_words != other_words:
            raise UsageError(
                f"mix: field {name!r} is {first_words} in {first!r} and {other_words} in {other!r}; choose fields "
                "alike in both: PackedDataset(..., fields=[...])"
            )


def _check_classes(datasets: Sequence[PackedDataset]) -> None:
    """Raise UsageError if a label of two datasets would stand for two classes, and nothing tells them apart."""
    labelled = [one for one in datasets if one.classes and not {"label", "labels"}.isdisjoint(one.fields)]
    for other in labelled[1:]:
        if other.classes != labelled[0].classes:
            shown = [f"{first_few(one.classes or [])} in {one!r}" for one in (labelled[0], other)]
            raise UsageError(
                f"mix: labels stand for {shown[0]}, and for {shown[1]}; Mix(..., extras=({DATASET!r},)) tells the "
                "datasets apart, or choose fields without labels"
            )
