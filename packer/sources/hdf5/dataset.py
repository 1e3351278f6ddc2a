"""Opens one dataset of a file, with all that its values stand on checked."""

from __future__ import annotations

import math

import h5py

from packer.errors import SourceError
from packer.sources.hdf5.filters import missing_filter
from packer.sources.hdf5.storage import Storage, checked, external_prefix

#: Chunks above this stay decoded in libhdf5's cache while their rows are read. Decoding one takes that much
#: memory anyway, and decoding it again for every block would take minutes.
_GIANT_CHUNK_BYTES = 16 * 2**20


def dataset_at(file: h5py.File, path: str, name: str, samples: int) -> tuple[h5py.Dataset, Storage]:
    """The dataset `name` of the open file `path`, which has `samples` samples, and where its values lie.

    Called by the process that plans and by each that reads: files and plug-ins may be missing in any.

    Raises:
        SourceError: its values are not all there, or cannot be decoded.
    """
    dataset = file[name]
    try:
        storage = checked(dataset, samples)
    except SourceError as error:
        raise SourceError(error.reason, path) from error
    lacking = missing_filter(dataset)
    if lacking:
        raise SourceError(f"dataset {name} cannot be read: {lacking}", path)
    return _reopened(dataset), storage


def _reopened(dataset: h5py.Dataset) -> h5py.Dataset:
    """The same, with external raw files found beside the HDF5 file and giant chunks cached."""
    prefix = external_prefix(dataset)
    chunk_bytes = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize
    if prefix is None and chunk_bytes <= _GIANT_CHUNK_BYTES:
        return dataset
    holder, name = dataset.file.id, dataset.name.encode()
    # A dataset that is open already keeps the prefix and cache that it was opened with.
    dataset.id.close()
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    if prefix is not None:
        access.set_efile_prefix(prefix.encode())
    if chunk_bytes > _GIANT_CHUNK_BYTES:
        access.set_chunk_cache(1, chunk_bytes, 1.0)
    return h5py.Dataset(h5py.h5d.open(holder, name, access))
