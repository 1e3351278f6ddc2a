"""The kinds of files that hold arrays: HDF5, zarr, .npy and .npz."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from packer.sources.arrays.collecting import ArrayFacts, agree
from packer.sources.arrays.completing import complete
from packer.sources.arrays.fields import ArrayLeaf
from packer.sources.arrays.pairing import OF_ENCODED, pair
from packer.sources.arrays.reading import read_table
from packer.sources.arrays.units import look
from packer.sources.files import walk
from packer.sources.kinds import Kind


def _files_of_zarr(path: str) -> list[str]:
    return sorted(f"{path}/{file}" for file, _ in walk(path)) if Path(path).is_dir() else [path]


_NPY_OPTIONS = ("pick", "skip", "axis", "once", "images", "encoded", *OF_ENCODED)
#: Options of files that have attributes and groups.
_OPTIONS = (*_NPY_OPTIONS, "attrs", "scaled", "stored", "sparse", "unwritten")
_UNITS = ("rows", "files", "datasets", "groups", "episodes")


def _kind(name: str, *suffixes: str, **more: Any) -> Kind:
    return Kind(
        name,
        suffixes,
        partial(look, name),
        read_table=partial(read_table, name),
        facts=ArrayFacts,
        pair=partial(pair, name),
        agree=agree,
        detail=ArrayLeaf,
        complete=partial(complete, name),
        none_left="every file or sample of it is bad; nothing is left to pack",
        **more,
    )


KINDS = (
    _kind(
        "hdf5",
        *(".h5", ".hdf5", ".hdf", ".h5ad", ".he5", ".mat", ".nc", ".nc4", ".nxs"),
        headers_in="processes",
        units=_UNITS,
        names_fields=True,
        options=_OPTIONS,
        exports="hdf5",
    ),
    _kind(
        "zarr",
        *(".zarr", ".zarr.zip"),
        headers_in="thread",
        files_in=_files_of_zarr,
        units=_UNITS,
        names_fields=True,
        options=_OPTIONS,
    ),
    _kind(
        "npy", *(".npy", ".npz"), units=("rows", "files", "folders", "episodes"), lies_beside=True, options=_NPY_OPTIONS
    ),
)
