"""Text is stored as UTF-8; what that cannot hold is an error with a place."""

from __future__ import annotations

from packer.errors import SourceError


def no_text(what: str, error: UnicodeEncodeError) -> SourceError:
    """The error of a str that cannot be encoded: one with half a surrogate pair, as file names that are no text have.

    Args:
        what: the text at fault, in words.
    """
    letter = error.object[error.start]
    return SourceError(
        f"{what} cannot be stored as UTF-8: its letter {error.start} is {letter!r}, half of a surrogate pair; "
        "mend the text, or decode the bytes it comes from with errors='replace'"
    )
