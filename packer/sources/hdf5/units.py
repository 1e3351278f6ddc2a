"""Samples that are one unit each, a file, a dataset or a group: fields of one shape or of many, named by their units.

What the units of a file are is decided in `roots.py`; all else takes a unit as a path of a file and a root within it.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.format.schema import FieldSpec, check_field_name
from packer.sources.base import LARGE_BYTES, Block, LargeArray, OnBad
from packer.sources.hdf5.choice import Request, chosen, columns_of, conversions, difference, is_wanted
from packer.sources.hdf5.file import faults_named, opened
from packer.sources.hdf5.listing import inventory
from packer.sources.hdf5.once import Constant, constants_at
from packer.sources.hdf5.origin import MAX_KEPT, attributes, beyond, stored_dtypes, unkept
from packer.sources.hdf5.reading import BLOCK_BYTES, DatasetRows, HDF5Source, boxed, field_values
from packer.sources.hdf5.roots import find_roots
from packer.sources.hdf5.storage import dataset_at
from packer.sources.hdf5.types import Column, leaves, paths
from packer.sources.units import Unit as Asked

#: Paths that a sentence names.
_SHOWN = 5
#: Rows held of a large dataset since they share chunks with others.
_HELD_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Unit:
    """What one sample is made from.

    Attributes:
        path: the file.
        root: path of the group or dataset, with a leading slash; empty for the whole file.
        kind: `file`, `dataset` or `group`.
        columns: its fields, with the shapes that they have in this sample.
        files: further files that are read for it.
        notes: sentences for the plan.
        attributes: those of the group as JSON values.
        above: those of the groups above it, by path.
        datasets: dtypes that an export would not choose, by path within the group.
        lost: what of it is not kept, in the words that a sentence begins with.
        once: what it holds that is to be the same in all units, by name.
    """

    path: str
    root: str
    kind: str
    columns: tuple[Column, ...]
    files: tuple[str, ...]
    notes: tuple[str, ...]
    attributes: dict[str, Any]
    above: dict[str, dict[str, Any]]
    datasets: dict[str, Any]
    lost: tuple[str, ...]
    once: dict[str, Constant]

    def __str__(self) -> str:
        return f"{self.kind} {self.root or Path(self.path).name}"


@dataclass(frozen=True)
class FileUnits:
    """The units of one file in natural order, and the errors of those that cannot be packed.

    Attributes:
        splits: by name, the roots of the samples of each split that the file itself lists.
        note: what was taken for a unit; None if the user said it.
        once: what lies outside of the units and is to be the same in all files, by name.
    """

    units: list[Unit | SourceError]
    splits: dict[str, list[str]]
    note: str | None
    once: dict[str, Constant]


# ---------------------------------------------------------------- finding them


def units(path: str, asked: Asked, request: Request) -> FileUnits:
    """Return the units of one file.

    Args:
        path: the file.
        request: `fields` and `skip` are relative to a unit; `skip` may name what belongs to no unit too.

    Raises:
        SourceError: the file cannot be read, has no such units, or holds what belongs to none of them.
    """
    found: list[Unit | SourceError] = []
    with opened(path) as file:
        with faults_named(path, "listing the file"):
            used: set[str] = set()
            roots = find_roots(file, asked, partial(_is_left_out, request=request, used=used))
            _refuse_others(roots.others, asked, path)
            # What names something next to the units from the root of the file is no field of that name.
            request = replace(request, skip=[skip for skip in request.skip if skip not in used or skip[0] != "/"])
            above = _Above(file)
            inside = request.once
            once: dict[str, Constant] = {}
            if asked.name != "files":
                outside = [name for name in request.once if file.get(name) is not None]
                once = constants_at(file, path, "", outside)
                inside = tuple(name for name in request.once if name not in outside)
            request = replace(request, once=inside)
        for root in roots.roots:
            try:
                with faults_named(path, f"listing {asked.name[:-1]} {root}".rstrip()):
                    found.append(_unit(file, path, root, asked.name[:-1], above.of(root), request))
            except SourceError as error:
                found.append(error)
    return FileUnits(found, roots.splits, roots.note, once)


def _is_left_out(path: str, request: Request, used: set[str]) -> bool:
    """Return whether a path from the root of the file, or a group above it, is named in `skip` or `once`.

    What names it is put into `used`.
    """
    naming = [skip for skip in (*request.skip, *request.once) if f"{path}/".startswith(f"/{skip.strip('/')}/")]
    used.update(naming)
    return bool(naming)


def _refuse_others(others: Sequence[str], asked: Asked, path: str) -> None:
    """Raise SourceError if something belongs to no unit."""
    if others:
        skips = " ".join(f"--skip {shlex.quote(other)}" for other in others[:_SHOWN])
        raise SourceError(
            f"{_named(others)} {'belongs' if len(others) == 1 else 'belong'} to no sample: --samples {asked} packs "
            f"what lies in these {asked.name}. Another unit may take more, as --samples files does. Leave out with "
            f"{skips}",
            path,
        )


def _named(things: Sequence[str]) -> str:
    more = f" and {len(things) - _SHOWN:,} more" if len(things) > _SHOWN else ""
    return f"{', '.join(things[:_SHOWN])}{more}"


class _Above:
    """The attributes of the groups above units, each read once."""

    def __init__(self, file: h5py.File) -> None:
        self._file = file
        self._found: dict[str, dict[str, Any]] = {}

    def of(self, root: str) -> dict[str, dict[str, Any]]:
        """Return the attributes of the groups above a root, by path, of those that have some."""
        parts = root.split("/")[:-1]
        places = ["/".join(parts[: number + 1]) or "/" for number in range(len(parts))]
        for place in places:
            if place not in self._found:
                self._found[place] = attributes(self._file[place])
        return {place: self._found[place] for place in places if self._found[place]}


def _unit(file: h5py.File, path: str, root: str, kind: str, above: dict[str, dict[str, Any]], request: Request) -> Unit:
    where = f"{kind} {root}" if root else ""
    thing = file[root or "/"]
    held = inventory(thing, path, None, partial(is_wanted, request=request))
    try:
        wanted = chosen(held.entries, request, None, path)
        fields = columns_of(wanted, request.encoding)
        taken = {column.spec.name for column in fields}
        fields += tuple(_attribute_column(thing, name, taken) for name in request.attrs)
    except SourceError as error:
        raise SourceError(f"{where} {error.reason}".lstrip(), path) from error
    names = dict.fromkeys(column.dataset for column in fields if not column.attribute)
    files = [held.homes[name] for name in names if name in held.homes]
    for name in names:
        dataset, storage = dataset_at(file, path, root + name, 1)
        files.extend(storage.files)
        texts = [c for c in fields if c.dataset == name and c.spec.kind == "text" and not dataset.dtype.hasobject]
        try:
            for column in texts:  # decoded here, so that one that cannot be is found before hours of packing
                field_values(boxed(dataset), column, path)
        except SourceError as error:
            raise SourceError(f"{where}: {error.reason}".removeprefix(": "), path) from error
    dtypes, more = stored_dtypes(thing, fields, of_rows=False)
    own = attributes(thing)
    lost = {
        "attributes of datasets and groups": any(held.described),
        "further names of datasets and groups": any(e.same is not None for e in held.entries),
        "some dtypes of datasets": more > 0,
    }
    return Unit(
        path,
        root,
        kind,
        fields,
        tuple(dict.fromkeys(files)),
        (*conversions(wanted.values()), *unkept({"samples": own})),
        own,
        above,
        dtypes,
        tuple(what for what, is_lost in lost.items() if is_lost),
        constants_at(file, path, root, request.once),
    )


def _attribute_column(thing: h5py.HLObject, name: str, taken: set[str]) -> Column:
    """Return the field that an attribute of a unit becomes.

    Raises:
        SourceError: the unit has none of this name, it cannot be stored, or a dataset is called so.
    """
    if name not in thing.attrs:
        raise SourceError(f"has no attribute {name} for --attr; it has {', '.join(thing.attrs) or 'none'}")
    header = thing.attrs.get_id(name)
    found = list(leaves(header.dtype, header.shape or ()))
    problem = "is empty" if header.shape is None else found[0].problem if len(found) == 1 else "is a compound"
    if problem:
        raise SourceError(f"has the attribute {name}, which {problem}; leave --attr {name} out")
    if name in taken:
        raise SourceError(f"has a dataset of the name {name} too; leave it out with --skip {name}, or --attr {name}")
    try:
        check_field_name(name)
    except ValueError as error:
        raise SourceError(f"has an attribute that cannot be a field: {error}") from None
    leaf = found[0]
    return Column(FieldSpec(name=name, dtype=leaf.dtype, kind=leaf.kind, shape=leaf.shape), "", attribute=name)


def common_columns(found: Sequence[Unit], on_bad: OnBad) -> tuple[tuple[Column, ...], list[Unit]]:
    """Return the fields of all units, axes that differ as None, and the units that have these fields.

    A unit whose fields, dtypes or numbers of axes differ from the first one's is told to `on_bad`.
    """
    first, kept = found[0], []
    loose = [_shaped(c, (None,) * len(c.spec.shape)) for c in first.columns]
    for unit in found:
        how = difference(loose, [_shaped(c, (None,) * len(c.spec.shape)) for c in unit.columns])
        if how:
            advice = "--skip leaves a field out, and another unit may take it; --on-error skip leaves out the sample"
            on_bad(SourceError(f"{unit} does not fit {first}: {how}. {advice}", unit.path))
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
    """One sample a unit.

    Args:
        found: the units.
        lists: for each file, the splits that it lists: names, and the roots of their samples.
        notes: further sentences for the plan.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        found: Sequence[Unit],
        options: dict[str, Any],
        lists: Mapping[str, Mapping[str, Sequence[str]]],
        notes: Sequence[str],
    ) -> None:
        homes = _homes(found)
        self.names = self._names = [_name(unit, homes) for unit in found]
        self.splits = _splits(found, self._names, lists)
        origin = {"options": options, "paths": paths(columns), **_origin(self._names, found, homes)}
        origin |= {"attrs": attrs} if (attrs := [c.attribute for c in columns if c.attribute]) else {}
        files = [name for unit in found for name in (unit.path, *unit.files)]
        said = [*notes, *(note for unit in found for note in unit.notes), *origin.get("lost", [])]
        super().__init__(columns, files, origin, said)
        self._kind = found[0].kind
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
        part.splits = {}
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
                    sample = self._sample(file, path, root, number)
                except SourceError as error:
                    if pending:
                        yield self._block(pending)
                    raise SourceError(
                        f"{self._kind} {root}: {error.reason}" if root else error.reason, path, number
                    ) from error
                size = sum(len(v) if isinstance(v, str) else v.nbytes for v in sample.values())
                if pending and held + size > BLOCK_BYTES:
                    yield self._block(pending)
                    pending, held = [], 0
                pending.append(sample)
                held += size
            if pending:
                yield self._block(pending)

    def _sample(self, file: h5py.File, path: str, root: str, number: int) -> dict[str, Any]:
        with faults_named(path, "reading"):
            names = dict.fromkeys(c.dataset for c in self._columns if not c.attribute)
            datasets = {name: dataset_at(file, path, root + name, 1)[0] for name in names}
            large = [name for name in names if _is_large(datasets[name])]
            values = {name: boxed(datasets[name]) for name in names if name not in large}
            sample: dict[str, Any] = {}
            for c in self._columns:
                if c.attribute:
                    sample[c.spec.name] = _attribute(file[root or "/"], c, path)
                elif c.dataset in large:
                    sample[c.spec.name] = _LargeField(datasets[c.dataset], c, path, number)
                else:
                    sample[c.spec.name] = _value(values[c.dataset], c, path)
            return sample

    def _block(self, samples: list[dict[str, Any]]) -> Block:
        block: Block = {}
        for spec in self.fields:
            values = [sample[spec.name] for sample in samples]
            is_list = spec.is_ragged or isinstance(values[0], LargeArray)
            block[spec.name] = values if is_list else np.stack(values)
        return block


def _is_large(dataset: h5py.Dataset) -> bool:
    """Return whether rows of a dataset are read one after another; lists and texts of any length have no size."""
    return bool(dataset.shape) and not dataset.dtype.hasobject and dataset.nbytes > LARGE_BYTES


class _LargeField(LargeArray):
    """A field of one sample out of a large dataset, whose chunks are decoded once if its rows are read in order.

    Args:
        number: of the sample, within its source.
    """

    def __init__(self, dataset: h5py.Dataset, column: Column, path: str, number: int) -> None:
        inner = dataset.dtype
        for member in column.members:
            inner = inner[member]
        self.dtype = column.spec.np_dtype.newbyteorder("=")
        self.shape = (*dataset.shape, *inner.shape)
        _check_shape(self.shape, column, path)
        self._rows = DatasetRows(dataset, 0, len(dataset), _HELD_BYTES)
        self._column = _shaped(column, self.shape[1:])
        self._path, self._number = path, number

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(len(self))
        try:
            with faults_named(self._path, "reading"):
                return np.asarray(field_values(self._rows.take(start, stop), self._column, self._path))
        except SourceError as error:
            raise SourceError(error.reason, self._path, self._number) from error


def _check_shape(shape: tuple[int, ...], column: Column, path: str) -> None:
    planned = column.spec.shape
    if len(shape) != len(planned) or any(p not in (None, n) for n, p in zip(shape, planned, strict=True)):
        raise SourceError(f"field {column.spec.name} has shape {shape} now: the file has changed", path)


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
    _check_shape(inner.shape[1:], column, path)
    return field_values(values, _shaped(column, inner.shape[1:]), path)[0]


def _attribute(thing: h5py.HLObject, column: Column, path: str) -> Any:
    """Return the value of an attribute of a unit: an array, or a str."""
    value = thing.attrs[column.attribute]
    if column.spec.kind == "text" and isinstance(value, str):
        return value
    return _value(np.asarray(value)[np.newaxis], column, path)


def _homes(found: Sequence[Unit]) -> dict[str, str]:
    """Return what the names of a file's units begin with, by file: its path without suffix, if there are several files.

    Raises:
        SourceError: two samples would have one name.
    """
    files = list(dict.fromkeys(unit.path for unit in found))
    folder = os.path.commonpath([Path(p).parent for p in files])
    homes = {p: Path(os.path.relpath(p, folder)).with_suffix("").as_posix() for p in files}
    if len(set(homes.values())) < len(files):
        raise SourceError("two files differ in their suffixes alone: samples would share a name", files[0])
    is_one = len(files) == 1 and found[0].root
    return dict.fromkeys(files, "") if is_one else homes


def _name(unit: Unit, homes: Mapping[str, str]) -> str:
    return f"{homes[unit.path]}{unit.root}".lstrip("/")


def _splits(
    found: Sequence[Unit], names: Sequence[str], lists: Mapping[str, Mapping[str, Sequence[str]]]
) -> dict[str, list[str]]:
    """Return the names of the samples of each split that files list, without units that were left out."""
    splits: dict[str, list[str]] = {split: [] for listed in lists.values() for split in listed}
    held = {file: {split: set(roots) for split, roots in listed.items()} for file, listed in lists.items()}
    for unit, name in zip(found, names, strict=True):
        for split, roots in held.get(unit.path, {}).items():
            if unit.root in roots:
                splits[split].append(name)
    return splits


def _origin(names: Sequence[str], found: Sequence[Unit], homes: Mapping[str, str]) -> dict[str, Any]:
    """Return what the manifest keeps.

    `homes`, what the names of a file's samples begin with; attributes of samples by name; those `above` by file (its
    home) and path; dtypes of the first sample as `datasets`, and of samples that differ as `others` by name; and
    sentences on what is `lost`.
    """
    first = found[0].datasets
    described = {name: unit.attributes for name, unit in zip(names, found, strict=True) if unit.attributes}
    others = {name: unit.datasets for name, unit in zip(names, found, strict=True) if unit.datasets != first}
    above: dict[str, dict[str, Any]] = {}
    for unit in found:
        if unit.above:
            above.setdefault(homes[unit.path], {}).update(unit.above)
    within = Counter(what for unit in found for what in unit.lost)
    parts = {
        "homes": list(homes.values()),
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
