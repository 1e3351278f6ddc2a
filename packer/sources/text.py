"""Files of text beside those of the samples, such as captions: a field of text, as it is in the file."""

from __future__ import annotations

from functools import cache
from typing import Any

from packer.errors import SourceError
from packer.sources.files import decode_text, read_file
from packer.sources.kinds import Kind
from packer.sources.looking import Header
from packer.sources.options import SourceOptions
from packer.sources.table import LaidField, Row


def look(row: Row, options: SourceOptions) -> Header:
    """Return that each file is a text of any length; none is opened."""
    return _header(tuple(row.paths))


@cache  # so that millions of texts cost no more than their names
def _header(fields: tuple[str, ...]) -> Header:
    return Header(tuple(LaidField(field, "uint8", (None,), "text", "text") for field in fields))


def read(row: Row, options: SourceOptions) -> dict[str, Any]:
    """Return the text of each file, without a byte order mark."""
    return {field: _text(paths[0]) for field, paths in row.paths.items()}


def _text(path: str) -> str:
    data, _ = read_file(path)
    try:
        return decode_text(data)
    except UnicodeDecodeError:
        raise SourceError("is not text in UTF-8, nor in UTF-16 with its mark; save it as such", path) from None


KIND = Kind("text", (), look, read, units=(), lies_beside=True, may_be_missing=True)
