"""HDF5 files: as the sources were if the dataset was packed from HDF5, else one file with a dataset a field.

Values, dtypes, the names of datasets, groups and attributes come back. Text becomes strings, lists of numbers become
variable-length values; other ragged fields become groups, see `RaggedRows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import h5py
import msgspec
import numpy as np

from packer.errors import UsageError, first_few
from packer.export.files import Files, checked, partial_path
from packer.export.hdf5_content import (
    Place,
    RaggedRows,
    Rows,
    Sink,
    has_object,
    plain_place,
    typed_place,
    write_attributes,
    write_group,
    write_links,
    write_single,
)
from packer.packing.origin import Leaf, leaves
from packer.sources.base import Block
from packer.sources.packed import PackedSource

_SUFFIX = ".h5"
_NO_GROUPS = (
    "the samples are in another order than in their files: they are written as rows, without groups or attributes"
)


class Typed(msgspec.Struct, frozen=True):
    """The dtype of a dataset, and the fields made of it with the compound members that lead to each."""

    fields: dict[str, tuple[str, ...]]
    dtype: Any = None


class Described(msgspec.Struct, frozen=True):
    """What the HDF5 source keeps of a file.

    Attributes by path, and which of these are groups; single values by path; what further names stand for; dtypes by
    path that the fields do not tell by themselves; sentences on what was not kept. A file that says nothing at all is
    like the first one.
    """

    name: str = f"default{_SUFFIX}"
    samples: int = 0
    attributes: dict[str, dict[str, Any]] = {}
    groups: tuple[str, ...] = ()
    values: dict[str, Any] = {}
    links: dict[str, str] = {}
    datasets: dict[str, Typed] | None = None
    lost: tuple[str, ...] = ()

    @property
    def says_something(self) -> bool:
        return bool(self.attributes or self.values or self.links) or self.datasets is not None


class _Options(msgspec.Struct, frozen=True):
    axis: int = 0
    samples: str = "rows"


class _Origin(msgspec.Struct, frozen=True):
    """What the HDF5 source keeps: `files` of rows; the others of units, by name of the sample (`above`: by home).

    `homes` are what the names of a file's samples begin with; files that are samples have none.
    `attrs` are the fields that were attributes of the units.
    """

    options: _Options = _Options()
    paths: dict[str, str] = {}
    files: tuple[Described, ...] = ()
    attributes: dict[str, dict[str, Any]] = {}
    datasets: dict[str, Typed] = {}
    others: dict[str, dict[str, Typed]] = {}
    above: dict[str, dict[str, dict[str, Any]]] = {}
    homes: tuple[str, ...] = ()
    attrs: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Segment:
    """The samples start..stop of a dataset, which go to one file.

    Attributes:
        file: its name.
        origin: what is known of its source.
        described: what the source file had besides the samples.
        roots: path of the group or dataset of each sample, empty for the file itself; None if samples are rows.
    """

    file: str
    start: int
    stop: int
    origin: _Origin
    described: Described
    roots: Sequence[str] | None = None


class Hdf5Writer:
    """See `packer.export.dataset.Writer`."""

    def __init__(self, source: PackedSource, files: Files) -> None:
        self.notes: list[str] = []
        self._source = source
        self._files = files
        self._specs = {spec.name: spec for spec in source.fields}
        stem = Path(source.folder).resolve().stem or "data"
        self._todo = _named_apart(_segments(source, f"{stem}{_SUFFIX}", self.notes), self.notes)
        for segment in self._todo:
            checked(segment.file)
            self._places(segment)
        self._segment: _Segment | None = None
        self._file: h5py.File | None = None
        self._sink: Sink | None = None
        self._path = Path()
        self._rows: list[Rows | RaggedRows] = []
        self._of_units: list[Place] = []

    def write(self, block: Block, start: int, stop: int) -> None:
        at = start
        while at < stop:
            segment = self._segment_of(at)
            end = min(stop, segment.stop)
            some: dict[str, Any] = {name: values[at - start : end - start] for name, values in block.items()}
            if segment.roots is None:
                for rows in self._rows:
                    rows.write(some, at - segment.start, end - segment.start)
            else:
                self._write_units(segment, segment.roots, some, at, end)
            assert self._sink is not None
            self._sink.check()
            at = end

    def close(self) -> None:
        self._end()
        while self._todo:  # files without samples
            self._begin(self._todo.pop(0))
            self._end()

    def abort(self) -> None:
        if self._sink is None:
            return
        with suppress(Exception):  # what failed was said already
            if self._file is not None:
                self._file.close()
        with suppress(OSError):
            self._sink.close()
        partial_path(self._path).unlink(missing_ok=True)

    def _segment_of(self, number: int) -> _Segment:
        """Return the segment of a sample; its file is opened, and those before it ended."""
        while self._segment is None or number >= self._segment.stop:
            self._end()
            self._begin(self._todo.pop(0))
        return self._segment

    def _begin(self, segment: _Segment) -> None:
        self._path = self._files.path(segment.file, "")
        self._segment = segment
        self._sink = Sink(partial_path(self._path))
        self._file = h5py.File(self._sink, "w")
        places = self._places(segment)
        if segment.roots is not None:
            self._of_units = places
        else:
            self._begin_rows(self._file, segment, places)
        self._sink.check()

    def _begin_rows(self, file: h5py.File, segment: _Segment, places: Sequence[Place]) -> None:
        self._rows = []
        for place in places:
            if None in place.axes:
                (name,) = place.fields
                shapes = self._source.part(segment.start, segment.stop).shapes(name)
                assert shapes is not None  # packed datasets know all shapes
                self._rows.append(RaggedRows(file.create_group(place.path), self._specs[name], shapes))
            else:
                self._rows.append(Rows(file, place, segment.stop - segment.start, segment.origin.options.axis))
        if self._source.names is not None:
            path = "names" if "names" not in self._specs else "sample_names"
            names = file.create_dataset(path, segment.stop - segment.start, h5py.string_dtype())
            names[:] = list(self._source.names[segment.start : segment.stop])

    def _write_units(self, segment: _Segment, roots: Sequence[str], some: Mapping[str, Any], at: int, end: int) -> None:
        assert self._file is not None
        origin, names = segment.origin, self._source.names or ()
        for i, number in enumerate(range(at, end)):
            root, name = roots[number - segment.start], names[number]
            values = {field: of_field[i] for field, of_field in some.items()}
            places = self._places(segment, name) if name in origin.others else self._of_units
            if origin.options.samples == "datasets":
                write_group(self._file, [replace(place, path=root) for place in places], values, number - segment.start)
            else:
                write_group(self._file.require_group(root or "/"), places, values, number - segment.start)
            unit = self._file[root or "/"]
            for attribute in origin.attrs:
                unit.attrs[attribute] = values[attribute]
            write_attributes(unit, origin.attributes.get(name, {}), self.notes)

    def _end(self) -> None:
        if self._file is None or self._sink is None or self._segment is None:
            return
        described = self._segment.described
        self._note(*(f"{self._segment.file}: {sentence}" for sentence in described.lost))
        for path, held in described.values.items():
            write_single(self._file, path, held, self.notes)
        write_links(self._file, described.links, self.notes)
        lost = []
        for path, attributes in described.attributes.items():
            if has_object(self._file, path, described.groups):
                write_attributes(self._file[path], attributes, self.notes)
            else:
                lost.append(path)
        if lost:
            self._note(f"attributes of {first_few(lost)} are not written: the file does not hold them")
        self._file.close()
        self._sink.check()
        self._sink.close()
        self._files.publish(partial_path(self._path), self._path)
        self._file, self._sink = None, None

    def _places(self, segment: _Segment, sample: str = "") -> list[Place]:
        """Return the datasets of a file, or of the group of a sample.

        Raises:
            UsageError: a path cannot stand in an HDF5 file.
        """
        origin, of_rows = segment.origin, segment.roots is None
        datasets = origin.others.get(sample, origin.datasets) if not of_rows else segment.described.datasets or {}
        # The path of a unit that is a dataset itself is empty, and takes its place when it is written.
        paths = {name: origin.paths.get(name) or "/" + name.replace(".", "/") for name in self._specs}
        places: list[Place] = []
        left = {name: spec for name, spec in self._specs.items() if of_rows or name not in origin.attrs}
        for path, typed in datasets.items():
            fields = {name: members for name, members in typed.fields.items() if name in left}
            if not fields:
                continue
            # A dataset that was packed several times is written for each of its fields.
            apart = [fields] if any(fields.values()) else [{name: members} for name, members in fields.items()]
            try:
                found = [typed_place(path or "/values", typed.dtype, some, self._specs) for some in apart]
            except ValueError as error:
                self._note(f"{path} is not written as it was in its source: {error}")
                continue
            if of_rows and None in found[0].axes:
                continue  # ragged now: values and offsets
            places += found
            for name in fields:
                del left[name]
        places += [plain_place(spec, paths[name], of_rows) for name, spec in left.items()]
        # Those that would lie within one another, as several fields of one dataset, go below the root.
        clashing = _clashing(places)
        places = [place for place in places if place not in clashing] + self._below_root(clashing, of_rows)
        if _clashing(places):
            places = self._below_root(places, of_rows)
        for place in places:
            if "\0" in place.path or any(part in ("", ".", "..") for part in place.path.strip("/").split("/")):
                raise UsageError(
                    f"field {next(iter(place.fields))!r} would have the path {place.path!r}, which HDF5 cannot hold"
                )
        return places

    def _below_root(self, places: Sequence[Place], of_rows: bool) -> list[Place]:
        """Return a dataset for each field of these, below the root and by the field's name."""
        found = []
        for place in places:
            if place.is_compound:
                self._note(f"{place.path} is not written as it was in its source: something else is in its place")
                found += [plain_place(self._specs[name], f"/{name}", of_rows) for name in place.fields]
            else:
                found += [replace(place, path=f"/{name}") for name in place.fields]
        return found

    def _note(self, *sentences: str) -> None:
        self.notes.extend(sentence for sentence in sentences if sentence not in self.notes)


def _clashing(places: Sequence[Place]) -> list[Place]:
    """Return the datasets that would have to be one with another, or to hold it."""
    at: dict[str, list[Place]] = {}
    for place in places:
        at.setdefault(place.path.strip("/"), []).append(place)
    found: list[Place] = []
    for path, here in at.items():
        above = [str(parent) for parent in PurePosixPath(path).parents if str(parent) in at]
        for place in (*here, *(p for parent in above for p in at[parent])) if above or len(here) > 1 else ():
            if place not in found:
                found.append(place)
    return found


# ---------------------------------------------------------------- which samples go to which file


def _segments(source: PackedSource, file: str, notes: list[str]) -> list[_Segment]:
    """Return the files to write, in the order of the samples.

    Args:
        file: name of the one file for samples that came from no HDF5 file, or were put into another order.
    """
    whole = leaves(source.origin, len(source))
    origins = [_parsed(leaf.origin) for leaf in whole]
    known = [origin for origin in origins if origin is not None]
    if len(known) < len(origins) or not all(map(_in_order, whole)):
        return [_one_file(source, file, known if len(known) == len(origins) else [], known, notes)]
    found: list[_Segment] = []
    for leaf, origin in zip(whole, known, strict=True):
        start, stop = int(leaf.numbers[0]), int(leaf.numbers[-1]) + 1
        of_units = origin.options.samples != "rows"
        found += (_files_of_units if of_units else _files_of_rows)(source, origin, start, stop, file, notes)
    return found


def _parsed(origin: Mapping[str, Any]) -> _Origin | None:
    """Return what is kept of HDF5 files; None if the samples came from something else."""
    if origin.get("kind") != "hdf5":
        return None
    try:
        return msgspec.convert(origin, _Origin)
    except msgspec.ValidationError:
        return None


def _in_order(leaf: Leaf) -> bool:
    return len(leaf.numbers) > 0 and bool((np.diff(leaf.numbers) == 1).all())


def _one_file(
    source: PackedSource, file: str, of_all: Sequence[_Origin], known: Sequence[_Origin], notes: list[str]
) -> _Segment:
    """Return one file for all samples; if all came from rows of HDF5 files, the first file's attributes stay.

    Args:
        of_all: origins of all samples; empty if some came from something else than HDF5.
        known: origins of those that came from HDF5.
    """
    if not of_all or of_all[0].options.samples != "rows" or not of_all[0].files:
        if any(origin.options.samples != "rows" for origin in known):
            notes.append(_NO_GROUPS)
        plain = _Origin(paths={spec.name: f"/{spec.name}" for spec in source.fields})
        return _Segment(file, 0, len(source), plain, Described())
    notes.append("the samples are in another order than in their files, so all are written to one file")
    described = _common([described for origin in of_all for described in origin.files])
    return _Segment(file, 0, len(source), of_all[0], described)


def _common(files: Sequence[Described]) -> Described:
    """Return what is written of the first of some files whose samples go to one: dtypes only if all have the same."""
    same = all((file.datasets or {}) == (files[0].datasets or {}) for file in files if file.says_something)
    return files[0] if same else msgspec.structs.replace(files[0], datasets={})


def _files_of_rows(
    source: PackedSource, origin: _Origin, start: int, stop: int, file: str, notes: list[str]
) -> Iterator[_Segment]:
    """Yield the files of rows: those of the source, or one if samples were left out of them."""
    files = list(origin.files) or [Described(name=file, samples=stop - start)]
    if sum(described.samples for described in files) != stop - start:
        if len(files) > 1:
            notes.append("samples of the source were left out, so all others are written to one file")
        files = [msgspec.structs.replace(_common(files), samples=stop - start)]
    for described in files:
        end = start + described.samples
        yield _Segment(described.name, start, end, origin, described if described.says_something else files[0])
        start = end


def _files_of_units(
    source: PackedSource, origin: _Origin, start: int, stop: int, file: str, notes: list[str]
) -> Iterator[_Segment]:
    """Yield the files whose groups or datasets, or which themselves, were samples."""
    places = [_home_and_root(name, origin) for name in (source.names or ())[start:stop]]
    homes = [home for home, _ in places]
    edges = [i for i in range(len(homes)) if i == 0 or homes[i] != homes[i - 1]]
    notes.extend(sentence for sentence in origin.lost if sentence not in notes)
    for first, end in zip(edges, [*edges[1:], len(homes)], strict=True):
        home = homes[first]
        above = origin.above.get(home, {})
        yield _Segment(
            file=f"{home}{_SUFFIX}" if home else file,
            start=start + first,
            stop=start + end,
            origin=origin,
            described=Described(attributes=above, groups=tuple(above)),
            roots=[root for _, root in places[first:end]],
        )


def _home_and_root(name: str, origin: _Origin) -> tuple[str, str]:
    """Return what the names of a file's samples begin with, and the path of the unit in it, for a sample's name."""
    if origin.options.samples == "files":
        return name, ""
    home = name
    while home and home not in origin.homes:
        home = home.rpartition("/")[0]
    return home, f"/{name[len(home) :].lstrip('/')}"


def _named_apart(segments: Sequence[_Segment], notes: list[str]) -> list[_Segment]:
    """Return the segments with a file of their own each: files of several folders may have one name."""
    taken: set[str] = set()
    found, renamed = [], []
    for segment in segments:
        path, number = PurePosixPath(segment.file), 1
        name = segment.file
        while name in taken:
            number += 1
            name = str(path.with_name(f"{path.stem}_{number}{path.suffix}"))
        taken.add(name)
        found.append(replace(segment, file=name))
        if name != segment.file:
            renamed.append(f"{segment.file} as {name}")
    if renamed:
        notes.append(f"source files of one name are told apart by numbers: {first_few(renamed)}")
    return found
