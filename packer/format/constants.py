"""constants.npz: arrays that are the same for every sample, such as grids and coordinates, kept once."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import DamagedError, UsageError
from packer.format.manifest import CONSTANTS_FILE, FileEntry, Manifest
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


def constants_digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the digest that constants.npz would have; raises as `write_constants`."""
    return _entry(_encoded(arrays)).digest


def kept_digest(manifest: Manifest) -> str | None:
    """Return the digest of the constants of a dataset; None if it has none."""
    return None if isinstance(manifest.constants, msgspec.UnsetType) else manifest.constants.digest


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


def constants_entry(folder: Path) -> FileEntry | None:
    """Return what a manifest says of the constants that a folder holds; None if it has none.

    Raises:
        DamagedError: they cannot be read.
    """
    path = folder / CONSTANTS_FILE
    if not path.exists():
        return None
    entry = _entry(path.read_bytes())
    for _ in Constants(folder, entry).values():
        pass
    return entry


def kept_constants(folder: Path, manifest: Manifest) -> Constants:
    """Return the constants of a dataset; an empty mapping if it has none."""
    return Constants(folder, None if isinstance(manifest.constants, msgspec.UnsetType) else manifest.constants)


class Constants(Mapping[str, NDArray[Any]]):
    """The constants of a dataset by name, read from the file when they are asked for; the whole file is checked first.

    Args:
        folder: the dataset's.
        entry: what its manifest says of the file; None if there are no constants.
    """

    def __init__(self, folder: Path, entry: FileEntry | None) -> None:
        self._path = folder / entry.file if entry else folder
        self._entry = entry
        self._archive: zipfile.ZipFile | None = None

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return an array of the caller's own.

        Raises:
            DamagedError: the file is not what it was when it was written.
        """
        if name not in self._names():
            raise KeyError(name)
        assert self._archive is not None
        try:
            with self._archive.open(f"{name}.npy") as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise self._damaged(str(error)) from None
        return np.array(array, array.dtype.newbyteorder("="))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __repr__(self) -> str:
        return f"Constants({', '.join(self)})"

    def _names(self) -> list[str]:
        if self._entry is None:
            return []
        if self._archive is None:
            try:
                data = self._path.read_bytes()
            except OSError as error:
                raise self._damaged(error.strerror or str(error)) from None
            if len(data) != self._entry.bytes:
                raise self._damaged(f"{len(data):,} bytes, {self._entry.bytes:,} expected")
            if xxhash.xxh3_128_hexdigest(data) != self._entry.digest:
                raise self._damaged("its digest is wrong: it was changed after it was written")
            try:
                self._archive = zipfile.ZipFile(io.BytesIO(data))
            except zipfile.BadZipFile as error:
                raise self._damaged(str(error)) from None
        return [name.removesuffix(".npy") for name in self._archive.namelist()]

    def _damaged(self, why: str) -> DamagedError:
        return DamagedError(f"{self._path}: {why}; run `packer repair` with the sources")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_archive": None}
