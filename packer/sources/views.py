"""Views of sources: some samples in another order, some of the fields, and fields of several side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError, first_few
from packer.format import FieldSpec
from packer.sources.base import Block, DerivedSource, LargeArray, Source, count, one_list_of_classes
from packer.sources.source import TableSource

if TYPE_CHECKING:
    from typing_extensions import Self  # which typing has from Python 3.11 on

#: Numbers of annotations: the height and width that they say of their image; 0 if none.
_LISTED_SIDES = "listed height", "listed width"


def listed_sides(*sides: Any) -> dict[str, int]:
    """Return numbers of a sample: the height and width of its image, as annotations have them, if they do."""
    words = [str(side).strip() for side in sides]
    is_known = all(word.isdecimal() and 0 < int(word) < 2**31 for word in words)
    return {name: int(word) if is_known else 0 for name, word in zip(_LISTED_SIDES, words, strict=True)}


def in_order(source: Source, numbers: Sequence[int]) -> Source:
    """Return some samples of a source, in another order."""
    return source.in_order(numbers) if isinstance(source, TableSource) else ChosenSource(source, list(numbers))


def _between(source: Source, numbers: Sequence[int]) -> tuple[Source, list[int]]:
    """Return what lies between the first and the last of some samples, and their numbers in it."""
    first, stop = (min(numbers), max(numbers) + 1) if numbers else (0, 0)
    return source.slice(first, stop), [number - first for number in numbers]


@dataclass(eq=False)
class ChosenSource(DerivedSource):
    """Some samples of a source, in another order."""

    numbers: list[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        names, self.cuts = self.names, None
        self.names = None if names is None else [names[number] for number in self.numbers]

    def __reduce__(self) -> tuple[type[ChosenSource], tuple[Source, list[int]]]:
        return ChosenSource, _between(self.source, self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def slice(self, start: int, stop: int) -> ChosenSource:
        return ChosenSource(*_between(self.source, self.numbers[start:stop]))

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        shapes = self.source.shapes(field)
        return None if shapes is None else shapes[self.numbers]

    def files(self) -> list[str]:
        paths = self.source.files()
        return [paths[number] for number in self.numbers] if len(paths) == len(self.source) else paths

    def read(self) -> Iterator[Block]:
        # Runs of consecutive samples are read together.
        ends = [at for at in range(1, len(self)) if self.numbers[at] != self.numbers[at - 1] + 1]
        for start, stop in pairwise([0, *ends, len(self)]):
            first = self.numbers[start]
            try:
                yield from self.source.slice(first, first + stop - start).read()
            except SourceError as error:
                number = None if error.sample is None else start + error.sample
                raise SourceError(error.reason, error.path, number) from error


@dataclass(eq=False)
class FilledSource(DerivedSource):
    """The samples of a source, and between them empty ones.

    Attributes:
        has_value: of every sample, whether the source has it, (n,).
    """

    has_value: NDArray[np.bool_]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.names = self.cuts = None
        self.fields = tuple(msgspec.structs.replace(spec, shape=(None, *spec.shape[1:])) for spec in self.fields)
        names, empty = " and ".join(spec.name for spec in self.fields), int((~self.has_value).sum())
        empty_samples = f"{empty:,} sample has" if empty == 1 else f"{empty:,} samples have"
        self.remarks = [*self.remarks, f"field {names}: {empty_samples} no file of it, and an empty value"]

    def __len__(self) -> int:
        return len(self.has_value)

    def slice(self, start: int, stop: int) -> FilledSource:
        first, count_ = int(self.has_value[:start].sum()), int(self.has_value[start:stop].sum())
        return FilledSource(self.source.slice(first, first + count_), self.has_value[start:stop])

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        shapes = self.source.shapes(field)
        (spec,) = (spec for spec in self.fields if spec.name == field)
        if shapes is None:
            return None
        filled = np.empty((len(self), shapes.shape[1]), np.int64)
        filled[:] = [length or 0 for length in spec.shape]
        filled[self.has_value] = shapes
        return filled

    def read(self) -> Iterator[Block]:
        values, done = self._values(), 0
        try:
            for has_value in self.has_value.tolist():
                yield next(values) if has_value else {spec.name: _empty(spec) for spec in self.fields}
                done += 1
        except SourceError as error:
            raise SourceError(error.reason, error.path, done) from error

    def _values(self) -> Iterator[Block]:
        for block in self.source.read():
            for number in range(count(block)):
                yield {name: values[number : number + 1] for name, values in block.items()}


def _empty(spec: FieldSpec) -> list[str] | list[NDArray[Any]]:
    """Return an empty value of a field, as a block of one sample."""
    return [""] if spec.kind == "text" else [np.empty([length or 0 for length in spec.shape], spec.dtype)]


def _sized_otherwise(source: Source, side: Source) -> list[str]:
    """Return a sentence on images whose size is not what their annotations say; none if all are, or these do not."""
    has_value = side.has_value if isinstance(side, FilledSource) else np.ones(len(side), bool)
    table = side.source if isinstance(side, FilledSource) else side
    numbers = table.table.numbers if isinstance(table, TableSource) else {}
    images = [spec for spec in source.fields if spec.kind == "image"]
    if not images or not {*_LISTED_SIDES} <= numbers.keys():
        return []
    listed = np.zeros((len(side), 2), np.int64)
    listed[has_value] = np.stack([numbers[name] for name in _LISTED_SIDES], axis=1)
    differs = listed[:, 0] > 0
    for spec in images:
        shapes = source.shapes(spec.name) if spec.is_ragged else np.array([spec.shape])
        differs &= False if shapes is None else (shapes[:, :2] != listed).any(axis=1)
    if not (count_ := int(differs.sum())):
        return []
    number = int(differs.argmax())
    name = source.names[number] if source.names else f"sample {number:,}"
    first = f"{name}, where they say {listed[number, 0]} x {listed[number, 1]}"
    reason = f"{count_:,} of {len(side):,} images differ in size from what their annotations say (such as {first})"
    return [f"{reason}: boxes are packed as they are, so check their scale"]


@dataclass(eq=False)
class BesideSource(DerivedSource):
    """The samples of a source, with the fields of other sources that have as many samples.

    Raises:
        UsageError: two fields have one name.
    """

    sides: list[Source]

    def __post_init__(self) -> None:
        super().__post_init__()
        source, sides = self.source, self.sides
        self.fields = (*source.fields, *(spec for side in sides for spec in side.fields))
        if len({spec.name for spec in self.fields}) < len(self.fields):
            named = ", ".join(spec.name for spec in self.fields)
            raise UsageError(f"two fields have one name ({named}); give another FIELD= to one of them")
        self.remarks = [*source.remarks, *(remark for side in sides for remark in side.remarks)]
        self.remarks += [remark for side in sides for remark in _sized_otherwise(source, side)]
        beside = {spec.name: dict(side.origin) for side in sides for spec in side.fields}
        classes = one_list_of_classes(origin.get("classes", ()) for origin in (source.origin, *beside.values()))
        self.origin = {**source.origin, **({"classes": classes} if classes else {}), "beside": beside}

    def slice(self, start: int, stop: int) -> Self:
        source, *sides = (source.slice(start, stop) for source in (self.source, *self.sides))
        return replace(self, source=source, sides=sides)

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        for side in self.sides:
            if any(spec.name == field for spec in side.fields):
                return side.shapes(field)
        return super().shapes(field)

    def files(self) -> list[str]:
        return [*super().files(), *(path for side in self.sides for path in side.files())]

    def read(self) -> Iterator[Block]:
        at, sides = 0, [_Values(side) for side in self.sides]
        for block in self.source.read():
            size, more = count(block), dict[str, list[Any]]()
            errors = list[SourceError]()
            for side in sides:
                good, taken = side.take(size)
                if good < size:
                    size, errors = good, [side.error]
                more |= taken
            if size:
                yield self._joined({name: values[:size] for name, values in block.items()}, more, size)
            at += size
            for error in errors:
                raise SourceError(error.reason, error.path, at) from error

    def _joined(self, block: Block, more: Mapping[str, list[Any]], size: int) -> Block:
        """Return a block of `size` samples with the values of the other fields, which may be more."""
        joined = dict(block)
        for spec in (spec for spec in self.fields if spec.name in more):
            values = more[spec.name][:size]
            if size > 1:
                values = [np.asarray(value) if isinstance(value, LargeArray) else value for value in values]
            is_list = spec.is_ragged or spec.kind == "text" or isinstance(values[0], LargeArray)
            joined[spec.name] = values if is_list else np.stack(values)
        return joined


class _Values:
    """The values of a source, some at a time: its blocks have other sizes than those of the samples beside them.

    Attributes:
        error: why there are no more.
    """

    def __init__(self, source: Source) -> None:
        self._blocks, self._count = source.read(), 0
        self._rest = {spec.name: deque[Any]() for spec in source.fields}
        self.error = SourceError("had more samples when headers were read; run again", first_few(source.files()))

    def take(self, size: int) -> tuple[int, dict[str, list[Any]]]:
        """Return how many of the next `size` values there are, and these."""
        try:
            while self._count < size and (block := next(self._blocks, None)) is not None:
                self._count += count(block)
                for name, rest in self._rest.items():
                    rest.extend(block[name])
        except SourceError as error:
            self.error = error
        size = min(size, self._count)
        self._count -= size
        return size, {name: [rest.popleft() for _ in range(size)] for name, rest in self._rest.items()}


@dataclass(eq=False)
class PickedSource(DerivedSource):
    """Some fields of a source, under names of its own.

    Attributes:
        picked: by the name here, that in the source.
    """

    picked: dict[str, str]

    def __post_init__(self) -> None:
        super().__post_init__()
        specs = {spec.name: spec for spec in self.fields}
        self.fields = tuple(msgspec.structs.replace(specs[old], name=new) for new, old in self.picked.items())

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        return super().shapes(self.picked[field])

    def read(self) -> Iterator[Block]:
        for block in self.source.read():
            yield {new: block[old] for new, old in self.picked.items()}
