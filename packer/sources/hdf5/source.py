"""Samples out of HDF5 files: rows of datasets, or one unit each; of one file or of several in a row."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError, as_text, first_few
from packer.format import check_field_name
from packer.sources.base import HEADERS, Block, Looking, OnBad, Source, common_shape, joined, misfits, watched
from packer.sources.episodes import Marks, open_episodes
from packer.sources.files import Found
from packer.sources.hdf5.file import faults_named, opened
from packer.sources.hdf5.listing import Column
from packer.sources.hdf5.origin import HDF5Options, HDF5Origin, KeptFile, common, values_of
from packer.sources.hdf5.reading import row_blocks, shaped, unit_sample
from packer.sources.hdf5.roots import are_numbered
from packer.sources.hdf5.units import FileUnits, Unit, left_out, units_of
from packer.sources.options import SourceOptions, naming
from packer.sources.units import Asked, unit_of
from packer.workers import Limits, each

#: Samples whose attributes are kept: the manifest is read by people.
MAX_KEPT = 500

if TYPE_CHECKING:
    from typing_extensions import Self  # which typing has from Python 3.11 on


def open_hdf5(
    inputs: Mapping[str, Found], options: SourceOptions, *, on_bad: OnBad, looking: Looking, limits: Limits | None
) -> Source:
    """Open the samples of HDF5 files, one file after another.

    Args:
        inputs: the one source, whose files name their fields themselves.
        options: paths in `pick` and `skip` start from a sample, if that is a file, dataset or group.
        on_bad: called with the error of each bad file or unit; if it returns, that one is left out.
        looking: called with the number of headers read.
        limits: limits of reading the headers of one file, in a process of its own, since some files crash the library
            or make it allocate gigabytes. None reads them in this process.

    Raises:
        UsageError: a name in `pick` cannot be that of a field, `skip` or `once` fits nothing, rows and groups may both
            be the samples, or options do not go together.
        SourceError: no usable file, no common sample axis, or data that cannot be stored.
    """
    (found,) = inputs.values()
    asked = unit_of("hdf5", options.samples)
    _check(options, asked)
    files = [found.path(file) for file in found.pick()]
    if asked.name == "episodes":
        return _open_episodes(found, files, asked.pattern, options, on_bad, looking, limits)
    looked = each(partial(units_of, asked=asked, options=options), files, limits)
    listed = watched(zip(files, looked, strict=True), HEADERS, looking, len(files))
    held, kept = _fitting(listed, found.text, on_bad)
    if useless := set(options.skip).difference(*(some.used for some in held.values())):
        raise UsageError(f"--skip {min(useless)}: {found.text} has no such dataset or group")
    constants = common((Path(file).name, some.once) for file, some in held.items())
    constants |= common((str(one), one.once) for one in kept)
    for one in options.once:
        if not any(naming(name, [one]) for name in constants):
            raise UsageError(f"--once {one}: there is no such dataset, neither in the samples nor in the file")
    remarks = []
    if sum(bool(unit.attributes) for unit in kept) > MAX_KEPT:
        kept = [replace(unit, attributes={}) for unit in kept]
        few = f"more than {MAX_KEPT:,} files or samples have attributes"
        remarks.append(f"{few}, so none are kept; --attr NAME makes a field")
    asked_for = HDF5Options(dict(options.pick), list(options.skip), list(options.once), list(options.sparse))
    source: HDF5Source
    if asked.name == "rows":
        rows = [unit.samples for unit in kept]
        if options.samples is None:
            if not options.pick and are_numbered(column.dataset for column in kept[0].columns):
                raise UsageError(
                    f"{kept[0].path}: a sample may be a row of all {len(kept[0].columns)} datasets, or one of the "
                    "groups that hold them; say --samples rows, or --samples groups"
                )
            if len(set(rows)) > 1:
                remarks.append(
                    f"{len(kept):,} files of {min(rows):,} to {max(rows):,} rows: each row is a sample; --samples "
                    "files makes each file one"
                )
        source = RowSource(kept, msgspec.structs.replace(asked_for, axis=options.axis), held)
    else:
        source = UnitSource(kept, msgspec.structs.replace(asked_for, samples=str(asked)), held)
    source.remarks = [*source.remarks, *remarks]
    source.constants = {name: values_of(one) for name, one in constants.items()}
    return source


def _open_episodes(
    found: Found,
    files: list[str],
    pattern: str,
    options: SourceOptions,
    on_bad: OnBad,
    looking: Looking,
    limits: Limits | None,
) -> Source:
    """Return the rows of the files as episodes; the arguments are those of `open_hdf5`."""
    marks: dict[str, Marks] = {}
    for path, some in zip(files, each(partial(_marks, pattern), files, limits), strict=True):
        if isinstance(some, SourceError):
            on_bad(some)
        else:
            marks[path] = some
    if not marks:
        raise SourceError(f"no file says by {pattern} where episodes end; nothing is left to pack", found.text)
    rest = found._replace(files=[file for file in found.files if found.path(file) in marks])

    def open_rows(tables: list[str]) -> Source:
        skip = (*options.skip, *(() if options.pick else tables))
        as_rows = replace(options, samples="rows", skip=skip)
        return open_hdf5({"": rest}, as_rows, on_bad=on_bad, looking=looking, limits=limits)

    return open_episodes(pattern, marks, open_rows)


def _marks(pattern: str, path: str) -> Marks:
    """Return the arrays of one file that say where episodes end; raises SourceError if one is not there."""
    marks = {}
    with opened(path) as file, faults_named(path, "reading the ends of episodes"):
        for name in pattern.split(","):
            thing = file.get(name)
            if not isinstance(thing, h5py.Dataset) or thing.ndim != 1:
                what = f"has no dataset {name} of one axis, which would say where episodes end"
                raise SourceError(f"{what}; it holds {first_few(list(file))}", path)
            marks[name] = thing[()]
    return marks


def _check(options: SourceOptions, asked: Asked) -> None:
    """Raise UsageError if an option has a value that cannot be, or is not for this unit."""
    for name in options.pick:
        try:
            check_field_name(name)
        except ValueError as error:
            raise UsageError(str(error)) from None
    for path in (*options.pick.values(), *options.once):
        if not path.strip("/"):
            raise UsageError(f"--field or --once: {path!r} is not the path of a dataset in a sample or file")
    is_rows = asked.name == "rows"
    for given, is_wrong, reason in (
        (options.attrs, is_rows, "--attr: rows have no attributes; files, datasets and groups do (--samples)"),
        (options.axis, not is_rows, f"--axis is for rows, but --samples {asked} makes each of these a sample"),
        (options.sparse, not is_rows, f"--sparse: samples are the rows of the matrix; leave out --samples {asked}"),
        (options.pick, asked.name == "datasets", "--field: a dataset that is a sample has one field, values"),
    ):
        if given and is_wrong:
            raise UsageError(reason)


def _fitting(
    found: Iterator[tuple[str, FileUnits | SourceError]], path: str, on_bad: OnBad
) -> tuple[dict[str, FileUnits], list[Unit]]:
    """Return the units of each file, and those that can be packed together; call `on_bad` with the others.

    Raises:
        SourceError: none is left.
    """
    held: dict[str, FileUnits] = {}
    good: list[Unit] = []
    for file, some in found:
        if isinstance(some, SourceError):
            on_bad(some if some.path else SourceError(some.reason, file))
            continue
        held[file] = some
        for unit in some.units:
            if isinstance(unit, SourceError):
                on_bad(unit)
            else:
                good.append(unit)
    if not good:
        raise SourceError("every file or sample of it is bad; nothing is left to pack", path)
    kinds = [{c.spec.name: _looks(c, with_lengths=unit.kind == "row") for c in unit.columns} for unit in good]
    model, apart = misfits(dict(enumerate(kinds)))
    for number, how in apart.items():
        unit = good[number]
        who = f"{unit.kind} {unit.root} " if unit.root else ""
        advice = (
            "pick the same fields with --field, leave some out with --skip or this one with --on-error skip, or take "
            "another unit, such as --samples files"
        )
        on_bad(SourceError(f"{who}does not fit most, such as {good[model]}: field {how}; {advice}", unit.path))
    return held, [unit for number, unit in enumerate(good) if number not in apart]


def _looks(column: Column, with_lengths: bool) -> str:
    """Return type and place of a field in words; fields that differ in them cannot be packed together."""
    shape = column.spec.shape if with_lengths else (None,) * len(column.spec.shape)
    where = f"attribute {column.attribute}" if column.attribute else column.dataset
    where += "".join(f"[{member}]" for member in column.members)
    # A dataset that is a sample has no path of its own.
    return " of ".join(filter(None, (shaped(column, shape).spec.in_words, where)))


# ---------------------------------------------------------------- the samples


class _Run(NamedTuple):
    """The rows start..stop of a file; or a unit, a dataset or group by its root, which is one sample.

    `files` are further files that are read for it.
    """

    path: str
    root: str
    start: int
    stop: int
    files: tuple[str, ...]


class HDF5Source(Source):
    """Samples out of HDF5 files.

    Args:
        columns: the fields.
        found: the units that they are read from.
        origin: what the manifest keeps, still without paths.
        held: all that was found in each file.
    """

    kind = "hdf5"
    #: Shapes of ragged fields, (n, axes), except those that are known only after reading.
    _shapes: Mapping[str, NDArray[np.int64]] = {}

    def __init__(
        self, columns: Sequence[Column], found: Sequence[Unit], origin: HDF5Origin, held: Mapping[str, FileUnits]
    ) -> None:
        self._columns = tuple(columns)
        self.fields = tuple(column.spec for column in columns)
        self._runs = [_Run(unit.path, unit.root, 0, unit.samples, unit.files) for unit in found]
        # The path of a field is kept if it is not its name with slashes for dots: names may hold dots of their own.
        paths = {c.spec.name: c.path for c in columns if not c.attribute}
        paths = {name: path for name, path in paths.items() if path != "/" + name.replace(".", "/")}
        self.origin = msgspec.to_builtins(msgspec.structs.replace(origin, paths=paths))
        remarks = [note for path in dict.fromkeys(unit.path for unit in found) for note in held[path].notes]
        remarks += [f"{column.path} {column.remark}" for unit in found for column in unit.columns if column.remark]
        if asides := {path: why for unit in found for path, why in unit.asides.items()}:
            remarks.append(f"left out: {left_out(asides)}. --field NAME=/path takes a link")
        if lost := dict.fromkeys(f"{name!r} of {unit}" for unit in found for name in unit.lost):
            why = "attributes are kept if they are numbers or text of at most 16 KiB"
            remarks.append(f"{why}; these are not: {first_few(list(lost))}")
        self.remarks = list(dict.fromkeys(remarks))

    def __len__(self) -> int:
        return sum(run.stop - run.start for run in self._runs)

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        return self._shapes.get(field)

    def _cut(self, runs: Iterable[_Run]) -> Self:
        """Return a copy that reads only these runs, for a part."""
        part = copy(self)
        part._runs = list(runs)
        part.origin, part.remarks, part.constants, part.splits = {}, [], {}, {}
        return part

    def files(self) -> list[str]:
        return list(dict.fromkeys(name for run in self._runs for name in (run.path, *run.files)))


class RowSource(HDF5Source):
    """One sample a row, of files one after another."""

    names = None

    def __init__(self, found: Sequence[Unit], options: HDF5Options, held: Mapping[str, FileUnits]) -> None:
        names = _relative(found)
        files = [
            KeptFile(as_text(names[unit.path]), unit.samples, {"/": unit.attributes} if unit.attributes else {})
            for unit in found
        ]
        super().__init__(found[0].columns, found, HDF5Origin(options, {}, files), held)
        self._axis = options.axis or 0

    def part(self, start: int, stop: int) -> RowSource:
        return self._cut(_overlaps(self._runs, start, stop))

    def read(self) -> Iterator[Block]:
        before = 0
        for run in self._runs:
            with opened(run.path) as file:
                yield from row_blocks(file, run.path, self._columns, self._axis, run.start, run.stop, before)
            before += run.stop - run.start


def _overlaps(runs: Sequence[_Run], start: int, stop: int) -> Iterator[_Run]:
    """Yield the samples start..stop of runs that lie one after another, as runs."""
    before = 0
    for run in runs:
        first = max(start - before, 0) + run.start
        last = min(stop - before + run.start, run.stop)
        if first < last:
            yield run._replace(start=first, stop=last)
        before += run.stop - run.start


class UnitSource(HDF5Source):
    """One sample a unit, with its path for a name; axes of fields that differ between units are ragged."""

    names: list[str]

    def __init__(self, found: Sequence[Unit], options: HDF5Options, held: Mapping[str, FileUnits]) -> None:
        homes = _homes(found)
        self.names = [f"{homes[unit.path]}{unit.root}".lstrip("/") for unit in found]
        self.splits = _splits(found, self.names, held)
        self._kind = found[0].kind
        self._shapes = {}
        shapes_of = [{column.spec.name: column.spec.shape for column in unit.columns} for unit in found]
        columns = []
        for column in found[0].columns:
            sizes = [shapes[column.spec.name] for shapes in shapes_of]
            columns.append(shaped(column, common_shape(sizes)))
            if columns[-1].spec.is_ragged and not any(None in shape for shape in sizes):
                self._shapes[column.spec.name] = np.array(sizes, np.int64)
        attrs = [column.attribute for column in columns if column.attribute]
        counts = Counter(unit.path for unit in found)
        files = [KeptFile(home, counts[path], held[path].above) for path, home in homes.items() if found[0].root]
        kept = {name: unit.attributes for name, unit in zip(self.names, found, strict=True) if unit.attributes}
        super().__init__(columns, found, HDF5Origin(options, {}, files, kept, attrs), held)

    def part(self, start: int, stop: int) -> UnitSource:
        part = self._cut(self._runs[start:stop])
        part.names = self.names[start:stop]
        part._shapes = {name: shapes[start:stop] for name, shapes in self._shapes.items()}
        return part

    def read(self) -> Iterator[Block]:
        before = 0
        for path, runs in groupby(self._runs, key=lambda run: run.path):
            roots = [run.root for run in runs]
            with opened(path) as file:  # large arrays are read after the last sample was asked for
                yield from joined(self._samples(file, path, roots, before), self.fields)
            before += len(roots)

    def _samples(self, file: h5py.File, path: str, roots: list[str], before: int) -> Iterator[dict[str, Any]]:
        for number, root in enumerate(roots, before):
            try:
                yield unit_sample(file, path, root, self._columns, number)
            except SourceError as error:
                reason = f"{self._kind} {root}: {error.reason}" if root else error.reason
                raise SourceError(reason, path, number) from error


def _relative(found: Sequence[Unit]) -> dict[str, str]:
    """Return the path of each file, relative to the folder that holds all."""
    folder = os.path.commonpath([Path(unit.path).parent for unit in found])
    return {path: Path(os.path.relpath(path, folder)).as_posix() for path in dict.fromkeys(unit.path for unit in found)}


def _homes(found: Sequence[Unit]) -> dict[str, str]:
    """Return by file how the names of its units begin: with its path, if there are several files.

    The path has no suffix, unless some files differ only in their suffix.
    """
    names = _relative(found)
    if len(names) == 1 and found[0].root:
        return dict.fromkeys(names, "")
    homes = {path: Path(name).with_suffix("").as_posix() for path, name in names.items()}
    return homes if len(set(homes.values())) == len(names) else names  # as of run.1 and run.2


def _splits(found: Sequence[Unit], names: Sequence[str], held: Mapping[str, FileUnits]) -> dict[str, list[str]]:
    """Return the names of the samples of each split that files list, without units that were left out."""
    splits: dict[str, list[str]] = {split: [] for some in held.values() for split in some.splits}
    for unit, name in zip(found, names, strict=True):
        for split, roots in held[unit.path].splits.items():
            if unit.root in roots:
                splits[split].append(name)
    return splits
