"""What can be the name of a sample: told before it is packed, since names.lmdb is written when all else is done."""

from __future__ import annotations

from collections.abc import Sequence

from packer.errors import SourceError
from packer.format.names import MAX_NAME
from packer.format.schema import no_text

#: Letters of a name that an error shows.
_SHOWN = 40


def name_bytes(name: str, number: int) -> bytes:
    """Return the name of sample `number` as it is stored.

    Raises:
        SourceError: it is empty, too long, no text, or has a NUL, which no file name and no HDF5 name can have.
    """
    try:
        encoded = name.encode()
    except UnicodeEncodeError as error:
        raise no_text(f"sample {number}: its name {_short(name)}", error) from None
    if not 0 < len(encoded) <= MAX_NAME:
        raise SourceError(
            f"sample {number}: its name {_short(name)} has {len(encoded)} bytes; 1 to {MAX_NAME} are allowed; "
            "name it otherwise"
        )
    if b"\0" in encoded:
        raise SourceError(f"sample {number}: its name {_short(name)} has a NUL in it; name it otherwise")
    return encoded


def check_names(names: Sequence[str]) -> None:
    """Raise SourceError if one of the `names` of all samples cannot be stored; says which."""
    # Nearly all are short and plain, which takes no encoding to see: 0.2 instead of 0.5 s for a million.
    for number, name in enumerate(names):
        if not (name.isascii() and 0 < len(name) <= MAX_NAME and "\0" not in name):
            name_bytes(name, number)


def _short(name: str) -> str:
    return repr(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!r}..."
