"""zarr of versions 2 and 3, folders and zip files, as trees of arrays, read by the zarr package."""

from __future__ import annotations

import math
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from natsort import natsorted
from numcodecs import get_codec
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError, first_few
from packer.sources.arrays.tree import CACHE_BYTES, TEXT, Entry, Tree, TreeFiles, Unwritten, check_size, never, spans_of
from packer.sources.base import faults_of
from packer.sources.ends import bytes_after
from packer.sources.files import ZARR_FILES, is_zarr, open_raw, unreadable

#: How numcodecs says that it lacks a codec, its prefix in metadata of version 3, and those that an extra of it brings.
#: What numcodecs and zarr say of a codec that is not there, in words of several versions.
_UNKNOWN_CODEC = re.compile(r"(?:codec not available|Unknown codec): '*(?:\w+\.)*(\w+)|(\w+) must be installed")
_NUMCODECS = "numcodecs."
_EXTRAS = ("crc32c", "google_crc32c", "msgpack", "pcodec", "zfpy")


class ZarrTree(Tree):
    """An open zarr."""

    def __init__(self, files: TreeFiles) -> None:
        super().__init__(files)
        if find_spec("zarr") is None:
            raise UsageError("zarr is read by the package zarr: pip install '.[zarr]' in a clone of packer")
        import zarr

        self._store: Any = None
        with self.faults("opening it"):
            inner = ""
            if Path(self.path).is_file():
                self._store, inner = zarr.storage.ZipStore(self.path, mode="r"), self._inner()
            elif not is_zarr(Path(self.path)):
                raise SourceError("is no zarr: it has neither zarr.json nor .zgroup nor .zarray", self.path)
            self._top: Any = zarr.open(self._store or self.path, mode="r", path=inner)
            if isinstance(self._top, zarr.Group):  # consolidated metadata may be older than the arrays
                self._top = zarr.open_group(self._store or self.path, mode="r", path=inner, use_consolidated=False)

    def _inner(self) -> str:
        """Return the folder of the one zarr in a zip file; empty if the file itself is one.

        Raises:
            SourceError: there is none, or there are several.
        """
        homes = {home for home, _, name in (n.rpartition("/") for n in self._names_in_zip) if name in ZARR_FILES}
        tops = [home for home in homes if not any(home.startswith(other and f"{other}/") for other in homes - {home})]
        if len(tops) != 1:
            content = (
                f"holds {len(tops):,} zarr, {first_few(sorted(tops))}; zip each alone" if tops else "holds no zarr"
            )
            raise SourceError(content, self.path)
        return tops[0]

    @cached_property
    def _names_in_zip(self) -> list[str]:
        with zipfile.ZipFile(self.path) as file:
            return file.namelist()

    def bytes_after(self) -> int:
        if self._store is None:
            return 0
        with open_raw(self.path) as file:
            return bytes_after(file)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def faults(self, doing: str) -> AbstractContextManager[None]:
        return _faults(self.path, doing)

    def _at(self, path: str) -> Any:
        return self._top[path[1:]] if path else self._top

    def entries(
        self, root: str = "", is_out: Callable[[str], bool] = never, is_unit: Callable[[str], bool] = never
    ) -> Iterator[Entry]:
        top = self._at(root)
        if hasattr(top, "shape"):
            yield _entry("", top)
            return
        groups = [("", top)]
        while groups:
            prefix, group = groups.pop()
            deeper = []
            for name, member in natsorted(self._members(group), key=lambda pair: pair[0]):
                path = f"{prefix}/{name}"
                if not is_out(path):
                    yield member._replace(path=path) if isinstance(member, Entry) else _entry(path, member)
                    if not (hasattr(member, "shape") or is_unit(path)):
                        deeper.append((path, member))
            groups += reversed(deeper)

    def _members(self, group: Any) -> Iterator[tuple[str, Any]]:
        """Yield name and member of all that a group holds; an entry that says why, if one cannot be opened."""
        for name in self._names_below(group.path):
            try:
                yield name, group[name]
            except Exception as error:
                yield name, Entry(name, problem=f"cannot be opened: {_why_not(error)}")

    def _names_below(self, path: str) -> list[str]:
        """Return the names of the groups and arrays in a group, from the store itself."""
        if self._store is None:
            folder = Path(self.path, path)
            return [place.name for place in folder.iterdir() if is_zarr(place)]
        start = f"{path}/" if path else ""
        parts = [name.removeprefix(start).split("/") for name in self._names_in_zip if name.startswith(start)]
        return sorted({first for first, *rest in parts if len(rest) == 1 and rest[0] in ZARR_FILES})

    def find(self, path: str) -> Entry | None:
        try:
            return _entry(path, self._at(path))
        except KeyError:
            return None
        except Exception as error:
            return Entry(path, problem=f"cannot be opened: {_why_not(error)}")

    def open(self, path: str, axis: int = 0, cache: int = CACHE_BYTES) -> _Chunked:
        return _Chunked(self._at(path), axis, cache)

    def files_of(self, path: str) -> list[str]:
        array = self._at(path)
        with faults_of(self.path):
            check_size(path, array.shape, np.dtype(array.dtype), self._file_sizes(path))
        return []

    def _file_sizes(self, path: str) -> Iterator[int]:
        """Yield the bytes of the files that may hold the chunks of an array."""
        if self._store is not None:
            yield Path(self.path).stat().st_size
            return
        for folder, _, files in os.walk(self.path + path):
            yield from (Path(folder, file).stat().st_size for file in files)

    def unwritten(self, path: str) -> list[Unwritten]:
        self.files_of(path)  # one that is far too large would be counted for hours
        array = self._at(path)
        missing = array.nchunks - array.nchunks_initialized
        if getattr(array, "shards", None) is not None:
            missing = sum(int(np.count_nonzero(lacks)) for _, lacks in self._lacking(array))
        if not missing or not array.size:
            return []
        return [Unwritten(missing, "chunk", f"{missing:,} of its {array.nchunks:,} chunks, {array.fill_value}")]

    def lacking_rows(self, path: str, axis: int) -> NDArray[np.int64]:
        array = self._at(path)
        rows, others = array.chunks[axis], tuple(other for other in range(array.ndim) if other != axis)
        is_short = np.zeros(-(-array.shape[axis] // rows), np.bool_)
        for first, lacks in self._lacking(array):
            is_short[first[axis] : first[axis] + lacks.shape[axis]] |= lacks.any(axis=others)
        return np.asarray((spans_of(is_short) * rows).clip(max=array.shape[axis]))

    def _lacking(self, array: Any) -> Iterator[tuple[tuple[int, ...], NDArray[np.bool_]]]:
        """Yield of each chunk, or shard, the place of its first chunk in the grid, and which were never written."""
        home = f"{array.path}/" if array.path else ""
        in_zip = set(self._names_in_zip) if self._store is not None else None
        pieces = getattr(array, "shards", None) or array.chunks
        chunks = [-(-n // chunk) for n, chunk in zip(array.shape, array.chunks, strict=True)]
        each = [piece // chunk for piece, chunk in zip(pieces, array.chunks, strict=True)]
        for place in np.ndindex(*[-(-n // piece) for n, piece in zip(array.shape, pieces, strict=True)]):
            first = tuple(number * n for number, n in zip(place, each, strict=True))
            within = tuple(slice(min(n, end - at)) for n, end, at in zip(each, chunks, first, strict=True))
            name = home + array.metadata.encode_chunk_key(place)
            is_there = name in in_zip if in_zip is not None else Path(self.path, name).is_file()
            lacks = self._empty_in(array, name, each) if is_there else np.ones(each, np.bool_)
            yield first, lacks[within]

    def _empty_in(self, array: Any, name: str, each: Sequence[int]) -> NDArray[np.bool_]:
        """Return which chunks the index of a shard calls empty; none of a single chunk, of a zip, or of other indices.

        An index, as zarr writes it, is 16 bytes for each chunk, all bits set for an empty one, and a checksum of 4.
        """
        none = np.zeros(each, np.bool_)
        if self._store is not None or getattr(array, "shards", None) is None:
            return none
        codecs = array.metadata.to_dict()["codecs"]
        settings = next(codec for codec in codecs if codec["name"] == "sharding_indexed")["configuration"]
        if [codec["name"] for codec in settings["index_codecs"]] != ["bytes", "crc32c"]:
            return none
        nbytes, is_last = 16 * math.prod(each), settings.get("index_location", "end") == "end"
        with Path(self.path, name).open("rb") as file:
            file.seek(-(nbytes + 4) if is_last else 0, os.SEEK_END if is_last else os.SEEK_SET)
            index = np.frombuffer(file.read(nbytes), "<u8")
        return np.asarray((index.reshape(*each, 2) == np.iinfo(np.uint64).max).all(axis=-1))

    def attribute_names(self, path: str) -> list[str]:
        return list(self._at(path).attrs)

    def attribute(self, path: str, name: str) -> NDArray[Any] | None:
        with suppress(KeyError, ValueError):  # lists of unequal lengths make no array
            value = self._at(path).attrs[name]
            array = np.asarray(value)
            if array.dtype.kind != "U" or all(isinstance(text, str) for text in np.asarray(value, object).flat):
                return array  # numpy makes text of numbers beside text
        return None


@contextmanager
def _faults(path: str, doing: str) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (SourceError, MemoryError):
        raise
    except OSError as error:
        raise unreadable(error, path) from error
    except (zipfile.BadZipFile, Exception) as error:  # whatever codec a chunk has, and zarr itself
        raise unreadable(error, path, f"{doing} failed: {_why_not(error)}") from error


def _why_not(error: Exception) -> str:
    """Return the message of an error in one line; of a codec that is not there, what to install."""
    words = (str(error).splitlines() or [""])[0] or type(error).__name__
    unknown = _UNKNOWN_CODEC.search(words)
    return _lacking((unknown[1] or unknown[2]).lower()) if unknown else words


def _lacking(codec: str) -> str:
    brings = f"pip install 'numcodecs[{codec}]'" if codec in _EXTRAS else f"install the package that has {codec}"
    return f"its chunks are encoded by {codec}, which is not installed; {brings}"


def _codecs(configs: Any) -> Iterator[dict[str, Any]]:
    """Yield the codecs of numcodecs that metadata of version 3 name, those within shards as well."""
    for config in configs:
        settings = config.get("configuration") or {}
        if config["name"].startswith(_NUMCODECS):
            yield {"id": config["name"].removeprefix(_NUMCODECS), **settings}
        yield from _codecs(settings.get("codecs", ()))


def _entry(path: str, member: Any) -> Entry:
    """Return a group or array, from its metadata."""
    if not hasattr(member, "shape"):
        return Entry(path, is_group=True)
    for config in _codecs(member.metadata.to_dict().get("codecs", ())):
        try:
            get_codec(config)
        except Exception as error:
            return Entry(path, problem=f"cannot be read: {_why_not(error)}")
    if member.dtype.kind == "O":
        return Entry(path, problem=f"holds values of {member.dtype}, which are not packed; write them as text")
    if member.dtype.kind == "T":
        return Entry(path, shape=tuple(map(int, member.shape)), dtype=TEXT)
    return Entry(path, shape=tuple(map(int, member.shape)), dtype=np.dtype(member.dtype))


class _Chunked:
    """An array that keeps the rows of the last chunks (or shards), so that each is decoded once if read in order.

    If the chunks of a row take more than `cache` bytes, they are decoded again for every block.
    """

    def __init__(self, array: Any, axis: int, cache: int) -> None:
        self._array, self._axis = array, axis % max(1, array.ndim)
        self.shape: tuple[int, ...] = tuple(map(int, array.shape))
        self.dtype = TEXT if np.dtype(array.dtype).kind == "T" else np.dtype(array.dtype)
        chunks = (getattr(array, "shards", None) or array.chunks) if self.shape else (1,)
        self._rows = int(chunks[self._axis])
        row_bytes = math.prod(self.shape) * self.dtype.itemsize // max(1, self.shape[self._axis] if self.shape else 1)
        self._is_kept = row_bytes * self._rows <= max(cache, math.prod(chunks) * self.dtype.itemsize)
        self._first, self._last = 0, 0
        self._values: NDArray[Any] = np.empty(0)

    def __getitem__(self, place: Any) -> NDArray[Any]:
        """Return some rows, given by slices up to the axis that is read in order; or all."""
        values = self._read(place)
        return values.astype(TEXT) if self.dtype is TEXT else values

    def _read(self, place: Any) -> NDArray[Any]:
        if not self.shape or not isinstance(place, tuple) or not place or not self._is_kept:
            return np.asarray(self._array[place])
        ahead, rows = place[: self._axis], place[self._axis]
        start, stop, _ = rows.indices(self.shape[self._axis])
        parts = []
        while start < stop:
            if not self._first <= start < self._last:
                first = start // self._rows * self._rows
                # Whole chunks at once, as many as are asked for.
                last = min(max(first + self._rows, stop // self._rows * self._rows), self.shape[self._axis])
                chunks = (*ahead, slice(first, last))
                self._values = np.asarray(self._array[chunks])
                self._first, self._last = first, last
            end = min(stop, self._last)
            rows = (*ahead, slice(start - self._first, end - self._first))
            parts.append(self._values[rows])
            start = end
        return parts[0] if len(parts) == 1 else np.concatenate(parts, self._axis) if parts else self._array[place]
