"""Lists what a file or group holds, each dataset once, with the fields it can become; from headers alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from packer.errors import SourceError, UsageError, as_text
from packer.format import MAX_AXES, MAX_AXIS, MAX_FIELDS
from packer.sources.hdf5.file import FAULTS, plain
from packer.sources.hdf5.types import Listed, leaves, misread, references_within, remark
from packer.sources.units import upwards

#: More links than any dataset in use has; hostile files can name billions in a few bytes.
MAX_LINKS = 200_000
_KNOWN_LINKS = (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT, h5py.h5l.TYPE_EXTERNAL)


@dataclass(frozen=True)
class Met:
    """One thing that a walk met: a dataset or a group, another name of one, or a link that leads nowhere, and why.

    Attributes:
        path: path from the root of the walk, with a leading slash.
        thing: the open object; None if it cannot be opened, or was met already.
        problem: why it cannot, as a phrase that follows the path.
        same: path under which it was met already.
    """

    path: str
    thing: h5py.Dataset | h5py.Group | None
    problem: str | None = None
    same: str | None = None


def walk(root: h5py.Group, limit: int, is_entered: Callable[[str], bool] = lambda path: True) -> Iterator[Met]:
    """Yield groups and datasets below `root` in the file's order; soft and external links after the rest.

    Of what was met already only the path comes, so that every dataset comes once.

    Args:
        limit: links that there may be.
        is_entered: tells of the path of a group whether what lies in it is wanted too.

    Raises:
        SourceError: there are more links.
    """
    places: dict[int, Any] = {}
    seen: dict[Any, str] = {}
    with suppress(*FAULTS):  # what is damaged is told where it is listed
        seen[_identity(root, places)] = "/"
    groups: deque[tuple[str, h5py.Group]] = deque([("", root)])
    # Paths of groups, these, and names of links in them: those that are followed next, and those that wait.
    todo: list[tuple[str, h5py.Group, str | bytes]] = []
    waiting: deque[tuple[str, h5py.Group, str | bytes]] = deque()
    count = 0
    while groups or waiting:
        if groups:
            prefix, group = groups.popleft()
            todo = []
            try:
                for name in group:
                    is_hard = link_class(group, name) == h5py.h5l.TYPE_HARD
                    (todo if is_hard else waiting).append((prefix, group, name))
                    count += 1
                    if count > limit:
                        raise SourceError(f"holds more than {limit:,} links", root.file.filename)
            except FAULTS as error:
                yield Met(prefix or "/", None, f"cannot be listed: {plain(error)}")
        else:
            todo = [waiting.popleft()]
        deeper = []
        for prefix, group, name in todo:
            found = _follow(group, name, f"{prefix}/{as_text(name)}")
            if isinstance(found.thing, h5py.Datatype):
                continue
            if found.thing is not None:
                try:
                    first = seen.setdefault(_identity(found.thing, places), found.path)
                except FAULTS as error:
                    yield Met(found.path, None, f"cannot be opened: {plain(error)}")
                    continue
                if first != found.path:
                    found = Met(found.path, None, same=first)
                elif isinstance(found.thing, h5py.Group) and is_entered(found.path):
                    deeper.append((found.path, found.thing))
            yield found
        groups.extendleft(reversed(deeper))


def link_class(group: h5py.Group, name: str | bytes) -> int:
    """Return the number of a link's class as the library has it; 64 and more are defined by users."""
    return int(group.id.links.get_info(name if isinstance(name, bytes) else name.encode()).type)


def _follow(group: h5py.Group, name: str | bytes, path: str) -> Met:
    """Return what a link leads to, or why it leads nowhere."""
    if isinstance(name, bytes):
        return Met(path, None, "has a name that is not UTF-8")
    link = None
    try:
        number = link_class(group, name)
        if number not in _KNOWN_LINKS:
            problem = f"is a link of class {number}, which another program defines and h5py cannot follow"
            return Met(path, None, problem)
        link = group.get(name, getlink=True)
        return Met(path, group[name])
    except FAULTS as error:
        problem = f"cannot be opened: {plain(error)}"
    if isinstance(link, h5py.ExternalLink):
        there = Path(group.file.filename).parent / link.filename
        missing = "which does not exist" if not there.exists() else f"which {problem}"
        problem = f"is a link to {link.path} of file {link.filename}, {missing}"
    elif isinstance(link, h5py.SoftLink):
        problem = f"is a link to {link.path}, which does not exist"
    return Met(path, None, problem)


def _identity(thing: h5py.HLObject, places: dict[int, Any]) -> tuple[Any, int]:
    """Return what tells objects apart: the file on disk, and the address in it.

    The library's own number of a file is another one each time that external links open it again.

    Args:
        places: the file on disk by the library's number of it, as far as they are known.
    """
    info = h5py.h5o.get_info(thing.id)
    number = int(info.fileno)
    if number not in places:
        try:
            status = Path(thing.file.filename).stat()
            places[number] = (status.st_dev, status.st_ino)
        except OSError:  # it is in memory, or was renamed since
            places[number] = number
    return places[number], int(info.addr)


# ---------------------------------------------------------------- what each can become

_NETCDF_PLACEHOLDER = "This is a netCDF dimension but not a netCDF variable"
#: Why a dataset without axes is left out.
SINGLE = "is a single value, not one for each sample"


@dataclass
class Inventory:
    """All that a file holds.

    Attributes:
        entries: datasets, their members, further names of datasets and groups, and dead links.
        described: paths of the groups and datasets that have attributes.
    """

    entries: list[Listed] = field(default_factory=list)
    described: list[str] = field(default_factory=list)


def inventory(
    root: h5py.Group | h5py.Dataset,
    path: str,
    axis: int | None,
    is_wanted: Callable[[Listed], bool],
    picked: Collection[str] = (),
) -> Inventory:
    """Return what lies below `root`, in the file `path`; of a dataset itself, whose path is empty then.

    Picked paths are opened directly. Only if one of them is no dataset, or none is picked, all is listed.

    Args:
        axis: number of the sample axis, from the end if negative; None if the whole dataset is the value of one sample.
        is_wanted: tells whether an entry becomes a field if it can.
        picked: paths of the only datasets, or compound members, that are wanted.

    Raises:
        UsageError: there are more fields than a dataset may have; told before the rest is looked at.
    """
    if picked and isinstance(root, h5py.Group):
        opened = [_opened(root, where, axis) for where in picked]
        if all(opened):
            return Inventory(list({entry.path: entry for some in opened for entry in some}.values()))
    held, fields = Inventory(), 0
    for found in walk(root, MAX_LINKS) if isinstance(root, h5py.Group) else [Met("", root)]:
        entries = _listed(found, axis)
        fields += sum(not entry.aside and is_wanted(entry) for entry in entries)
        if fields > MAX_FIELDS:
            raise UsageError(
                f"{path}: more than {MAX_FIELDS:,} fields, the most that a dataset has; choose some (--field, --skip), "
                "or pack several datasets"
            )
        held.entries += entries
        if found.thing is not None and has_attributes(found.thing):
            held.described.append(found.path)
    return held


def _opened(root: h5py.Group, where: str, axis: int | None) -> list[Listed]:
    """Return what the dataset or compound member at a path can become; empty if there is none."""
    path = "/" + where.strip("/")
    for place in upwards(path):
        with suppress(*FAULTS):
            thing = root[place[1:]]
            entries = _listed(Met(place, thing), axis) if isinstance(thing, h5py.Dataset) else []
            return [entry for entry in entries if path in (entry.path, entry.dataset)]
    return []


def has_attributes(thing: h5py.HLObject) -> bool:
    """Return whether an object has attributes, or damaged ones: what is wrong is then said in their place."""
    try:
        return bool(h5py.h5a.get_num_attrs(thing.id))
    except FAULTS:
        return True


def _has_attribute(thing: h5py.HLObject, name: str) -> bool:
    """Return whether an object has an attribute; damaged attributes have no name."""
    try:
        return name in thing.attrs
    except FAULTS:
        return False


def _listed(found: Met, axis: int | None) -> list[Listed]:
    """Return what a dataset, another name of one, or a dead link can become; nothing for groups."""
    if found.same is not None:
        return [Listed(found.path, aside=f"is another name of {found.same}", same=found.same)]
    if found.thing is None:
        return [Listed(found.path, problem=found.problem)]
    if not isinstance(found.thing, h5py.Dataset):
        return []
    try:
        return _fields(found.path, found.thing, axis)
    except KeyError as error:  # of h5py's own tables: the byte order of VAX, for one
        return [Listed(found.path, problem=f"has a datatype that h5py does not know (byte order or class {error})")]
    except FAULTS as error:
        return [Listed(found.path, problem=f"has a datatype that cannot be read ({plain(error)})")]


def _fields(path: str, dataset: h5py.Dataset, axis: int | None) -> list[Listed]:
    """Return what a dataset can become: one field, one for each member of a compound, or none and why."""
    shape, dtype, type_ = dataset.shape, dataset.dtype, dataset.id.get_type()
    entry = Listed(path, note=remark(type_))
    if shape is None:
        return [replace(entry, looks="no values", problem="is empty: it has no values and no shape")]
    entry = replace(entry, looks=f"{_axes(shape)} {_type_name(dtype)}")
    if shape == () and axis is not None:
        return [replace(entry, aside=SINGLE)]
    if text_attribute(dataset, "NAME").startswith(_NETCDF_PLACEHOLDER):
        return [replace(entry, aside="is a NetCDF dimension without values")]
    number = (axis if axis >= 0 else len(shape) + axis) if axis is not None else None
    problem = misread(type_)
    if _has_attribute(dataset, "MATLAB_empty"):
        problem = "is an empty MATLAB array: its numbers are the lengths of its axes, not values"
    elif len(shape) > MAX_AXES or max(shape, default=0) > MAX_AXIS:
        problem = f"has shape {_axes(shape)}: at most {MAX_AXES} axes of at most {MAX_AXIS:,} can be stored"
    elif references_within(type_, lists_alone=True):
        problem = "holds lists of references to other objects"
    elif number is not None and not 0 <= number < len(shape):
        problem = f"has no axis {axis}; --axis -1 takes the last axis of every dataset"
    if problem:
        return [replace(entry, problem=problem)]
    samples, rest = (None, shape) if number is None else (shape[number], shape[:number] + shape[number + 1 :])
    return list(leaves(replace(entry, samples=samples), dtype, rest))


def _type_name(dtype: np.dtype[Any]) -> str:
    """Return a datatype in a word or two, for people."""
    if dtype.names:
        return f"compound of {len(dtype.names)}"
    if h5py.check_string_dtype(dtype) is not None:
        return "text"
    if h5py.check_ref_dtype(dtype) is not None:
        return "references"
    base = h5py.check_vlen_dtype(dtype)
    if base is not None:
        return f"arrays of {base}"
    return f"{dtype}" if dtype.subdtype is None else f"{dtype.subdtype[0]} {_axes(dtype.subdtype[1])}"


def _axes(shape: tuple[int, ...]) -> str:
    return str(tuple(int(n) for n in shape))


def text_attribute(thing: h5py.HLObject, name: str) -> str:
    """Return a text attribute; empty if it is missing, of another type or damaged."""
    try:
        if name not in thing.attrs or not isinstance(thing.attrs.get_id(name).get_type(), h5py.h5t.TypeStringID):
            return ""
        value: Any = thing.attrs[name]
    except FAULTS:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""
