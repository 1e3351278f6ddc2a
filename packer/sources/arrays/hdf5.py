"""HDF5 files as trees of arrays. Errors of libhdf5 become a SourceError that says where.

libhdf5 gives fill values, and no error, where a file of a virtual dataset is missing or an external raw file is short.
So the files of a virtual dataset are looked for first, and external raw files are refused.
"""

from __future__ import annotations

import errno
import importlib
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, as_text
from packer.sources.arrays.tree import (
    CACHE_BYTES,
    TEXT,
    Entry,
    Tree,
    TreeFiles,
    Unwritten,
    Values,
    check_attribute,
    check_size,
    never,
)
from packer.sources.base import faults_of
from packer.sources.files import check_lasting, refuse_pointer, unreadable

#: All errors that h5py has been seen to raise on damaged files. MemoryError goes on to the caller, who knows the limit.
_FAULTS = (OSError, RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, SystemError)
#: How libhdf5 itself says that it gets no memory.
_NO_MEMORY = re.compile(r"memory allocation failed|image null after H5MM_realloc")
_TRUNCATED = re.compile(r"truncated file: eof = (\d+), .*stored_eof = (\d+)")

#: A dataset that declares more bytes than both this and this many times its file is taken for damaged. Deflate reaches
#: 1,032 on zeros.
#: Datasets and groups that stay open after they were listed, for their attributes.
_MAX_LISTED = 1000
_NETCDF_PLACEHOLDER = b"This is a netCDF dimension but not a netCDF variable"
#: Attributes by which libraries find their own structures; an export makes them again.
_STRUCTURE = ("CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates")


class Hdf5Tree(Tree):
    """An open HDF5 file; a dataset can be found through links, and is listed under its first name."""

    def __init__(self, files: TreeFiles) -> None:
        super().__init__(files)
        self._file = _opened(self.path)
        self._listed: dict[str, h5py.Dataset | h5py.Group] = {}

    def close(self) -> None:
        self._file.close()

    def faults(self, doing: str) -> AbstractContextManager[None]:
        return _faults_named(self.path, doing)

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
            except _FAULTS as error:
                advice = f"leave it out with --skip {prefix}, or pick" if prefix else "copy it again, or pick"
                reason = (
                    f"the group {prefix or '/'} cannot be listed ({_plain(error)}); {advice} fields with --field "
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
        except _FAULTS as error:
            check_lasting(error, self.path)
            return None

    def open(self, path: str, axis: int = 0, cache: int = CACHE_BYTES) -> Values:
        dataset = self._open(path, axis, cache)
        return _Bytes(dataset) if _holds_files(dataset) else dataset

    def _open(self, path: str, axis: int, cache: int) -> h5py.Dataset:
        dataset = self._file[path]
        _files_of(dataset, self.path)
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
        return _files_of(self._at(path), self.path)

    def _at(self, path: str) -> Any:
        """Return what is at a path, without opening again what was listed last."""
        return self._listed[path] if path in self._listed else self._file[path or "/"]

    @property
    def has_reversed_axes(self) -> bool:
        if not self.path.endswith(".mat"):
            return False
        with Path(self.path).open("rb") as file:
            return file.read(len(_MATLAB)) == _MATLAB

    def unwritten(self, path: str) -> list[Unwritten]:
        dataset = self._at(path)
        return _unwritten_in_sources(dataset) if dataset.is_virtual else _unwritten_in(dataset)

    def lacking_rows(self, path: str, axis: int) -> NDArray[np.int64]:
        dataset = self._at(path)
        return _lacking_rows_in_sources(dataset, axis) if dataset.is_virtual else _lacking_rows(dataset, axis)

    def bytes_after(self) -> int:
        with Path(self.path).open("rb") as file:
            end = _end_in(file, self._file.userblock_size)
            return os.fstat(file.fileno()).st_size - end if end else 0

    def attribute_names(self, path: str) -> list[str]:
        try:
            holder = self._at(path)
            if len(self._listed) < _MAX_LISTED:
                self._listed[path] = holder
            return [name for name in holder.attrs if name not in _STRUCTURE]
        except _FAULTS as error:
            check_lasting(error, self.path)
            return ["those that cannot be listed"]

    def attribute(self, path: str, name: str) -> NDArray[Any] | None:
        attributes = self._at(path).attrs
        with _damage_ignored(self.path):
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
    except _FAULTS as error:
        check_lasting(error, path)
        return Entry(path, problem=f"has a datatype that h5py cannot read ({_plain(error)})")
    with _damage_ignored(path):  # a damaged attribute costs nothing
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
    with suppress(*_FAULTS):
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
    except _FAULTS as error:
        check_lasting(error, path)
        return Entry(path, problem=f"cannot be opened: {_plain(error)}")
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


def _unwritten_in(dataset: h5py.Dataset) -> list[Unwritten]:
    chunks, missing = 1, int(not dataset.id.get_storage_size())
    if dataset.chunks:
        chunks = math.prod(-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True))
        missing = chunks - dataset.id.get_num_chunks()
    if not missing or not math.prod(dataset.shape) * dataset.dtype.itemsize:
        return []
    how_many = "all its values" if missing == chunks else f"{missing:,} of its {chunks:,} chunks"
    return [Unwritten(missing, "chunk", f"{how_many}, {dataset.fillvalue}")]


def _unwritten_in_sources(dataset: h5py.Dataset) -> list[Unwritten]:
    """Return the values of a virtual dataset that are in no file, and the chunks that its files lack."""
    unwritten = []
    with suppress(RuntimeError, ValueError):  # without an end: it is as long as its sources are
        shown = sum(source.vspace.get_select_npoints() for source in dataset.virtual_sources())
        if (holes := dataset.size - shown) > 0:
            reason = f"{holes:,} of its {dataset.size:,} values are in no file, {dataset.fillvalue}"
            unwritten.append(Unwritten(holes, "value", reason))
    lacking = [(path, u) for path, target in _virtual_sources(dataset) for u in _unwritten_in(target)]
    if lacking:
        (path, first), count = lacking[0], sum(u.missing for _, u in lacking)
        unwritten.append(Unwritten(count, "chunk", f"{first.in_words} of its source file {Path(path).name}"))
    return unwritten


def _lacking_rows(dataset: h5py.Dataset, axis: int) -> NDArray[np.int64]:
    """Return the spans of rows along an axis some of whose chunks were never written, (spans, 2)."""
    n = dataset.shape[axis]
    if not dataset.chunks:
        return np.array([(0, n)] * (not dataset.id.get_storage_size()), np.int64).reshape(-1, 2)
    rows = dataset.chunks[axis]
    across = [-(-length // chunk) for length, chunk in zip(dataset.shape, dataset.chunks, strict=True)]
    written = Counter[int]()
    dataset.id.chunk_iter(lambda chunk: written.update([chunk.chunk_offset[axis] // rows]))
    of_each = math.prod(across) // across[axis]
    whole = np.sort(np.array([place for place, count in written.items() if count == of_each], np.int64))
    between = np.column_stack([[0, *(whole + 1)], [*whole, across[axis]]])
    return np.asarray((between[between[:, 0] < between[:, 1]] * rows).clip(max=n))


def _lacking_rows_in_sources(dataset: h5py.Dataset, axis: int) -> NDArray[np.int64]:
    """Return the same of a virtual dataset: rows that have values in no file, or that lack chunks in theirs."""
    shown, counts, lacking = [(0, dataset.shape[axis])], [0.0], list[NDArray[np.int64]]()
    for source in dataset.virtual_sources():
        first, last = _reach(source.vspace, axis, dataset.shape)
        shown.append((first, last))
        counts.append(source.vspace.get_select_npoints() / max(1, last - first))
        for _, target in _targets_of(dataset, source):
            if _unwritten_in(target):
                start, stop = _reach(source.src_space, min(axis, len(target.shape) - 1), target.shape)
                is_alike = len(target.shape) == len(dataset.shape) and stop - start == last - first
                of_target = _lacking_rows(target, axis) - start + first if is_alike else np.array([(first, last)])
                lacking.append(np.clip(of_target, first, last))
    bounds = np.unique(shown)
    changes = np.zeros(len(bounds))
    for at, sign in ((0, 1), (1, -1)):
        np.add.at(changes, np.searchsorted(bounds, np.array(shown)[:, at]), sign * np.array(counts))
    is_short = np.cumsum(changes)[:-1] < dataset.size / max(1, dataset.shape[axis]) * (1 - 1e-9)
    return np.concatenate([np.column_stack([bounds[:-1], bounds[1:]])[is_short], *lacking])


def _reach(space: h5py.h5s.SpaceID, axis: int, shape: Sequence[int]) -> tuple[int, int]:
    """Return the first place along an axis that a selection shows, and the one after the last; all if it has no end."""
    with suppress(RuntimeError, ValueError):
        low, high = space.get_select_bounds()
        return low[axis], high[axis] + 1
    return 0, shape[axis]


# ---------------------------------------------------------------- files


@contextmanager
def _faults_named(path: str, doing: str) -> Iterator[None]:
    """Turn h5py's errors into `SourceError(path: doing failed: why)`, and keep its warnings quiet.

    Raises:
        SourceError: h5py raised an error.
        MemoryError: there is not enough memory, or a limit allows no more.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except _FAULTS as error:
        if _NO_MEMORY.search(str(error)):
            raise MemoryError(_plain(error)) from error
        raise unreadable(error, path, f"{doing} failed: {_plain(error)}") from error


@contextmanager
def _damage_ignored(path: str) -> Iterator[None]:
    """Ignore that something cannot be read, unless that passes."""
    try:
        yield
    except _FAULTS as error:
        check_lasting(error, path)


def _plain(error: BaseException) -> str:
    """Return the message of an error of libhdf5 in one line, without the word `synchronously`."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    lines = text.splitlines()
    return (lines[0] if lines else type(error).__name__).replace("synchronously ", "")


def _opened(path: str) -> h5py.File:
    """Open a file for reading.

    Raises:
        SourceError: it is missing, no HDF5 file, cut short, or being written by another program.
    """
    try:
        if not h5py.is_hdf5(path):
            raise SourceError(_what_it_is(path), path)
        return _open_locked(path)
    except _FAULTS as error:
        is_of_system = isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.EACCES)
        raise unreadable(error, path, "" if is_of_system else _why_not(error)) from error


def _open_locked(path: str) -> h5py.File:
    """Open with the library's own locking, which notices a writer; without it if the file system has no locks."""
    try:
        return h5py.File(path, "r")
    except OSError as error:
        is_locked = f"errno = {errno.EAGAIN}," in str(error)
        if "unable to lock file" not in str(error) or is_locked:
            raise
        return h5py.File(path, "r", locking=False)


def _why_not(error: BaseException) -> str:
    text = _plain(error)
    cut = _TRUNCATED.search(text)
    if cut:
        return f"is cut short: it holds {int(cut[1]):,} bytes, its header says {int(cut[2]):,}; copy it again"
    if "unable to lock file" in text:
        return "is being written by another program: close it there first"
    if "already open for write" in text:
        return "was not closed by its writer: wait for the writer, or clear the mark with `h5clear -s FILE`"
    return f"cannot be opened as HDF5: {text}"


#: How files of MATLAB begin that are HDF5: it keeps arrays column by column.
_MATLAB = b"MATLAB 7.3"

#: First bytes of files that have the suffixes of HDF5, and what to do with them.
_OTHERS = (
    (b"CDF", "is a NetCDF-3 file, not HDF5: rewrite it with `nccopy -k netCDF-4 IN OUT`"),
    (b"\x0e\x03\x13\x01", "is an HDF4 file, not HDF5: rewrite it with `h4toh5 IN OUT`"),
    (b"MATLAB 5.0", "is an old MATLAB file (version 5 to 7.2), not HDF5: save it in MATLAB with `-v7.3`"),
    *((start, "is a web page, not HDF5: the download went wrong") for start in (b"<!doctype", b"<html", b"<?xml")),
)


def _what_it_is(path: str) -> str:
    """Return a phrase for a file without an HDF5 signature, such as `is an HDF4 file, not HDF5`.

    Raises:
        OSError: the file cannot be read.
        SourceError: it is a pointer of git-LFS.
    """
    with Path(path).open("rb") as file:
        head = file.read(512)
    refuse_pointer(head, path)
    if not head:
        return "is empty (0 bytes); an HDF5 file is expected"
    known = (meaning for magic, meaning in _OTHERS if head.lstrip().lower().startswith(magic.lower()))
    return next(known, f"is not an HDF5 file: it begins with {head[:8]!r}; name the files of HDF5 with a pattern")


# ---------------------------------------------------------------- datasets


def _files_of(dataset: h5py.Dataset, path: str) -> list[str]:
    """Return the paths of all files that a dataset is read from, except the one at `path`.

    Raises:
        SourceError: its values are not all there, or cannot be decoded.
    """
    home = h5py.h5f.get_name(dataset.id).decode("utf-8", "surrogateescape")
    with faults_of(path):
        if dataset.external:
            raise SourceError(
                f"dataset {dataset.name} keeps its values in a raw file, {dataset.external[0][0]}; "
                "write them into the HDF5 file, with h5py by x = file[NAME][()]; del file[NAME]; file[NAME] = x"
            )
        files = [home, *(path for path, _ in (_virtual_sources(dataset) if dataset.is_virtual else ()))]
        sizes = (Path(file).stat().st_size for file in dict.fromkeys(files))
        check_size(dataset.name, dataset.shape, dataset.dtype, sizes)
        if lacking := _missing_filter(dataset):
            raise SourceError(f"dataset {dataset.name} cannot be read: {lacking}")
    return [file for file in dict.fromkeys(files) if file != path]


def _virtual_sources(dataset: h5py.Dataset) -> Iterator[tuple[str, h5py.Dataset]]:
    """Yield the paths of all files that a virtual dataset maps, each with its open dataset, which holds all it maps."""
    for source in dataset.virtual_sources():
        yield from _targets_of(dataset, source)


def _targets_of(dataset: h5py.Dataset, source: Any) -> Iterator[tuple[str, h5py.Dataset]]:
    """Yield the path and the open dataset of each file that one source of a virtual dataset names."""
    for name, dataset_name in _names_of(dataset, source):
        where = f"virtual dataset {dataset.name}: its source dataset {dataset_name} of file {name}"
        path = next((str(place) for place in _places_of(dataset, name) if place.exists()), None)
        if path is None:
            what = f"virtual dataset {dataset.name}: its source file {name}"
            raise SourceError(f"{what} does not exist; bring it back")
        with nullcontext(dataset.file) if path == dataset.file.filename else h5py.File(path, "r") as file:
            target = file.get(dataset_name)
            if not isinstance(target, h5py.Dataset):
                raise SourceError(f"{where} does not exist")
            if target.is_virtual:
                raise SourceError(f"{where} is virtual, too; show the datasets that hold its values instead")
            if _falls_short(dataset, source, target):
                raise SourceError(f"{where} is too small: it has shape {target.shape}")
            yield path, target


#: What a file begins with, behind what a user put before it; and the place of its end, by the version of its head. All
#: as the format's specification has it (II.A, superblock), for addresses of 8 bytes, counted from its base address.
_HEAD, _BASE_AND_END = b"\x89HDF\r\n\x1a\n", {0: (24, 40), 1: (28, 44), 2: (12, 28), 3: (12, 28)}


def _end_in(file: BufferedReader, start: int) -> int:
    """Return the end of an open file of HDF5 as its head says it, whose bytes begin at `start`; 0 if it does not."""
    file.seek(start)
    head = file.read(64)
    base_at, end_at = _BASE_AND_END.get(head[8], (0, 0))
    base, end = (int.from_bytes(head[at : at + 8], "little") for at in (base_at, end_at))
    is_known = head.startswith(_HEAD) and end_at and head[9 if head[8] > 1 else 13] == 8
    return end - base + start if is_known else 0


def _places_of(dataset: h5py.Dataset, name: str) -> list[Path]:
    """Return where libhdf5 looks for a source file of a virtual dataset, in its order."""
    folder = Path(dataset.file.filename).parent
    return [Path(dataset.file.filename)] if name == "." else [folder / name, Path(name), folder / Path(name).name]


def _names_of(dataset: h5py.Dataset, source: Any) -> list[tuple[str, str]]:
    """Return the file and the dataset of each block that a source names: one, or with `%b` one for each number.

    A virtual dataset ends at the first block that is missing.

    Raises:
        SourceError: a later one is there, so values are missing.
    """
    names = source.file_name, source.dset_name
    if not any("%b" in name for name in names):
        return [names]
    start, stride, count, _ = source.vspace.get_regular_hyperslab()
    axis = count.index(max(count))  # the one without an end
    blocks = -(-(dataset.shape[axis] - start[axis]) // stride[axis])
    numbered = [tuple(name.replace("%b", str(n)).replace("%%", "%") for name in names) for n in range(blocks)]
    pattern = re.compile(r"(\d+)".join(map(re.escape, Path(names[0]).name.split("%b"))))
    for place in _places_of(dataset, names[0]) if "%b" in names[0] else ():
        found = [pattern.fullmatch(other.name) for other in place.parent.glob("*")] if place.parent.is_dir() else []
        if any(match and int(match[1]) > blocks for match in found):
            lacking = names[0].replace("%b", str(blocks))
            raise SourceError(
                f"virtual dataset {dataset.name}: its source file {lacking} does not exist, and later ones do; "
                "bring it back"
            )
    return [(file, name) for file, name in numbered]


def _falls_short(dataset: h5py.Dataset, source: Any, target: h5py.Dataset) -> bool:
    """Return whether the source lacks some of the rows that are mapped; an unlimited selection follows the source."""
    mapped, space = source.vspace, source.src_space
    try:
        if "%b" in source.file_name + source.dset_name:
            return bool(math.prod(target.shape) < math.prod(mapped.get_regular_hyperslab()[3]))
        if space.get_select_type() == h5py.h5s.SEL_ALL:
            all_shown = mapped.get_select_type() == h5py.h5s.SEL_ALL
            return bool(math.prod(target.shape) != (dataset.size if all_shown else mapped.get_select_npoints()))
        _low, high = space.get_select_bounds()
    except (RuntimeError, ValueError):
        return False
    return len(high) == len(target.shape) and any(h >= n for h, n in zip(high, target.shape, strict=True))


def _missing_filter(dataset: h5py.Dataset) -> str | None:
    """Return why the dataset's chunks cannot be decoded here, with the remedy; None if they can.

    Imports hdf5plugin, if it is installed, when a filter is met that libhdf5 does not have.
    """
    plist = dataset.id.get_create_plist()
    for i in range(plist.get_nfilters()):
        number, _flags, _values, name = plist.get_filter(i)
        if not h5py.h5z.filter_avail(number):
            with suppress(ImportError):
                importlib.import_module("hdf5plugin")
        if not h5py.h5z.filter_avail(number):
            label = name.decode("utf-8", "replace").strip() or "a filter without a name"
            return (
                f"it is compressed with {label} (HDF5 filter {number}), for which there is no plug-in: `pip install -U "
                "hdf5plugin` brings most plug-ins; for others set HDF5_PLUGIN_PATH to the folder of the plug-in, or "
                "rewrite the file with `h5repack -f GZIP=4 IN OUT` on a machine that has it"
            )
    return None
