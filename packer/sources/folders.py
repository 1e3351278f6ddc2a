"""The files below a folder, as all sources see it: links are followed, hidden folders mostly left out."""

from __future__ import annotations

import os
from collections.abc import Iterator


def walk(root: str | os.PathLike[str], hidden: bool = False) -> Iterator[tuple[str, list[str]]]:
    """Every folder below and the sorted names of its files, hidden ones too; each folder once, whatever links to it.

    A folder that cannot be read counts as empty.

    Args:
        hidden: whether to go into hidden folders.
    """
    seen = set()
    for folder, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if hidden or name[0] != ".")
        yield folder, sorted(files)
