"""HDF5 files: as the sources were if the dataset was packed from HDF5, else one file with a dataset a field.

Every field is a dataset of native numbers or text at the path that it came from: a compound becomes a group. Text
becomes strings, lists of numbers become variable-length values; other ragged fields become groups, see `RaggedRows`.
Constants are in every file, below its root.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import h5py
import msgspec
import numpy as np

from packer.errors import UsageError, first_few
from packer.export.files import Files, Writer, checked
from packer.export.hdf5_content import (
    RaggedRows,
    Rows,
    new_file,
    write_attributes,
    write_kept,
    write_value,
)
from packer.packing.origin import kept_by, leaves
from packer.sources.base import Block, count
from packer.sources.hdf5.origin import Described, HDF5Options, HDF5Origin
from packer.sources.packed import PackedSource

_SUFFIX = ".h5"


@dataclass(frozen=True)
class _Segment:
    """The samples start..stop of a dataset, which go to one file.

    Attributes:
        file: its name.
        origin: what is known of its source.
        described: what the source file had besides the samples.
        roots: path of the group or dataset of each sample, empty for the file itself; None if samples are rows.
        places: paths of the fields in the file, or in the group of each sample.
    """

    file: str
    start: int
    stop: int
    origin: HDF5Origin
    described: Described
    roots: Sequence[str] | None = None
    places: Mapping[str, str] = field(default_factory=dict)


class Hdf5Writer(Writer):
    """Writes a file for each source file, or one, under a temporary name while it is written."""

    def __init__(self, source: PackedSource, files: Files) -> None:
        super().__init__(source, files)
        self._specs = {spec.name: spec for spec in source.fields}
        stem = Path(source.folder).resolve().stem or "data"
        segments = _named_apart(_segments(source, f"{stem}{_SUFFIX}", self.notes), self.notes)
        self._segments = [replace(segment, places=self._places_of(segment)) for segment in segments]

    def write(self) -> Generator[Block]:
        blocks = self._pieces()
        for segment in self._segments:
            with self._files.partial(segment.file, "") as path, new_file(path) as (file, sink):
                writes = self._begin(file, segment)
                at = segment.start
                while at < segment.stop:
                    block = next(blocks)
                    end = at + count(block)
                    for write in writes:
                        write(block, at - segment.start, end - segment.start)
                    sink.check()
                    yield block
                    at = end
                self._end(file, segment)

    def _pieces(self) -> Iterator[Block]:
        """Yield all samples in blocks, each for one file: many small files share what is read at once."""
        ends = np.unique([segment.stop for segment in self._segments])
        for block, start, stop in self._blocks():
            within = ends[(start < ends) & (ends < stop)].tolist()
            for first, last in pairwise([start, *within, stop]):
                yield {name: values[first - start : last - start] for name, values in block.items()}

    def _begin(self, file: h5py.File, segment: _Segment) -> Sequence[Callable[[Block, int, int], None]]:
        """Begin a file with all but its samples; return what writes a block of them, numbered within the file."""
        if segment.roots is not None:
            return [partial(self._write_units, file, segment)]
        writes = [self._rows_of(file, segment, name, path).write for name, path in segment.places.items()]
        if self._source.names is not None:
            names = self._source.names[segment.start : segment.stop]
            path = "names" if "names" not in self._specs else "sample_names"
            file.create_dataset(path, len(names), h5py.string_dtype())[:] = list(names)
        return writes

    def _rows_of(self, file: h5py.File, segment: _Segment, name: str, path: str) -> Rows | RaggedRows:
        spec, is_sparse = self._specs[name], _is_sparse(path, segment.origin)
        if not is_sparse and (not spec.is_ragged or spec.shape == (None,)):
            return Rows(file, path, spec, segment.stop - segment.start, segment.origin.options.axis or 0)
        shapes = self._source.part(segment.start, segment.stop).shapes(name)
        if is_sparse:
            group, _, values = path.rpartition("/")
            return RaggedRows(file.require_group(group), spec, shapes, values, "indptr")
        return RaggedRows(file.create_group(path), spec, shapes)

    def _write_units(self, file: h5py.File, segment: _Segment, block: Block, start: int, stop: int) -> None:
        """Write the samples start..stop of a file, each as a group or dataset."""
        origin = segment.origin
        for number, root in enumerate((segment.roots or ())[start:stop], start):
            values = {name: held[number - start] for name, held in block.items()}
            for name, path in segment.places.items():
                # A unit that is a dataset of numbers or text is the field itself.
                is_unit = origin.options.samples == "datasets" and path == "/values"
                write_value(file, root if is_unit else root + path, self._specs[name], values[name], number)
            unit = file[root or "/"] if segment.places else file.require_group(root or "/")
            for attribute in origin.attrs:
                unit.attrs[attribute] = values[attribute]
            if self._source.names is not None:
                name = self._source.names[segment.start + number]
                write_attributes(unit, origin.attributes.get(name, {}), self.notes)

    def _end(self, file: h5py.File, segment: _Segment) -> None:
        """Write what a file holds besides its samples."""
        described, lost = segment.described, []
        for path, held in {**described.values, **self._constants(segment)}.items():
            write_kept(file.create_dataset, path, held, path, self.notes)
        for path, attributes in described.attributes.items():
            if path not in file and path in described.groups:
                with suppress(ValueError, OSError, RuntimeError):  # a dataset is in its way
                    file.create_group(path)
            if path in file:
                write_attributes(file[path], attributes, self.notes)
            else:
                lost.append(path)
        if lost:
            self.notes.append(f"attributes of {first_few(lost)} are not written: the file does not hold them")

    def _constants(self, segment: _Segment) -> dict[str, Any]:
        """Return what all samples share by its path, which is that in the samples or in the source file."""
        asked = {path.strip("/").replace("/", "."): path for path in segment.origin.options.once}
        constants = self._source.constants.items()
        return {f"/{asked.get(name, name.replace('.', '/')).strip('/')}": values for name, values in constants}

    def _places_of(self, segment: _Segment) -> dict[str, str]:
        """Return the path of each field in a file, or in the group of a sample.

        Raises:
            UsageError: the file's name or a path cannot be.
        """
        checked(segment.file)
        origin = segment.origin
        names = [name for name in self._specs if segment.roots is None or name not in origin.attrs]
        places = {name: origin.paths.get(name) or "/" + name.replace(".", "/") for name in names}
        if _lie_within_one_another(places.values()):
            self.notes.append("fields that were one dataset are written by their own names, below the root")
            places = {name: f"/{name}" for name in names}
        for name, path in places.items():
            if "\0" in path or any(part in ("", ".", "..") for part in path.strip("/").split("/")):
                raise UsageError(f"field {name!r} would have the path {path!r}, which HDF5 cannot hold")
        return places


def _lie_within_one_another(places: Collection[str]) -> bool:
    """Return whether a dataset would have to be one with another, or to hold it."""
    paths = {PurePosixPath(place) for place in places}
    return len(paths) < len(places) or any(parent in paths for path in paths for parent in path.parents)


def _is_sparse(path: str, origin: HDF5Origin) -> bool:
    """Return whether a dataset is a part of a sparse matrix, of which samples were rows."""
    return path in {f"/{group.strip('/')}/{part}" for group in origin.options.sparse for part in ("indices", "data")}


# ---------------------------------------------------------------- which samples go to which file


def _segments(source: PackedSource, file: str, notes: list[str]) -> list[_Segment]:
    """Return the files to write, in the order of the samples.

    Args:
        file: name of the one file for samples that came from no HDF5 file, or were put into another order.
    """
    whole = leaves(source.origin, len(source))
    origins = [kept_by("hdf5", leaf.origin, HDF5Origin) for leaf in whole]
    found: list[_Segment] = []
    start = 0
    for leaf, origin in zip(whole, origins, strict=True):
        stop = start + len(leaf.numbers)
        if origin is None or start == stop or not np.array_equal(leaf.numbers, np.arange(start, stop)):
            return [_one_file(source, file, origins, notes)]
        if origin.options.samples == "rows":
            found += _files_of_rows(origin, start, stop, file, notes)
        else:
            found += _files_of_units((source.names or ())[start:stop], origin, start, file)
        start = stop
    return found


def _one_file(source: PackedSource, file: str, origins: Sequence[HDF5Origin | None], notes: list[str]) -> _Segment:
    """Return one file for all samples; if all came from rows of HDF5 files, the first file's attributes stay."""
    known = [origin for origin in origins if origin is not None]
    of_rows = [origin for origin in known if origin.options.samples == "rows" and origin.files]
    if len(of_rows) < len(origins):
        if any(origin.options.samples != "rows" for origin in known):
            how = "they are written as rows, without groups or attributes"
            notes.append(f"the samples are in another order than in their files: {how}")
        plain = HDF5Origin(HDF5Options({}, []), {spec.name: f"/{spec.name}" for spec in source.fields})
        return _Segment(file, 0, len(source), plain, Described(file, len(source)))
    notes.append("the samples are in another order than in their files, so all are written to one file")
    return _Segment(file, 0, len(source), of_rows[0], of_rows[0].files[0])


def _files_of_rows(origin: HDF5Origin, start: int, stop: int, file: str, notes: list[str]) -> Iterator[_Segment]:
    """Yield the files of rows: those of the source, or one if samples were left out of them."""
    files = origin.files or [Described(file, stop - start)]
    if sum(described.samples for described in files) != stop - start:
        if len(files) > 1:
            notes.append("samples of the source were left out, so all others are written to one file")
        files = [msgspec.structs.replace(files[0], samples=stop - start)]
    for described in files:
        end = start + described.samples
        yield _Segment(described.name, start, end, origin, files[0] if described.like_first else described)
        start = end


def _files_of_units(names: Sequence[str], origin: HDF5Origin, start: int, file: str) -> Iterator[_Segment]:
    """Yield the files whose groups or datasets, or which themselves, were samples; `start` is the first sample."""
    homes = set(origin.homes)
    places = [_home_and_root(name, origin, homes) for name in names]
    for home, some in groupby(places, key=lambda place: place[0]):
        roots = [root for _, root in some]
        above = origin.above.get(home, {})
        name = f"{home}{_SUFFIX}" if home else file
        described = Described(name, len(roots), attributes=above, groups=list(above))
        yield _Segment(name, start, start + len(roots), origin, described, roots)
        start += len(roots)


def _home_and_root(name: str, origin: HDF5Origin, homes: Collection[str]) -> tuple[str, str]:
    """Return what the names of a file's samples begin with, one of `homes`, and the path of the unit in the file."""
    if origin.options.samples == "files":
        return name, ""
    home = name
    while home and home not in homes:
        home = home.rpartition("/")[0]
    return home, f"/{name[len(home) :].lstrip('/')}"


def _named_apart(segments: Sequence[_Segment], notes: list[str]) -> list[_Segment]:
    """Return the segments with a file of their own each: files of several folders may have one name."""
    found: dict[str, _Segment] = {}
    renamed = []
    for segment in segments:
        path, number = PurePosixPath(segment.file), 1
        name = segment.file
        while name in found:
            number += 1
            name = str(path.with_name(f"{path.stem}_{number}{path.suffix}"))
        found[name] = replace(segment, file=name)
        if number > 1:
            renamed.append(f"{segment.file} as {name}")
    if renamed:
        notes.append(f"source files of one name are told apart by numbers: {first_few(renamed)}")
    return list(found.values())
