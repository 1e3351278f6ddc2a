"""Which samples go to which HDF5 file, and where each field lies in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

import msgspec
import numpy as np

from packer.errors import UsageError
from packer.export.files import checked
from packer.export.hdf5_paths import field_paths
from packer.export.hdf5_types import StoredType, Typed, stored_type
from packer.format.schema import FieldSpec
from packer.packing.origin import Leaf, leaves
from packer.sources.packed.source import PackedSource

_DEFAULT = "default.h5"
_NO_GROUPS = "the samples are in another order than in their files: they are rows of one, and no groups with attributes"
#: Files that a note names.
_SHOWN = 5


class Described(msgspec.Struct, frozen=True):
    """What `packer.sources.hdf5.source` keeps of a file.

    Attributes by path, and which of these are groups (early versions did not say); single values by path, what further
    names stand for, enums by field, unusual datatypes by path (of groups, those of the first one, and by name of the
    sample those of groups that differ), attributes of what is above groups by path, sentences on what was not kept. A
    file that says nothing at all is like the first one.
    """

    name: str = _DEFAULT
    samples: int = 0
    attributes: dict[str, dict[str, Any]] = {}
    groups: tuple[str, ...] | None = None
    values: dict[str, Any] = {}
    links: dict[str, str] = {}
    enums: dict[str, dict[str, int]] = {}
    datasets: dict[str, Typed] | None = None
    others: dict[str, dict[str, Typed]] = {}
    above: dict[str, dict[str, Any]] = {}
    lost: tuple[str, ...] = ()


class Options(msgspec.Struct, frozen=True):
    """How the source was asked for."""

    fields: dict[str, str] = {}
    axis: int = 0
    samples: str = "rows"


class _Origin(msgspec.Struct, frozen=True):
    options: Options = Options()
    paths: dict[str, str] | None = None  # early versions kept none
    files: tuple[Described, ...] = ()
    attributes: dict[str, dict[str, Any]] = {}
    datasets: dict[str, Typed] = {}
    others: dict[str, dict[str, Typed]] = {}
    above: dict[str, dict[str, dict[str, Any]]] = {}
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Segment:
    """The samples start..stop of a dataset, which go to one file.

    Attributes:
        file: its name.
        paths: path of every field in it.
        described: what the source file had beside the samples.
        options: how the source file was read.
        grouped: whether every sample is a group, named by `groups`.
    """

    file: str
    start: int
    stop: int
    paths: Mapping[str, str]
    described: Described = field(default_factory=Described)
    options: Options = field(default_factory=Options)
    grouped: bool = False
    groups: Sequence[str] = field(default=())

    def check(self) -> None:
        """Raises UsageError where a name cannot stand in an HDF5 file."""
        checked(self.file)
        for name, path in self.paths.items():
            if "\0" in path or any(part in ("", ".", "..") for part in path.strip("/").split("/")):
                raise UsageError(f"field {name!r} would have the path {path!r}, which HDF5 cannot hold")


def segments(source: PackedSource, file: str, notes: list[str]) -> list[Segment]:
    """The files to write, in the order of the samples.

    Args:
        file: name of the one file that samples go to which came from no HDF5 file, or were put into another order.
    """
    found: list[Segment] = []
    whole = leaves(source.origin, len(source))
    for leaf in whole:
        origin = _parsed(leaf.origin)
        if origin is None or not _in_order(leaf):
            return [_plain(source, file, whole, notes)]
        start = int(leaf.numbers[0])
        if origin.options.samples.startswith("groups"):
            found += _groups(source, origin, start, start + len(leaf.numbers), file, notes)
        else:
            found += _rows(source, origin, start, len(leaf.numbers), file, notes)
    return _named_apart(found, notes)


def _parsed(origin: Mapping[str, Any]) -> _Origin | None:
    if origin.get("kind") != "hdf5":
        return None
    try:
        return msgspec.convert(origin, _Origin)
    except msgspec.ValidationError:
        return None


def _in_order(leaf: Leaf) -> bool:
    return len(leaf.numbers) > 0 and bool((np.diff(leaf.numbers) == 1).all())


def _plain(source: PackedSource, file: str, whole: Sequence[Leaf], notes: list[str]) -> Segment:
    """One file for all samples; of an HDF5 source in another order the first file's attributes stay."""
    origins = [_parsed(leaf.origin) for leaf in whole]
    first = origins[0]
    paths = {spec.name: f"/{spec.name}" for spec in source.fields}
    if first is None or None in origins or first.options.samples != "rows" or not first.files:
        if any(origin is not None and origin.options.samples != "rows" for origin in origins):
            notes.append(_NO_GROUPS)
        return Segment(file, 0, len(source), paths)
    notes.append("the samples are in another order than in their files, so that all are in one file")
    paths = _paths(source, first, first.files[0].attributes)
    of_all = [described for origin in origins if origin for described in origin.files]
    return Segment(file, 0, len(source), paths, _common(of_all), first.options)


def _common(files: Sequence[Described]) -> Described:
    """What is written of the first of some files whose samples go to one: datatypes only where all have the same."""
    same = all((file.datasets or {}) == (files[0].datasets or {}) for file in files if _says(file))
    return files[0] if same else msgspec.structs.replace(files[0], datasets={})


def _says(described: Described) -> bool:
    said = described.attributes or described.values or described.links or described.enums
    return bool(said) or described.datasets is not None


def _rows(source: PackedSource, origin: _Origin, start: int, count: int, file: str, notes: list[str]) -> list[Segment]:
    """One segment for each source file; one for all where samples were left out of them."""
    files = list(origin.files) or [Described(name=file, samples=count)]
    if sum(described.samples for described in files) != count:
        if len(files) > 1:
            notes.append("samples of the source were left out, so that those of all its files are in one file")
        files = [msgspec.structs.replace(_common(files), samples=count)]
    found = []
    for described in files:
        full = described if _says(described) else msgspec.structs.replace(files[0], name=described.name)
        paths = _paths(source, origin, full.attributes)
        stop = start + described.samples
        found.append(Segment(full.name, start, stop, paths, full, origin.options))
        start = stop
    return found


def _groups(source: PackedSource, origin: _Origin, start: int, stop: int, file: str, notes: list[str]) -> list[Segment]:
    """A segment for each file whose groups were samples; the file's path stands in front of a group's name."""
    names = list((source.names or ())[start:stop])
    homes = [name.rpartition("/")[0] for name in names]
    edges = [i for i in range(len(homes)) if i == 0 or homes[i] != homes[i - 1]]
    if len(edges) != len(set(homes)):
        homes, edges = [""] * len(homes), [0]  # mixed: the path becomes groups within one file
        if origin.above:
            notes.append("attributes of groups above the samples are not written: those of all files are in one")
    notes.extend(sentence for sentence in origin.lost if sentence not in notes)
    described = Described(attributes=origin.attributes, datasets=origin.datasets, others=origin.others)
    paths = _paths(source, origin, {})
    found = []
    for first, behind in zip(edges, [*edges[1:], len(homes)], strict=True):
        home = homes[first]
        found.append(
            Segment(
                file=f"{home}{PurePosixPath(file).suffix}" if home else file,
                start=start + first,
                stop=start + behind,
                paths=paths,
                described=msgspec.structs.replace(described, above=origin.above.get(home, {})),
                options=origin.options,
                grouped=True,
                groups=[name[len(home) + 1 if home else 0 :] for name in names[first:behind]],
            )
        )
    return found


def _paths(source: PackedSource, origin: _Origin, attributes: Mapping[str, Any]) -> dict[str, str]:
    return field_paths([spec.name for spec in source.fields], origin.paths, origin.options.fields, attributes)


def typed_datasets(
    segment: Segment, specs: Sequence[FieldSpec], notes: list[str], sample: str | None = None
) -> dict[str, tuple[StoredType, tuple[int | None, ...]]]:
    """By path, the datasets whose types are kept, and the axes of one sample in each.

    What does not fit the fields is left out with a note: they are then written one dataset each.

    Args:
        specs: all fields.
        sample: name of the group, where samples are groups.
    """
    described = segment.described
    datasets = described.others.get(sample or "", described.datasets) or {}
    found: dict[str, tuple[StoredType, tuple[int | None, ...]]] = {}
    for path, typed in datasets.items():
        try:
            type_ = stored_type(typed, [spec.name for spec in specs])
            if type_ is None:
                continue
            axes = type_.axes(specs)
            place = path if all(type_.fields.values()) else segment.paths[next(iter(type_.fields))]
            _check_place(place, [p for name, p in segment.paths.items() if name not in type_.fields])
            found[place] = type_, axes
        except ValueError as error:
            note = f"{path} is not written as it was in its source: {error}"
            if note not in notes:
                notes.append(note)
    return found


def _check_place(place: str, others: Sequence[str]) -> None:
    """Raises ValueError where something else would lie at the path of a dataset, or within it."""
    parts = place.strip("/")
    if not parts or any(part in ("", ".", "..") for part in parts.split("/")) or "\0" in parts:
        raise ValueError("HDF5 cannot hold its path")
    for other in others:
        path = other.strip("/")
        if path == parts or path.startswith(f"{parts}/") or parts.startswith(f"{path}/"):
            raise ValueError(f"{other} is in its place")


def _named_apart(found: list[Segment], notes: list[str]) -> list[Segment]:
    """The segments with a file of their own each: files of several folders may have one name."""
    taken: set[str] = set()
    out, renamed = [], []
    for segment in found:
        path, number = PurePosixPath(segment.file), 1
        name = segment.file
        while name in taken:
            number += 1
            name = str(path.with_name(f"{path.stem}_{number}{path.suffix}"))
        taken.add(name)
        out.append(replace(segment, file=name))
        if name != segment.file:
            renamed.append(f"{segment.file} as {name}")
    if renamed:
        more = f" and {len(renamed) - _SHOWN:,} more" if len(renamed) > _SHOWN else ""
        notes.append(f"source files of one name are told apart by numbers: {', '.join(renamed[:_SHOWN])}{more}")
    return out
