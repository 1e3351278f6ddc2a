"""Floats of a file that numpy does not have, bfloat16 above all: the library widens them when it reads."""

from __future__ import annotations

import h5py

#: Bits of exponent and of fraction of the types that have a name.
_NAMES = {(8, 7): "bfloat16", (4, 3): "float8 (E4M3)", (5, 2): "float8 (E5M2)"}


def widened(type_: h5py.h5t.TypeID) -> str | None:
    """What the plan says of values that are read as a wider float, as a phrase; None where none are."""
    if isinstance(type_, h5py.h5t.TypeArrayID | h5py.h5t.TypeVlenID):
        return widened(type_.get_super())
    if not _is_wider(type_):
        return None
    wide = type_.dtype.newbyteorder("=").name
    return f"is {_name(type_)}, stored as {wide}: all numbers exactly, but NaNs without the bits they carry"


def misread(type_: h5py.h5t.TypeID) -> str | None:
    """Why a datatype cannot be read rightly, as a phrase; None where it can.

    h5py lays the members of a compound where the file has them: one that is widened would run into the next.
    """
    if isinstance(type_, h5py.h5t.TypeArrayID | h5py.h5t.TypeVlenID):
        return misread(type_.get_super())
    if not isinstance(type_, h5py.h5t.TypeCompoundID):
        return None
    for number in range(type_.get_nmembers()):
        member = type_.get_member_type(number)
        inner = _innermost(member)
        if _is_wider(inner):
            name = type_.get_member_name(number).decode("utf-8", "backslashreplace")
            return f"has the compound member {name} of {_name(inner)}, which h5py misreads: write it as float32"
        problem = misread(member)
        if problem:
            return problem
    return None


def _innermost(type_: h5py.h5t.TypeID) -> h5py.h5t.TypeID:
    while isinstance(type_, h5py.h5t.TypeArrayID):
        type_ = type_.get_super()
    return type_


def _is_wider(type_: h5py.h5t.TypeID) -> bool:
    return isinstance(type_, h5py.h5t.TypeFloatID) and type_.dtype.itemsize > type_.get_size()


def _name(type_: h5py.h5t.TypeFloatID) -> str:
    _sign, _exponent, exponent_bits, _fraction, bits = type_.get_fields()
    return _NAMES.get((exponent_bits, bits), f"a float of {8 * type_.get_size()} bits, {exponent_bits} of exponent")
