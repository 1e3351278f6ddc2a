"""HDF5 files as trees of arrays."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.errors import as_text
from packer.sources.arrays.hdf5_datasets import (
    files_of,
    lacking_rows,
    unwritten_in,
)
from packer.sources.arrays.hdf5_files import FAULTS, MATLAB, damage_ignored, end_in, faults_named, open_file, plain
from packer.sources.arrays.tree import (
    CACHE_BYTES,
    TEXT,
    Entry,
    Tree,
    TreeFiles,
    Unwritten,
    Values,
    check_attribute,
    never,
)
from packer.sources.files import check_lasting, unreadable

#: Datasets and groups that stay open after they were listed, for their attributes.
_MAX_LISTED = 1000
_NETCDF_PLACEHOLDER = b"This is a netCDF dimension but not a netCDF variable"
#: Attributes by which libraries find their own structures; an export makes them again.
_STRUCTURE = ("CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates")


class Hdf5Tree(Tree):
    """An open HDF5 file; a dataset can be found through links, and is listed under its first name."""

    def __init__(self, files: TreeFiles) -> None:
        super().__init__(files)
        self._file = open_file(self.path)
        self._listed: dict[str, h5py.Dataset | h5py.Group] = {}

    def close(self) -> None:
        self._file.close()

    def faults(self, doing: str) -> AbstractContextManager[None]:
        return faults_named(self.path, doing)

    def entries(
        self, root: str = "", is_out: Callable[[str], bool] = never, is_unit: Callable[[str], bool] = never
    ) -> Iterator[Entry]:
        self._listed = {}
        top = self._file[root or "/"]
        if isinstance(top, h5py.Dataset):
            yield _entry("", top)
            return
        seen: dict[int, str] = {}
        groups: list[tuple[str, h5py.Group]] = [("", top)]
        while groups:
            prefix, group = groups.pop()
            deeper = []
            try:
                seen.setdefault(h5py.h5o.get_info(group.id).addr, prefix or "/")
                names = list(group)
            except FAULTS as error:
                advice = f"leave it out with --skip {prefix}, or pick" if prefix else "copy it again, or pick"
                reason = (
                    f"the group {prefix or '/'} cannot be listed ({plain(error)}); {advice} fields with --field "
                    "NAME=/path, for which nothing is listed"
                )
                raise unreadable(error, self.path, reason) from error
            for name in names:
                path = f"{prefix}/{as_text(name)}"
                if is_out(path):
                    continue
                member = _met(group, name, path, seen, is_unit(path))
                if isinstance(member, h5py.Datatype):
                    continue  # it has no values
                if isinstance(member, h5py.Dataset) and len(self._listed) < _MAX_LISTED:
                    self._listed[root + path] = member
                yield member if isinstance(member, Entry) else _entry(path, member)
                if isinstance(member, h5py.Group) and not is_unit(path):
                    deeper.append((path, member))
            groups += reversed(deeper)

    def find(self, path: str) -> Entry | None:
        try:
            return _entry(path, self._file[path or "/"])
        except FAULTS as error:
            check_lasting(error, self.path)
            return None

    def open(self, path: str, axis: int = 0, cache: int = CACHE_BYTES) -> Values:
        dataset = self._open(path, axis, cache)
        return _Bytes(dataset) if _holds_files(dataset) else dataset

    def _open(self, path: str, axis: int, cache: int) -> h5py.Dataset:
        dataset = self._file[path]
        files_of(dataset, self.path)
        if not dataset.chunks:
            return dataset
        across = [-(-int(n) // int(c)) for n, c in zip(dataset.shape, dataset.chunks, strict=True)]
        chunks = math.prod(across) // max(1, across[axis])
        access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
        _slots, usual, _preemption = dataset.id.get_access_plist().get_chunk_cache()
        # A chunk larger than `cache` is kept as well: decoding it takes that memory anyway, and decoding it again for
        # every block would take minutes.
        chunk_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
        cache_bytes = chunk_bytes * (chunks if chunk_bytes * chunks <= cache else 1)
        if cache_bytes <= usual:
            return dataset
        # Chunks in one slot of libhdf5's table drive each other out, so it gets many more slots than chunks.
        access.set_chunk_cache(min(100 * chunks, 2**20) + 1, cache_bytes, 1.0)
        holder, name_there = dataset.file.id, dataset.name.encode()
        dataset.id.close()  # a dataset that is open already keeps its cache
        return h5py.Dataset(h5py.h5d.open(holder, name_there, access))

    def files_of(self, path: str) -> list[str]:
        return files_of(self._at(path), self.path)

    def _at(self, path: str) -> Any:
        """Return what is at a path, without opening again what was listed last."""
        return self._listed[path] if path in self._listed else self._file[path or "/"]

    @property
    def has_reversed_axes(self) -> bool:
        if not self.path.endswith(".mat"):
            return False
        with Path(self.path).open("rb") as file:
            return file.read(len(MATLAB)) == MATLAB

    def unwritten(self, path: str) -> list[Unwritten]:
        return unwritten_in(self._at(path))

    def lacking_rows(self, path: str, axis: int) -> NDArray[np.int64]:
        return lacking_rows(self._at(path), axis)

    def bytes_after(self) -> int:
        with Path(self.path).open("rb") as file:
            end = end_in(file, self._file.userblock_size)
            return os.fstat(file.fileno()).st_size - end if end else 0

    def attribute_names(self, path: str) -> list[str]:
        try:
            holder = self._at(path)
            if len(self._listed) < _MAX_LISTED:
                self._listed[path] = holder
            return [name for name in holder.attrs if name not in _STRUCTURE]
        except FAULTS as error:
            check_lasting(error, self.path)
            return ["those that cannot be listed"]

    def attribute(self, path: str, name: str) -> NDArray[Any] | None:
        attributes = self._at(path).attrs
        with damage_ignored(self.path):
            header = attributes.get_id(name)
            check_attribute(header.dtype, header.shape)  # h5py corrupts memory when it reads lists of references
            value = attributes[name]
            return np.array(value, TEXT if isinstance(value, str) else None)
        return None


def _entry(path: str, thing: h5py.Dataset | h5py.Group) -> Entry:
    """Return a group or dataset, from its header."""
    if isinstance(thing, h5py.Group):
        return Entry(path, is_group=True)
    try:
        shape, dtype, (problem, remark) = thing.shape, thing.dtype, _misread(thing.id.get_type())
    except FAULTS as error:
        check_lasting(error, path)
        return Entry(path, problem=f"has a datatype that h5py cannot read ({plain(error)})")
    with damage_ignored(path):  # a damaged attribute costs nothing
        if h5py.h5ds.is_scale(thing.id) and h5py.h5ds.get_scale_name(thing.id).startswith(_NETCDF_PLACEHOLDER):
            return Entry(path, aside="is a NetCDF dimension without values")
    if _holds_files(thing):
        shape, dtype = (*shape, dtype.itemsize), np.dtype(np.uint8)
        remark = "holds files of images as strings, which are taken as bytes; --encoded decodes them"
    return Entry(path, shape=shape and tuple(map(int, shape)), dtype=dtype, problem=problem, remark=remark)


#: Strings that are shorter are no files of images; how such files begin, which is never text in UTF-8.
_LEAST_FILE, _FILES = 64, (b"\xff\xd8\xff", b"\x89PNG\r\n")


def _holds_files(dataset: h5py.Dataset) -> bool:
    """Return whether strings of a fixed length are files of images, as some robots record them: by the first one."""
    if dataset.dtype.kind != "S" or dataset.dtype.itemsize < _LEAST_FILE or not dataset.size:
        return False
    with suppress(*FAULTS):
        return bytes(dataset[(0,) * len(dataset.shape)]).startswith(_FILES)
    return False


class _Bytes:
    """Strings of a fixed length as their bytes, uint8 with one axis more; only whole strings are read."""

    def __init__(self, strings: h5py.Dataset) -> None:
        self._strings = strings
        self.shape = (*strings.shape, strings.dtype.itemsize)
        self.dtype = np.dtype(np.uint8)

    def __getitem__(self, place: Any, /) -> Any:
        strings = np.asarray(self._strings[place], self._strings.dtype)
        return np.frombuffer(strings.tobytes(), np.uint8).reshape(*strings.shape, self.shape[-1])


def _met(
    group: h5py.Group, name: str | bytes, path: str, seen: dict[int, str], is_unit: bool
) -> Entry | h5py.Dataset | h5py.Group | h5py.Datatype:
    """Return what a group holds under a name; an entry that says why, if it is skipped or cannot be opened."""
    if isinstance(name, bytes):
        return Entry(path, problem="has a name that is not UTF-8")
    try:
        if group.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
            return group[name] if is_unit else Entry(path, aside="is a link")
        thing = group[name]
        first = seen.setdefault(h5py.h5o.get_info(thing.id).addr, path)
    except FAULTS as error:
        check_lasting(error, path)
        return Entry(path, problem=f"cannot be opened: {plain(error)}")
    return thing if first == path or is_unit else Entry(path, aside=f"is another name of {first}")


def _misread(type_: h5py.h5t.TypeID, within: bool = False) -> tuple[str, str]:
    """Return why h5py cannot read values of a datatype, and a remark if it changes them, as phrases, empty if not.

    h5py corrupts memory when it reads lists of references. It widens floats that numpy does not have; within a
    compound (`within`) these then overlap the next member.
    """
    if isinstance(type_, h5py.h5t.TypeVlenID | h5py.h5t.TypeArrayID):
        return _misread(type_.get_super(), within)
    if isinstance(type_, h5py.h5t.TypeCompoundID):
        members = (_misread(type_.get_member_type(number), True) for number in range(type_.get_nmembers()))
        return next(filter(any, members), ("", ""))
    if isinstance(type_, h5py.h5t.TypeReferenceID):
        return "holds references to other objects, which cannot be stored", ""
    if isinstance(type_, h5py.h5t.TypeFloatID) and type_.dtype.itemsize > type_.get_size():
        bits, wide = 8 * type_.get_size(), type_.dtype.newbyteorder("=").name
        problem = f"holds floats of {bits} bits that numpy does not have, such as bfloat16"
        return (f"{problem}; write them as float32", "") if within else ("", f"{problem}; they are packed as {wide}")
    return "", ""
