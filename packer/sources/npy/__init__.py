"""NumPy arrays: .npy files and .npz archives."""

from packer.sources.npy.opening import open_npy

__all__ = ["open_npy"]
