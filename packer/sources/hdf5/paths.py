"""The HDF5 files that a path, a folder or a glob stands for."""

from __future__ import annotations

import glob
from pathlib import Path

from natsort import natsorted

from packer.errors import SourceError
from packer.sources.folders import walk
from packer.sources.suffixes import kind_of


def hdf5_paths(path: str) -> list[str]:
    """Paths of the files, in natural order (train_2.h5 before train_10.h5).

    Hidden files and folders of a folder (`._a.h5`, as some systems leave behind) are left out.

    Raises:
        SourceError: there is no such file, or the folder or glob holds none.
    """
    place = Path(path)
    if place.is_dir():
        files = [Path(folder, name) for folder, names in walk(place) for name in names]
        found = [str(file) for file in files if kind_of(file) == "hdf5" and file.is_file()]
        if not found:
            raise SourceError("the folder holds no file of HDF5", path)
        return _in_order(found)
    if place.exists() or not glob.has_magic(path):
        return [path]
    # Path.glob takes no absolute pattern.
    found = [p for p in glob.glob(path, recursive=True) if Path(p).is_file()]
    if not found:
        raise SourceError("no file fits this pattern", path)
    return _in_order(found)


def _in_order(paths: list[str]) -> list[str]:
    # natsort leaves ties (01 and 1) in the order given, which the file system chooses: sort plainly first.
    return natsorted(sorted(paths))
