"""HDF5 files: rows of datasets, or one sample a group."""
