"""HDF5 files: rows of datasets, or one sample a group."""

from packer.sources.hdf5.source import open_hdf5

__all__ = ["open_hdf5"]
