"""Fields from files beside those of the samples, with the same names: boxes, labels of points, captions, embeddings.

    image=images boxes=labels                                          images/a.png labels/a.txt, of YOLO
    velodyne label=labels --columns ... --columns label=label:uint32   velodyne/000000.bin labels/000000.label
    image=images caption=captions                                      images/a.png captions/a.txt
    image=images embedding=clip                                        images/a.png clip/a.npy

Each sample needs its file: one that is missing is an error that names its partner, or with `--missing boxes=empty` a
sample without a box. So is one whose file has no row.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import NothingLeftError, SourceError, UsageError, first_few
from packer.format import FieldSpec
from packer.sources.base import Block, DerivedSource, LargeArray, Source, count
from packer.sources.files import FileSet
from packer.sources.kinds import all_kinds
from packer.sources.pairing import UNNAMED, field_in_words, pair, partners, stem
from packer.sources.source import TableSource
from packer.watcher import Watcher

if TYPE_CHECKING:
    from typing_extensions import Self  # which typing has from Python 3.11 on

_log = logging.getLogger(__name__)


def open_beside(
    main: Mapping[str, FileSet],
    sides: Mapping[str, FileSet],
    open_samples: Callable[[Mapping[str, FileSet]], Source],
    open_side: Callable[[str, FileSet], Source],
    watcher: Watcher,
    missing: Mapping[str, str] = {},
) -> Source:
    """Return the samples of a source, each with the fields that lie beside it.

    Args:
        main: the files of the samples, by field.
        sides: the files beside them, by field.
        open_samples: opens the samples of some of the files `main`.
        open_side: opens the files of one of `sides`, each as a sample.
        watcher: its `bad` is called with every file that is bad or has no partner.
        missing: of `sides`, those whose value is `empty` in samples that have no file of them.

    Raises:
        UsageError: the samples are not whole files (but patches of images, say), or two fields have one name.
        SourceError: what `watcher.bad` raises, or no sample is left.
    """
    sides_in_words = " and ".join(name or UNNAMED for name in sides)
    opened: dict[str, Source] = {}
    beside: dict[str, FileSet] = {}
    for name, file_set in sides.items():
        opened[name] = side = open_side(name, file_set)
        paths = set(side.files())
        if len(paths) != len(side):
            raise UsageError(f"{field_in_words(name)} lies beside the others, so each sample of it must be one file")
        beside[name] = file_set._replace(files=[file for file in file_set.files if file_set.path(file) in paths])
    for name, value in missing.items():
        if name not in beside or value != "empty":
            known = ", ".join(beside) or "none"
            raise UsageError(f"--missing {name}={value}: FIELD=empty is expected, of a field of files beside ({known})")
    needed = {name: file_set for name, file_set in beside.items() if name not in missing}
    pairs, _ = partners({**main, **needed}, watcher)
    if not pairs.names:
        raise NothingLeftError(
            f"no sample is left: none has its file of {sides_in_words}", next(iter(main.values())).text
        )
    samples = open_samples(
        {name: file_set._replace(files=sorted(pairs.files[name])) for name, file_set in main.items()}
    )
    names = [] if samples.names is None else [f"{name}." for name in samples.names]
    paired = pair({"": names, **{f"={name}": file_set.files for name, file_set in needed.items()}})
    order = {name: number for number, name in enumerate(paired.files[""])}
    if len(order) < len(samples):
        raise UsageError(
            f"{sides_in_words}: these lie beside whole files, but the samples are not single files; leave out --patch, "
            "--samples and the like"
        )
    chosen = list[Source]()
    for name, side in opened.items():
        numbers = {path: number for number, path in enumerate(side.files())}
        if name in missing:
            chosen.append(_filled(name, side, beside[name], names, watcher))
            continue
        files = [paired.files[f"={name}"][order[sample]] for sample in names]
        chosen.append(in_order(side, [numbers[sides[name].path(file)] for file in files]))
    return BesideSource(samples, chosen)


def _filled(name: str, side: Source, file_set: FileSet, samples: Sequence[str], watcher: Watcher) -> FilledSource:
    """Return a source of values for all samples, which are empty where no file has the name of the sample.

    Raises:
        UsageError: values of the field cannot be empty.
        SourceError: what `watcher.bad` raises, which is called with each file that is of no sample.
    """
    if not all_kinds()[side.kind].may_be_missing:
        can_be = ", ".join(kind.name for kind in all_kinds().values() if kind.may_be_missing)
        raise UsageError(f"--missing {name}=empty: {side.kind} cannot be empty, but {can_be} can; leave it out")
    number_of = {stem(file): number for number, file in enumerate(file_set.files)}
    of_samples = [stem(sample) for sample in samples]
    for extra in sorted(number_of.keys() - set(of_samples)):
        watcher.bad(SourceError("has no partner", file_set.path(file_set.files[number_of[extra]])))
    path_numbers = {path: number for number, path in enumerate(side.files())}
    numbers = [
        path_numbers[file_set.path(file_set.files[number_of[sample]])] if sample in number_of else None
        for sample in of_samples
    ]
    return FilledSource(in_order(side, [n for n in numbers if n is not None]), [n is not None for n in numbers])


def in_order_of(names: Sequence[str] | None, samples: int, source: Source, drop: bool = False) -> Source:
    """Return the samples of a source in the order of others, by name; by number if the source has no names.

    Args:
        names: of the others, in order; None if they have none.
        samples: how many others there are.
        drop: whether samples of the source without a partner are skipped, with a warning.

    Raises:
        UsageError: one of the others has no partner, or the numbers of samples differ; or, unless these are skipped, a
            sample of the source has none.
    """
    if source.names is None:
        if len(source) == samples:
            return source
        raise UsageError(
            f"the source has {len(source):,} samples without names, which go by their number: {samples:,} are expected"
        )
    if names is None:
        raise UsageError(
            "the samples of the dataset have no names, but those of the source do: give one value a row, in the order "
            "of the samples, as one .npy or HDF5 file, or as several with --samples rows"
        )
    number_of = {name: number for number, name in enumerate(source.names)}
    partner_of = {name: name for name in names if name in number_of}
    if len(partner_of) < samples:
        pairs = pair({"": [f"{name}." for name in names], "=": [f"{name}." for name in source.names]})
        partner_of = dict(zip(map(stem, pairs.files[""]), map(stem, pairs.files["="]), strict=True))
        for field_name, taken in pairs.taken.items():
            of = "source" if field_name else "dataset"
            _log.info("names of the %s are compared without what most of them have, %s", of, taken)
    if missing := [name for name in names if name not in partner_of]:
        reason = f"{len(missing):,} of {samples:,} samples have no value in the source: {first_few(missing)}"
        raise UsageError(f"{reason}; the source has {first_few(list(source.names))}")
    if len(partner_of) < len(source):
        chosen = set(partner_of.values())
        more = [name for name in source.names if name not in chosen]
        reason = f"{len(more):,} samples of the source are not in the dataset: {first_few(more)}"
        if not drop:
            raise UsageError(f"{reason}; skip them with --on-error skip")
        _log.warning("%s; they are skipped", reason)
    numbers = [number_of[partner_of[name]] for name in names]
    return source if numbers == list(range(len(source))) else in_order(source, numbers)


def in_order(source: Source, numbers: Sequence[int]) -> Source:
    """Return some samples of a source, in another order."""
    return source.in_order(numbers) if isinstance(source, TableSource) else ChosenSource(source, numbers)


def _between(source: Source, numbers: Sequence[int]) -> tuple[Source, list[int]]:
    """Return what lies between the first and the last of some samples, and their numbers in it."""
    first, stop = (min(numbers), max(numbers) + 1) if numbers else (0, 0)
    return source.slice(first, stop), [number - first for number in numbers]


class ChosenSource(DerivedSource):
    """Some samples of a source, in another order."""

    def __init__(self, source: Source, numbers: Sequence[int]) -> None:
        super().__init__(source)
        self._numbers = list(numbers)
        self.names = None if source.names is None else [source.names[number] for number in numbers]

    def __reduce__(self) -> tuple[type[ChosenSource], tuple[Source, list[int]]]:
        return ChosenSource, _between(self._source, self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def slice(self, start: int, stop: int) -> ChosenSource:
        return ChosenSource(*_between(self._source, self._numbers[start:stop]))

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        shapes = self._source.shapes(field)
        return None if shapes is None else shapes[self._numbers]

    def files(self) -> list[str]:
        paths = self._source.files()
        return [paths[number] for number in self._numbers] if len(paths) == len(self._source) else paths

    def read(self) -> Iterator[Block]:
        # Runs of consecutive samples are read together.
        ends = [at for at in range(1, len(self)) if self._numbers[at] != self._numbers[at - 1] + 1]
        for start, stop in pairwise([0, *ends, len(self)]):
            first = self._numbers[start]
            try:
                yield from self._source.slice(first, first + stop - start).read()
            except SourceError as error:
                number = None if error.sample is None else start + error.sample
                raise SourceError(error.reason, error.path, number) from error


class FilledSource(DerivedSource):
    """The samples of a source, and between them empty ones.

    Args:
        has_value: of every sample, whether the source has it.
    """

    def __init__(self, source: Source, has_value: Sequence[bool]) -> None:
        super().__init__(source)
        self._has_value = np.array(has_value, bool)
        self.names = None
        self.fields = tuple(msgspec.structs.replace(spec, shape=(None, *spec.shape[1:])) for spec in source.fields)
        names, empty = " and ".join(spec.name for spec in self.fields), int((~self._has_value).sum())
        empty_samples = f"{empty:,} sample has" if empty == 1 else f"{empty:,} samples have"
        self.remarks = [*source.remarks, f"field {names}: {empty_samples} no file of it, and an empty value"]

    def __len__(self) -> int:
        return len(self._has_value)

    def slice(self, start: int, stop: int) -> Self:
        sliced = copy(self)
        first, count_ = int(self._has_value[:start].sum()), int(self._has_value[start:stop].sum())
        sliced._adopt(self._source.slice(first, first + count_))
        sliced._has_value, sliced.remarks, sliced.origin = self._has_value[start:stop], [], {}
        return sliced

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        shapes = self._source.shapes(field)
        (spec,) = (spec for spec in self.fields if spec.name == field)
        if shapes is None:
            return None
        filled = np.empty((len(self), shapes.shape[1]), np.int64)
        filled[:] = [length or 0 for length in spec.shape]
        filled[self._has_value] = shapes
        return filled

    def read(self) -> Iterator[Block]:
        values, done = self._values(), 0
        try:
            for has_value in self._has_value.tolist():
                yield next(values) if has_value else {spec.name: _empty(spec) for spec in self.fields}
                done += 1
        except SourceError as error:
            raise SourceError(error.reason, error.path, done) from error

    def _values(self) -> Iterator[Block]:
        for block in self._source.read():
            for number in range(count(block)):
                yield {name: values[number : number + 1] for name, values in block.items()}


def _empty(spec: FieldSpec) -> list[str] | list[NDArray[Any]]:
    """Return an empty value of a field, as a block of one sample."""
    return [""] if spec.kind == "text" else [np.empty([length or 0 for length in spec.shape], spec.dtype)]


class BesideSource(DerivedSource):
    """The samples of a source, with the fields of other sources that have as many samples."""

    def __init__(self, source: Source, sides: Sequence[Source]) -> None:
        super().__init__(source)
        self._sides = list(sides)
        self.fields = (*source.fields, *(spec for side in sides for spec in side.fields))
        if len({spec.name for spec in self.fields}) < len(self.fields):
            named = ", ".join(spec.name for spec in self.fields)
            raise UsageError(f"two fields have one name ({named}); give another FIELD= to one of them")
        self.remarks = [*source.remarks, *(remark for side in sides for remark in side.remarks)]
        beside = {spec.name: dict(side.origin) for side in sides for spec in side.fields}
        classes = [origin["classes"] for origin in (source.origin, *beside.values()) if origin.get("classes")]
        self.origin = {**source.origin, **({"classes": classes[0]} if classes else {}), "beside": beside}

    def slice(self, start: int, stop: int) -> Self:
        sliced = super().slice(start, stop)
        sliced._sides = [side.slice(start, stop) for side in self._sides]
        return sliced

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        for side in self._sides:
            if any(spec.name == field for spec in side.fields):
                return side.shapes(field)
        return super().shapes(field)

    def files(self) -> list[str]:
        return [*super().files(), *(path for side in self._sides for path in side.files())]

    def read(self) -> Iterator[Block]:
        at, sides = 0, [_Values(side) for side in self._sides]
        for block in self._source.read():
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
