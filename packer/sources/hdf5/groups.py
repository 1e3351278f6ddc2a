"""Finds samples that are one group each, and what their datasets have in common."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import h5py
import msgspec
import numpy as np
from natsort import natsorted
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.base import OnBad
from packer.sources.hdf5.attributes import attributes
from packer.sources.hdf5.blocks import boxed, field_values
from packer.sources.hdf5.choice import chosen, columns
from packer.sources.hdf5.dataset import dataset_at
from packer.sources.hdf5.differences import difference
from packer.sources.hdf5.file import FAULTS, faults_named, opened
from packer.sources.hdf5.listing import inventory
from packer.sources.hdf5.scan import Request, conversions
from packer.sources.hdf5.stored_types import stored_types
from packer.sources.hdf5.types import Column
from packer.sources.hdf5.walk import link_class, text

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
        unpacked = [other for other in others if not any(_names(skip, other) for skip in request.skip)]
        if unpacked:
            raise SourceError(_unpacked(unpacked), path)
        # What names something next to the samples from the root is no field of a sample of that name.
        skips = [s for s in request.skip if not (s.startswith("/") and any(_names(s, other) for other in others))]
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


def _names(skip: str, path: str) -> bool:
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
