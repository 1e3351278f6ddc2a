"""Arrays in files: HDF5, zarr, .npy and .npz. A sample is a row of arrays, or a file, folder, array or group."""

from functools import partial

from packer.sources.arrays.opening import open_arrays
from packer.sources.arrays.origin import SPARSE_PARTS, ArraysOrigin, KeptFile, KeptOptions

open_hdf5 = partial(open_arrays, "hdf5")
open_npy = partial(open_arrays, "npy")
open_zarr = partial(open_arrays, "zarr")

__all__ = ["SPARSE_PARTS", "ArraysOrigin", "KeptFile", "KeptOptions", "open_hdf5", "open_npy", "open_zarr"]
