"""HDF5 files: a sample is a row of datasets, or a unit: a file, a dataset or a group."""

from packer.sources.hdf5.origin import HDF5Options, HDF5Origin, KeptFile
from packer.sources.hdf5.reading import SPARSE_PARTS
from packer.sources.hdf5.source import open_hdf5

__all__ = ["SPARSE_PARTS", "HDF5Options", "HDF5Origin", "KeptFile", "open_hdf5"]
