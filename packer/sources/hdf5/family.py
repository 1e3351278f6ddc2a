"""Recognises what wrote an HDF5 file, and what that means for finding samples in it."""

from __future__ import annotations

from typing import Any

import h5py

_NETCDF_PLACEHOLDER = "This is a netCDF dimension but not a netCDF variable"


def family(file: h5py.File) -> str | None:
    """`keras`, `anndata`, `10x`, `matlab`, or None."""
    names = set(file)
    if "keras_version" in file.attrs or "layer_names" in file.attrs or {"layers", "vars"} <= names:
        return "keras"
    if text_attribute(file, "encoding-type") == "anndata" or {"X", "obs", "var"} <= names:
        return "anndata"
    if "matrix" in names and {"barcodes", "indptr"} <= _members(file, "matrix"):
        return "10x"
    if any("MATLAB_class" in _attributes(file, name) for name in names):
        return "matlab"
    return None


def advice(kind: str | None) -> str:
    """A sentence, with a blank before it, on what to pick from a file of this family; empty where there is none."""
    if kind == "anndata":
        return (
            " This is an AnnData (h5ad) file: its cells are the rows of obs/... and obsm/..., and of X where X is"
            " not sparse; pick from those."
        )
    if kind == "10x":
        return (
            " This is a 10x file: its matrix is sparse (data, indices, indptr), so cells are no rows; make it dense"
            " first, for example with scanpy."
        )
    if kind == "matlab":
        return " This is a MATLAB 7.3 file: its axes are MATLAB's in reverse, so --axis -1 takes MATLAB's rows."
    return ""


KERAS_REFUSAL = (
    "holds the weights of a Keras model, which have no sample axis: every dataset is one layer's weights. To pack "
    "some all the same, pick them with --field NAME=/path"
)


def is_placeholder(dataset: h5py.Dataset) -> bool:
    """Is it the empty stand-in that NetCDF-4 writes for a dimension without coordinates?"""
    return text_attribute(dataset, "NAME").startswith(_NETCDF_PLACEHOLDER)


def is_matlab_empty(dataset: h5py.Dataset) -> bool:
    """Does it hold the axes of an empty MATLAB array instead of values?"""
    return "MATLAB_empty" in dataset.attrs


def text_attribute(thing: h5py.HLObject, name: str) -> str:
    """A text attribute; empty where it is missing, of another type or damaged."""
    try:
        if name not in thing.attrs or not isinstance(thing.attrs.get_id(name).get_type(), h5py.h5t.TypeStringID):
            return ""
        value: Any = thing.attrs[name]
    except (OSError, RuntimeError, ValueError, TypeError, LookupError):
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _members(file: h5py.File, name: str) -> set[str]:
    thing = _hard(file, name)
    return set(thing) if isinstance(thing, h5py.Group) else set()


def _attributes(file: h5py.File, name: str) -> set[str]:
    thing = _hard(file, name)
    return set(thing.attrs) if isinstance(thing, h5py.Dataset) else set()


def _hard(file: h5py.File, name: str) -> h5py.HLObject | None:
    """What a hard link leads to; other links may lead to files that are missing."""
    try:
        return file[name] if file.get(name, getlink=True, getclass=True) is h5py.HardLink else None
    except (OSError, RuntimeError, ValueError, TypeError, LookupError):
        return None
