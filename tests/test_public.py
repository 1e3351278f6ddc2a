"""The interface that users see is the one written down in tests/public."""

from __future__ import annotations

import public
import pytest

TEXTS = public.texts()


@pytest.mark.parametrize("path", TEXTS)
def test_the_interface_is_the_one_written_down(path: str) -> None:
    """Help and Python names change on purpose alone: then `python tests/helpers/public.py` writes them down anew."""
    assert TEXTS[path] == (public.FOLDER / path).read_text()


def test_nothing_else_is_written_down() -> None:
    """A command that goes takes its help with it."""
    files = {str(path.relative_to(public.FOLDER)) for path in public.FOLDER.rglob("*.txt")}
    assert files == set(TEXTS)
