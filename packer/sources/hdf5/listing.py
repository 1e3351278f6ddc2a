"""Lists the datasets of a file with the fields they can become, from headers alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import h5py
import numpy as np

from packer.format.schema import MAX_AXES, MAX_AXIS
from packer.sources.hdf5.family import is_matlab_empty, is_placeholder
from packer.sources.hdf5.file import FAULTS, plain
from packer.sources.hdf5.floats import misread, widened
from packer.sources.hdf5.types import Leaf, leaves, references_within
from packer.sources.hdf5.walk import Found, walk

#: Why a dataset without axes is left out.
SINGLE = "is a single value, not one a sample"


@dataclass(frozen=True)
class Listed:
    """A dataset, or a member of a compound one, and what it can become.

    Attributes:
        dataset: path of the dataset, with a leading slash.
        members: compound members that lead to the values.
        looks: shape and dtype for people, such as `(10, 3) float32`.
        leaf: what the field is; None where `problem` or `aside` is set.
        samples: length along the sample axis; None where the whole dataset is one sample's value.
        problem: why it cannot be a field, as a phrase that follows the path.
        aside: why it is left out without harm, as a phrase that follows the path.
        note: what is not stored as it is in the file, as a phrase that follows the path.
        same: path of the dataset or group that this is another name of.
    """

    dataset: str
    members: tuple[str, ...] = ()
    looks: str = ""
    leaf: Leaf | None = None
    samples: int | None = None
    problem: str | None = None
    aside: str | None = None
    note: str | None = None
    same: str | None = None

    @property
    def path(self) -> str:
        return "/".join((self.dataset, *self.members))

    @property
    def name(self) -> str:
        """The field name it gets by itself: the path with dots for slashes."""
        return self.path[1:].replace("/", ".")


@dataclass
class Inventory:
    """All that a file holds.

    Attributes:
        entries: datasets, their members, further names of datasets and groups, and dead links.
        described: paths of the groups and datasets that have attributes.
        homes: file of each dataset that lies in another one, by path.
    """

    entries: list[Listed] = field(default_factory=list)
    described: list[str] = field(default_factory=list)
    homes: dict[str, str] = field(default_factory=dict)


def inventory(root: h5py.Group, path: str, axis: int | None) -> Inventory:
    """What lies below `root`, in the file `path`; `axis` as for `listed`."""
    held = Inventory()
    for found in walk(root):
        held.entries += listed(found, axis)
        if found.thing is not None:
            if has_attributes(found.thing):
                held.described.append(found.path)
            home = str(found.thing.file.filename)
            if home != path:
                held.homes[found.path] = home
    return held


def has_attributes(thing: h5py.HLObject) -> bool:
    """Also where it is damaged: what is wrong is then said in their place."""
    try:
        return bool(h5py.h5a.get_num_attrs(thing.id))
    except (OSError, RuntimeError, ValueError):
        return True


def listed(found: Found, axis: int | None) -> list[Listed]:
    """What a dataset, another name of one, or a dead link can become; nothing for groups.

    Args:
        found: what the walk met.
        axis: number of the sample axis, from the end where negative; None where the whole dataset is
            the value of one sample.
    """
    if found.same is not None:
        return [Listed(found.path, aside=f"is another name of {found.same}", same=found.same)]
    if found.thing is None:
        return [Listed(found.path, problem=found.problem)]
    if not isinstance(found.thing, h5py.Dataset):
        return []
    try:
        shape, dtype, type_ = found.thing.shape, found.thing.dtype, found.thing.id.get_type()
        wrong, note = misread(type_), widened(type_)
        if references_within(type_, lists_alone=True):
            wrong = "holds lists of references to other objects"
    except KeyError as error:  # of h5py's own tables: the byte order of VAX, for one
        return [Listed(found.path, problem=f"has a datatype that h5py does not know (byte order or class {error})")]
    except FAULTS as error:
        return [Listed(found.path, problem=f"has a datatype that cannot be read ({plain(error)})")]
    entry = Listed(found.path, looks="no values" if shape is None else f"{_axes(shape)} {type_name(dtype)}")
    problem = _problem(found.thing, shape) or wrong
    entry = replace(entry, problem=problem, aside=_aside(found.thing, shape, axis), note=note)
    if entry.problem or entry.aside:
        return [entry]
    return _fields(entry, dtype, shape, axis)


def _problem(dataset: h5py.Dataset, shape: tuple[int, ...] | None) -> str | None:
    if shape is None:
        return "is empty: it has no values and no shape"
    if is_matlab_empty(dataset):
        return "is an empty MATLAB array: the numbers in it are its axes, not values"
    if len(shape) > MAX_AXES or max(shape, default=0) > MAX_AXIS:
        return f"has shape {_axes(shape)}: at most {MAX_AXES} axes of at most {MAX_AXIS:,} can be stored"
    return None


def _aside(dataset: h5py.Dataset, shape: tuple[int, ...] | None, axis: int | None) -> str | None:
    if shape == () and axis is not None:
        return SINGLE
    return "is a NetCDF dimension without values" if is_placeholder(dataset) else None


def _fields(entry: Listed, dtype: np.dtype[Any], shape: tuple[int, ...], axis: int | None) -> list[Listed]:
    samples, rest = None, shape
    if axis is not None:
        number = axis if axis >= 0 else len(shape) + axis
        if not 0 <= number < len(shape):
            return [replace(entry, problem=f"has no axis {axis}; --axis -1 takes the last axis of every dataset")]
        samples, rest = shape[number], shape[:number] + shape[number + 1 :]
    found = [
        replace(entry, members=leaf.members, leaf=None if leaf.problem else leaf, samples=samples, problem=leaf.problem)
        for leaf in leaves(dtype, rest)
    ]
    return found or [replace(entry, problem="is a compound without members")]


def type_name(dtype: np.dtype[Any]) -> str:
    """A datatype in a word or two, for people."""
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
