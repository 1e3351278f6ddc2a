"""constants.npz: arrays that are the same for every sample, such as grids and coordinates, kept once."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import DamagedError, DatasetError, UsageError
from packer.format.manifest import FileEntry, check_file, data_entry, read_errors
from packer.format.schema import DTYPES, check_field_name, spec_of


def encode_constants(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes of constants.npz, empty if there are none; the same arrays give the same bytes.

    Raises:
        UsageError: a name cannot be one, or an array has a dtype that cannot be stored.
    """
    if not arrays:
        return b""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            try:
                check_field_name(name)
            except ValueError as error:
                raise UsageError(str(error)) from None
            array = np.asarray(arrays[name])
            spec = spec_of(name, array)
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array, spec.np_dtype, order="C"), (1, 0), allow_pickle=False)
    return buffer.getvalue()


def read_constants(path: Path, entry: FileEntry) -> dict[str, NDArray[Any]]:
    """Return the arrays of constants.npz by name, read-only, after checking the file against FORMAT.md.

    Raises:
        DamagedError: the file has another size or digest, or breaks a rule of FORMAT.md.
        DatasetError: it cannot be opened.
    """
    check_file(path, entry, whole=True)
    constants: dict[str, NDArray[Any]] = {}
    try:
        with read_errors(path), zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if sum(member.compress_size for member in members) > entry.bytes:
                raise ValueError("its members claim more bytes than it has")
            for member in members:
                name = member.orig_filename.removesuffix(".npy")
                if name in constants or not member.orig_filename.endswith(".npy"):
                    raise ValueError("its names are not NAME.npy, each once")
                check_field_name(name)
                constants[name] = _read_array(archive, member)
    except DatasetError:
        raise
    except Exception as error:  # zipfile and numpy raise many kinds
        raise DamagedError(f"{path}: {error}; run `packer repair` with the sources") from None
    return constants


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Return the array of a member, in the byte order of the machine; raise ValueError if it is no plain one."""
    if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
        raise ValueError(f"{member.filename} is compressed")
    with archive.open(member) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{member.filename} is not NPY 1.0")
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
        if is_fortran or dtype.name not in DTYPES or dtype != dtype.newbyteorder("<"):
            raise ValueError(f"{member.filename} is not little-endian and in C order, of a dtype that fields have")
        size = member.file_size - file.tell()
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size:
            raise ValueError(f"{member.filename} has {size:,} bytes, which are not those of its shape {shape}")
        return np.frombuffer(file.read(), dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def same_constants(entry: FileEntry | None, data: bytes) -> bool:
    """Return whether constants in a manifest are those encoded as `data`."""
    return data == b"" if entry is None else data_entry(entry.file, data) == entry


class Constants(Mapping[str, NDArray[Any]]):
    """The constants of a dataset by name. The file is read and compared with its digest when it is first needed.

    Args:
        folder: the dataset's.
        entry: the entry of the file in its manifest; None if there are no constants.
    """

    def __init__(self, folder: Path, entry: FileEntry | None) -> None:
        self._folder = folder
        self._entry = entry

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return an array of the caller's own.

        Raises:
            DamagedError: the file was changed after it was written.
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
        return read_constants(self._folder / self._entry.file, self._entry)

    def __reduce__(self) -> tuple[type[Constants], tuple[Path, FileEntry | None]]:
        return Constants, (self._folder, self._entry)
