"""HDF5 files: one for each source file if the dataset was packed from HDF5, else one file for all.

Every field becomes a dataset of native numbers or text, at the path that it was read from; a compound becomes a group.
Text becomes strings, and lists of numbers become variable-length values. Other ragged fields become groups, see
`_RaggedRows`. Every file holds the constants and the attributes that were kept.
"""

from __future__ import annotations

import io
import itertools
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.export.files import Files, Writer, check_name
from packer.format import FieldSpec
from packer.packing import leaves, parse_origin
from packer.sources import Block, PackedSource, count
from packer.sources.arrays import SPARSE_PARTS, ArraysOrigin, KeptOptions

_SUFFIX = ".h5"


@dataclass(frozen=True)
class _Segment:
    """The samples start..stop of a dataset, which go to one file.

    Attributes:
        file: its name.
        origin: of the samples, as the manifest has it.
        attributes: of groups of the source file, by path.
        roots: path of the group or dataset of each sample, empty for the file itself; None if samples are rows.
        paths: of the fields in the file, or in the group of each sample.
    """

    file: str
    start: int
    stop: int
    origin: ArraysOrigin
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    roots: Sequence[str] | None = None
    paths: Mapping[str, str] = field(default_factory=dict)


class Hdf5Writer(Writer):
    """Writes a file for each source file, or one, under a temporary name while it is written."""

    keeps_constants = True
    names_files = False

    def __init__(self, source: PackedSource, files: Files) -> None:
        super().__init__(source, files)
        self._specs = {spec.name: spec for spec in source.fields}
        used_files, numbers = set[str](), Counter[PurePosixPath]()
        self._segments = []
        for segment in _segments(source, self.notes):
            # Sources that were packed one after another may have files of the same name.
            first = PurePosixPath(check_name(segment.file))
            path, number = first, numbers[first]
            while str(path) in used_files:
                number += 1
                path = first.with_stem(f"{first.stem}_{number}")
            numbers[first] = max(number, 1)
            used_files.add(str(path))
            self._segments.append(replace(segment, file=str(path), paths=self._field_paths(segment)))

    def write(self) -> Generator[Block]:
        blocks = self._blocks_by_file()
        for segment in self._segments:
            with self._files.partial(segment.file, "") as path, _Sink(path) as sink, h5py.File(sink, "w") as file:
                row_writers = self._create_datasets(file, segment)
                number = segment.start
                while number < segment.stop:
                    block = next(blocks)
                    start, end = number - segment.start, number + count(block) - segment.start
                    for row_writer in row_writers:
                        row_writer.write(block, start, end)
                    if segment.roots is not None:
                        self._write_units(file, segment, block, start, end)
                    sink.check()
                    yield block
                    number += count(block)
                for h5_path, values in self._constants(segment):
                    file.create_dataset(h5_path, data=values)
                for h5_path, attributes in segment.attributes.items():
                    _set_attributes(file, h5_path, attributes)
                for name, attributes in segment.origin.fields.items() if segment.roots is None else ():
                    if name in segment.paths:
                        _set_attributes(file, segment.paths[name], attributes)

    def _blocks_by_file(self) -> Iterator[Block]:
        """Yield all samples in blocks for one file each: a block that is read may hold many small files."""
        ends, start = np.unique([segment.stop for segment in self._segments]), 0
        for block in self._source.read():
            stop = start + count(block)
            within = ends[(start < ends) & (ends < stop)].tolist()
            for first, last in itertools.pairwise([start, *within, stop]):
                yield {name: values[first - start : last - start] for name, values in block.items()}
            start = stop

    def _create_datasets(self, file: h5py.File, segment: _Segment) -> list[_Rows | _RaggedRows]:
        """Create the datasets of a file of rows, and write the names of its samples."""
        if segment.roots is not None:
            return []
        if self._source.names is not None:
            names = self._source.names[segment.start : segment.stop]
            path = "names" if "names" not in self._specs else "sample_names"
            file.create_dataset(path, len(names), h5py.string_dtype())[:] = list(names)
        return [self._create_rows(file, segment, name, path) for name, path in segment.paths.items()]

    def _create_rows(self, file: h5py.File, segment: _Segment, name: str, path: str) -> _Rows | _RaggedRows:
        spec = self._specs[name]
        group, _, values = path.rpartition("/")
        is_sparse = values in SPARSE_PARTS and group[1:] in [
            sparse.strip("/") for sparse in segment.origin.options.sparse
        ]
        if not is_sparse and (not spec.is_ragged or spec.shape == (None,)):
            return _Rows(file, path, spec, segment.stop - segment.start, segment.origin.options.axis or 0)
        shapes = self._source.slice(segment.start, segment.stop).shapes(name)
        assert shapes is not None
        if is_sparse:
            return _RaggedRows(file.require_group(group), spec, shapes, values, "indptr")
        return _RaggedRows(file.create_group(path), spec, shapes, "values", "offsets")

    def _write_units(self, file: h5py.File, segment: _Segment, block: Block, start: int, stop: int) -> None:
        """Write the samples start..stop of a file, each as a group or dataset."""
        origin, roots = segment.origin, segment.roots or ()
        for number, root in enumerate(roots[start:stop], start):
            values = {name: rows[number - start] for name, rows in block.items()}
            for name, path in segment.paths.items():
                # A unit that is a dataset of numbers or text is the field itself.
                is_unit = origin.options.samples == "datasets" and path == "/values"
                spec, value = self._specs[name], values[name]
                text = spec.kind == "text"
                file.create_dataset(
                    root if is_unit else root + path,
                    data=_check_text(value, name, number) if text else np.asarray(value, spec.dtype),
                    dtype=h5py.string_dtype() if text else None,
                )
                _set_attributes(file, root if is_unit else root + path, {} if is_unit else origin.fields.get(name, {}))
            unit = file.require_group(root or "/") if not segment.paths else file[root or "/"]
            unit.attrs.update({name: values[name] for name in origin.attrs if name in values})
            if self._source.names is not None:
                _set_attributes(
                    file, root or "/", origin.attributes.get(self._source.names[segment.start + number], {})
                )

    def _constants(self, segment: _Segment) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the constants with their paths, which are those in the samples or in the source file."""
        path_of = {path.strip("/").replace("/", "."): path for path in segment.origin.options.once}
        for name, values in self._source.constants.items():
            yield path_of.get(name, name.replace(".", "/")).strip("/"), values

    def _field_paths(self, segment: _Segment) -> dict[str, str]:
        """Return the path of each field in a file, or in the group of a sample.

        Raises:
            UsageError: HDF5 cannot hold a path.
        """
        origin = segment.origin
        names = [name for name in self._specs if segment.roots is None or name not in origin.attrs]
        paths = {name: origin.paths.get(name) or "/" + name.replace(".", "/") for name in names}
        if _are_nested(paths.values()):
            self.notes.append("fields that were one dataset are written by their own names, below the root")
            paths = {name: f"/{name}" for name in names}
        for name, path in paths.items():
            if "\0" in path or any(part in ("", ".", "..") for part in path.strip("/").split("/")):
                raise UsageError(
                    f"field {name!r} would have the path {path!r}, which HDF5 cannot hold; name other fields with "
                    "--fields"
                )
        return paths


def _are_nested(texts: Collection[str]) -> bool:
    """Return whether two datasets have the same path, or one would lie within another."""
    paths = {PurePosixPath(text) for text in texts}
    return len(paths) < len(texts) or any(parent in paths for path in paths for parent in path.parents)


# ---------------------------------------------------------------- which samples go to which file


def _segments(source: PackedSource, notes: list[str]) -> list[_Segment]:
    """Return the files to write, in the order of the samples: those of the source, or a single one of rows."""
    stem = Path(source.folder).resolve().stem or "data"
    segments: list[_Segment] = []
    start = 0
    for leaf in leaves(source.origin, len(source)):
        origin, stop = parse_origin("hdf5", leaf.origin, ArraysOrigin), start + len(leaf.numbers)
        reason = ""
        if not np.array_equal(leaf.numbers, np.arange(start, stop)):
            reason = "the samples are in another order than in their files"
        elif origin and origin.options.samples == "rows" and sum(file.samples for file in origin.files) != stop - start:
            reason = "not all samples of the files are there"
        if origin is None or reason:
            if origin is not None:
                notes.append(f"{reason}: all are written as rows of one file")
            origin = origin or ArraysOrigin(KeptOptions({}, []), {spec.name: f"/{spec.name}" for spec in source.fields})
            return [_Segment(f"{stem}{_SUFFIX}", 0, len(source), origin)]
        if origin.options.samples == "rows":
            ends = itertools.accumulate((file.samples for file in origin.files), initial=start)
            for file, (first, end) in zip(origin.files, itertools.pairwise(ends), strict=True):
                segments.append(_Segment(file.name, first, end, origin, file.attributes))
        else:
            segments += _files_of_units((source.names or ())[start:stop], origin, start, stem)
        start = stop
    return segments


def _files_of_units(names: Sequence[str], origin: ArraysOrigin, start: int, stem: str) -> Iterator[_Segment]:
    """Yield the files of samples that were groups, datasets or whole files; `start` is the first sample."""
    attributes_of_file = {file.name: file.attributes for file in origin.files}
    units = [
        (name, "") if origin.options.samples == "files" else _split_name(name, attributes_of_file) for name in names
    ]
    for file_name, file_units in itertools.groupby(units, key=lambda unit: unit[0]):
        roots = [root for _, root in file_units]
        yield _Segment(
            f"{file_name or stem}{_SUFFIX}",
            start,
            start + len(roots),
            origin,
            attributes_of_file.get(file_name, {}),
            roots,
        )
        start += len(roots)


def _split_name(name: str, file_names: Collection[str]) -> tuple[str, str]:
    """Return the file that a sample's name begins with, one of `file_names`, and the path of the unit in that file."""
    file_name = name
    while file_name and file_name not in file_names:
        file_name = file_name.rpartition("/")[0]
    return file_name, f"/{name[len(file_name) :].lstrip('/')}"


# ---------------------------------------------------------------- values


class _Rows:
    """Samples as rows of a dataset, along `axis`; text and lists of numbers as values of any length."""

    def __init__(self, file: h5py.File, path: str, spec: FieldSpec, count: int, axis: int) -> None:
        self._spec = spec
        self._item_dtype = np.dtype(spec.dtype) if spec.kind != "text" and spec.shape == (None,) else None
        dtype = h5py.string_dtype() if spec.kind == "text" else np.dtype(spec.dtype)
        shape = [] if spec.is_ragged else [n or 0 for n in spec.shape]
        number = axis if axis >= 0 else len(shape) + 1 + axis
        self._axis = number if 0 <= number <= len(shape) else 0  # a dataset with fewer axes counts along the first
        shape.insert(self._axis, count)
        self._dataset = file.create_dataset(
            path, tuple(shape), h5py.vlen_dtype(self._item_dtype) if self._item_dtype else dtype
        )

    def write(self, block: Mapping[str, Any], start: int, stop: int) -> None:
        """Write the samples start..stop of the file."""
        values = block[self._spec.name]
        if self._item_dtype is not None:
            self._write_lists(values, start)
        elif self._spec.kind == "text":
            self._dataset[start:stop] = [
                _check_text(value, self._spec.name, start + n) for n, value in enumerate(values)
            ]
        elif (values := np.asarray(values)).size:
            selection = (*[slice(None)] * self._axis, slice(start, stop))
            self._dataset[selection] = np.moveaxis(values, 0, self._axis)

    def _write_lists(self, lists: Sequence[NDArray[Any]], start: int) -> None:
        """Write arrays of any length as the rows from `start` on; h5py itself would stack arrays of one length."""
        values = np.empty(len(lists), h5py.vlen_dtype(self._item_dtype))
        for number, row in enumerate(lists):
            values[number] = np.asarray(row, self._item_dtype)
        selection = self._dataset.id.get_space()
        selection.select_hyperslab((start,), (len(values),))
        self._dataset.id.write(h5py.h5s.create_simple((len(values),)), selection, values)


class _RaggedRows:
    """Samples of different shapes as a group.

    It holds `values` (all samples one after another), `offsets` (samples + 1,), and `shapes` (samples, axes) if more
    than the first axis differs; then `values` is flat. Fields of one group share their offsets.
    """

    def __init__(
        self, group: h5py.Group, spec: FieldSpec, shapes: NDArray[np.int64], values: str, offsets: str
    ) -> None:
        self._field = spec.name
        self._flat = spec.ragged_axes != (0,)
        sizes = shapes.prod(axis=1) if self._flat else shapes[:, 0]
        self._offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        row_shape = () if self._flat else spec.shape[1:]
        self._values = group.create_dataset(values, (int(self._offsets[-1]), *row_shape), np.dtype(spec.dtype))
        if offsets not in group:
            group.create_dataset(offsets, data=self._offsets)
        if self._flat:
            group.create_dataset("shapes", data=shapes)

    def write(self, block: Mapping[str, Any], start: int, stop: int) -> None:
        """Write the samples start..stop of the file."""
        data = np.concatenate([value.reshape(-1) if self._flat else value for value in block[self._field]])
        if data.size:
            self._values[int(self._offsets[start]) : int(self._offsets[stop])] = data


def _check_text(value: Any, field: str, sample: int) -> Any:
    if "\0" in value:
        raise UsageError(
            f"field {field!r}, sample {sample} of its file: the text {value!r:.40} holds a zero byte, which ends a "
            "string in HDF5; name other fields with --fields"
        )
    return value


def _set_attributes(file: h5py.File, path: str, attributes: Mapping[str, Any]) -> None:
    """Set attributes, in the form of `packer.sources.arrays.tree`, of a dataset or group; a missing group is made."""
    node = file[path] if path in file else file.create_group(path)
    for name, attribute in attributes.items():
        dtype, value = (attribute["dtype"], attribute["value"]) if isinstance(attribute, dict) else (None, attribute)
        if dtype == "str":
            node.attrs.create(name, np.array(value, object), dtype=h5py.string_dtype())
        else:
            node.attrs[name] = value if dtype is None else np.array(value, dtype)


# ---------------------------------------------------------------- the file below


class _Sink(io.FileIO):
    """A new file for h5py that never fails while libhdf5 writes; `check` raises the error afterwards.

    libhdf5 cannot close a file once a write has failed, and often crashes the process later. So after an error this
    file drops all writes, and reads zeros. `check` is called after every block, and at the end.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._error: BaseException | None = None
        super().__init__(path, "w+")

    def __exit__(self, *_: object) -> None:
        self.close()
        self.check()

    def check(self) -> None:
        """
        Raises:
            OSError: something could not be written.
            BaseException: any other error raised while libhdf5 was writing, such as KeyboardInterrupt.
        """
        if self._error is not None:
            raise self._error

    def write(self, data: Any, /) -> int:
        unwritten = memoryview(data).cast("B")
        count = len(unwritten)
        try:
            while unwritten and self._error is None:
                unwritten = unwritten[super().write(unwritten) :]  # a disk that is nearly full takes a part
        except BaseException as error:  # within a call of libhdf5 nothing may be raised
            self._error = error
        return count

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        count = super().readinto(view)
        view[count:] = bytes(len(view) - count)
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        try:
            return super().truncate(size) if self._error is None else 0
        except BaseException as error:
            self._error = error
            return 0
