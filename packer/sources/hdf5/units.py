"""Samples that are one unit each, a file, a dataset or a group: fields of one shape or of many, named by their units.

What the units of a file are is decided in `roots.py`; all else takes a unit as a path of a file and a root within it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, first_few
from packer.format.schema import FieldSpec, check_field_name
from packer.sources.base import OnBad
from packer.sources.hdf5.choice import Request, chosen, columns_of, conversions, difference, is_skipped, is_wanted
from packer.sources.hdf5.file import faults_named, opened
from packer.sources.hdf5.listing import inventory
from packer.sources.hdf5.once import Constant, constants_at
from packer.sources.hdf5.origin import attributes, stored_types, unkept
from packer.sources.hdf5.reading import boxed, field_values
from packer.sources.hdf5.roots import find_roots
from packer.sources.hdf5.storage import dataset_at
from packer.sources.hdf5.types import Column, leaves
from packer.sources.units import Unit as Asked

#: Paths that a sentence names.
_SHOWN = 5


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
        types: how fields are stored whose dtype an export would not choose by itself, by field.
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
    types: dict[str, Any]
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
        useless: entries of the request's `skip` that fit nothing here.
    """

    units: list[Unit | SourceError]
    splits: dict[str, list[str]]
    note: str | None
    once: dict[str, Constant]
    useless: tuple[str, ...]


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
    skips = request.skip
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
                    found.append(_unit(file, path, root, asked.name[:-1], above.of(root), request, used))
            except SourceError as error:
                found.append(error)
    useless = tuple(skip for skip in skips if skip not in used)
    return FileUnits(found, roots.splits, roots.note, once, useless)


def _is_left_out(path: str, request: Request, used: set[str]) -> bool:
    """Return whether a path from the root of the file, or a group above it, is named in `skip` or `once`.

    What names it is put into `used`.
    """
    naming = [skip for skip in (*request.skip, *request.once) if f"{path}/".startswith(f"/{skip.strip('/')}/")]
    used.update(naming)
    return bool(naming)


def _refuse_others(others: list[str], asked: Asked, path: str) -> None:
    """Raise SourceError if something belongs to no unit."""
    if others:
        skips = " ".join(f"--skip {shlex.quote(other)}" for other in others[:_SHOWN])
        raise SourceError(
            f"{first_few(others)} {'belongs' if len(others) == 1 else 'belong'} to no sample: --samples {asked} "
            f"packs what lies in these {asked.name}. Another unit may take more, as --samples files does. Leave out "
            f"with {skips}",
            path,
        )


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


def _unit(
    file: h5py.File,
    path: str,
    root: str,
    kind: str,
    above: dict[str, dict[str, Any]],
    request: Request,
    used: set[str],
) -> Unit:
    where = f"{kind} {root}" if root else ""
    thing = file[root or "/"]
    held = inventory(thing, path, None, partial(is_wanted, request=request))
    for skip in set(request.skip) - used:
        if any(is_skipped(entry, [skip]) for entry in held.entries):
            used.add(skip)
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
    own = attributes(thing)
    lost = {
        "attributes of datasets and groups": any(held.described),
        "further names of datasets and groups": any(e.same is not None for e in held.entries),
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
        stored_types(thing, fields),
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
    loose = [shaped(c, (None,) * len(c.spec.shape)) for c in first.columns]
    for unit in found:
        how = difference(loose, [shaped(c, (None,) * len(c.spec.shape)) for c in unit.columns])
        if how:
            advice = "--skip leaves a field out, and another unit may take it; --on-error skip leaves out the sample"
            on_bad(SourceError(f"{unit} does not fit {first}: {how}. {advice}", unit.path))
        else:
            kept.append(unit)
    merged = []
    for column in first.columns:
        shapes = shapes_of(kept, column.spec.name)
        fixed = (shapes == shapes[0]).all(axis=0) if column.spec.kind == "array" else np.zeros(1, bool)
        axes = tuple(n if same else None for n, same in zip(column.spec.shape, fixed.tolist(), strict=True))
        merged.append(shaped(column, axes))
    return tuple(merged), kept


def shaped(column: Column, shape: tuple[int | None, ...]) -> Column:
    return replace(column, spec=msgspec.structs.replace(column.spec, shape=shape))


def shapes_of(found: Sequence[Unit], field: str) -> NDArray[np.int64]:
    """Return the shape of a field in every unit, (n, axes); -1 if only reading tells."""
    shapes = [next(c.spec.shape for c in unit.columns if c.spec.name == field) for unit in found]
    return np.array([[-1 if n is None else n for n in shape] for shape in shapes], np.int64).reshape(len(found), -1)
