"""The two ways in which frames are handled, by machine code and one by one, and how a test chooses one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from packer.codecs import compiled


def loading_of(by_machine: bool) -> compiled.Loading:
    """Return the state of a process that has loaded the loops, or of one that cannot load them."""
    loading = compiled.Loading(compiled.loading.module)
    if not by_machine:
        loading.failure = ImportError("not in this test")
    elif loading.load() is None:
        raise AssertionError("the loops cannot be loaded") from loading.failure
    return loading


@contextmanager
def handled(by_machine: bool) -> Iterator[compiled.Loading]:
    """Handle frames by machine code, or one by one, whatever the process has done before."""
    loading = loading_of(by_machine)
    with patch.object(compiled, "loading", loading):
        yield loading
