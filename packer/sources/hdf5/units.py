"""Samples that are one unit each: fields of one shape or of many, named by their units.

A unit is a group of a file. What the units of a file are is decided by `_roots` alone; all else takes a unit as a path
of a file and a root within it.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np
from natsort import natsorted
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.base import Block, OnBad
from packer.sources.hdf5.choice import Request, chosen, columns_of, conversions, difference, is_wanted
from packer.sources.hdf5.file import FAULTS, faults_named, opened
from packer.sources.hdf5.listing import inventory, link_class, text
from packer.sources.hdf5.origin import MAX_KEPT, attributes, beyond, stored_dtypes, unkept
from packer.sources.hdf5.reading import BLOCK_BYTES, HDF5Source, boxed, field_values
from packer.sources.hdf5.storage import dataset_at
from packer.sources.hdf5.types import Column, paths

#: Paths that a sentence names.
_SHOWN = 5


@dataclass(frozen=True)
class Unit:
    """What one sample is made from.

    Attributes:
        path: the file.
        root: path of the group, with a leading slash.
        columns: its fields, with the shapes that they have in this sample.
        files: further files that are read for it.
        notes: sentences for the plan.
        attributes: those of the group as JSON values.
        above: those of the groups above it, by path.
        datasets: dtypes that an export would not choose, by path within the group.
        lost: what of it is not kept, in the words that a sentence begins with.
    """

    path: str
    root: str
    columns: tuple[Column, ...]
    files: tuple[str, ...]
    notes: tuple[str, ...]
    attributes: dict[str, Any]
    above: dict[str, dict[str, Any]]
    datasets: dict[str, Any]
    lost: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.root.rpartition("/")[2]


# ---------------------------------------------------------------- finding them


def units(path: str, base: str, request: Request) -> list[Unit | SourceError]:
    """Return the units of one file in natural order of their names, and the errors of those that cannot be packed.

    Args:
        path: the file.
        base: path of the group whose groups are the units.
        request: `fields` and `skip` are relative to a unit.

    Raises:
        SourceError: the file cannot be read, has no groups below `base`, or holds what belongs to none of them.
    """
    found: list[Unit | SourceError] = []
    with opened(path) as file:
        with faults_named(path, "listing the groups"):
            top = file.get(f"/{base.strip('/')}")
            if not isinstance(top, h5py.Group):
                raise SourceError(f"has no group /{base.strip('/')} for --samples", path)
            roots, others = _roots(file, top.name)
            above = {place: some for place in _steps(top.name) if (some := attributes(file[place]))}
        if not roots:
            raise SourceError(f"group {top.name} holds no groups that could be samples", path)
        request = _without(others, request, path)
        for root in roots:
            try:
                with faults_named(path, f"listing group {root}"):
                    found.append(_unit(file, path, root, above, request))
            except SourceError as error:
                found.append(error)
    return found


def _roots(file: h5py.File, base: str) -> tuple[list[str], list[str]]:
    """Return the paths of the units, and those of the groups and datasets that belong to none."""
    roots: list[str] = []
    others: list[str] = []
    steps = _steps(base)
    for place in steps:
        group = file[place]
        for name in natsorted(group, key=text):
            path = f"{place.rstrip('/')}/{text(name)}"
            if place == base and _leads_to(group, name, h5py.Group):
                roots.append(path)
            elif path not in steps and not _is_type(group, name):
                others.append(path)
    return roots, others


def _steps(base: str) -> list[str]:
    """Return the paths of the root and of the groups down to `base`."""
    parts = base.strip("/").split("/") if base.strip("/") else []
    return ["/", *("/" + "/".join(parts[: i + 1]) for i in range(len(parts)))]


def _leads_to(group: h5py.Group, name: str | bytes, kind: type) -> bool:
    try:
        return isinstance(name, str) and group.get(name, getclass=True) is kind
    except FAULTS:
        return False  # it leads nowhere, and will be named


def _is_type(group: h5py.Group, name: str | bytes) -> bool:
    """Is it a datatype with a name? It holds no values."""
    return link_class(group, name) == h5py.h5l.TYPE_HARD and _leads_to(group, name, h5py.Datatype)


def _without(others: Sequence[str], request: Request, path: str) -> Request:
    """Return what is asked of a unit, after what belongs to none was skipped.

    Raises:
        SourceError: something that belongs to no unit is not named in `skip`.
    """
    skipped = {skip: [o for o in others if f"{o[1:]}/".startswith(f"{skip.strip('/')}/")] for skip in request.skip}
    left = [other for other in others if not any(other in some for some in skipped.values())]
    if left:
        skips = " ".join(f"--skip {shlex.quote(other)}" for other in left[:_SHOWN])
        raise SourceError(
            f"{_named(left)} {'belongs' if len(left) == 1 else 'belong'} to no sample: with --samples groups, only "
            f"what lies within the groups of samples is packed. Leave out with {skips}",
            path,
        )
    # What names something next to the units from the root of the file is no field of that name.
    return replace(request, skip=[skip for skip, some in skipped.items() if not (some and skip.startswith("/"))])


def _named(things: Sequence[str]) -> str:
    more = f" and {len(things) - _SHOWN:,} more" if len(things) > _SHOWN else ""
    return f"{', '.join(things[:_SHOWN])}{more}"


def _unit(file: h5py.File, path: str, root: str, above: dict[str, dict[str, Any]], request: Request) -> Unit:
    group = file[root]
    held = inventory(group, path, None, partial(is_wanted, request=request))
    try:
        wanted = chosen(held.entries, request, None, path)
    except SourceError as error:
        raise SourceError(f"group {root} {error.reason}", path) from error
    fields = columns_of(wanted, request.encoding)
    names = dict.fromkeys(column.dataset for column in fields)
    files = [held.homes[name] for name in names if name in held.homes]
    for name in names:
        dataset, storage = dataset_at(file, path, root + name, 1)
        files.extend(storage.files)
        texts = [c for c in fields if c.dataset == name and c.spec.kind == "text" and not dataset.dtype.hasobject]
        try:
            for column in texts:  # decoded here, so that one that cannot be is found before hours of packing
                field_values(boxed(dataset), column, path)
        except SourceError as error:
            raise SourceError(f"group {root}: {error.reason}", path) from error
    dtypes, more = stored_dtypes(group, fields, of_rows=False)
    own = attributes(group)
    lost = {
        "attributes of datasets and groups": bool(held.described),
        "further names of datasets and groups": any(e.same is not None for e in held.entries),
        "some dtypes of datasets": more > 0,
    }
    return Unit(
        path,
        root,
        fields,
        tuple(dict.fromkeys(files)),
        (*conversions(wanted.values()), *unkept({"samples": own})),
        own,
        above,
        dtypes,
        tuple(what for what, is_lost in lost.items() if is_lost),
    )


def common_columns(found: Sequence[Unit], on_bad: OnBad) -> tuple[tuple[Column, ...], list[Unit]]:
    """Return the fields of all units, axes that differ as None, and the units that have these fields.

    A unit whose fields, dtypes or numbers of axes differ from the first one's is told to `on_bad`.
    """
    first, kept = found[0], []
    loose = [_shaped(c, (None,) * len(c.spec.shape)) for c in first.columns]
    for unit in found:
        how = difference(loose, [_shaped(c, (None,) * len(c.spec.shape)) for c in unit.columns])
        if how:
            on_bad(SourceError(f"group {unit.root} does not fit group {first.root}: {how}", unit.path))
        else:
            kept.append(unit)
    merged = []
    for column in first.columns:
        shapes = _shapes(kept, column.spec.name)
        fixed = (shapes == shapes[0]).all(axis=0) if column.spec.kind == "array" else np.zeros(1, bool)
        axes = tuple(n if same else None for n, same in zip(column.spec.shape, fixed.tolist(), strict=True))
        merged.append(_shaped(column, axes))
    return tuple(merged), kept


def _shaped(column: Column, shape: tuple[int | None, ...]) -> Column:
    return replace(column, spec=msgspec.structs.replace(column.spec, shape=shape))


def _shapes(found: Sequence[Unit], field: str) -> NDArray[np.int64]:
    """Return the shape of a field in every unit, (n, axes); -1 if only reading tells."""
    shapes = [next(c.spec.shape for c in unit.columns if c.spec.name == field) for unit in found]
    return np.array([[-1 if n is None else n for n in shape] for shape in shapes], np.int64).reshape(len(found), -1)


# ---------------------------------------------------------------- reading them


class UnitSource(HDF5Source):
    """One sample a unit."""

    def __init__(self, columns: Sequence[Column], found: Sequence[Unit], options: dict[str, Any]) -> None:
        self.names = self._names = _names(found)
        origin = {"options": options, "paths": paths(columns), **_origin(self._names, found)}
        files = [name for unit in found for name in (unit.path, *unit.files)]
        super().__init__(columns, files, origin, [n for unit in found for n in unit.notes] + origin.get("lost", []))
        self._places = [(unit.path, unit.root) for unit in found]
        self._shapes = {spec.name: _shapes(found, spec.name) for spec in self.fields if spec.is_ragged}

    def __len__(self) -> int:
        return len(self._places)

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        shapes = self._shapes.get(field)
        return None if shapes is None or (shapes < 0).any() else shapes

    def part(self, start: int, stop: int) -> UnitSource:
        part = self._cut(path for path, _root in self._places[start:stop])
        part.names = part._names = self._names[start:stop]
        part._places = self._places[start:stop]
        part._shapes = {name: shapes[start:stop] for name, shapes in self._shapes.items()}
        return part

    def read(self) -> Iterator[Block]:
        before = 0
        for path, places in groupby(self._places, key=lambda place: place[0]):
            roots = [root for _path, root in places]
            yield from self._file_blocks(path, roots, before)
            before += len(roots)

    def _file_blocks(self, path: str, roots: list[str], before: int) -> Iterator[Block]:
        pending: list[dict[str, Any]] = []
        held = 0
        with opened(path) as file:
            for number, root in enumerate(roots, before):
                try:
                    sample = self._sample(file, path, root)
                except SourceError as error:
                    if pending:
                        yield self._block(pending)
                    raise SourceError(f"group {root}: {error.reason}", path, number) from error
                size = sum(len(v) if isinstance(v, str) else v.nbytes for v in sample.values())
                if pending and held + size > BLOCK_BYTES:
                    yield self._block(pending)
                    pending, held = [], 0
                pending.append(sample)
                held += size
            if pending:
                yield self._block(pending)

    def _sample(self, file: h5py.File, path: str, root: str) -> dict[str, Any]:
        with faults_named(path, "reading"):
            names = dict.fromkeys(c.dataset for c in self._columns)
            values = {name: boxed(dataset_at(file, path, root + name, 1)[0]) for name in names}
            return {c.spec.name: _value(values[c.dataset], c, path) for c in self._columns}

    def _block(self, samples: list[dict[str, Any]]) -> Block:
        return {
            spec.name: [s[spec.name] for s in samples] if spec.is_ragged else np.stack([s[spec.name] for s in samples])
            for spec in self.fields
        }


def _value(values: NDArray[Any], column: Column, path: str) -> Any:
    """Return the field of one sample: an array, or a str.

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
    return field_values(values, _shaped(column, shape), path)[0]


def _names(found: Sequence[Unit]) -> list[str]:
    """Return the names of the units, after their files' paths if there are several files.

    Raises:
        SourceError: two samples would have one name.
    """
    files = list(dict.fromkeys(unit.path for unit in found))
    if len(files) == 1:
        return [unit.name for unit in found]
    folder = os.path.commonpath([Path(p).parent for p in files])
    prefix = {p: Path(os.path.relpath(p, folder)).with_suffix("").as_posix() for p in files}
    if len(set(prefix.values())) < len(files):
        raise SourceError("two files differ in their suffixes alone: samples would share a name", files[0])
    return [f"{prefix[unit.path]}/{unit.name}" for unit in found]


def _origin(names: Sequence[str], found: Sequence[Unit]) -> dict[str, Any]:
    """Return what the manifest keeps.

    Attributes of samples by name; those `above` by file (what stands before the last slash of its samples' names) and
    path; dtypes of the first sample as `datasets`, and of samples that differ as `others` by name; and sentences on
    what is `lost`.
    """
    first = found[0].datasets
    described = {name: unit.attributes for name, unit in zip(names, found, strict=True) if unit.attributes}
    others = {name: unit.datasets for name, unit in zip(names, found, strict=True) if unit.datasets != first}
    above = {name.rpartition("/")[0]: unit.above for name, unit in zip(names, found, strict=True) if unit.above}
    within = Counter(what for unit in found for what in unit.lost)
    parts = {
        "attributes": _some(described),
        "above": _some(above),
        "datasets": first,
        "others": _some(others),
        "lost": [
            *beyond(len(described), "attributes of {} samples"),
            *beyond(len(above), "attributes of groups above the samples of {} files"),
            *beyond(len(others), "dtypes of {} samples"),
            *(f"{what} within samples are not kept: {count:,} samples have some" for what, count in within.items()),
        ],
    }
    return {name: part for name, part in parts.items() if part}


def _some(parts: dict[str, Any]) -> dict[str, Any]:
    return dict(list(parts.items())[:MAX_KEPT])
