"""Says which fields an HDF5 datatype becomes: one, one for each member of a compound, or none and why.

Floats that numpy does not have, bfloat16 above all, are widened by the library when it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import h5py
import numpy as np

from packer.errors import as_text
from packer.format import DTYPES, FieldSpec

#: The name of a field until it is chosen.
_UNNAMED = "values"


@dataclass(frozen=True)
class Column:
    """One field and where its values lie.

    Attributes:
        spec: what the field is.
        dataset: path of the dataset, from the root of the file (or of a sample's group).
        members: names of compound members that lead from the dataset's values to the field's.
        attribute: name of the attribute of the unit that holds the value, if no dataset does.
        starts: path of the dataset that tells where in `dataset` each sample starts, if rows of it are no samples.
    """

    spec: FieldSpec
    dataset: str
    members: tuple[str, ...] = ()
    attribute: str = ""
    starts: str = ""

    @property
    def path(self) -> str:
        return "/".join((self.dataset, *self.members))


@dataclass(frozen=True)
class Listed:
    """A dataset, or a member of a compound one, and what it can become.

    Attributes:
        dataset: path of the dataset, with a leading slash.
        members: names of compound members that lead to the values.
        looks: shape and dtype for people, such as `(10, 3) float32`.
        spec: what the field is, but for its name; None if `problem` or `aside` is set.
        samples: length along the sample axis; None if the whole dataset is one sample's value.
        problem: why it cannot be a field, as a phrase that follows the path.
        aside: why it is left out without harm, as a phrase that follows the path.
        note: what is not stored as it is in the file, as a phrase that follows the path.
        same: path of the dataset or group that this is another name of.
        starts: as in `Column`.
    """

    dataset: str
    members: tuple[str, ...] = ()
    looks: str = ""
    spec: FieldSpec | None = None
    samples: int | None = None
    problem: str | None = None
    aside: str | None = None
    note: str | None = None
    same: str | None = None
    starts: str = ""

    @property
    def path(self) -> str:
        return "/".join((self.dataset, *self.members))

    @property
    def name(self) -> str:
        """Return the field name it gets by itself: the path with dots for slashes; `values` for a unit that is one."""
        return self.path[1:].replace("/", ".") or "values"


def leaves(entry: Listed, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Iterator[Listed]:
    """Yield what samples of `dtype` and `shape` become: the entry, or one for each member of a compound.

    Each has its `spec`, or the `problem` why there is none.
    """
    if dtype.subdtype is not None:
        base, axes = dtype.subdtype
        yield from leaves(entry, base, shape + axes)
    elif dtype.names:
        for name in dtype.names:
            yield from leaves(replace(entry, members=(*entry.members, name)), dtype[name], shape)
    elif problem := _problem(dtype, shape):
        yield replace(entry, problem=problem)
    elif h5py.check_string_dtype(dtype) is not None:
        spec = FieldSpec(name=_UNNAMED, dtype="uint8", kind="text", shape=(None,))
        yield replace(entry, spec=spec)
    else:
        base = h5py.check_vlen_dtype(dtype)
        axes = shape if base is None else (None,)
        native = np.dtype(base or dtype).newbyteorder("=").name
        yield replace(entry, spec=FieldSpec(name=_UNNAMED, dtype=native, shape=axes))


def _problem(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str | None:
    """Return why samples of a dtype without members cannot be a field, as a phrase; None if they can."""
    if h5py.check_string_dtype(dtype) is not None:
        problem = f"holds strings of shape {shape} a sample, but only one can be stored"
        if not shape:
            return None
        if dtype.itemsize > 1 or dtype.hasobject:
            return f"{problem}: make a dataset of each of them"
        return (
            f"{problem}: it is text as a matrix of characters, as in NetCDF. Make strings of its rows, with h5py by "
            f"file['NEW'] = numpy.ascontiguousarray(file['OLD']).view('S{shape[-1]}')[..., 0]"
        )
    if h5py.check_ref_dtype(dtype) is not None:
        return "holds references to other objects"
    lists = h5py.check_vlen_dtype(dtype)
    if lists is not None:
        base = np.dtype(lists)
        if base.hasobject or base.names or base.newbyteorder("=").name not in DTYPES:
            return f"holds variable-length arrays of {base}, which cannot be stored"
        if not base.isnative:
            return f"holds variable-length arrays of {base}, whose byte order h5py forgets: write them as {base.name}"
        return f"holds variable-length arrays of shape {shape} a sample, but only one can be stored" if shape else None
    if dtype.newbyteorder("=").name in DTYPES:
        return None
    if dtype.kind in "Mm":
        return f"holds times as opaque values ({dtype}): write them as int64 instead"
    if dtype.kind == "V":
        return "holds opaque values or an empty compound"
    return f"has dtype {dtype}, which cannot be stored; write it as one of {', '.join(DTYPES)}"


# ---------------------------------------------------------------- what is read otherwise than it is stored

#: Floats that have a name, by bits of exponent and of fraction.
_FLOATS = {(8, 7): "bfloat16", (4, 3): "float8 (E4M3)", (5, 2): "float8 (E5M2)"}


class _Part(NamedTuple):
    """An innermost type of a datatype, the compound member that it is, and whether lists of any length hold it."""

    type: h5py.h5t.TypeID
    member: str | None
    in_list: bool


def _parts(type_: h5py.h5t.TypeID, member: str | None = None, in_list: bool = False) -> Iterator[_Part]:
    if isinstance(type_, h5py.h5t.TypeVlenID | h5py.h5t.TypeArrayID):
        yield from _parts(type_.get_super(), member, in_list or isinstance(type_, h5py.h5t.TypeVlenID))
    elif isinstance(type_, h5py.h5t.TypeCompoundID):
        for number in range(type_.get_nmembers()):
            name = as_text(type_.get_member_name(number))
            yield from _parts(type_.get_member_type(number), name, in_list)
    else:
        yield _Part(type_, member, in_list)


def references_within(type_: h5py.h5t.TypeID, lists_alone: bool = False) -> bool:
    """Return whether there are references within lists or compounds: h5py corrupts memory when it reads some of these.

    Args:
        lists_alone: count those within lists only.
    """
    found = (part for part in _parts(type_) if isinstance(part.type, h5py.h5t.TypeReferenceID))
    return any(part.in_list or (part.member is not None and not lists_alone) for part in found)


def misread(type_: h5py.h5t.TypeID) -> str | None:
    """Return why a datatype cannot be read rightly, as a phrase; None if it can.

    h5py lays the members of a compound where the file has them: one that is widened would run into the next.
    """
    for part in _parts(type_):
        if part.member is not None and not part.in_list and _is_wider(part.type):
            return (
                f"has the compound member {part.member} of {_name(part.type)}, which h5py misreads: write it as float32"
            )
    return None


def remark(type_: h5py.h5t.TypeID) -> str | None:
    """Return a phrase on values that are stored in a wider type; None if there is nothing to say."""
    for part in _parts(type_):
        if _is_wider(part.type):
            wide = part.type.dtype.newbyteorder("=").name
            return f"is {_name(part.type)}, stored as {wide}: all numbers are exact, but NaNs lose the bits they carry"
    return None


def _is_wider(type_: h5py.h5t.TypeID) -> bool:
    return isinstance(type_, h5py.h5t.TypeFloatID) and type_.dtype.itemsize > type_.get_size()


def _name(type_: h5py.h5t.TypeFloatID) -> str:
    _sign, _exponent, exponent_bits, _fraction, bits = type_.get_fields()
    return _FLOATS.get((exponent_bits, bits), f"a float of {8 * type_.get_size()} bits, {exponent_bits} of exponent")
