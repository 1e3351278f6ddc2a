"""The kinds of files that hold arrays: HDF5, zarr, .npy and .npz."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from packer.format import FieldSpec
from packer.sources.base import Block, Source
from packer.sources.files import FileSet, walk
from packer.sources.kinds import Kind
from packer.sources.options import SourceOptions
from packer.sources.table import SampleTable
from packer.watcher import Watcher
from packer.workers import Limits

_OPTIONS = ("pick", "skip", "axis", "once", "images", "encoded")
#: Options of files that have attributes and groups.
_GROUPED = (*_OPTIONS, "attrs", "scaled", "stored", "sparse", "unwritten")


def open_trees(
    kind: str, inputs: Mapping[str, FileSet], options: SourceOptions, watcher: Watcher, limits: Limits | None
) -> Source:
    """Open the samples of trees of arrays; only the library of HDF5 can crash the process while it reads headers."""
    from packer.sources.arrays.opening import open_arrays

    return open_arrays(kind, inputs, options, watcher, limits if kind == "hdf5" else None)


def read_trees(kind: str, table: SampleTable, fields: Sequence[FieldSpec], options: SourceOptions) -> Iterator[Block]:
    """Yield samples out of trees of arrays."""
    from packer.sources.arrays.source import read_table

    return read_table(kind, table, fields, options)


def _files_of_zarr(path: str) -> list[str]:
    return sorted(f"{path}/{file}" for file, _ in walk(path)) if Path(path).is_dir() else [path]


KINDS = (
    Kind(
        "hdf5",
        (".h5", ".hdf5", ".hdf", ".h5ad", ".he5", ".mat", ".nc", ".nc4", ".nxs"),
        open=partial(open_trees, "hdf5"),
        read_table=partial(read_trees, "hdf5"),
        units=("rows", "files", "datasets", "groups", "episodes"),
        names_fields=True,
        options=_GROUPED,
        exports="hdf5",
    ),
    Kind(
        "zarr",
        (".zarr", ".zarr.zip"),
        open=partial(open_trees, "zarr"),
        read_table=partial(read_trees, "zarr"),
        files_in=_files_of_zarr,
        units=("rows", "files", "datasets", "groups", "episodes"),
        names_fields=True,
        options=_GROUPED,
    ),
    Kind(
        "npy",
        (".npy", ".npz"),
        open=partial(open_trees, "npy"),
        read_table=partial(read_trees, "npy"),
        units=("rows", "files", "folders", "episodes"),
        lies_beside=True,
        options=_OPTIONS,
    ),
)
