"""Samples out of HDF5 files: rows of datasets, or one unit each; of one file or of several in a row."""

from __future__ import annotations

import glob
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.sources.apart import Limits, each
from packer.sources.base import HEADERS, Block, Looking, OnBad, Source, not_looking, stop, watched
from packer.sources.files import find, kind_of
from packer.sources.hdf5.choice import (
    Request,
    advice,
    check_request,
    chosen,
    columns_of,
    conversions,
    difference,
    family,
    is_skipped,
    is_wanted,
)
from packer.sources.hdf5.file import faults_named, opened
from packer.sources.hdf5.listing import Listed, inventory
from packer.sources.hdf5.once import Constant, Kept, check_once, common, constants_at
from packer.sources.hdf5.origin import asides, kept_of_rows, unkept
from packer.sources.hdf5.reading import FileBlocks, HDF5Source, SparseRows, row_bytes
from packer.sources.hdf5.roots import numbered
from packer.sources.hdf5.storage import dataset_at
from packer.sources.hdf5.types import Column, paths
from packer.sources.hdf5.unit_source import UnitSource
from packer.sources.hdf5.units import FileUnits, Unit, common_columns, units
from packer.sources.units import Unit as Asked
from packer.sources.units import unit_of

#: What is found in one file.
Read = TypeVar("Read")
#: The files, and what was found in each.
Found = Iterable[tuple[str, Read | SourceError]]


def open_hdf5(
    path: str,
    *,
    fields: Mapping[str, str] | None = None,
    skip: Collection[str] = (),
    on_bad: OnBad = stop,
    axis: int = 0,
    samples: str | None = None,
    encoding: str = "utf-8",
    attrs: Sequence[str] = (),
    once: Sequence[str] = (),
    sparse: Sequence[str] = (),
    limits: Limits | None = None,
    looking: Looking = not_looking,
) -> Source:
    """Open the samples of an HDF5 file, or of all files of a folder or glob, one file after another.

    Args:
        path: a file, a folder, or a glob such as `train_*.h5`.
        fields: `{"NAME": "/path"}` picks datasets; None takes all that share the sample axis.
        skip: fields, paths or groups to leave out.
        on_bad: told of each file (or unit) that cannot be used; if it returns, that is left out.
        axis: number of the sample axis, from the end if negative.
        samples: `rows`: along an axis of the datasets; `files`, `datasets`, `groups` or `groups:PATTERN`: each of
            these is one sample, and paths in `fields` and `skip` start from it.
        encoding: of text that the file does not say to be UTF-8, such as `latin-1`.
        attrs: names of attributes of the units that become fields.
        once: paths, within a unit or from the root of the file, of datasets that are kept once as `constants`.
        sparse: groups of `data`, `indices` and `indptr`, a sparse matrix: rows have the fields `X.indices`, `X.data`.
        limits: what the headers of one file may take, in a process of its own: files exist that crash the library,
            or of which it makes gigabytes. None: in this process.
        looking: told how far reading headers is.

    Raises:
        UsageError: a field name in `fields` cannot be one, `skip` fits nothing, `samples` is another word, or there is
            no such encoding.
        SourceError: no usable file, no common sample axis, or data that cannot be stored.
    """
    check_request(fields, encoding)
    unit = unit_of("hdf5", samples)
    if unit.name != "rows" and axis:
        raise UsageError(f"--axis {axis} has no meaning with --samples {unit}, where each of these is one sample")
    if unit.name == "rows" and attrs:
        raise UsageError(f"--attr {attrs[0]}: rows have no attributes; files, datasets and groups do (--samples)")
    if unit.name != "rows" and sparse:
        raise UsageError(f"--sparse {sparse[0]}: its rows are the samples; leave --samples {unit} out")
    if unit.name == "datasets" and fields:
        raise UsageError("--field: a dataset that is a sample has one field, values; leave --field out")
    request = Request(dict(fields or {}), tuple(skip), axis, encoding, tuple(attrs), tuple(once), tuple(sparse))
    files = hdf5_paths(path)

    def read(look: Callable[[str], Read]) -> Found[Read]:
        return watched(zip(files, each(look, files, limits), strict=True), HEADERS, looking, len(files))

    if unit.name == "rows":
        source, constants = _open_rows(read(partial(scanned, request=request)), request, samples, path, on_bad)
    else:
        found = dict(read(partial(units, asked=unit, request=request)))
        source, constants = _open_units(found, request, unit, path, on_bad)
    check_once(constants, once)
    source.constants = Kept(constants)
    return source


def _open_rows(
    found: Found[Scan], request: Request, samples: str | None, path: str, on_bad: OnBad
) -> tuple[Source, dict[str, Constant]]:
    """Return the rows of all files, and what is kept once; arguments and errors as `_scans` and `_doubts`."""
    scans = _scans(found, request, path, on_bad)
    constants = common((Path(scan.path).name, scan.once) for scan in scans)
    return RowSource(scans, request.told() | {"axis": request.axis}, _doubts(scans, samples)), constants


def _open_units(
    found: Mapping[str, FileUnits | SourceError], request: Request, asked: Asked, path: str, on_bad: OnBad
) -> tuple[Source, dict[str, Constant]]:
    """Return the units of all files, and what is kept once; arguments and errors as `_units`."""
    columns, kept = common_columns(_units(found, path, on_bad), on_bad)
    files = {file: some for file, some in found.items() if not isinstance(some, SourceError)}
    _refuse_useless(request.skip, [some.useless for some in files.values()], path)
    notes = dict.fromkeys(some.note for some in files.values() if some.note)
    splits = {file: some.splits for file, some in files.items()}
    source = UnitSource(columns, kept, request.told() | {"samples": str(asked)}, splits, list(notes))
    in_files = common((Path(file).name, some.once) for file, some in files.items())
    return source, in_files | common((str(unit), unit.once) for unit in kept)


def _scans(found: Found[Scan], request: Request, path: str, on_bad: OnBad) -> list[Scan]:
    """Return the scans of the files that can be packed together; the others are told to `on_bad`.

    Raises:
        UsageError: an entry of `skip` fits nothing.
        SourceError: no file is left.
    """
    scans: list[Scan] = []
    for file, scan in found:
        if isinstance(scan, SourceError):
            on_bad(_of_file(scan, file))
            continue
        how = difference(scans[0].columns, scan.columns) if scans else None
        if how:
            reason = (
                f"does not fit {Path(scans[0].path).name}: {how}; pack it by itself, pick common fields, or make each "
                "file a sample with --samples files"
            )
            on_bad(SourceError(reason, file))
            continue
        if scan.bad:
            on_bad(scan.bad)
        scans.append(scan)
    if not scans:
        raise SourceError("no file is left that can be packed", path)
    _refuse_useless(request.skip, [scan.useless for scan in scans], path)
    return scans


def _refuse_useless(skip: Collection[str], useless: Iterable[Collection[str]], path: str) -> None:
    """Raise UsageError if an entry of `skip` fits nothing in any file; `useless` are those of each file."""
    left = set(skip).intersection(*useless)
    if left:
        raise UsageError(f"--skip {min(left)}: {path} has no such dataset or group")


def _doubts(scans: Sequence[Scan], samples: str | None) -> list[str]:
    """Return what the plan says of rows that may not be what was meant.

    Args:
        samples: what the user said a sample is; None for nothing.

    Raises:
        UsageError: groups are as likely to be the samples, and the user said nothing.
    """
    doubts = []
    if groups := scans[0].groups:
        count = len(scans[0].columns)
        if samples is None:
            raise UsageError(
                f"{scans[0].path}: a sample may be a row of all {count} datasets, or one of the groups {groups}, which "
                f"look alike; say --samples rows, or --samples 'groups:{groups}'"
            )
        doubts.append(f"a sample is a row of {count} datasets; --samples 'groups:{groups}' makes each group one")
    lengths = [scan.samples for scan in scans]
    if len(set(lengths)) > 1:
        doubts.append(
            f"{len(scans):,} files of {min(lengths):,} to {max(lengths):,} rows: each row is a sample; --samples files "
            "makes each file one"
        )
    return doubts


def _units(found: Mapping[str, FileUnits | SourceError], path: str, on_bad: OnBad) -> list[Unit]:
    """Return the units that can be packed; the others are told to `on_bad`.

    Raises:
        SourceError: none is left.
    """
    kept: list[Unit] = []
    for file, some in found.items():
        for unit in [some] if isinstance(some, SourceError) else some.units:
            if isinstance(unit, SourceError):
                on_bad(_of_file(unit, file))
            else:
                kept.append(unit)
    if not kept:
        raise SourceError("nothing is left that can be packed", path)
    return kept


def _of_file(error: SourceError, file: str) -> SourceError:
    return error if error.path else SourceError(error.reason, file)


def hdf5_paths(path: str) -> list[str]:
    """Return the paths of the files, in natural order (train_2.h5 before train_10.h5).

    Of a folder those that are HDF5 are taken; a file named by itself, or by a pattern, may be anything yet.

    Raises:
        SourceError: the folder or pattern holds none, or one that is a broken link or no regular file.
    """
    is_folder = Path(path).is_dir()
    if not is_folder and (Path(path).exists() or not glob.has_magic(path)):
        return [path]
    found = find(path)
    files = found.pick(lambda file: not is_folder or kind_of(found.path(file)) == "hdf5")
    if not files:
        raise SourceError("the folder holds no file of HDF5" if is_folder else "no file fits this pattern", path)
    return [found.path(file) for file in files]


# ---------------------------------------------------------------- rows of one file

#: Text of fixed length that is decoded while a file is scanned: a bad one is found before hours of packing.
_LOOKED_AT_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Scan:
    """What one file holds.

    Attributes:
        path: the file.
        columns: its fields.
        samples: number of samples.
        files: further files that are read for it.
        origin: what the manifest keeps, as `packer.sources.hdf5.origin` has it.
        notes: sentences for the plan.
        useless: entries of the request's `skip` that fit nothing here.
        bad: the error of the first sample found that cannot be read.
        groups: pattern of the groups that could be samples as well; None if nothing speaks for it.
        once: what is to be the same in all files, by name.
    """

    path: str
    columns: tuple[Column, ...]
    samples: int
    files: tuple[str, ...]
    origin: dict[str, Any]
    notes: tuple[str, ...]
    useless: tuple[str, ...]
    bad: SourceError | None
    groups: str | None
    once: dict[str, Constant]


def scanned(path: str, request: Request) -> Scan:
    """Return the fields of one file, from its headers, with every file and size they stand on checked.

    Raises:
        UsageError: there are more fields than a dataset may have.
        SourceError: no HDF5 file, no common sample axis, or a dataset that cannot be stored or read.
    """
    with opened(path) as file, faults_named(path, "listing the file"):
        kind = family(file)
        held = inventory(file, path, request.axis, partial(is_wanted, request=request))
        wanted = chosen(held.entries, request, kind, path)
        fields = columns_of(wanted, request.encoding)
        samples = next(iter(wanted.values())).samples or 0
        names = list(dict.fromkeys(column.dataset for column in fields))
        storages = [dataset_at(file, path, name, samples)[1] for name in names]
        files = [held.homes[name] for name in names if name in held.homes]
        files += [name for storage in storages for name in storage.files]

        def is_kept(thing: str) -> bool:
            if request.fields:
                return any(f"{name}/".startswith(f"{thing.rstrip('/')}/") for name in names)
            return not is_skipped(Listed(thing), request.skip)

        kept, lost = kept_of_rows(file, held, fields, is_kept)
        of_file = [storage.note for storage in storages if storage.note]
        of_file += conversions(wanted.values())
        of_file += unkept(kept.get("attributes", {})) + lost
        notes = [f"{Path(path).name}: {note}" for note in of_file]
        notes += [] if request.fields else asides(held.entries, request.skip, kept.get("values", {}))
        notes += [f"{Path(path).name}:{advice(kind)}"] if kind == "matlab" else []
        useless = tuple(name for name in request.skip if not any(is_skipped(e, [name]) for e in held.entries))
        bad = _bad_text(file, path, fields, request.axis, samples)
        for column in fields:
            if column.starts:
                SparseRows(file, path, column)  # checks where its rows start
        once = constants_at(file, path, "", request.once)
        groups = None if request.fields else numbered(names)
        return Scan(path, fields, samples, tuple(dict.fromkeys(files)), kept, tuple(notes), useless, bad, groups, once)


def _bad_text(file: h5py.File, path: str, fields: Sequence[Column], axis: int, samples: int) -> SourceError | None:
    """Return the error of the first text of fixed length that cannot be decoded, among rows that are quick to read."""
    texts = [c for c in fields if c.spec.kind == "text" and not file[c.dataset].dtype.hasobject]
    nbytes = sum(row_bytes(file[name], axis) for name in {c.dataset for c in texts})
    if nbytes:
        try:
            for _ in FileBlocks(file, path, texts, axis, 0, min(samples, max(1, _LOOKED_AT_BYTES // nbytes))):
                pass
        except SourceError as error:
            return SourceError(f"row {error.sample or 0:,}: {error.reason}", path, error.sample)
    return None


# ---------------------------------------------------------------- rows of all files


@dataclass(frozen=True)
class _Rows:
    """Rows start..stop of one file."""

    path: str
    start: int
    stop: int


class RowSource(HDF5Source):
    """One sample a row, of files one after another."""

    names = None

    def __init__(self, scans: Sequence[Scan], options: dict[str, Any], notes: Sequence[str]) -> None:
        columns = scans[0].columns
        files = [name for scan in scans for name in (scan.path, *scan.files)]
        origin = {"options": options, "paths": paths(columns), "files": _origins(scans)}
        super().__init__(columns, files, origin, [*notes, *(note for scan in scans for note in scan.notes)])
        self._axis: int = options["axis"]
        self._rows = [_Rows(scan.path, 0, scan.samples) for scan in scans]

    def __len__(self) -> int:
        return sum(rows.stop - rows.start for rows in self._rows)

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        """Return None: HDF5 tells how long a variable-length value is only when it is read."""
        return None

    def part(self, start: int, stop: int) -> RowSource:
        rows = list(_overlaps(self._rows, start, stop))
        part = self._cut(run.path for run in rows)
        part._rows = rows
        return part

    def read(self) -> Iterator[Block]:
        before = 0
        for rows in self._rows:
            with opened(rows.path) as file:
                blocks = FileBlocks(file, rows.path, self._columns, self._axis, rows.start, rows.stop)
                try:
                    yield from blocks
                except SourceError as error:
                    sample = None if error.sample is None else error.sample + before
                    raise SourceError(error.reason, error.path, sample) from error
            before += rows.stop - rows.start


def _overlaps(rows: Sequence[_Rows], start: int, stop: int) -> Iterator[_Rows]:
    """Yield what samples start..stop are of files laid one after another."""
    before = 0
    for run in rows:
        first = max(start - before, 0) + run.start
        last = min(stop - before + run.start, run.stop)
        if first < last:
            yield _Rows(run.path, first, last)
        before += run.stop - run.start


def _origins(scans: Sequence[Scan]) -> list[dict[str, Any]]:
    """Return of every file its name, samples, and what is kept of it if that is not what is kept of the first one."""
    found: list[dict[str, Any]] = []
    for scan in scans:
        # JSON holds no bytes that are no text (UTF-8): they show as escapes.
        name = Path(scan.path).name.encode(errors="backslashreplace").decode()
        kept = scan.origin
        if found and kept == scans[0].origin:
            kept = {"like_first": True}
        found.append({"name": name, "samples": scan.samples} | kept)
    return found
