"""Subsets of points: batches of one shape from clouds of different sizes, the same points of every field.

    ds = PackedDataset(path, points=1024)

The points are drawn again each time that a sample is read (see `draws.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from packer.errors import UsageError
from packer.format import Field, Located, Numbers
from readers.draws import POINTS, ROUNDS, Asked, draw_permutations, draw_words
from readers.fields import Describe, FieldReader, LastResult, Places
from readers.rows import PartReader, RowRanges, part_field
from readers.valid import check_choice, check_count, check_read, check_seed, make_tuples
from readers.windows import Reading

#: Random words per sample that its points are drawn from.
COUNT = 2 * ROUNDS + 1
#: The field that tells how many points there are; the first one if none has this name.
USUAL = "xyz"
#: How points are chosen, by samples of points and of voxels.
CHOICES = "random", "first"


class CloudPart:
    """Some points of clouds, the same of every field that has a row for each point; see `readers.parts.Part`."""

    choose: Literal["random", "first"]

    @property
    def _draws(self) -> bool:
        return self.choose == "random"

    def _check(self, fields: Mapping[str, Field], samples: int, windowed: Collection[str]) -> list[str]:
        self._candidates(fields)
        return []

    def _candidates(self, fields: Mapping[str, Field]) -> list[str]:
        """Return the names of the fields that may hold one row a point, first the one that tells how many there are.

        Raises:
            UsageError: there is none, or a named one cannot.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class PointSample(CloudPart):
    """Reads a fixed number of points of every cloud.

    If a cloud has fewer points, each comes equally often, or once more than others.

    Args:
        count: how many points to read.
        seed: of the choice.
        fields: names of the fields that hold one row a point. By default the fields that are ragged in their first axis
            alone, and in every sample as long as `xyz`; without `xyz`, as long as the first such field.
        choose: `random`: any points, drawn again each time that a sample is read (see `draws.py`); `first`: the first
            points of the cloud, in their order, as PointNet++ does; after the last one the first follows again.

    Raises:
        UsageError: an argument has no meaning.
    """

    count: int
    seed: int = 0
    fields: Sequence[str] | None = None
    choose: Literal["random", "first"] = "random"

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_count("points: count", self.count)
        check_choice("points: choose", self.choose, CHOICES)
        make_tuples(self, "fields")

    def _make_readers(self, reading: Reading, taken: Collection[str]) -> dict[str, FieldReader]:
        names = tied_fields(reading, self._candidates(reading.fields), taken, are_named=self.fields is not None)
        first, rows = reading.places[names[0]], make_row_chooser(self)
        return {
            name: PointsReader(reading.places[name], first, int(self.count), rows, reading.describe) for name in names
        }

    def _candidates(self, fields: Mapping[str, Field]) -> list[str]:
        if self.fields is not None:
            names = [self.fields] if isinstance(self.fields, str) else list(self.fields)
            check_read("points", names, fields)
            for name in names:
                if fields[name].kind != "array" or not fields[name].shape or None in fields[name].shape[1:]:
                    raise UsageError(f"points: field {name!r} does not hold a row of fixed shape for each point")
        else:
            names = names_of_rows(fields, USUAL)
        if not names:
            raise UsageError(
                "points: no field that is read is ragged in its first axis alone; name some in PointSample(..., "
                "fields=[...])"
            )
        return names


def names_of_rows(fields: Mapping[str, Field], first: str) -> list[str]:
    """Return the names of the fields that are ragged in their first axis alone; `first` before the others."""
    names = [field.name for field in fields.values() if field.kind == "array" and field.ragged_axes == (0,)]
    return sorted(names, key=lambda name: name != first)


def tied_fields(reading: Reading, names: Sequence[str], taken: Collection[str], are_named: bool = False) -> list[str]:
    """Return which fields have a row for each point of the first of them, in all samples.

    Args:
        names: of the fields that may, see `CloudPart`.
        taken: fields of which another part is read.
        are_named: whether the caller named them, so that all must.

    Raises:
        UsageError: another part is read of one, or one has a row for each point in most samples alone.
    """
    first, compared = reading.places[names[0]], reading.compared
    untied = [] if are_named else [n for n in names if not reading.places[n].has_shapes_of(first, compared)]
    for name in untied:
        _check_untied(reading.places[name], first, reading.describe, compared)
    tied = [name for name in names if name not in untied]
    if set(tied) & set(taken):
        raise UsageError("crop and points do not go together for a field; name others: PointSample(..., fields=[...])")
    return tied


def _check_untied(field: Places, first: Places, describe: Describe, compared: Numbers | None) -> None:
    """Raise UsageError if a field has a row for each point in most samples, but not in all.

    It would come whole beside the chosen points, without a word. Faces of a mesh have a length of their own everywhere.
    """
    numbers = np.arange(field.first[-1]) if compared is None else compared
    lengths, points = field.lengths(numbers), first.lengths(numbers)
    wrong = np.flatnonzero(lengths != points)
    if 2 * len(wrong) < len(lengths):
        number = int(wrong[0])
        name, first_name = field.field.name, first.field.name
        raise UsageError(
            f"{describe(number)}: field {name!r} has {lengths[number]} rows and {first_name!r} {points[number]}, and "
            f"in most samples as many, so its rows cannot be chosen with those of {first_name!r}; choose other "
            "fields with fields=[...], or pack the sample again from files of one length"
        )


def check_rows(
    describe: Describe,
    samples: Numbers,
    name: str,
    lengths: Numbers,
    first_name: str,
    points: Numbers,
    rule: str = "fields that are sampled together need a row for each point",
) -> None:
    """Raise UsageError if a field does not have a row for each point, or box, of samples (n,).

    Args:
        lengths: rows of the field, (n,).
        points: rows of the field `first_name`, which tells how many points there are, (n,).
        rule: that the field breaks, in words.
    """
    if (lengths != points).any():
        item = int((lengths != points).argmax())
        raise UsageError(
            f"{describe(int(samples[item]))}: field {name!r} has {lengths[item]} rows and {first_name!r} "
            f"{points[item]}; {rule}"
        )


class PointsReader(PartReader):
    """Subsets of the points of one field. Reads like any other field of fixed shape.

    Args:
        places: where the whole samples lie.
        first: where the samples lie of the field that tells how many points there are.
        rows: gives the rows of samples, from their visits and lengths, see `make_row_chooser`.
        describe: gives a sample in words, by its number.
    """

    def __init__(self, places: Places, first: Places, count: int, rows: LastResult, describe: Describe) -> None:
        super().__init__(part_field(places.field, (count, *places.field.shape[1:])), places)
        self._first = first
        self._rows = rows
        self._describe = describe

    def locate(self, asked: Asked) -> Located:
        """Return where samples lie, and their `visit`.

        Raises:
            UsageError: a cloud is empty, or a field has not as many rows as the others.
        """
        located = self._places.locate(asked.samples)
        lengths, first = located.shape[:, 0], self._first.locate(asked.samples).shape[:, 0]
        check_rows(self._describe, asked.samples, self.field.name, lengths, self._first.field.name, first)
        if not lengths.all():
            item = int((lengths == 0).argmax())
            raise UsageError(
                f"{self._describe(int(asked.samples[item]))}: field {self.field.name!r} has no points to choose "
                f"{self._shape[0]} from; leave the sample out, by torch.utils.data.Subset or Loader's sampler"
            )
        return located.adding(visit=asked.visit_numbers)

    def _row_ranges(self, located: Located) -> RowRanges:
        rows = self._rows(located.visit, located.shape[:, 0])
        return RowRanges(rows, np.zeros(len(located), np.int64), self.field.fixed_bytes // self._shape[0])


def make_row_chooser(sample: PointSample) -> LastResult:
    """Return a function that chooses rows of samples, (n, count), from their visits and lengths, (n,) each."""

    def rows(visits: Numbers, lengths: Numbers) -> Numbers:
        if sample.choose == "first":
            return np.arange(sample.count) % lengths[:, None]
        return draw_permutations(
            draw_words(visits.view(np.uint64), sample.seed, POINTS, COUNT), lengths, int(sample.count)
        )

    return LastResult(rows)
