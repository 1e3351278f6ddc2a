"""Pictures in columns: binary values that are files of images, or structs of such and a path, as of Hugging Face."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs import EncodedImage
from packer.errors import SourceError
from packer.sources.images import header_in, image_in, pixels_in_words
from packer.sources.options import SourceOptions
from packer.sources.table import LaidField, SampleTable
from packer.sources.tables.arrow import GROUP, leaves, peeked
from packer.sources.tables.fields import BINARY

#: Pictures that are looked at. Of smaller files all are, which shows whether they have one size.
_LOOKED_AT, _SMALL_BYTES = 64, 2**30


def pictured(table: SampleTable, options: SourceOptions, remarks: list[str]) -> SampleTable:
    """Return a table whose columns of binary values are fields of images, with the channels that most pictures have.

    Raises:
        SourceError: the values of a column do not begin as files of images do, and `--encoded` does not name it.
    """
    fields = {laid.name: laid for laid in table.layouts[0] if laid.in_words == BINARY}
    if not fields:
        return table
    paths = dict.fromkeys(table.row(number).path for number in range(len(next(iter(table.inputs.values())).files)))
    most = None if sum(Path(path).stat().st_size for path in paths) <= _SMALL_BYTES else _LOOKED_AT
    pictures = {name: _laid(table, laid, options, most, remarks) for name, laid in fields.items()}
    return table.relaid(lambda laid: pictures.get(laid.name, laid))


def _laid(
    table: SampleTable, laid: LaidField, options: SourceOptions, most: int | None, remarks: list[str]
) -> LaidField:
    """Return the field of a column of pictures."""
    name, path = laid.name, table.row(0).path
    headers, notes = Counter[tuple[int, int, int, str]](), Counter[str]()
    for number, value in enumerate(_values(table, name)):
        try:
            header = header_in(value, name, options)
        except SourceError as error:  # of a later one it comes again when the row is read
            if number == 0 and name not in options.encoded:
                reason = f"column {name} is binary, and its first value {error.reason.partition(';')[0]}"
                raise SourceError(f"{reason}; --encoded {name} if others are, or --skip {name}", path) from error
            continue
        headers[header[:4]] += 1
        notes[header.note] += 1
        if most and headers.total() >= most:
            break
    if not headers:
        raise SourceError(f"column {name} has no value that is an image; --skip {name} leaves it out", path)
    forms = Counter[tuple[int, str]]()
    for (_, _, channels, dtype), times in headers.items():
        forms[channels, dtype] += times
    (channels, dtype), usual = forms.most_common(1)[0]
    sizes = {header[:2] for header in headers if header[2:] == (channels, dtype)}
    size: tuple[int | None, int | None] = sizes.pop() if len(sizes) == 1 and most is None else (None, None)
    shown = pixels_in_words(channels, dtype)
    if usual < headers.total():
        few = headers.total() - usual
        remarks.append(f"column {name}: {few:,} of {headers.total():,} pictures are not {shown}, as most are")
    remarks += [f"column {name}, {times:,} pictures: {note}" for note, times in notes.items() if note]
    if laid.detail:
        remarks.append(f"column {name}: the pictures are packed, their names ({laid.detail}) are not")
    return laid._replace(shape=(*size, channels), dtype=dtype, in_words=shown, detail=None)


def _values(table: SampleTable, name: str) -> Iterator[bytes]:
    (files,) = table.inputs.values()
    for number in range(len(files.files)):
        row = table.row(number)
        for batch in peeked(row.path, row.numbers[GROUP], name):
            for leaf, array in leaves(batch):
                if leaf == name:
                    yield from (value.as_py() for value in array if value.is_valid)


def images_of(values: Any, laid: LaidField, options: SourceOptions) -> list[NDArray[Any]] | NDArray[Any]:
    """Return the pixels of pictures, (H, W, C) each, those of JPEG with their files.

    Raises:
        SourceError: one is damaged, or is not as most are.
    """
    images = list[NDArray[Any]]()
    for value in values:
        image = image_in(value.as_py(), laid.name, options)
        form = pixels_in_words(image.shape[2], image.dtype)
        if form != laid.in_words:
            reason = f"the picture in column {laid.name} is {form}, but {laid.in_words} in most rows"
            raise SourceError(f"{reason}; --mode converts all, --on-error skip leaves out the row")
        images.append(image)
    is_list = None in laid.shape or any(isinstance(image, EncodedImage) for image in images)
    return images if is_list else np.stack(images)
