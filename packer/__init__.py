"""Turn PNG pairs, PLY clouds and HDF5 files into compressed, contiguous LMDB shards."""

__version__ = "0.1.0"
