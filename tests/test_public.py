"""The interface that users see is the one written down in tests/public."""

from __future__ import annotations

from pathlib import Path

import public


def test_the_interface_is_the_one_written_down() -> None:
    """Help, Python names and members of JSON change on purpose: `tests/helpers/public.py` writes them down again."""
    written = {str(path.relative_to(public.FOLDER)): path.read_text() for path in public.FOLDER.rglob("*.txt")}
    assert public.texts() == written
    have_json = {Path(path).stem for path, text in written.items() if "--json  " in text}
    assert have_json == {command.split()[0] for command in public.WITH_JSON}
