"""Text that names a place elsewhere: `s3://bucket/set`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeGuard

import xxhash

from packer.errors import UsageError

#: Two letters at least: `c://` is a drive.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_URL_AS_PATH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


def is_url(text: Any) -> TypeGuard[str]:
    """Whether `text` is a URL, and not a path or a pattern."""
    return isinstance(text, str) and _URL.match(text) is not None


def refuse_url(path: Path) -> None:
    """Refuses a URL where a folder is written; as a path it has lost one of its slashes.

    Raises:
        UsageError: it is one.
    """
    if _URL_AS_PATH.match(str(path)):
        raise UsageError(f"{path}: only `packer convert` writes to a URL; name a folder, and copy it there afterwards")


def label(url: str, content: bytes = b"") -> str:
    """The name of a folder for what is behind `url`: it can be read, and no other URL or `content` has it."""
    last = _PLAIN.sub("_", url.rstrip("/").rpartition("/")[2])[:40].lstrip(".")
    return f"{last}-{xxhash.xxh3_128_hexdigest(url.rstrip('/').encode() + bytes(1) + content)}"
