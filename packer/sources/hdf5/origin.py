"""What is kept of a file next to its samples: attributes, single values, and what is the same for all samples.

Attributes and single values are JSON values that give dtype and shape back. A str, bool, int64 or float64 scalar is
itself; any other value is `{"dtype": ..., "value": ...}` with nested lists for the axes, NaN and infinities as strings,
and complex numbers as strings. What is large, of another kind or cannot be read is `{"summary": "..."}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError, as_text, first_few
from packer.format import DTYPES, Count
from packer.sources.hdf5.file import FAULTS, faults_named, opened
from packer.sources.hdf5.listing import MAX_LINKS, SINGLE, Inventory, has_attributes, walk
from packer.sources.hdf5.storage import dataset_at
from packer.sources.hdf5.types import Listed, references_within
from packer.sources.options import naming

#: Objects of one kind that are kept: the manifest is read by people.
MAX_KEPT = 500
#: Larger values are summarised.
_MAX_BYTES = 16 * 2**10
#: Objects carry a handful of attributes; a file with more is hostile or a database.
_MAX_ATTRIBUTES = 1000


# ---------------------------------------------------------------- the form in the manifest
# What may be empty is a list or a dict: msgspec leaves those out, an empty tuple only if it is the default itself.


class Described(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of a file of rows, or of a unit.

    Attributes:
        name: of the file; of a unit its path there.
        samples: how many of it were packed.
        like_first: whether all else is as in the first file.
        attributes: of its root and of what lies below, by path.
        groups: which of these paths are groups.
        values: single values by path.
    """

    name: str
    samples: Count
    like_first: bool = False
    attributes: dict[str, dict[str, Any]] = {}
    groups: list[str] = []
    values: dict[str, Any] = {}


class HDF5Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was asked: of rows their `axis`, of units what they are."""

    fields: dict[str, str]
    skip: list[str]
    once: list[str] = []
    sparse: list[str] = []
    axis: int | None = None
    samples: str = "rows"


class HDF5Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of all that was packed.

    Attributes:
        paths: those of fields that are not their names with slashes for dots.
        files: of rows.
        attributes: of units, by the names of the samples.
        above: attributes of the groups above units by path, by home.
        homes: what the names of a file's samples begin with; files that are samples have none.
        attrs: the fields that were attributes of units.
    """

    options: HDF5Options
    paths: dict[str, str]
    files: list[Described] = []
    attributes: dict[str, dict[str, Any]] = {}
    above: dict[str, dict[str, dict[str, Any]]] = {}
    homes: list[str] = []
    attrs: list[str] = []


# ---------------------------------------------------------------- files and units


def kept_of_rows(
    file: h5py.File, path: str, samples: int, held: Inventory, is_kept: Callable[[str], bool]
) -> tuple[Described, list[str]]:
    """Return what is kept of a file of rows, and sentences on what is lost.

    Args:
        is_kept: tells whether an object is kept, by its path: what is not packed is not read.
    """
    described = [place for place in (["/"] if has_attributes(file) else []) + held.described if is_kept(place)]
    singles = [e.dataset for e in held.entries if e.aside == SINGLE and is_kept(e.dataset)]
    kept = Described(
        as_text(Path(path).name),
        samples,
        attributes={place: attributes(file[place]) for place in described[:MAX_KEPT]},
        groups=[place for place in described[:MAX_KEPT] if isinstance(file[place], h5py.Group)],
        values={place: _kept(file[place]) for place in singles[:MAX_KEPT]},
    )
    lost = [
        *_unkept(kept.attributes),
        *_beyond(len(described), "attributes of {} datasets and groups"),
        *_beyond(len(singles), "{} single values"),
    ]
    return kept, lost


def like_first(files: Sequence[Described]) -> list[Described]:
    """Return what is kept of files of rows; those of which the same is kept as of the first one say so alone."""
    first, *others = files
    return [
        first,
        *(
            Described(file.name, file.samples, like_first=True)
            if msgspec.structs.replace(file, name=first.name, samples=first.samples) == first
            else file
            for file in others
        ),
    ]


def kept_of_unit(thing: h5py.Group | h5py.Dataset, root: str) -> tuple[Described, list[str]]:
    """Return what is kept of a unit, whose own attributes are those of `/`, and sentences on what is lost."""
    own = attributes(thing)
    kept = Described(root, 1, attributes={"/": own} if own else {})
    return kept, _unkept({"samples": own})


def kept_of_units(
    origin: HDF5Origin, names: Sequence[str], kept: Sequence[Described], above: Mapping[str, dict[str, dict[str, Any]]]
) -> tuple[HDF5Origin, list[str]]:
    """Return `origin` with what is kept of units, and sentences on what is lost.

    Args:
        names: of the samples.
        kept: of each unit.
        above: attributes of the groups above the units, by path, of each file.
    """
    described = {name: unit.attributes["/"] for name, unit in zip(names, kept, strict=True) if unit.attributes}
    lost = [
        *_beyond(len(described), "attributes of {} samples"),
        *_beyond(len(above), "attributes of groups above the samples of {} files"),
    ]
    origin = msgspec.structs.replace(
        origin,
        attributes=dict(list(described.items())[:MAX_KEPT]),
        above=dict(list(above.items())[:MAX_KEPT]),
    )
    return origin, lost


def _unkept(described: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence on the attributes, by object, that are summarised."""
    found = [f"{name!r} of {thing}" for thing, some in described.items() for name in some if _summary(some[name])]
    return [f"attributes too large or of a kind that is not kept: {first_few(found)}"] if found else []


def _beyond(count: int, what: str) -> list[str]:
    """Return a sentence on what is not kept of `count` things, if anything is not."""
    lost = count - MAX_KEPT
    return [f"{what.format(f'{lost:,}')} are not kept: {MAX_KEPT:,} is the most"] if lost > 0 else []


def asides(entries: Sequence[Listed], skip: Collection[str], values: Mapping[str, Any]) -> list[str]:
    """Return what is left out, and what becomes of it; first what is not kept at all."""
    lost, kept = [], []
    for entry in entries:
        if not entry.aside or naming(entry.name, skip):
            continue
        if entry.same is not None:
            kept.append(f"{entry.path} {entry.aside}: packed once")
        elif entry.aside != SINGLE:
            lost.append(f"{entry.path} {entry.aside}")
        elif entry.path not in values:
            continue  # `kept_of_rows` says how many these are
        elif (why := _summary(values[entry.path])) is None:
            kept.append(f"{entry.path} is a single value: kept with the attributes")
        else:
            lost.append(f"{entry.path} is a single value, too large or of a kind that is not kept ({why})")
    notes = [*lost, *kept]
    return notes if len(notes) <= 10 else [*notes[:10], f"{len(notes) - 10} more datasets left out like these"]


# ---------------------------------------------------------------- attributes and single values


def attributes(thing: h5py.HLObject) -> dict[str, Any]:
    """Return all attributes of an object by name; never raises for what is in them."""
    try:
        names = list(thing.attrs)
    except FAULTS:
        return {"": {"summary": "attributes cannot be read"}}
    found = {as_text(name): _kept(thing, name) for name in names[:_MAX_ATTRIBUTES]}
    if len(names) > _MAX_ATTRIBUTES:
        found[""] = {"summary": f"{len(names) - _MAX_ATTRIBUTES:,} more attributes left out"}
    return found


def _summary(held: Any) -> str | None:
    """Return what is said of a value that was not kept; None if it was."""
    return held.get("summary") if isinstance(held, dict) else None


def _kept(thing: h5py.HLObject, attribute: str | None = None) -> Any:
    """Return an attribute, or else the one value of a dataset, as a JSON value; never raises for what it is."""
    # Whatever a damaged or exotic value raises must not cost the data: it is noted in its place.
    try:
        header = thing.id if attribute is None else thing.attrs.get_id(attribute)
        if references_within(header.get_type()):
            return {"summary": "references to other objects within lists or compounds"}
        dtype, shape = header.dtype, header.shape
        if shape is not None and math.prod(shape) * dtype.itemsize > _MAX_BYTES:
            return {"summary": f"{dtype} of shape {tuple(shape)}"}
        return _json(thing[()] if attribute is None else thing.attrs[attribute], dtype)
    except Exception as error:
        return {"summary": f"cannot be read: {type(error).__name__}"}


def _json(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a value that h5py reads as JSON; what is large or has no JSON form is summarised, as a whole.

    Args:
        dtype: that of the attribute or dataset, some of which the value may have lost.
    """
    if isinstance(value, h5py.Empty):
        return {"dtype": "str" if value.dtype.kind == "O" else str(value.dtype), "value": None}
    text = h5py.check_string_dtype(dtype)
    if text is not None:
        return _strings(value, text.length)
    array = np.asarray(value)
    if dtype.kind in "biufc" and dtype.newbyteorder("=").name in DTYPES:
        is_plain = dtype.name in ("bool", "int64", "float64") and dtype.isnative and not array.ndim
        if is_plain and np.isfinite(array):
            return array.item()
        return {"dtype": dtype.str, "value": _lists(array.tolist())}
    return {"summary": f"{array.dtype} of shape {array.shape}"}


def _strings(value: Any, length: int | None) -> Any:
    """Return strings of any length, or of `length` bytes."""
    array = np.asarray(value, object if length is None else None)
    size = sum(map(len, array.flat))
    if size > _MAX_BYTES:
        return {"summary": f"text of {size:,} characters, beginning {as_text(next(filter(None, array.flat))[:60])}"}
    try:
        held = np.vectorize(_decoded, otypes=[object])(array).tolist() if array.size else array.tolist()
    except UnicodeDecodeError:
        return {"summary": f"text of shape {array.shape} that is not UTF-8"}
    if length is None and not array.ndim:
        return held
    return {"dtype": "str" if length is None else f"S{length}", "value": held}


def _decoded(item: str | bytes) -> str:
    # h5py puts bytes that are no text into str as lone surrogates.
    return (item if isinstance(item, bytes) else item.encode("utf-8", "surrogateescape")).decode()


def _lists(value: Any) -> Any:
    if isinstance(value, list):
        return [_lists(item) for item in value]
    if isinstance(value, complex):
        return str(value)
    # JSON has no NaN; writers would make it null.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


# ---------------------------------------------------------------- what is kept once for all samples


@dataclass(frozen=True)
class Constant:
    """A dataset that is to be the same in every file or unit that has it.

    Attributes:
        path: the file.
        dataset: its path in the file.
        digest: of its dtype, shape and values.
    """

    path: str
    dataset: str
    digest: str


def constants_at(file: h5py.File, path: str, root: str, once: Iterable[str]) -> dict[str, Constant]:
    """Return what `--once` names in a unit, or in the file itself if `root` is empty, by field name.

    Raises:
        SourceError: a dataset cannot be read, or holds no numbers.
    """
    found: dict[str, Constant] = {}
    for asked in once:
        place = f"{root}/{asked.strip('/')}"
        thing = file.get(place)
        names = [place] if isinstance(thing, h5py.Dataset) else []
        if isinstance(thing, h5py.Group):
            names = [place + below.path for below in walk(thing, MAX_LINKS) if isinstance(below.thing, h5py.Dataset)]
        for name in names:
            values = _values(file, path, name)
            digest = xxhash.xxh3_128(f"{values.dtype} {values.shape} ".encode())
            digest.update(values.tobytes())
            found[name[len(root) + 1 :].replace("/", ".")] = Constant(path, name, digest.hexdigest())
    return found


def _values(file: h5py.File, path: str, name: str) -> NDArray[Any]:
    """Return a whole dataset, native-endian."""
    dataset = dataset_at(file, path, name, 1)
    dtype = dataset.dtype.newbyteorder("=")
    if dtype.name not in DTYPES:
        raise SourceError(
            f"{name} is {dataset.dtype}, but only numbers can be kept once; leave it out with --skip", path
        )
    return np.asarray(dataset[()]).astype(dtype, copy=False)


def common(found: Iterable[tuple[str, Mapping[str, Constant]]]) -> dict[str, Constant]:
    """Return what all units share.

    Args:
        found: each unit, in words, and what it holds of what is to be kept once.

    Raises:
        SourceError: a unit has another value, or lacks one.
    """
    first: dict[str, Constant] = {}
    where = ""
    for unit, held in found:
        if not where:
            first, where = dict(held), unit
        for name in sorted(first.keys() | held.keys()):
            if name not in held or name not in first:
                lacking, path = (unit, first[name].path) if name in first else (where, held[name].path)
                raise SourceError(f"{lacking} has no {name}, so --once cannot keep one for all; leave out --once", path)
            if held[name].digest != first[name].digest:
                raise SourceError(
                    f"{name} of {unit} differs from that of {where}, so --once cannot keep one for all; without --once "
                    "it is packed with every sample",
                    held[name].path,
                )
    return first


def check_once(found: Iterable[str], once: Iterable[str]) -> None:
    """Raise UsageError if something that is to be kept once was not found, by name."""
    for asked in once:
        if not any(naming(name, [asked]) for name in found):
            raise UsageError(f"--once {asked}: there is no such dataset, neither in the samples nor in the file")


class Kept(Mapping[str, NDArray[Any]]):
    """Constants by name, read from their files when they are asked for."""

    def __init__(self, constants: Mapping[str, Constant]) -> None:
        self._constants = dict(constants)

    def __getitem__(self, name: str) -> NDArray[Any]:
        held = self._constants[name]
        with opened(held.path) as file, faults_named(held.path, f"reading {held.dataset}"):
            return _values(file, held.path, held.dataset)

    def __iter__(self) -> Iterator[str]:
        return iter(self._constants)

    def __len__(self) -> int:
        return len(self._constants)
