"""Which kind of source a file is, by its suffix or first bytes, and which folders are a source as a whole."""

from __future__ import annotations

import os
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
    **dict.fromkeys((".h5", ".hdf5", ".hdf", ".h5ad", ".he5", ".mat", ".nc", ".nc4", ".nxs"), "hdf5"),
}

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: Where the signature may stand: other programs put blocks of their own in front (512 bytes in MATLAB 7.3).
_HDF5_STARTS = (0, 512, 1024, 2048)


def kind_of(file: str | os.PathLike[str]) -> str | None:
    """Return the kind of a file by its suffix, or `hdf5` by its first bytes; None if it cannot be packed."""
    path = Path(file)
    if path.name.startswith("."):
        return None
    kind = KIND_OF.get(path.suffix.lower())
    return "hdf5" if kind is None and _has_hdf5_signature(path) else kind


def _has_hdf5_signature(path: Path) -> bool:
    try:
        if not path.is_file():
            return False  # reading a pipe would wait
        with path.open("rb") as opened:
            head = opened.read(_HDF5_STARTS[-1] + len(_HDF5_SIGNATURE))
    except OSError:
        return False
    return any(head.startswith(_HDF5_SIGNATURE, start) for start in _HDF5_STARTS)


def is_basicsr(folder: Path) -> bool:
    """Whether it is an LMDB folder as BasicSR makes it."""
    return (folder / LMDB_DATA).is_file() and (folder / LMDB_LIST).is_file()
