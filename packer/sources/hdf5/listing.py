"""Lists the datasets below a group, each once, with the fields that they can become; from headers alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import h5py
import numpy as np

from packer.errors import SourceError, as_text
from packer.format import DTYPES, FieldSpec
from packer.sources.hdf5.file import FAULTS, plain

#: The name of a field until it is chosen.
UNNAMED = "values"
_NOT_CHOSEN = FieldSpec(name=UNNAMED, dtype="uint8")


@dataclass(frozen=True)
class Column:
    """A dataset, a member of a compound one or an attribute of a unit, and the field that it becomes.

    Attributes:
        dataset: path of the dataset, from the root of the file or of the unit, with a leading slash; empty for a
            dataset that is a sample.
        members: names of compound members that lead from the dataset's values to the field's.
        spec: what the field is; its name is `UNNAMED` until it is chosen.
        samples: length along the sample axis; None if the whole dataset is one sample's value.
        problem: why it cannot be a field, as a phrase that follows the path.
        remark: how its values differ from those in the file, as a phrase that follows the path.
        attribute: name of the attribute of the unit that holds the value, if no dataset does.
        starts: path of the dataset with the row of `dataset` at which each sample starts; empty if rows are samples.
    """

    dataset: str
    members: tuple[str, ...] = ()
    spec: FieldSpec = _NOT_CHOSEN
    samples: int | None = None
    problem: str = ""
    remark: str = ""
    attribute: str = ""
    starts: str = ""

    @property
    def path(self) -> str:
        return "/".join((self.dataset, *self.members))

    @property
    def own_name(self) -> str:
        """Return the default name of its field: the path with dots for slashes; `values` for a dataset as a unit."""
        return self.path[1:].replace("/", ".") or UNNAMED

    @property
    def in_words(self) -> str:
        """Return a description, such as `/x: 10 samples of array float32 [3]`."""
        count = "" if self.samples is None else f"{self.samples:,} samples of "
        return f"{self.path} {self.problem}" if self.problem else f"{self.path}: {count}{self.spec.in_words}"


# ---------------------------------------------------------------- what a file holds

#: A group or dataset. If it cannot be opened, a list of one `Column` that says why. If it is left out, being a link or
#: another name of an object met before, a phrase that says so and follows its path.
Met: TypeAlias = h5py.Dataset | h5py.Group | list[Column] | str


def walk(
    root: h5py.Group,
    is_out: Callable[[str], bool] = lambda path: False,
    is_unit: Callable[[str], bool] = lambda path: False,
) -> Iterator[tuple[str, Met]]:
    """Yield all that lies below `root`, each object once, in the file's order, and its path from there.

    Args:
        is_out: whether a path is left out, with all below it; it is not yielded.
        is_unit: whether the group at a path is one sample; it is not entered, and may be a link.

    Raises:
        SourceError: a group cannot be listed.
    """
    seen: dict[int, str] = {}
    groups: list[tuple[str, h5py.Group]] = [("", root)]
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
        for name in names:
            path = f"{prefix}/{as_text(name)}"
            if is_out(path):
                continue
            met = _met(group, name, path, seen, is_unit(path))
            if isinstance(met, h5py.Datatype):
                continue  # it has no values
            yield path, met
            if isinstance(met, h5py.Group) and not is_unit(path):
                deeper.append((path, met))
        groups += reversed(deeper)


def _met(group: h5py.Group, name: str | bytes, path: str, seen: dict[int, str], is_unit: bool) -> Met | h5py.Datatype:
    if isinstance(name, bytes):
        return [Column(path, problem="has a name that is not UTF-8")]
    try:
        if group.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
            return group[name] if is_unit else "is a link"
        thing = group[name]
        first = seen.setdefault(h5py.h5o.get_info(thing.id).addr, path)
    except FAULTS as error:
        return [Column(path, problem=f"cannot be opened: {plain(error)}")]
    return thing if first == path or is_unit else f"is another name of {first}"


# ---------------------------------------------------------------- what each can become


_NETCDF_PLACEHOLDER = b"This is a netCDF dimension but not a netCDF variable"


def listed(path: str, dataset: h5py.Dataset, axis: int | None) -> list[Column] | str:
    """Return the fields that a dataset can become: one, or one for each member of a compound; or why it is left out.

    Args:
        axis: number of the sample axis, from the end if negative; None if the whole dataset is the value of one sample.
    """
    try:
        shape, dtype, (problem, remark) = dataset.shape, dataset.dtype, _misread(dataset.id.get_type())
    except FAULTS as error:
        return [Column(path, problem=f"has a datatype that h5py cannot read ({plain(error)})")]
    if shape is None:
        return [Column(path, problem="is empty: it has no values and no shape")]
    if shape == () and axis is not None:
        return f"is a single value, which --once {path} keeps"
    with suppress(*FAULTS):  # a damaged attribute costs nothing
        if h5py.h5ds.is_scale(dataset.id) and h5py.h5ds.get_scale_name(dataset.id).startswith(_NETCDF_PLACEHOLDER):
            return "is a NetCDF dimension without values"
    shape, samples = tuple(map(int, shape)), None
    if axis is not None:
        number = axis if axis >= 0 else len(shape) + axis
        if 0 <= number < len(shape):
            samples, shape = shape[number], shape[:number] + shape[number + 1 :]
        else:
            problem = f"has no axis {axis}; --axis -1 takes the last axis of every dataset"
    entry = Column(path, samples=samples, problem=problem, remark=remark)
    return [entry] if problem else list(leaves(entry, dtype, shape))


def leaves(entry: Column, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Iterator[Column]:
    """Yield the fields that samples of `dtype` and `shape` become: the entry, or one for each member of a compound.

    Each has its `spec`, or a `problem`.
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


def _misread(type_: h5py.h5t.TypeID, within: bool = False) -> tuple[str, str]:
    """Return why h5py cannot read values of a datatype, and a remark if it changes them, as phrases, empty if not.

    h5py corrupts memory when it reads lists of references. It widens floats that numpy does not have; within a
    compound (`within`) these then overlap the next member.
    """
    if isinstance(type_, h5py.h5t.TypeVlenID | h5py.h5t.TypeArrayID):
        return _misread(type_.get_super(), within)
    if isinstance(type_, h5py.h5t.TypeCompoundID):
        members = (_misread(type_.get_member_type(number), True) for number in range(type_.get_nmembers()))
        return next(filter(any, members), ("", ""))
    if isinstance(type_, h5py.h5t.TypeReferenceID):
        return "holds references to other objects, which cannot be stored", ""
    if isinstance(type_, h5py.h5t.TypeFloatID) and type_.dtype.itemsize > type_.get_size():
        bits, wide = 8 * type_.get_size(), type_.dtype.newbyteorder("=").name
        what = f"holds floats of {bits} bits that numpy does not have, such as bfloat16"
        return (f"{what}; write them as float32", "") if within else ("", f"{what}; they are packed as {wide}")
    return "", ""
