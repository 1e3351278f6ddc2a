"""Mix: several datasets as one, by weight, for `Loader`.

    for batch in Loader(Mix({photos: 3, drawings: 1}), batch_size=128, shuffle=True):
        ...

Its numbers are those of its datasets one after another; `composed.Mixed` says which come when. `mix_source.py` reads
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Dataset

from packer.errors import UsageError, first_few
from packer.format import Field, Numbers, find_meanings
from readers.composed import Mixed
from readers.dataset import PackedDataset, reads_batches
from readers.draws import Words, draw_visits
from readers.indexing import is_single, resolve_number, resolve_numbers
from readers.mix_source import DATASET, MixSource
from readers.order import Order
from readers.source import source_of
from readers.valid import check_choice


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
            _check_meanings(self.datasets)
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
    _check_meanings(total.datasets)
    return total


def _no_names(names: Sequence[str]) -> Numbers:
    raise UsageError(f"mix: samples are asked for by number, not by the name {names[0]!r}")


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


def _check_meanings(datasets: Sequence[PackedDataset]) -> None:
    """Raise UsageError if a number would mean two things: a class, a category, a time, a side of a box."""
    labelled = [one for one in datasets if one.classes and not {"label", "labels"}.isdisjoint(one.fields)]
    for other in labelled[1:]:
        if other.classes != labelled[0].classes:
            shown = [f"{first_few(one.classes or [])} in {one!r}" for one in (labelled[0], other)]
            raise UsageError(
                f"mix: labels stand for {shown[0]}, and for {shown[1]}; Mix(..., extras=({DATASET!r},)) tells the "
                "datasets apart, or choose fields without labels"
            )
    specs = [datasets[0].fields[name].spec for name in source_of(datasets[0]).unread if name in datasets[0].fields]
    known = dict[tuple[str, str], tuple[PackedDataset, list[Any]]]()
    for one in datasets:
        for name, by_key in find_meanings(one.manifest.origin, specs).items():
            for key, values in by_key.items():
                first, expected = known.setdefault((name, key), (one, values))
                if values != expected:
                    differing = f"{key} of field {name!r} are {values[0]} in {one!r}, and {expected[0]} in {first!r}"
                    raise UsageError(f"mix: {differing}; Mix(..., extras=({DATASET!r},)) tells the datasets apart")
