"""The interface that users see is the one written down in tests/public."""

from __future__ import annotations

import public


def test_the_interface_is_the_one_written_down() -> None:
    """Help and Python names change on purpose alone: then `python tests/helpers/public.py` writes them down anew."""
    written = {str(path.relative_to(public.FOLDER)): path.read_text() for path in public.FOLDER.rglob("*.txt")}
    assert public.texts() == written
