"""constants.npz: arrays that are the same for every sample, such as grids and coordinates, kept once."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import DamagedError, UsageError
from packer.format.manifest import CONSTANTS_FILE, FileEntry, check_file
from packer.format.schema import check_field_name, spec_of
from packer.format.sync import write_synced


def write_constants(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> FileEntry:
    """Write constants.npz under a temporary name first; the same arrays give the same bytes.

    Raises:
        UsageError: a name cannot be one, or an array has a dtype that cannot be stored.
    """
    data = _encoded(arrays)
    write_synced(folder / CONSTANTS_FILE, data)
    return _entry(data)


def constants_entry(arrays: Mapping[str, NDArray[Any]]) -> FileEntry | None:
    """Return what a manifest says of such constants, None if there are none; raises as `write_constants`."""
    return _entry(_encoded(arrays)) if arrays else None


def _entry(data: bytes) -> FileEntry:
    return FileEntry(file=CONSTANTS_FILE, bytes=len(data), digest=xxhash.xxh3_128_hexdigest(data))


def _encoded(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            try:
                check_field_name(name)
            except ValueError as error:
                raise UsageError(str(error)) from None
            array = np.asarray(arrays[name])
            spec = spec_of(name, array)
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array, spec.np_dtype, order="C"), (1, 0), allow_pickle=False)
    return held.getvalue()


def found_constants(folder: Path) -> FileEntry | None:
    """Return what a manifest says of the constants that a folder holds; None if it has none.

    Raises:
        DamagedError: they cannot be read.
    """
    path = folder / CONSTANTS_FILE
    if not path.exists():
        return None
    entry = _entry(path.read_bytes())
    len(Constants(folder, entry))  # reads all of them
    return entry


class Constants(Mapping[str, NDArray[Any]]):
    """The constants of a dataset by name, read from the file, and compared with its digest, when one is asked for.

    Args:
        folder: the dataset's.
        entry: what its manifest says of the file; None if there are no constants.
    """

    def __init__(self, folder: Path, entry: FileEntry | None) -> None:
        self._folder = folder
        self._entry = entry

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return an array of the caller's own.

        Raises:
            DamagedError: the file is not what it was when it was written.
        """
        return self._arrays[name].copy()

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"Constants({', '.join(self)})"

    @cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        if self._entry is None:
            return {}
        found = {}
        path = self._folder / self._entry.file
        try:
            check_file(path, self._entry, whole=True)
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    with archive.open(name) as file:
                        array = np.lib.format.read_array(file, allow_pickle=False)
                    found[name.removesuffix(".npy")] = array.astype(array.dtype.newbyteorder("="))
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            why = error.strerror if isinstance(error, OSError) else None
            raise DamagedError(f"{path}: {why or error}; run `packer repair` with the sources") from None
        return found

    def __reduce__(self) -> tuple[type[Constants], tuple[Path, FileEntry | None]]:
        return Constants, (self._folder, self._entry)
