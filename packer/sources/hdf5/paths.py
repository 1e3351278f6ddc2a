"""The HDF5 files that a path, a folder or a glob stands for."""

from __future__ import annotations

import glob
from pathlib import Path

from packer.errors import SourceError
from packer.sources.files import find, kind_of


def hdf5_paths(path: str) -> list[str]:
    """Return the paths of the files, in natural order (train_2.h5 before train_10.h5).

    Of a folder those that are HDF5 are taken; a file named by itself, or by a pattern, may be anything yet.

    Raises:
        SourceError: the folder or pattern holds none, or one that is a broken link or no regular file.
    """
    is_folder = Path(path).is_dir()
    if not is_folder and (Path(path).exists() or not glob.has_magic(path)):
        return [path]
    found = find(path)
    files = found.pick(lambda file: not is_folder or kind_of(found.path(file)) == "hdf5")
    if not files:
        raise SourceError("the folder holds no file of HDF5" if is_folder else "no file fits this pattern", path)
    return [found.path(file) for file in files]
