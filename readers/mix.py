"""Mix: several datasets as one, by weight, for `Loader`.

    for batch in Loader(Mix({photos: 3, drawings: 1}), batch_size=128, shuffle=True):
        ...

A mix looks like a dataset to the loader. Its numbers are those of its datasets one after another; which come when is
`order.Mixed`. A batch is read by one call a field and dataset, and put together in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from packer.errors import UsageError
from packer.format.schema import Field
from readers.arrays import Allocate, Numbers
from readers.batch import Batch, Ragged
from readers.dataset import PackedDataset
from readers.draws import Visits, new_visits
from readers.fields import FieldReader, FixedRaw, gathered
from readers.gather import fresh
from readers.indexing import sample_numbers
from readers.opened import Opened
from readers.order import Mixed
from readers.readahead import Advisor
from readers.shard_map import Memory

#: Field that says which dataset a sample is of.
DATASET = "dataset"


class Mix(Dataset[Any]):
    """Several datasets of the same fields, read together by weight; for `Loader`.

    `mix[number]` is one sample; numbers are those of the datasets one after another.

    Args:
        datasets: each with its weight, above 0: how often one of its samples comes, compared with the others. Their
            fields have the same names, kinds, dtypes and fixed axes, after crops and windows; codecs may differ. A
            transform is the same one for all, and is given whole batches.
        stop: an epoch ends when the `"first"` dataset was read once: of the others it holds as many samples as the
            weights say, other ones each time. Or when `"all"` were: shorter ones begin again, in another order.
        batches: `"mixed"` draws each batch over all datasets; with `"one"` all samples of a batch, on all ranks, are of
            one dataset, and every batch is full.
        extras: `("dataset",)` adds the field `dataset`, int64 (B,): which one a sample is of, from 0 on. Names and
            numbers, which each dataset is asked for by its own `extras`, are those within it.

    Raises:
        UsageError: the datasets cannot be mixed; the message names the difference.
    """

    def __init__(
        self,
        datasets: Mapping[PackedDataset, float],
        stop: str = "first",
        batches: str = "mixed",
        extras: Sequence[str] = (),
    ) -> None:
        _check_arguments(datasets, stop, batches, extras)
        self.datasets = tuple(datasets)
        self.weights = tuple(map(float, datasets.values()))
        self.stop = stop
        self.batches = batches
        self.extras = (extras,) if isinstance(extras, str) else tuple(extras)
        self._forget_readers()
        for number, dataset in enumerate(self.datasets):
            if not len(dataset):
                raise UsageError(f"mix: dataset {number} has no samples: {dataset!r}")
            if dataset.transform != self.datasets[0].transform:
                raise UsageError("mix: the datasets have several transforms; a batch is given to one, the same for all")
            _check_alike(self.datasets[0], dataset)
        if extras and DATASET in self.datasets[0].readers:
            raise UsageError(f"mix: there is a field {DATASET!r} already, so that extras cannot have that name")

    def __len__(self) -> int:
        """Samples of all datasets; an epoch may have fewer or more."""
        return sum(map(len, self.datasets))

    def __getitem__(self, index: int) -> Any:
        """Return one sample.

        Raises:
            SampleIndexError: a number outside the mix.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return a batch for torch's DataLoader, which takes it as one."""
        numbers = sample_numbers(indices, len(self), _no_names)
        samples, anchors = self.items.of(numbers)
        visits = new_visits(len(numbers)) if self.draws else None
        batch = gathered(self.readers, samples, None, visits, anchors)
        return Batch(batch if self.transform is None else self.transform(batch), len(numbers))

    def _forget_readers(self) -> None:
        self._readers: dict[str, FieldReader] = {}
        self._made_of: list[Mapping[str, FieldReader]] = []

    def __getstate__(self) -> dict[str, Any]:
        # Mapped memory cannot be pickled; the datasets know where it is from.
        return {name: value for name, value in vars(self).items() if name not in ("_readers", "_made_of")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget_readers()

    def __repr__(self) -> str:
        held = ", ".join(
            f"{dataset!r}: {weight:g}" for dataset, weight in zip(self.datasets, self.weights, strict=True)
        )
        return f"Mix({{{held}}}, stop={self.stop!r}, batches={self.batches!r})"

    def order(self, shuffle: bool, seed: int, step_size: int) -> Mixed:
        """Return the order of epochs.

        Args:
            step_size: samples that all ranks together take at a step.
        """
        sizes = tuple(map(len, self.datasets))
        together = step_size if self.batches == "one" else 1
        return Mixed(sizes, self.weights, seed, shuffle, self.stop == "all", together)

    @property
    def fields(self) -> dict[str, Field]:
        """What is read, by name."""
        return {name: reader.field for name, reader in self.readers.items()}

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        """What is called on every batch."""
        return self.datasets[0].transform

    @property
    def draws(self) -> bool:
        """Whether random parts of samples are read."""
        return any(dataset.draws for dataset in self.datasets)

    def set_epoch(self, epoch: int) -> None:
        """Tell every dataset the number of an epoch."""
        for dataset in self.datasets:
            dataset.set_epoch(epoch)

    @property
    def items(self) -> MixedItems:
        """Which sample of which dataset each number means."""
        return MixedItems(self.datasets)

    @property
    def readers(self) -> dict[str, FieldReader]:
        """What reads each field; made once in each process that needs it."""
        own = [dataset.readers for dataset in self.datasets]
        if not self._readers or not all(map(is_, own, self._made_of)):  # after a fork the datasets have others
            self._readers, self._made_of = self._mixed(own), own
        return self._readers

    def _mixed(self, own: Sequence[Mapping[str, FieldReader]]) -> dict[str, FieldReader]:
        """Return what reads each field, from what reads it of each dataset."""
        starts, opened = _starts([dataset.items.total for dataset in self.datasets]), self.opened
        found: dict[str, FieldReader] = {}
        for name in own[0]:
            readers = [each[name] for each in own]
            raw = [reader for reader in readers if isinstance(reader, FixedRaw)]
            if len(raw) == len(readers) and len({reader.unit for reader in raw}) == 1:
                found[name] = MixedRaw(raw, starts, opened)
            else:
                found[name] = MixedReader(readers, starts, opened.shifts)
        return found | ({DATASET: WhichReader(starts)} if self.extras else {})

    @property
    def opened(self) -> MixedOpened:
        """The mapped shards of all datasets."""
        return MixedOpened([dataset.opened for dataset in self.datasets])


def _no_names(names: Sequence[str]) -> Numbers:
    raise UsageError(f"mix: samples are asked for by number, not by the name {names[0]!r}")


def _starts(sizes: Sequence[int]) -> Numbers:
    """Return the first number of each dataset, and the number after the last, (datasets + 1,)."""
    return np.cumsum([0, *sizes])


def _by_dataset(numbers: Numbers, starts: Numbers) -> list[tuple[int, Numbers]]:
    """Return for each dataset that numbers (n,) are of its own number, and their places (m,)."""
    which = starts[1:-1].searchsorted(numbers, side="right")
    return [(number, places) for number in range(len(starts) - 1) if len(places := np.flatnonzero(which == number))]


@dataclass(frozen=True)
class MixedItems:
    """Which sample each number of a mix means, as `Items` says it of one dataset."""

    datasets: Sequence[PackedDataset]

    def of(self, numbers: Numbers) -> tuple[Numbers, Numbers | None]:
        """Return sample (n,), by its number among all samples of all whole datasets, and anchor step (n,)."""
        starts = _starts([len(dataset) for dataset in self.datasets])
        whole = _starts([dataset.items.total for dataset in self.datasets])
        samples, anchors = np.empty_like(numbers), np.zeros_like(numbers)
        for number, places in _by_dataset(numbers, starts):
            found, at = self.datasets[number].items.of(numbers[places] - starts[number])
            samples[places] = found + whole[number]
            anchors[places] = 0 if at is None else at
        return samples, anchors


class MixedOpened:
    """The mapped shards of several datasets.

    Attributes:
        memory: all of them, addressed as one.
        advisor: asks for the bytes of all of them.
        shifts: what to add to an address within each dataset to have that in the memory of all, (datasets,).
    """

    def __init__(self, opened: Sequence[Opened]) -> None:
        shards = [shard for each in opened for shard in each.shards]
        self.memory = Memory(shards)
        firsts = _starts([len(each.shards) for each in opened])[:-1]
        self.shifts = self.memory.starts[firsts] - np.array([each.memory.starts[0] for each in opened], np.int64)
        self.advisor = Advisor(self.memory, shards)


class MixedReader:
    """One field of several datasets. Reads like any other field.

    Args:
        readers: of each dataset.
        starts: first number of each dataset, and the number after the last, (datasets + 1,).
        shifts: see `MixedOpened`.
    """

    def __init__(self, readers: Sequence[FieldReader], starts: Numbers, shifts: Numbers) -> None:
        self.field = readers[0].field
        self._readers = readers
        self._starts = starts
        self._shifts = shifts
        none = np.zeros(0, np.int64)
        shapes = [reader.locate(none, none.view(np.uint64), none).shape[1:] for reader in readers]
        #: Numbers that a place takes: several, or one number that is no row.
        self._widths = [shape[0] if shape else 0 for shape in shapes]

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Numbers:
        """Return the dataset of each sample, and its places there, (n, m + 1)."""
        located = np.zeros((len(numbers), 1 + max(1, *self._widths)), np.int64)
        for number, at in _by_dataset(numbers, self._starts):
            given = [None if each is None else each[at] for each in (visits, anchors)]
            found = self._readers[number].locate(numbers[at] - self._starts[number], *given)  # type: ignore[arg-type]
            located[at, 0] = number
            located[at, 1 : 1 + (self._widths[number] or 1)] = found if found.ndim > 1 else found[:, None]
        return located

    def spans(self, located: Numbers) -> Numbers:
        """Return the address and size of the bytes that `read` will touch, (n, 2)."""
        spans = np.zeros((len(located), 2), np.int64)
        for number, at in self._parts(located):
            spans[at] = self._readers[number].spans(self._places(number, located[at]))
            spans[at, 0] += self._shifts[number]
        return spans

    def read(self, located: Numbers, allocate: Allocate | None = None) -> Any:
        """Return the values of the samples, in new memory or in what `allocate` gives.

        Raises:
            DamagedError: what is stored cannot be decoded.
        """
        parts = self._parts(located)
        if len(parts) == 1:
            return self._readers[parts[0][0]].read(self._places(parts[0][0], located), allocate)
        read = [(at, self._readers[number].read(self._places(number, located[at]), allocate)) for number, at in parts]
        return joined(read, len(located), allocate or fresh)

    def _parts(self, located: Numbers) -> list[tuple[int, Numbers]]:
        """Return for each dataset that samples are of its number, and which samples these are."""
        held = np.bincount(located[:, 0], minlength=len(self._readers))
        return [(number, np.flatnonzero(located[:, 0] == number)) for number in np.flatnonzero(held).tolist()]

    def _places(self, number: int, located: Numbers) -> Numbers:
        """Return the places as the reader of one dataset has them."""
        width = self._widths[number]
        return located[:, 1 : 1 + width] if width else located[:, 1].copy()


class MixedRaw:
    """One uncompressed field of fixed shape, of several datasets: one gather from the memory of all."""

    def __init__(self, readers: Sequence[FixedRaw], starts: Numbers, opened: MixedOpened) -> None:
        self.field = readers[0].field
        self._readers = readers
        self._starts = starts
        self._records = readers[0].records_of(opened.memory)
        self._shifts = opened.shifts // readers[0].unit.itemsize  # maps begin with a page

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Numbers:
        """Return the address of each sample in the memory of all datasets, in elements, (n,)."""
        located = np.empty_like(numbers)
        for number, at in _by_dataset(numbers, self._starts):
            located[at] = self._readers[number].locate(numbers[at] - self._starts[number]) + self._shifts[number]
        return located

    def spans(self, located: Numbers) -> Numbers:
        """Return the address and size of the bytes that `read` will touch, (n, 2)."""
        return self._readers[0].spans(located)

    def read(self, located: Numbers, allocate: Allocate | None = None) -> torch.Tensor:
        """Return the samples, (n, *shape), in new memory or in what `allocate` gives."""
        return self._records.tensor(located, allocate)


class WhichReader:
    """Which dataset samples are of. Reads like a field of int64.

    Args:
        starts: first number of each dataset, and the number after the last, (datasets + 1,).
    """

    field = Field(name=DATASET, dtype="int64")

    def __init__(self, starts: Numbers) -> None:
        self._starts = starts

    def locate(self, numbers: Numbers, visits: Visits | None = None, anchors: Numbers | None = None) -> Numbers:
        """Return the dataset of each sample, (n,)."""
        return self._starts[1:-1].searchsorted(numbers, side="right")

    def spans(self, located: Numbers) -> Numbers:
        """Return that nothing is touched, (n, 2)."""
        return np.zeros((len(located), 2), np.int64)

    def read(self, located: Numbers, allocate: Allocate | None = None) -> torch.Tensor:
        """Return the dataset of each sample, (n,) int64, in new memory or in what `allocate` gives."""
        return (allocate or fresh)(located.nbytes).view(torch.int64).copy_(torch.from_numpy(located))


def joined(parts: Sequence[tuple[Numbers, Any]], count: int, allocate: Allocate) -> Any:
    """Return the values of one batch from those of its parts.

    Args:
        parts: for each the samples of the batch that it holds (m,), and their values: a tensor (m, ...), `Ragged`, or
            a list.
        count: samples of the batch.
    """
    first = parts[0][1]
    if isinstance(first, Ragged):
        return _joined_ragged(parts, count, allocate)
    if isinstance(first, torch.Tensor):
        return _placed(parts, count, allocate)
    out: list[Any] = [None] * count
    for at, values in parts:
        for place, value in zip(at.tolist(), values, strict=True):
            out[place] = value
    return out


def _joined_ragged(parts: Sequence[tuple[Numbers, Ragged]], count: int, allocate: Allocate) -> Ragged:
    offsets = np.zeros(count + 1, np.int64)
    for at, ragged in parts:
        offsets[at + 1] = np.diff(ragged.offsets.numpy())
    np.cumsum(offsets, out=offsets)
    rows = []
    for at, ragged in parts:
        own = ragged.offsets.numpy()
        shift = np.repeat(offsets[at] - own[:-1], np.diff(own))
        rows.append((shift + np.arange(len(shift)), ragged.values))
    return Ragged(_placed(rows, int(offsets[-1]), allocate), torch.from_numpy(offsets))


def _placed(parts: Sequence[tuple[Numbers, torch.Tensor]], count: int, allocate: Allocate) -> torch.Tensor:
    """Return rows (count, ...): each part gives those at some places, and all parts together give all."""
    first = parts[0][1]
    size = math.prod(first.shape[1:]) * first.element_size()
    out = allocate(count * size)
    if count * size:
        # Each row as one item: one memcpy.
        item = np.dtype((np.void, size))
        rows = out.numpy().view(item)
        for at, values in parts:
            if len(at):
                rows[at] = values.numpy().reshape(len(at), -1).view(np.uint8).reshape(-1).view(item)
    return out.view(first.dtype).view(count, *first.shape[1:])


def _check_arguments(datasets: Any, stop: str, batches: str, extras: Sequence[str]) -> None:
    if not isinstance(datasets, Mapping) or not datasets:
        raise UsageError("mix: a mapping of datasets to their weights is expected, as in Mix({one: 3, other: 1})")
    for dataset, weight in datasets.items():
        if not isinstance(dataset, PackedDataset):
            raise UsageError(f"mix: PackedDatasets are mixed, not a {type(dataset).__name__}")
        if isinstance(weight, bool) or not isinstance(weight, int | float | np.number) or not 0 < weight < math.inf:
            raise UsageError(f"mix: {dataset!r} has the weight {weight!r}; a number above 0 is expected")
    for name, value, known in (("stop", stop, ("first", "all")), ("batches", batches, ("mixed", "one"))):
        if value not in known:
            raise UsageError(f"mix: {name} {value!r}: {known[0]!r} or {known[1]!r} is expected")
    if extras != DATASET and not set(extras) <= {DATASET}:
        raise UsageError(f"mix: extras {extras!r}: ({DATASET!r},) is expected; name and number are a dataset's own")


def _check_alike(first: PackedDataset, other: PackedDataset) -> None:
    """Raise UsageError if samples of two datasets cannot stand in one batch; names the difference."""
    fields, others = ({name: reader.field for name, reader in d.readers.items()} for d in (first, other))
    lacking = [f"{a!r} has no field {', '.join(some)}" for a, some in _lacking(first, fields, other, others)]
    if lacking:
        raise UsageError(f"mix: {'; '.join(lacking)}. Choose those that both have: PackedDataset(..., fields=[...])")
    for name, field in fields.items():
        if field.spec != others[name].spec:
            raise UsageError(
                f"mix: field {name!r} is {_described(field)} in {first!r} and {_described(others[name])} in {other!r}"
            )


def _lacking(
    first: PackedDataset, fields: Mapping[str, Field], other: PackedDataset, others: Mapping[str, Field]
) -> list[tuple[PackedDataset, list[str]]]:
    """Return each dataset that lacks fields of the other, with their names."""
    pairs = [(first, [n for n in others if n not in fields]), (other, [n for n in fields if n not in others])]
    return [(dataset, names) for dataset, names in pairs if names]


def _described(field: Field) -> str:
    axes = ", ".join("any" if n is None else str(n) for n in field.shape)
    return f"{field.kind} {field.dtype} [{axes}]"
