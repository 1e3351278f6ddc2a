"""Which suffix belongs to which kind of source, and which folders are a source as a whole."""

from __future__ import annotations

from pathlib import Path

#: What an LMDB folder of BasicSR holds: the values, and the list of their keys.
LMDB_DATA, LMDB_LIST = "data.mdb", "meta_info.txt"

#: What the suffix of an image file says that it holds.
IMAGES = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".webp": "WebP",
    ".bmp": "BMP",
    ".gif": "GIF",
}

KIND_OF = {
    **dict.fromkeys(IMAGES, "images"),
    ".ply": "ply",
    **dict.fromkeys((".npy", ".npz"), "npy"),
    **dict.fromkeys((".h5", ".hdf5", ".hdf", ".h5ad", ".mat", ".nc"), "hdf5"),
}


def is_basicsr(folder: Path) -> bool:
    """Whether it is an LMDB folder as BasicSR makes it."""
    return (folder / LMDB_DATA).is_file() and (folder / LMDB_LIST).is_file()
