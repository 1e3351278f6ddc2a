"""The two ways in which frames are handled, by machine code and one by one, and how a test chooses one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from packer.codecs import compiled


def loading_of(by_machine: bool) -> compiled.Loading:
    """What became of the loops where machine code handles frames, or where the loops cannot be had."""
    loading = compiled.Loading()
    if not by_machine:
        loading.failure = ImportError("not in this test")
    elif loading.load() is None:
        raise AssertionError("the loops cannot be loaded") from loading.failure
    return loading


@contextmanager
def handled(by_machine: bool) -> Iterator[compiled.Loading]:
    """Lets frames be handled by machine code, or one by one, whatever the process has done before."""
    loading = loading_of(by_machine)
    with patch.object(compiled, "loading", loading):
        yield loading
