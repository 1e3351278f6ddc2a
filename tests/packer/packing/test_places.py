"""Where a dataset is made: a folder and a URL do the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from packer.errors import ChangedMeanwhileError
from packer.packing import Place, place_of


@pytest.fixture(params=["folder", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    made = place_of(tmp_path if request.param == "folder" else f"memory://{tmp_path.name}")
    made.prepare()
    return made


def test_a_file_is_put_only_in_place_of_the_one_that_was_read(place: Place) -> None:
    """A tag that is no longer that of the file is refused, and nothing is written; None means that there is no file."""
    assert place.read_tagged("manifest.json") is None
    first = place.put("manifest.json", b"1", None)
    assert place.read_tagged("manifest.json") == (b"1", first)
    with pytest.raises(ChangedMeanwhileError, match=r"was changed meanwhile.*run the same command again"):
        place.put("manifest.json", b"2", None)
    second = place.put("manifest.json", b"3", first)
    with pytest.raises(ChangedMeanwhileError):
        place.put("manifest.json", b"4", first)
    assert place.read_tagged("manifest.json") == (b"3", second)
    place.remove(["manifest.json"])
    with pytest.raises(ChangedMeanwhileError):
        place.put("manifest.json", b"5", second)
    assert "manifest.json" not in place.files()
