"""Arrays in files: HDF5, zarr, .npy and .npz. A sample is a row of arrays, or a file, folder, array or group."""

from packer.sources.arrays.origin import SPARSE_PARTS, ArraysOrigin, KeptFile, KeptOptions

__all__ = ["SPARSE_PARTS", "ArraysOrigin", "KeptFile", "KeptOptions"]
