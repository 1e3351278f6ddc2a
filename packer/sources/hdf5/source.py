"""Samples out of HDF5 files: rows of datasets, or one group each; of one file or of several in a row."""

from __future__ import annotations

import glob
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError, shortened
from packer.sources.apart import Limits, each
from packer.sources.base import HEADERS, Block, Looking, OnBad, Source, not_looking, stop, watched
from packer.sources.files import find, kind_of
from packer.sources.hdf5.attributes import asides, origin
from packer.sources.hdf5.choice import (
    Request,
    advice,
    check_request,
    chosen,
    columns,
    conversions,
    difference,
    family,
    is_skipped,
)
from packer.sources.hdf5.file import faults_named, opened
from packer.sources.hdf5.listing import Listed, inventory
from packer.sources.hdf5.reading import FileBlocks, row_bytes
from packer.sources.hdf5.storage import dataset_at
from packer.sources.hdf5.types import Column, paths
from packer.sources.hdf5.units import GroupSample, HDF5GroupSource, common_columns, group_samples


def open_hdf5(
    path: str,
    *,
    fields: Mapping[str, str] | None = None,
    skip: Collection[str] = (),
    on_bad: OnBad = stop,
    axis: int = 0,
    samples: str = "rows",
    encoding: str = "utf-8",
    limits: Limits | None = None,
    looking: Looking = not_looking,
) -> Source:
    """The samples of an HDF5 file, or of all files of a folder or glob, one file after another.

    Args:
        path: a file, a folder, or a glob such as `train_*.h5`.
        fields: `{"NAME": "/path"}` picks datasets; None takes all that share the sample axis.
        skip: fields, paths or groups to leave out.
        on_bad: told of each file (or group) that cannot be used; where it returns, that is left out.
        axis: number of the sample axis, from the end where negative.
        samples: `rows`: along an axis of the datasets; `groups` or `groups:/path`: every group there is
            one sample, and paths in `fields` and `skip` start from it.
        encoding: of text that the file does not say to be UTF-8, such as `latin-1`.
        limits: what the headers of one file may take, in a process of its own: files exist that crash the library,
            or of which it makes gigabytes. None: in this process.
        looking: told how far reading headers is.

    Raises:
        UsageError: a field name in `fields` cannot be one, `skip` fits nothing, `samples` is another word.
        SourceError: no usable file, no common sample axis, or data that cannot be stored.
    """
    check_request(fields, encoding)
    request = Request(dict(fields or {}), tuple(skip), axis, encoding)
    how, _colon, base = samples.partition(":")
    if how not in ("rows", "groups") or (how == "rows" and base):
        raise UsageError(f"--samples {samples}: rows, groups or groups:/path is expected")
    if how == "groups":
        return _open_groups(path, base, request, on_bad, limits, looking)
    return _open_rows(path, request, on_bad, limits, looking)


def _open_rows(path: str, request: Request, on_bad: OnBad, limits: Limits | None, looking: Looking) -> HDF5Source:
    scans: list[Scan] = []
    files = hdf5_paths(path)
    found = each(partial(scanned, request=request), files, limits)
    for file, scan in watched(zip(files, found, strict=True), HEADERS, looking, len(files)):
        try:
            scans.append(_fitting(scan, scans, file))
            if scans[-1].bad:
                on_bad(scans[-1].bad)
        except SourceError as error:
            on_bad(error)
    if not scans:
        raise SourceError("no file is left that can be packed", path)
    useless = set(request.skip).intersection(*(scan.useless for scan in scans))
    if useless:
        raise UsageError(f"--skip {min(useless)}: {path} has no such dataset or group")
    return HDF5Source(scans, request)


def _open_groups(
    path: str, base: str, request: Request, on_bad: OnBad, limits: Limits | None, looking: Looking
) -> HDF5GroupSource:
    if request.axis:
        raise UsageError(f"--axis {request.axis} has no meaning where every group is one sample")
    found: list[GroupSample] = []
    files = hdf5_paths(path)
    read = each(partial(_groups, base=base, request=request), files, limits)
    for file, groups in watched(zip(files, read, strict=True), HEADERS, looking, len(files)):
        for group in [groups] if isinstance(groups, SourceError) else groups:
            if isinstance(group, SourceError):
                on_bad(_of_file(group, file))
            else:
                found.append(group)
    if not found:
        raise SourceError("no group is left that can be packed", path)
    columns, kept = common_columns(found, on_bad)
    options = {"fields": dict(request.fields), "skip": list(request.skip), "samples": f"groups:/{base.strip('/')}"}
    options |= _encoding(request)
    return HDF5GroupSource(columns, kept, options)


def _groups(path: str, base: str, request: Request) -> list[GroupSample | SourceError]:
    """The samples of one file, and the errors of those that cannot be packed."""
    found: list[GroupSample | SourceError] = []
    try:
        found.extend(group_samples(path, base, request, found.append))
    except SourceError as error:
        found.append(error)
    return found


def _fitting(scan: Scan | SourceError, others: Sequence[Scan], file: str) -> Scan:
    """The scan of a file; raises SourceError where it has none, or does not fit the others."""
    if isinstance(scan, SourceError):
        raise _of_file(scan, file)
    if others:
        _check_alike(others[0], scan)
    return scan


def _of_file(error: SourceError, file: str) -> SourceError:
    return error if error.path else SourceError(error.reason, file)


def _check_alike(first: Scan, scan: Scan) -> None:
    how = difference(first.columns, scan.columns)
    if how:
        raise SourceError(
            f"does not fit {Path(first.path).name}: {how}; pack it by itself, or pick common fields", scan.path
        )


@dataclass(frozen=True)
class _Rows:
    """Rows start..stop of one file."""

    path: str
    start: int
    stop: int


class HDF5Source(Source):
    """Rows of datasets; made by `open_hdf5`."""

    kind = "hdf5"
    names = None

    def __init__(self, scans: Sequence[Scan], request: Request) -> None:
        self._columns: tuple[Column, ...] = scans[0].columns
        self.fields = tuple(c.spec for c in self._columns)
        self._axis = request.axis
        self._rows = tuple(_Rows(s.path, 0, s.samples) for s in scans)
        self._files = list(dict.fromkeys(name for s in scans for name in (s.path, *s.files)))
        self._origin = _provenance(scans, request)
        self._notes = [note for s in scans for note in s.notes]

    def __len__(self) -> int:
        return sum(rows.stop - rows.start for rows in self._rows)

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        """None: HDF5 tells how long a variable-length value is only when it is read."""
        return None

    def part(self, start: int, stop: int) -> HDF5Source:
        part = object.__new__(HDF5Source)
        part._columns, part.fields, part._axis = self._columns, self.fields, self._axis
        part._rows = tuple(_overlaps(self._rows, start, stop))
        part._files = [rows.path for rows in part._rows]
        part._origin, part._notes = {}, []
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

    def files(self) -> list[str]:
        return list(self._files)

    def provenance(self) -> dict[str, Any]:
        return self._origin

    def notes(self) -> list[str]:
        return [shortened(note) for note in self._notes]


def _overlaps(rows: Sequence[_Rows], start: int, stop: int) -> Iterator[_Rows]:
    """What samples start..stop are of files laid one behind another."""
    before = 0
    for run in rows:
        first = max(start - before, 0) + run.start
        last = min(stop - before + run.start, run.stop)
        if first < last:
            yield _Rows(run.path, first, last)
        before += run.stop - run.start


def _provenance(scans: Sequence[Scan], request: Request) -> dict[str, Any]:
    """The request, the paths of fields, and of every file its name, samples and what differs from the first one's
    attributes.
    """
    files: list[dict[str, Any]] = []
    for scan in scans:
        file: dict[str, Any] = {"name": _text(Path(scan.path).name), "samples": scan.samples}
        if scan is scans[0]:
            file.update(scan.origin)
        elif scan.origin != scans[0].origin:
            file.update({"datasets": {}} | scan.origin)  # said even where there is nothing else to say
        files.append(file)
    options = {"fields": dict(request.fields), "skip": list(request.skip), "axis": request.axis}
    options |= _encoding(request)
    return {"options": options, "paths": paths(scans[0].columns), "files": files}


def _encoding(request: Request) -> dict[str, str]:
    return {} if request.encoding == "utf-8" else {"encoding": request.encoding}


def _text(name: str) -> str:
    """A file name as text; bytes that are none (UTF-8) show as escapes, since JSON cannot hold them."""
    return name.encode(errors="backslashreplace").decode()


# ---------------------------------------------------------------- one file

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
        origin: as of `packer.sources.hdf5.kept`, with names and numbers of enumerations by field.
        notes: sentences for the plan.
        useless: entries of the request's `skip` that fit nothing here.
        bad: the error of the first sample found that cannot be read.
    """

    path: str
    columns: tuple[Column, ...]
    samples: int
    files: tuple[str, ...]
    origin: dict[str, Any]
    notes: tuple[str, ...]
    useless: tuple[str, ...]
    bad: SourceError | None = None


def scanned(path: str, request: Request) -> Scan:
    """The fields of one file, from its headers, with every file and size they stand on checked.

    Raises:
        SourceError: no HDF5 file, no common sample axis, or a dataset that cannot be stored or read.
    """
    with opened(path) as file, faults_named(path, "listing the file"):
        kind = family(file)
        held = inventory(file, path, request.axis)
        entries = held.entries
        wanted = chosen(entries, request.fields, request.skip, kind, path)
        samples = next(iter(wanted.values())).samples or 0
        files, notes = _storage(file, path, wanted.values(), samples)
        files = [*(held.homes[e.dataset] for e in wanted.values() if e.dataset in held.homes), *files]
        notes += [f"{Path(path).name}: {note}" for note in conversions(wanted.values())]
        packed = [f"{e.dataset}/" for e in wanted.values()]

        def is_kept(thing: str) -> bool:
            if request.fields:
                return any(dataset.startswith(f"{thing.rstrip('/')}/") for dataset in packed)
            return not is_skipped(Listed(thing), request.skip)

        found = columns(wanted, request.encoding)
        kept = origin(file, held, found, is_kept)
        enums = {name: entry.leaf.enum for name, entry in wanted.items() if entry.leaf and entry.leaf.enum}
        kept |= {"enums": enums} if enums else {}
        notes += [f"{Path(path).name}: {sentence}" for sentence in kept.get("lost", [])]
        if not request.fields:
            notes += asides(entries, request.skip, kept.get("values", {}))
        if kind == "matlab":
            notes.append(f"{Path(path).name}:{advice(kind)}")
        useless = tuple(name for name in request.skip if not any(is_skipped(e, [name]) for e in entries))
        bad = _bad_text(file, path, found, request.axis, samples)
        return Scan(path, found, samples, tuple(dict.fromkeys(files)), kept, tuple(notes), useless, bad)


def _bad_text(file: h5py.File, path: str, fields: Sequence[Column], axis: int, samples: int) -> SourceError | None:
    """The error of the first text of fixed length that cannot be decoded, among the rows that are quick to read."""
    texts = [c for c in fields if c.spec.kind == "text" and not file[c.dataset].dtype.hasobject]
    nbytes = sum(row_bytes(file[name], axis) for name in {c.dataset for c in texts})
    if nbytes:
        try:
            for _ in FileBlocks(file, path, texts, axis, 0, min(samples, max(1, _LOOKED_AT_BYTES // nbytes))):
                pass
        except SourceError as error:
            return SourceError(f"row {error.sample or 0:,}: {error.reason}", path, error.sample)
    return None


def _storage(file: h5py.File, path: str, wanted: Iterable[Listed], samples: int) -> tuple[list[str], list[str]]:
    """Further files, and notes on values never written, of all datasets wanted."""
    files: list[str] = []
    notes: list[str] = []
    for name in dict.fromkeys(entry.dataset for entry in wanted):
        _dataset, storage = dataset_at(file, path, name, samples)
        files.extend(storage.files)
        notes.extend([f"{Path(path).name}: {storage.note}"] if storage.note else [])
    return files, notes


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
