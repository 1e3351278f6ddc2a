"""An HDF5 file of the hand-written digits that scikit-learn ships."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from sklearn.datasets import load_digits


def make_digits(path: Path) -> int:
    """Write `path`: `images` (n, 8, 8) uint8, 0 to 16, and `labels` (n,) int64. Returns n."""
    digits = load_digits()
    with h5py.File(path, "w") as file:
        file.attrs["description"] = "hand-written digits, 0 (white) to 16 (black)"
        # Times in the file would make every run's bytes different; h5py leaves them out by default.
        file["images"] = digits.images.astype(np.uint8)
        file["labels"] = digits.target.astype(np.int64)
    return len(digits.target)
