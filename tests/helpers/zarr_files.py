"""zarr for tests: written in a line."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def write_zarr(path: Path, arrays: Mapping[str, Any], version: int = 2, **options: Any) -> str:
    """Write arrays by path into a folder, or into a zip file if that is the suffix; return its path.

    Args:
        options: of `create_array`, for all arrays.
    """
    zarr = pytest.importorskip("zarr", reason="zarr is not installed: it has no version of today for Python 3.10")

    store = zarr.storage.ZipStore(path, mode="w") if path.suffix == ".zip" else zarr.storage.LocalStore(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # text has no specification in version 3
        group = zarr.open_group(store, mode="w", zarr_format=version)
        for name, values in arrays.items():
            group.create_array(name, data=np.asarray(values), **options)
    store.close()
    return str(path)
