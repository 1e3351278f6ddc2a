"""Samples that are one unit each, a group of a file: fields of one shape or of many, named by their units."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np
from natsort import natsorted
from numpy.typing import NDArray

from packer.errors import SourceError, shortened
from packer.sources.base import Block, OnBad, Source
from packer.sources.hdf5.attributes import MAX_KEPT, attributes, beyond, stored_types
from packer.sources.hdf5.choice import Request, chosen, columns, conversions, difference
from packer.sources.hdf5.file import FAULTS, faults_named, opened
from packer.sources.hdf5.listing import inventory, link_class, text
from packer.sources.hdf5.reading import BLOCK_BYTES, boxed, field_values
from packer.sources.hdf5.storage import dataset_at
from packer.sources.hdf5.types import Column, paths

#: Paths that a sentence names.
_SHOWN = 5


@dataclass(frozen=True)
class GroupSample:
    """One sample: a group of a file.

    Attributes:
        path: the file.
        group: path of the group, with a leading slash.
        columns: its fields, with the shapes that they have in this sample.
        files: further files that are read for it.
        attributes: attributes of the group as JSON values.
        notes: sentences for the plan.
        datasets: datatypes that are not usual, by path within the group.
        lost: what of it is not kept, in the words that a sentence begins with.
        above: attributes of the root and of the groups down to the sample's, by path.
    """

    path: str
    group: str
    columns: tuple[Column, ...]
    files: tuple[str, ...]
    attributes: dict[str, object]
    notes: tuple[str, ...] = ()
    datasets: dict[str, dict[str, object]] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    above: dict[str, dict[str, object]] = field(default_factory=dict)


def group_samples(path: str, base: str, request: Request, on_bad: OnBad) -> Iterator[GroupSample]:
    """The samples of one file in natural order of their names.

    Args:
        path: the file.
        base: path of the group whose groups are the samples.
        request: `fields` and `skip` are relative to a sample's group.
        on_bad: told of each sample that cannot be packed; where it returns, the sample is left out.

    Raises:
        SourceError: the file cannot be read, has no groups below `base`, or holds what belongs to none of them.
    """
    with opened(path) as file:
        with faults_named(path, "listing the groups"):
            top = file.get(f"/{base.strip('/')}")
            if not isinstance(top, h5py.Group):
                raise SourceError(f"has no group /{base.strip('/')} for --samples", path)
            names = [name for name in natsorted(map(text, top)) if _is_group(top, name)]
            above = _above(file, top.name)
            others = _others(file, top.name, set(names))
        if not names:
            raise SourceError(f"group {top.name} holds no groups that could be samples", path)
        unpacked = [other for other in others if not any(_stands_for(skip, other) for skip in request.skip)]
        if unpacked:
            raise SourceError(_unpacked(unpacked), path)
        # What names something next to the samples from the root is no field of a sample of that name.
        skips = [s for s in request.skip if not (s.startswith("/") and any(_stands_for(s, other) for other in others))]
        request = replace(request, skip=skips)
        for name in names:
            try:
                with faults_named(path, f"listing group {name}"):
                    sample = _sample(file, path, f"{top.name.rstrip('/')}/{name}", request)
            except SourceError as error:
                on_bad(error)
                continue
            yield replace(sample, above=above)


def _above(file: h5py.File, base: str) -> dict[str, dict[str, object]]:
    """Attributes of the root and of the groups down to `base`, by path, of those that have some."""
    found = {path: attributes(file[path]) for path in _steps(base)}
    return {path: some for path, some in found.items() if some}


def _others(file: h5py.File, base: str, names: set[str]) -> list[str]:
    """Paths of the groups and datasets that belong to no sample.

    Args:
        base: the group that holds the samples.
        names: their names in it.
    """
    steps, found = _steps(base), []
    for group, below in zip(steps, [*steps[1:], None], strict=True):
        paths = {name: f"{group.rstrip('/')}/{text(name)}" for name in file[group]}
        taken = names if below is None else {name for name, path in paths.items() if path == below}
        found += [path for name, path in paths.items() if name not in taken and not _is_type(file[group], name)]
    return found


def _stands_for(skip: str, path: str) -> bool:
    """Does an entry of `skip` stand for a path, or for a group above it?"""
    return f"{path[1:]}/".startswith(f"{skip.strip('/')}/")


def _is_group(top: h5py.Group, name: str) -> bool:
    """Does a link lead to a group?"""
    try:
        return top.get(name, getclass=True) is h5py.Group
    except FAULTS:
        return False  # it leads nowhere, and will be named


def _is_type(group: h5py.Group, name: str | bytes) -> bool:
    """Is it a datatype with a name? It holds no values."""
    return link_class(group, name) == h5py.h5l.TYPE_HARD and group.get(name, getclass=True) is h5py.Datatype


def _unpacked(paths: Sequence[str]) -> str:
    """Says that these belong to no sample, and how to leave them out."""
    shown = paths[:_SHOWN]
    more = f" and {len(paths) - _SHOWN:,} more" if len(paths) > _SHOWN else ""
    verb = "belongs" if len(paths) == 1 else "belong"
    skips = " ".join(f"--skip {shlex.quote(path)}" for path in shown)
    return (
        f"{', '.join(shown)}{more} {verb} to no sample: with --samples groups, only what lies within the groups of "
        f"samples is packed. Leave out with {skips}"
    )


def _steps(base: str) -> list[str]:
    """Paths of the root and of the groups down to `base`."""
    parts = base.strip("/").split("/") if base.strip("/") else []
    return ["/", *("/" + "/".join(parts[: i + 1]) for i in range(len(parts)))]


def _sample(file: h5py.File, path: str, group: str, request: Request) -> GroupSample:
    held = inventory(file[group], path, None)
    try:
        wanted = chosen(held.entries, request.fields, request.skip, None, path)
    except SourceError as error:
        raise SourceError(f"group {group} {error.reason}", path) from error
    files = [home for name, home in held.homes.items() if name in {e.dataset for e in wanted.values()}]
    fields = columns(wanted, request.encoding)
    for name in dict.fromkeys(column.dataset for column in fields):
        dataset, storage = dataset_at(file, path, group + name, 1)
        files.extend(storage.files)
        texts = [c for c in fields if c.dataset == name and c.spec.kind == "text" and not dataset.dtype.hasobject]
        if texts:  # decoded here, so that one that cannot be is found before hours of packing
            values = boxed(dataset)
            try:
                for column in texts:
                    field_values(values, column, path)
            except SourceError as error:
                raise SourceError(f"group {group}: {error.reason}", path) from error
    notes = tuple(conversions(wanted.values()))
    homes = tuple(dict.fromkeys(files))
    types, more_types = stored_types(file[group], fields, of_rows=False)
    lost = {
        "attributes of datasets and groups": bool(held.described),
        "further names of datasets and groups": any(e.same is not None for e in held.entries),
        "some datatypes of datasets": more_types > 0,
    }
    said = tuple(what for what, is_lost in lost.items() if is_lost)
    return GroupSample(path, group, fields, homes, attributes(file[group]), notes, types, said)


def common_columns(samples: list[GroupSample], on_bad: OnBad) -> tuple[tuple[Column, ...], list[GroupSample]]:
    """The fields of all samples, axes that differ as None, and the samples that have these fields.

    A sample whose fields, dtypes or numbers of axes differ from the first one's is told to `on_bad`.
    """
    first = samples[0]
    loose = [_loose(c) for c in first.columns]
    kept = []
    for sample in samples:
        how = difference(loose, [_loose(c) for c in sample.columns])
        if how:
            on_bad(SourceError(f"group {sample.group} does not fit group {first.group}: {how}", sample.path))
        else:
            kept.append(sample)
    merged = []
    for column in first.columns:
        shapes = sample_shapes(kept, column.spec.name)
        fixed = (shapes == shapes[0]).all(axis=0) if column.spec.kind == "array" else np.zeros(1, bool)
        axes = tuple(n if same else None for n, same in zip(column.spec.shape, fixed.tolist(), strict=True))
        merged.append(_shaped(column, axes))
    return tuple(merged), kept


def sample_shapes(samples: list[GroupSample], field: str) -> NDArray[np.int64]:
    """Shape of a field in every sample, (n, axes); -1 where only reading tells."""
    found = [next(c.spec.shape for c in s.columns if c.spec.name == field) for s in samples]
    return np.array([[-1 if n is None else n for n in shape] for shape in found], np.int64).reshape(len(samples), -1)


def _loose(column: Column) -> Column:
    """The column with every axis ragged: what samples have in common."""
    return _shaped(column, (None,) * len(column.spec.shape))


def _shaped(column: Column, shape: tuple[int | None, ...]) -> Column:
    return replace(column, spec=msgspec.structs.replace(column.spec, shape=shape))


class HDF5GroupSource(Source):
    """Groups as samples; made by `open_hdf5`."""

    kind = "hdf5"

    def __init__(self, columns: Sequence[Column], samples: Sequence[GroupSample], options: dict[str, Any]) -> None:
        self._columns = tuple(columns)
        self.fields = tuple(c.spec for c in columns)
        self.names = self._names = _names(samples)
        self._places = [(s.path, s.group) for s in samples]
        self._files = list(dict.fromkeys(name for s in samples for name in (s.path, *s.files)))
        ragged = [f.name for f in self.fields if f.is_ragged]
        self._shapes = {name: sample_shapes(list(samples), name) for name in ragged}
        self._origin = {"options": options, "paths": paths(columns), **group_origin(self._names, samples)}
        self._notes = list(dict.fromkeys(note for s in samples for note in s.notes)) + self._origin.get("lost", [])

    def __len__(self) -> int:
        return len(self._places)

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        shapes = self._shapes.get(field)
        return None if shapes is None or (shapes < 0).any() else shapes

    def part(self, start: int, stop: int) -> HDF5GroupSource:
        part = object.__new__(HDF5GroupSource)
        part._columns, part.fields = self._columns, self.fields
        part.names = part._names = self._names[start:stop]
        part._places = self._places[start:stop]
        part._files = list(dict.fromkeys(path for path, _group in part._places))
        part._shapes = {name: shapes[start:stop] for name, shapes in self._shapes.items()}
        part._origin, part._notes = {}, []
        return part

    def read(self) -> Iterator[Block]:
        before = 0
        for path, places in groupby(self._places, key=lambda place: place[0]):
            groups = [group for _path, group in places]
            yield from self._file_blocks(path, groups, before)
            before += len(groups)

    def _file_blocks(self, path: str, groups: list[str], before: int) -> Iterator[Block]:
        pending: list[dict[str, Any]] = []
        held = 0
        with opened(path) as file:
            for number, group in enumerate(groups, before):
                try:
                    sample = self._sample(file, path, group)
                except SourceError as error:
                    if pending:
                        yield self._block(pending)
                    raise SourceError(f"group {group}: {error.reason}", path, number) from error
                size = sum(len(v) if isinstance(v, str) else v.nbytes for v in sample.values())
                if pending and held + size > BLOCK_BYTES:
                    yield self._block(pending)
                    pending, held = [], 0
                pending.append(sample)
                held += size
            if pending:
                yield self._block(pending)

    def _sample(self, file: h5py.File, path: str, group: str) -> dict[str, Any]:
        with faults_named(path, "reading"):
            names = dict.fromkeys(c.dataset for c in self._columns)
            values = {name: boxed(dataset_at(file, path, group + name, 1)[0]) for name in names}
            return {c.spec.name: _value(values[c.dataset], c, path) for c in self._columns}

    def _block(self, samples: list[dict[str, Any]]) -> Block:
        return {
            spec.name: [s[spec.name] for s in samples] if spec.is_ragged else np.stack([s[spec.name] for s in samples])
            for spec in self.fields
        }

    def files(self) -> list[str]:
        return list(self._files)

    def provenance(self) -> dict[str, Any]:
        return self._origin

    def notes(self) -> list[str]:
        return [shortened(note) for note in self._notes]


def _value(values: NDArray[Any], column: Column, path: str) -> Any:
    """The field of one sample: an array, or a str.

    Raises:
        SourceError: it is not of the shape that was planned.
    """
    inner = values
    for member in column.members:
        inner = inner[member]
    if column.spec.kind == "text" or h5py.check_vlen_dtype(inner.dtype) is not None:
        return field_values(values, column, path)[0]
    shape, planned = inner.shape[1:], column.spec.shape
    if len(shape) != len(planned) or any(p not in (None, n) for n, p in zip(shape, planned, strict=True)):
        raise SourceError(f"field {column.spec.name} has shape {shape} now: the file has changed", path)
    exact = replace(column, spec=msgspec.structs.replace(column.spec, shape=shape))
    return field_values(values, exact, path)[0]


def _names(samples: Sequence[GroupSample]) -> list[str]:
    """The group's name, behind the file's path where there are several files.

    Raises:
        SourceError: two samples would have one name.
    """
    paths = list(dict.fromkeys(s.path for s in samples))
    if len(paths) == 1:
        return [Path(s.group).name for s in samples]
    folder = os.path.commonpath([Path(p).parent for p in paths])
    prefix = {p: Path(os.path.relpath(p, folder)).with_suffix("").as_posix() for p in paths}
    if len(set(prefix.values())) < len(paths):
        raise SourceError("two files differ in their suffixes alone: samples would share a name", paths[0])
    return [f"{prefix[s.path]}/{s.group.rsplit('/', 1)[-1]}" for s in samples]


def group_origin(names: Sequence[str], samples: Sequence[GroupSample]) -> dict[str, Any]:
    """Attributes of samples by name; those `above` by file (what stands before the last slash of its samples' names)
    and path; unusual datatypes of the first sample as `datasets`, and of samples that differ as `others` by name; and
    sentences on what is `lost`.
    """
    described = {name: s.attributes for name, s in zip(names, samples, strict=True) if s.attributes}
    first = samples[0].datasets
    others = {name: s.datasets for name, s in zip(names, samples, strict=True) if s.datasets != first}
    of_files: dict[str, tuple[str, GroupSample]] = {}
    for name, sample in zip(names, samples, strict=True):
        of_files.setdefault(sample.path, (name.rpartition("/")[0], sample))
    above = {home: s.above for home, s in of_files.values() if s.above}
    parts = {
        "attributes": _some(described),
        "above": _some(above),
        "datasets": first,
        "others": _some(others),
        "lost": [
            *beyond(len(described), "attributes of {} samples"),
            *beyond(len(above), "attributes of groups above the samples of {} files"),
            *beyond(len(others), "datatypes of {} samples"),
            *_within(samples),
        ],
    }
    return {name: part for name, part in parts.items() if part}


def _some(parts: dict[str, Any]) -> dict[str, Any]:
    return dict(list(parts.items())[:MAX_KEPT])


def _within(samples: Sequence[GroupSample]) -> list[str]:
    counts = Counter(what for s in samples for what in s.lost)
    return [f"{what} within samples are not kept: {count:,} samples have some" for what, count in counts.items()]
