"""Which suffix belongs to which kind of source."""

from __future__ import annotations

KIND_OF = {
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"), "images"),
    ".ply": "ply",
    **dict.fromkeys((".h5", ".hdf5", ".hdf", ".h5ad", ".mat", ".nc"), "hdf5"),
}
