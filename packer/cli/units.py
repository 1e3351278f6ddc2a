"""Sizes and times as people write and read them."""

from __future__ import annotations

import re

import click

_POWERS = "kmgtp"
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(?:([kmgtp])(i?b)?|b)?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes that `text` says: `1GiB` and `1G` are 2**30, `1GB` is 10**9, `4096` is bytes.

    Raises:
        ValueError: it is not a size.
    """
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a size; 1GiB, 500MB or a number of bytes is expected")
    number, power, unit = match.groups()
    base = 1000 if unit and unit.lower() == "b" else 1024
    return round(float(number) * base ** (_POWERS.index(power.lower()) + 1)) if power else round(float(number))


def size(text: str) -> int:
    """Parse a size as the type of an option."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def size_text(nbytes: float) -> str:
    """Return `12.3 MB`: three digits that count, in powers of 1000."""
    if nbytes < 1000:
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
