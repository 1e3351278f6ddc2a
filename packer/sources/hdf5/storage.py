"""Opens a dataset after checking that what its header declares is really there and can be decoded.

libhdf5 gives fill values, and no error, for parts of virtual datasets whose file is missing and for external raw files
that are too short; both are errors here. Chunks and datasets that were never written are fill values by HDF5's own
rules and stay so, but sizes out of all proportion to the file are refused.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
from natsort import natsorted

from packer.errors import SourceError
from packer.sources.base import faults_of

#: Declared sizes below this are believed: they are read in pieces, which does no harm.
_BELIEVED_BYTES = 2**34
#: Values per byte of file beyond which a declared size is a lie. Deflate reaches 1,032 on zeros.
_MAX_RATIO = 10_000
_MAX_DEPTH = 8
#: Bytes of decoded chunks that libhdf5 is asked to keep at most, of all datasets that are read together. A chunk larger
#: than that is kept as well: decoding it takes that much memory anyway, and again for every block would take minutes.
CACHE_BYTES = 2**28


@dataclass(frozen=True)
class Storage:
    """Where the values of a dataset lie.

    Attributes:
        files: paths of further files that are read for it, if it lies in another one or shows values of others.
        note: a sentence on values that were never written; None if all were, as far as is cheap to tell.
    """

    files: tuple[str, ...] = ()
    note: str | None = None


def dataset_at(
    file: h5py.File, path: str, name: str, samples: int, axis: int = 0, cache: int = CACHE_BYTES
) -> h5py.Dataset:
    """Return the dataset `name` of the open file `path`, checked as by `storage_of`, to be read in order along `axis`.

    Called by each process that reads: files and plug-ins may be missing in any. Each chunk is decoded once, as long as
    those of a row fit into `cache` bytes.

    Raises:
        SourceError: its values are not all there, or cannot be decoded.
    """
    dataset = file[name]
    storage_of(dataset, path, samples)
    return _reopened(dataset, axis, cache)


def storage_of(dataset: h5py.Dataset, path: str, samples: int) -> Storage:
    """Return where the values of a dataset of `samples` samples lie, which was opened from the file `path`.

    Raises:
        SourceError: they are not all there, or cannot be decoded.
    """
    home = str(dataset.file.filename)
    with faults_of(path):
        if dataset.is_virtual:
            files, note = list(_virtual_files(dataset, 0)), None
            _believe(dataset, samples, [home, *files])
        elif files := _external_files(dataset):
            note = None
            _believe(dataset, samples, files)
        else:
            note = _unwritten(dataset, home)
            _believe(dataset, samples, [home])
    if lacking := _missing_filter(dataset):
        raise SourceError(f"dataset {dataset.name} cannot be read: {lacking}", path)
    return Storage(tuple(other for other in dict.fromkeys([home, *files]) if other != path), note)


def _reopened(dataset: h5py.Dataset, axis: int, cache: int) -> h5py.Dataset:
    """Return the same, with external raw files found next to the HDF5 file, and the chunks of a row kept decoded."""
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    is_external = any((_folder(dataset) / name).exists() for name, _offset, _size in dataset.external or ())
    if is_external:
        access.set_efile_prefix(b"${ORIGIN}")
    _slots, usual, _preemption = dataset.id.get_access_plist().get_chunk_cache()
    chunks = _chunks_of_a_row(dataset, axis)
    chunk_bytes = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize
    kept = chunk_bytes * (chunks if chunk_bytes * chunks <= cache else 1)
    if kept > usual:
        # Chunks in one slot of libhdf5's table drive each other out, so it gets many more slots than chunks.
        access.set_chunk_cache(min(100 * chunks, 2**20) + 1, kept, 1.0)
    elif not is_external:
        return dataset
    holder, name = dataset.file.id, dataset.name.encode()
    # A dataset that is open already keeps the prefix and cache that it was opened with.
    dataset.id.close()
    return h5py.Dataset(h5py.h5d.open(holder, name, access))


def _chunks_of_a_row(dataset: h5py.Dataset, axis: int) -> int:
    """Return how many chunks hold a part of one row along `axis`; 0 if there are no chunks."""
    if not dataset.chunks:
        return 0
    across = [-(-int(n) // int(c)) for n, c in zip(dataset.shape, dataset.chunks, strict=True)]
    return math.prod(across) // max(1, across[axis])


def _folder(dataset: h5py.Dataset) -> Path:
    return Path(dataset.file.filename).parent


# ---------------------------------------------------------------- is it all there?


def _logical_bytes(dataset: h5py.Dataset) -> int:
    return int(math.prod(dataset.shape)) * int(dataset.dtype.itemsize)


def _believe(dataset: h5py.Dataset, samples: int, files: Sequence[str]) -> None:
    """Raise SourceError if a dataset of `samples` samples declares sizes out of all proportion to its files."""
    # Samples count too: an axis of length 0 makes any number of them cost no bytes.
    declared = max(_logical_bytes(dataset), samples)
    file_bytes = sum(Path(file).stat().st_size for file in dict.fromkeys(files))
    if declared > _BELIEVED_BYTES and declared > _MAX_RATIO * file_bytes:
        raise SourceError(
            f"dataset {dataset.name} of shape {dataset.shape} claims {declared:,} bytes, but its file has only "
            f"{file_bytes:,}, so this cannot be right; leave the dataset out with --skip {dataset.name}"
        )


def _unwritten(dataset: h5py.Dataset, home: str) -> str | None:
    """Return a sentence on values that were never written; None if all were, as far as is cheap to tell.

    Raises:
        SourceError: the file `home` is smaller than the values that it is to hold.
    """
    stored, file_bytes = dataset.id.get_storage_size(), Path(home).stat().st_size
    if stored > file_bytes:
        raise SourceError(
            f"dataset {dataset.name} claims {stored:,} bytes, but the whole file has {file_bytes:,}; copy it again"
        )
    if not stored and _logical_bytes(dataset):
        return f"dataset {dataset.name} was never written: all its values are the fill value {dataset.fillvalue}"
    if dataset.chunks and not dataset.id.get_create_plist().get_nfilters():
        # The file's own size of a value: numpy's is larger for bfloat16.
        chunk = math.prod(dataset.chunks) * dataset.id.get_type().get_size()
        count = math.prod(-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True))
        if stored < chunk * count:
            return (
                f"dataset {dataset.name}: {count - stored // chunk:,} of {count:,} chunks were never written: they are "
                f"the fill value {dataset.fillvalue}"
            )
    return None


def _external_files(dataset: h5py.Dataset) -> list[str]:
    """Return the paths of external raw files, next to the HDF5 file or, as libhdf5 has it, in the working folder."""
    found = []
    for name, offset, size in dataset.external or ():
        path = next((folder / name for folder in (_folder(dataset), Path()) if (folder / name).exists()), None)
        if path is None:
            raise SourceError(f"dataset {dataset.name} keeps its values in the file {name}, which does not exist")
        have = path.stat().st_size
        if size != h5py.h5f.UNLIMITED and have < offset + size:
            raise SourceError(
                f"dataset {dataset.name} keeps its values in the file {name}, which is cut short: "
                f"it has {have:,} bytes, {offset + size:,} are expected"
            )
        found.append(str(path))
    return found


def _virtual_files(dataset: h5py.Dataset, depth: int) -> Iterator[str]:
    """Yield the paths of all files that a virtual dataset shows, each checked to exist and to be long enough."""
    if depth > _MAX_DEPTH:
        raise SourceError(f"virtual dataset {dataset.name} leads to virtual datasets more than {_MAX_DEPTH} deep")
    for source in dataset.virtual_sources():
        for path in _source_paths(dataset, source.file_name):
            yield path
            try:
                is_here = path == dataset.file.filename
                opening = contextlib.nullcontext(dataset.file) if is_here else h5py.File(path, "r")
            except OSError as error:
                raise SourceError(f"virtual dataset {dataset.name}: its source {path} cannot be opened") from error
            with opening as file:
                if "%b" in source.dset_name:
                    continue
                where = (
                    f"virtual dataset {dataset.name}: its source dataset {source.dset_name} of file {source.file_name}"
                )
                target = file.get(source.dset_name)
                if not isinstance(target, h5py.Dataset):
                    raise SourceError(f"{where} does not exist")
                if _falls_short(dataset, source, target):
                    raise SourceError(f"{where} is too small: it has shape {target.shape}")
                if target.is_virtual:
                    yield from _virtual_files(target, depth + 1)


def _source_paths(dataset: h5py.Dataset, name: str) -> list[str]:
    here = dataset.file.filename
    if name == ".":
        return [here]
    folder = _folder(dataset)
    if "%b" in name:
        # Path.glob takes no absolute pattern. The library puts numbers there, and nothing else.
        numbered = re.compile(re.escape(str(folder / name)).replace("%b", r"\d+"))
        places = glob.glob(glob.escape(str(folder / name)).replace("%b", "*"))
        paths = natsorted(place for place in places if numbered.fullmatch(place))
    else:
        # The order in which libhdf5 looks.
        paths = [str(p) for p in (folder / name, Path(name), folder / Path(name).name) if p.exists()][:1]
    if not paths:
        raise SourceError(f"virtual dataset {dataset.name}: its source file {name} does not exist")
    return paths


def _falls_short(dataset: h5py.Dataset, source: Any, target: h5py.Dataset) -> bool:
    """Return whether the source is smaller than what is shown of it; unlimited selections follow the source."""
    shown, space = source.vspace, source.src_space
    try:
        if space.get_select_type() == h5py.h5s.SEL_ALL:
            all_shown = shown.get_select_type() == h5py.h5s.SEL_ALL
            return bool(math.prod(target.shape) != (dataset.size if all_shown else shown.get_select_npoints()))
        _low, high = space.get_select_bounds()
    except (RuntimeError, ValueError):
        return False
    return len(high) == len(target.shape) and any(h >= n for h, n in zip(high, target.shape, strict=True))


# ---------------------------------------------------------------- can it be decoded?


def _missing_filter(dataset: h5py.Dataset) -> str | None:
    """Return why the dataset's chunks cannot be decoded here, with the remedy; None if they can.

    Imports hdf5plugin, if it is installed, when a filter is met that libhdf5 does not have.
    """
    plist = dataset.id.get_create_plist()
    for i in range(plist.get_nfilters()):
        number, _flags, _values, name = plist.get_filter(i)
        if not h5py.h5z.filter_avail(number):
            with contextlib.suppress(ImportError):
                importlib.import_module("hdf5plugin")
        if not h5py.h5z.filter_avail(number):
            label = name.decode("utf-8", "replace").strip() or "a filter without a name"
            return (
                f"it is compressed with {label} (HDF5 filter {number}), for which there is no plug-in: `pip install -U "
                "hdf5plugin` brings most plug-ins; for others set HDF5_PLUGIN_PATH to the folder of the plug-in, or "
                "rewrite the file with `h5repack -f GZIP=4 IN OUT` on a machine that has it"
            )
    return None
