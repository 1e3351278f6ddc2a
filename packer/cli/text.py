"""Sizes, times and tables as people write and read them. Tables fit the terminal; without one nothing is cut."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import click

from packer.errors import as_text, printable

_GAP = "  "
#: A column is not made narrower than this; a terminal too narrow for that has to wrap lines.
_NARROWEST = 8
_POWERS = "kmgtp"
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(?:([kmgtp])(i?b)?|b)?\s*", re.IGNORECASE)


def terminal_width() -> int:
    """Return the columns of the terminal, or those that COLUMNS says; without either, as in a pipe, no limit."""
    columns = os.environ.get("COLUMNS", "")
    if not sys.stdout.isatty() and not (columns.isdecimal() and int(columns)):
        return sys.maxsize
    return shutil.get_terminal_size((80, 24)).columns


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    """Return the lines of a table as wide as the terminal at most; if that is too little, the widest columns are cut.

    Args:
        right: heads of the columns that are set to the right, as numbers are.
    """
    width = terminal_width()
    sizes = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    while sum(sizes) + len(_GAP) * (len(sizes) - 1) > width and max(sizes) > _NARROWEST:
        sizes[sizes.index(max(sizes))] -= 1
    lines = []
    for row in (heads, *rows):
        cells = [
            shorten(cell, size).rjust(size) if head in right else shorten(cell, size).ljust(size)
            for cell, size, head in zip(row, sizes, heads, strict=True)
        ]
        lines.append(_GAP.join(cells).rstrip())
    return lines


def listing(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return one line for each name and value; values too long go on in the next line."""
    pairs = [(printable(name), value) for name, value in pairs]
    indent = " " * (max(len(name) for name, _ in pairs) + len(_GAP))
    return [line for name, value in pairs for line in wrap(value, name.ljust(len(indent)), indent)]


def wrap(text: str, head: str = "", indent: str = _GAP) -> list[str]:
    """Return `text`, printable, in lines as wide as the terminal: `head` before the first, `indent` before others."""
    width = max(terminal_width(), len(indent) + _NARROWEST)
    lines = textwrap.wrap(printable(text), width, initial_indent=head, subsequent_indent=indent)
    return lines or [head.rstrip()]


def shorten(text: str, width: int) -> str:
    """Return `text`, printable, cut at its end if it is wider."""
    readable = printable(text)
    return readable if len(readable) <= width else readable[: width - 3] + "..."


def count_text(count: int, noun: str) -> str:
    """Return `1 sample`, `2,400 samples`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith("s") else "s")


def json_text(document: Any) -> str:
    """Return JSON that people can read too."""
    import msgspec  # here: `packer --help` loads this module

    if "path" in document:
        document = {**document, "path": as_text(str(document["path"]))}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def size(text: str) -> int:
    """Return the bytes that `text` says: `1GiB` and `1G` are 2**30, `1GB` is 10**9, `4096` is bytes.

    Raises:
        click.BadParameter: it is not a size.
    """
    match = _SIZE.fullmatch(text)
    if not match:
        raise click.BadParameter(f"{text!r} is not a size; 1GiB, 500MB or a number of bytes is expected")
    number, power, unit = match.groups()
    base = 1000 if unit and unit.lower() == "b" else 1024
    return round(float(number) * base ** (_POWERS.index(power.lower()) + 1)) if power else round(float(number))


def size_text(nbytes: float) -> str:
    """Return `12.3 MB`: three digits that count, in powers of 1000."""
    if nbytes < 999.5:
        return f"{nbytes:.0f} B"
    for unit in "kMGTP":
        nbytes /= 1000
        if nbytes < 999.5 or unit == "P":
            break
    return f"{nbytes:.{0 if nbytes >= 99.95 else 1 if nbytes >= 9.995 else 2}f} {unit}B"


def time_text(seconds: float) -> str:
    """Return `0:07`, `1:02:03`; tenths of a second below ten."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02} min"
