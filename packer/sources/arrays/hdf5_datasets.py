"""Where the values of a dataset of HDF5 lie, whether all are there, and which were never written.

libhdf5 gives fill values, and no error, where a file of a virtual dataset is missing or an external raw file is short.
So the files of a virtual dataset are looked for first, and external raw files are refused.
"""

from __future__ import annotations

import importlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.arrays.tree import Unwritten, check_size
from packer.sources.base import faults_of


def files_of(dataset: h5py.Dataset, path: str) -> list[str]:
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
        matches = [pattern.fullmatch(other.name) for other in place.parent.glob("*")] if place.parent.is_dir() else []
        if any(match and int(match[1]) > blocks for match in matches):
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


# ---------------------------------------------------------------- what was never written


def unwritten_in(dataset: h5py.Dataset) -> list[Unwritten]:
    """Return what of a dataset was never written, of each kind of pieces; none if all was."""
    return _unwritten_in_sources(dataset) if dataset.is_virtual else _unwritten_in(dataset)


def lacking_rows(dataset: h5py.Dataset, axis: int) -> NDArray[np.int64]:
    """Return the spans of rows along an axis that lack values, (spans, 2)."""
    return _lacking_rows_in_sources(dataset, axis) if dataset.is_virtual else _lacking_rows(dataset, axis)


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
