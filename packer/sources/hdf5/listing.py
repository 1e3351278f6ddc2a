"""Lists the datasets below a group, each once, with the fields that they can become; from headers alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import h5py
import numpy as np

from packer.errors import SourceError, as_text
from packer.format import DTYPES, FieldSpec
from packer.sources.hdf5.file import FAULTS, plain

#: More links than any file in use has; hostile files can name billions in a few bytes.
_MAX_LINKS = 2_000_000


class Met(NamedTuple):
    """A group or dataset that a walk met; or why there is none, as a phrase that follows the path.

    Attributes:
        path: path from the root of the walk, with a leading slash.
        is_bad: whether it cannot be opened; else it is a link, or another name of an object that was met already.
    """

    path: str
    thing: h5py.Dataset | h5py.Group | None
    why: str = ""
    is_bad: bool = False


def walk(
    root: h5py.Group,
    is_out: Callable[[str], bool] = lambda path: False,
    is_unit: Callable[[str], bool] = lambda path: False,
) -> Iterator[Met]:
    """Yield groups and datasets below `root`, each once, in the file's order; soft and external links are not followed.

    Args:
        is_out: whether a path is left out, with all below it; it is not yielded.
        is_unit: whether the group at a path is one sample; it is not entered, and may be a link.

    Raises:
        SourceError: a group cannot be listed, or there are far too many links.
    """
    seen: dict[int, str] = {}
    groups: list[tuple[str, h5py.Group]] = [("", root)]
    count = 0
    while groups:
        prefix, group = groups.pop()
        deeper = []
        try:
            seen.setdefault(h5py.h5o.get_info(group.id).addr, prefix or "/")
            names = list(group)
        except FAULTS as error:
            raise SourceError(
                f"the group {prefix or '/'} cannot be listed ({plain(error)}); leave it out with --skip {prefix}, or "
                "pick fields with --field NAME=/path, for which nothing is listed",
                root.file.filename,
            ) from error
        count += len(names)
        if count > _MAX_LINKS:
            raise SourceError(f"holds more than {_MAX_LINKS:,} links", root.file.filename)
        for name in names:
            path = f"{prefix}/{as_text(name)}"
            if not is_out(path):
                met = _met(group, name, path, seen, is_unit(path))
                if isinstance(met.thing, h5py.Datatype):
                    continue  # it has no values
                yield met
                if isinstance(met.thing, h5py.Group) and not is_unit(path):
                    deeper.append((path, met.thing))
        groups += reversed(deeper)


def _met(group: h5py.Group, name: str | bytes, path: str, seen: dict[int, str], is_unit: bool) -> Met:
    if isinstance(name, bytes):
        return Met(path, None, "has a name that is not UTF-8", is_bad=True)
    try:
        if group.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
            return Met(path, group[name]) if is_unit else Met(path, None, "is a link")
        thing = group[name]
        first = seen.setdefault(h5py.h5o.get_info(thing.id).addr, path)
    except FAULTS as error:
        return Met(path, None, f"cannot be opened: {plain(error)}", is_bad=True)
    if first != path and not is_unit:
        return Met(path, None, f"is another name of {first}")
    return Met(path, thing)


# ---------------------------------------------------------------- what each can become


@dataclass(frozen=True)
class Listed:
    """A dataset, or a member of a compound one, and the field that it can become.

    Attributes:
        dataset: path of the dataset, with a leading slash; empty for a dataset that is a sample.
        members: names of compound members that lead to the values.
        looks: shape and dtype for people, such as `(10, 3) float32`.
        spec: what the field is, but for its name; None if there is a `problem`.
        samples: length along the sample axis; None if the whole dataset is one sample's value.
        problem: why it cannot be a field, as a phrase that follows the path.
        note: how stored values differ from those in the file, as a phrase that follows the path.
        starts: as in `Column`.
    """

    dataset: str
    members: tuple[str, ...] = ()
    looks: str = ""
    spec: FieldSpec | None = None
    samples: int | None = None
    problem: str = ""
    note: str = ""
    starts: str = ""

    @property
    def path(self) -> str:
        return "/".join((self.dataset, *self.members))

    @property
    def name(self) -> str:
        """Return the field name it gets by itself: the path with dots for slashes; `values` for a unit that is one."""
        return self.path[1:].replace("/", ".") or UNNAMED


#: The name of a field until it is chosen.
UNNAMED = "values"
_NETCDF_PLACEHOLDER = "This is a netCDF dimension but not a netCDF variable"


def listed(path: str, dataset: h5py.Dataset, axis: int | None) -> list[Listed] | str:
    """Return what a dataset can become: a field, or one for each member of a compound; or why it is left out.

    Args:
        axis: number of the sample axis, from the end if negative; None if the whole dataset is the value of one sample.
    """
    try:
        shape, dtype, problem, note = dataset.shape, dataset.dtype, *_doubts(dataset.id.get_type())
    except FAULTS as error:
        return [Listed(path, problem=f"has a datatype that h5py cannot read ({plain(error)})")]
    if shape is None:
        return [Listed(path, looks="no values", problem="is empty: it has no values and no shape")]
    if shape == () and axis is not None:
        return f"is a single value, which --once {path} keeps"
    if text_attribute(dataset, "NAME").startswith(_NETCDF_PLACEHOLDER):
        return "is a NetCDF dimension without values"
    shape = tuple(map(int, shape))
    entry = Listed(path, looks=f"{shape} {_type_name(dtype)}", note=note)
    if axis is not None:
        number = axis if axis >= 0 else len(shape) + axis
        if not 0 <= number < len(shape):
            problem = f"has no axis {axis}; --axis -1 takes the last axis of every dataset"
        else:
            entry = replace(entry, samples=shape[number])
            shape = shape[:number] + shape[number + 1 :]
    return [replace(entry, problem=problem)] if problem else list(leaves(entry, dtype, shape))


def leaves(entry: Listed, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Iterator[Listed]:
    """Yield what samples of `dtype` and `shape` become: the entry, or one for each member of a compound.

    Each has its `spec`, or the `problem` why there is none.
    """
    if dtype.subdtype is not None:
        yield from leaves(entry, dtype.subdtype[0], shape + dtype.subdtype[1])
    elif dtype.names:
        for name in dtype.names:
            yield from leaves(replace(entry, members=(*entry.members, name)), dtype[name], shape)
    else:
        base = h5py.check_vlen_dtype(dtype)
        is_text = h5py.check_string_dtype(dtype) is not None
        native = np.dtype(base or dtype).newbyteorder("=").name
        if (is_text or base is not None) and shape:
            what = "strings" if is_text else "lists"
            problem = f"holds {what} of shape {shape} a sample, but only one can be stored; make a dataset of each"
        elif h5py.check_ref_dtype(dtype) is not None:
            problem = "holds references to other objects, which cannot be stored"
        elif not is_text and native not in DTYPES:
            problem = (
                f"holds values of {base or dtype}, which cannot be stored; write them as one of {', '.join(DTYPES)}"
            )
        elif base is not None and not np.dtype(base).isnative:
            problem = f"holds lists of {base}, whose byte order h5py forgets; write them as {native}"
        else:
            try:
                if is_text:
                    spec = FieldSpec(name=UNNAMED, dtype="uint8", kind="text", shape=(None,))
                else:
                    spec = FieldSpec(name=UNNAMED, dtype=native, shape=shape if base is None else (None,))
                yield replace(entry, spec=spec)
                return
            except ValueError as error:
                problem = f"cannot be stored: {error}"
        yield replace(entry, problem=problem)


# ---------------------------------------------------------------- what h5py misreads


def _doubts(type_: h5py.h5t.TypeID) -> tuple[str, str]:
    """Return why a datatype is misread, and a remark on its values, as phrases; either may be empty.

    libhdf5 widens floats that numpy does not have, bfloat16 above all. h5py lays the members of a compound where the
    file has them: one that is widened would run into the next. It corrupts memory when it reads lists of references.
    """
    note = ""
    for part, member, in_list in _parts(type_):
        if isinstance(part, h5py.h5t.TypeReferenceID) and in_list:
            return "holds lists of references to other objects, which cannot be stored", ""
        if isinstance(part, h5py.h5t.TypeFloatID) and part.dtype.itemsize > part.get_size():
            bits = f"floats of {8 * part.get_size()} bits that numpy does not have, such as bfloat16"
            if member and not in_list:
                return f"has the member {member} of {bits}; h5py misreads it in a compound, so write it as float32", ""
            wide = part.dtype.newbyteorder("=").name
            note = f"holds {bits}, stored as {wide}: all numbers are exact, but NaNs lose the bits they carry"
    return "", note


def _parts(
    type_: h5py.h5t.TypeID, member: str = "", in_list: bool = False
) -> Iterator[tuple[h5py.h5t.TypeID, str, bool]]:
    """Yield the innermost types of a datatype, the compound member that each is, and whether it lies in a list."""
    if isinstance(type_, h5py.h5t.TypeVlenID | h5py.h5t.TypeArrayID):
        yield from _parts(type_.get_super(), member, in_list or isinstance(type_, h5py.h5t.TypeVlenID))
    elif isinstance(type_, h5py.h5t.TypeCompoundID):
        for number in range(type_.get_nmembers()):
            yield from _parts(type_.get_member_type(number), as_text(type_.get_member_name(number)), in_list)
    else:
        yield type_, member, in_list


# ---------------------------------------------------------------- words


def _type_name(dtype: np.dtype[Any]) -> str:
    """Return a datatype in a word or two, for people."""
    if dtype.names:
        return f"compound of {len(dtype.names)}"
    if h5py.check_string_dtype(dtype) is not None:
        return "text"
    base = h5py.check_vlen_dtype(dtype)
    return f"lists of {base}" if base is not None else str(dtype)


def text_attribute(thing: h5py.HLObject, name: str) -> str:
    """Return a text attribute; empty if it is missing, of another type or damaged."""
    try:
        if name not in thing.attrs or not isinstance(thing.attrs.get_id(name).get_type(), h5py.h5t.TypeStringID):
            return ""
        value: Any = thing.attrs[name]
    except FAULTS:
        return ""
    return as_text(value) if isinstance(value, str | bytes) else ""
