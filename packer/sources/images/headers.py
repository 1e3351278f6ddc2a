"""The headers of all images of a source, as columns: a million of them take some bytes each."""

from __future__ import annotations

import contextlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.format import FieldSpec
from packer.sources.files import FileSet, join
from packer.sources.headers import count_layouts, misfits
from packer.sources.images.formats import ByteRange, ImageHeader, ImageOptions, is_mask_name, quiet, read_header
from packer.sources.images.source import misfitting_sizes
from packer.sources.pairing import Pairing
from packer.threads import in_threads
from packer.watcher import HEADERS, Watcher

#: The files of a sample: the path of each, and its place if it is no file of its own.
_Row = Sequence[tuple[str, ByteRange | None]]

_KINDS = {1: "gray", 2: "gray with alpha", 3: "RGB", 4: "RGBA"}


class HeaderColumn(NamedTuple):
    """The headers of the images of one field.

    Attributes:
        sizes: (n, 2) int32: height and width.
        layouts: (n,) the number of the layout of each in `kinds`.
        kinds: all there is to a header but its size: each layout once, of height and width 0.
    """

    sizes: NDArray[np.int32]
    layouts: NDArray[np.uint32]
    kinds: Sequence[ImageHeader]

    def take(self, numbers: NDArray[np.intp]) -> HeaderColumn:
        """Return the headers of some samples."""
        return self._replace(sizes=self.sizes[numbers], layouts=self.layouts[numbers])

    def counts(self) -> list[tuple[ImageHeader, int]]:
        """Return every layout and how many images have it, in the order of their first images."""
        return [(self.kinds[layout], count) for layout, count in count_layouts(self.layouts).items()]

    @property
    def in_words(self) -> list[str]:
        """Return channels and dtype of every layout, which all images of a field must share."""
        return [f"{_KINDS[layout.channels]} {layout.dtype}" for layout in self.kinds]

    def spec(self, field: str) -> FieldSpec:
        """Return the spec of the field: its dtype and channels, and its size if all images have the same.

        Raises:
            UsageError: the field cannot have this name.
        """
        first = self.kinds[self.layouts[0]]
        size = [int(side[0]) if (side == side[0]).all() else None for side in self.sizes.T]
        try:
            return FieldSpec(name=field, dtype=first.dtype, kind="image", shape=(*size, first.channels))
        except ValueError as error:
            raise UsageError(str(error)) from error


def read_headers(
    paired: Pairing,
    file_sets: Mapping[str, FileSet],
    places: Mapping[str, Sequence[ByteRange]],
    options: ImageOptions,
    chooses: bool,
    watcher: Watcher,
) -> tuple[NDArray[np.intp], dict[str, HeaderColumn], set[str]]:
    """Read the headers of all images.

    Args:
        chooses: whether fields of masks get the numbers of palettes.

    Returns:
        the numbers of the samples whose images are all good, and of the kind of most; their headers by field; and
        the fields of masks.

    Raises:
        SourceError: what `watcher.bad` raises, or no sample is left.
    """
    numbers, columns = _read(paired, file_sets, places, options, watcher)
    masks = _masks(columns) if chooses and len(numbers) else set()
    for name in masks:
        kinds = [layout._replace(channels=1) if layout.has_palette else layout for layout in columns[name].kinds]
        columns[name] = columns[name]._replace(kinds=kinds)
    alike = _of_most(numbers, columns, paired, file_sets, watcher)
    if not alike.all():
        numbers, columns = numbers[alike], {name: column.take(alike.nonzero()[0]) for name, column in columns.items()}
    return numbers, columns, masks


def _read(
    paired: Pairing,
    file_sets: Mapping[str, FileSet],
    places: Mapping[str, Sequence[ByteRange]],
    options: ImageOptions,
    watcher: Watcher,
) -> tuple[NDArray[np.intp], dict[str, HeaderColumn]]:
    """Return the numbers of the samples whose headers are all good, and these headers by field."""

    def rows() -> Iterator[_Row]:
        for number in range(len(paired.names)):
            yield [
                (join(file_sets[name].folder, files[number]), places[name][number] if name in places else None)
                for name, files in paired.files.items()
            ]

    sides, layouts = {name: array("i") for name in paired.files}, {name: array("I") for name in paired.files}
    kinds: dict[str, dict[tuple[object, ...], int]] = {name: {} for name in paired.files}
    numbers = array("q")
    with quiet(), contextlib.closing(in_threads(partial(_headers, options=options), rows())) as read:
        for number, row in enumerate(watcher.watch(read, HEADERS, len(paired.names))):
            headers = [header for header in row if isinstance(header, ImageHeader)]
            if len(headers) == len(row):
                numbers.append(number)
                for name, header in zip(paired.files, headers, strict=True):
                    sides[name].extend(header[:2])
                    layouts[name].append(kinds[name].setdefault(header[2:], len(kinds[name])))
            for error in row:
                if isinstance(error, SourceError):
                    watcher.bad(error)
    columns = {
        name: HeaderColumn(
            np.array(sides[name], np.int32).reshape(-1, 2),
            np.array(layouts[name], np.uint32),
            [ImageHeader(0, 0, *layout) for layout in kinds[name]],  # type: ignore[arg-type]
        )
        for name in paired.files
    }
    return np.array(numbers, np.intp), columns


def _headers(row: _Row, options: ImageOptions) -> list[ImageHeader | SourceError]:
    return [_header(path, options, place) for path, place in row]


def _header(path: str, options: ImageOptions, place: ByteRange | None) -> ImageHeader | SourceError:
    try:
        return read_header(path, options, place)
    except SourceError as error:
        return error


def _of_most(
    numbers: NDArray[np.intp],
    columns: Mapping[str, HeaderColumn],
    paired: Pairing,
    file_sets: Mapping[str, FileSet],
    watcher: Watcher,
) -> NDArray[np.bool_]:
    """Return which samples have images of the kind of most; call `watcher.bad` with an image of every other one.

    Raises:
        SourceError: what `watcher.bad` raises, or there is no sample.
    """
    # A number for each combination of kinds that a sample has.
    combined = np.zeros(len(numbers), np.int64)
    for column in columns.values():
        words = {text: code for code, text in enumerate(dict.fromkeys(column.in_words))}
        codes = np.array([words[text] for text in column.in_words], np.int64)
        combined = combined * (len(words) or 1) + (codes[column.layouts] if len(codes) else 0)
    _, firsts, layouts = np.unique(combined, return_index=True, return_inverse=True)
    in_words = [
        {name: column.in_words[column.layouts[first]] for name, column in columns.items()} for first in firsts.tolist()
    ]
    model, apart = misfits(in_words, count_layouts(layouts))
    for position in np.flatnonzero(layouts != model).tolist():
        layout = int(layouts[position])
        name = next(name for name in columns if in_words[layout][name] != in_words[model][name])
        advice = "convert channels with --mode gray, rgb or rgba, save it with the bits of the others, or pack it apart"
        path = file_sets[name].path(paired.files[name][numbers[position]])
        watcher.bad(SourceError(f"differs from most images: {apart[layout]}; {advice}", path))
    is_of_most: NDArray[np.bool_] = layouts == model
    return is_of_most


def without_misfitting_sizes(
    numbers: NDArray[np.intp],
    columns: dict[str, HeaderColumn],
    paired: Pairing,
    file_sets: Mapping[str, FileSet],
    watcher: Watcher,
) -> tuple[NDArray[np.intp], dict[str, HeaderColumn]]:
    """Drop samples whose fields have another ratio of sizes than most, if bad files are skipped; else they are packed.

    A remark of the plan names those that are packed.
    """
    keep = np.ones(len(numbers), bool)
    for at, (field, reason) in misfitting_sizes({name: column.sizes for name, column in columns.items()}).items():
        with contextlib.suppress(SourceError):
            watcher.bad(SourceError(reason, file_sets[field].path(paired.files[field][numbers[at]])))
            keep[at] = False
    if keep.all():
        return numbers, columns
    return numbers[keep], {name: column.take(keep.nonzero()[0]) for name, column in columns.items()}


def _masks(headers: Mapping[str, HeaderColumn]) -> set[str]:
    """Return the fields whose palettes stand for classes: by their name, or as all have one beside photographs."""
    with_palette = {name for name, column in headers.items() if any(layout.has_palette for layout in column.kinds)}
    plain = {
        name
        for name, column in headers.items()
        if all(layout.has_palette or layout.channels == 1 for layout in column.kinds)
    }
    photographs = headers.keys() - plain
    return {name for name in with_palette if is_mask_name(name) or (name in plain and photographs)}


def palettes(headers: Mapping[str, HeaderColumn], masks: set[str]) -> Iterator[str]:
    """Yield sentences on what is packed of files with a palette."""
    for name, column in headers.items():
        if files := sum(count for layout, count in column.counts() if layout.has_palette):
            done = (
                "the numbers of the colours are packed, as of masks; --palette colour packs the colours"
                if name in masks
                else "their colours are packed; --palette index packs the numbers of the colours, as of masks"
            )
            yield f"field {name}, {files:,} {'file' if files == 1 else 'files'} with a palette: {done}"


def changes(headers: Mapping[str, HeaderColumn]) -> list[str]:
    """Return sentences on what is not kept as it is in the files, and in how many files."""
    sentences = []
    for name, column in headers.items():
        notes = Counter[str]()
        for layout, count in column.counts():
            notes[layout.note] += count
        sentences += [f"field {name}, {n} {'file' if n == 1 else 'files'}: {note}" for note, n in notes.items() if note]
    return sentences
