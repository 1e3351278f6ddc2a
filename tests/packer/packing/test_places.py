"""Where a dataset is made: a folder and a URL do the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from packer.errors import ChangedMeanwhileError
from packer.packing import Place, place_of
from packer.packing.origin import leaves
from packer.packing.places import LocalPlace
from packer.sources import shuffled_order


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


def test_a_draft_is_put_or_removed(place: Place) -> None:
    """It has its name once its block has ended, and is gone if an error came."""
    with place.drafted("names-00000000.lmdb") as draft:
        draft.write_bytes(b"1")
    assert place.read("names-00000000.lmdb") == b"1"
    drafts = []

    def stop() -> None:
        with place.drafted("names-00000001.lmdb") as draft:
            draft.write_bytes(b"2")
            drafts.append(draft)
            raise KeyError

    with pytest.raises(KeyError):
        stop()
    assert not drafts[0].exists()
    assert set(place.files()) == {"names-00000000.lmdb"}


def test_the_last_look_is_right_before_the_rename(tmp_path, monkeypatch):
    """What another command puts while the bytes go to the disk stays: a file is looked at after it was written."""
    place = LocalPlace(tmp_path)
    first = place.put("manifest.json", b"1", None)
    plain = os.fsync

    def other_command(descriptor):
        plain(descriptor)
        (tmp_path / "manifest.json").write_bytes(b"other")

    monkeypatch.setattr("packer.format.sync.os.fsync", other_command)
    with pytest.raises(ChangedMeanwhileError):
        place.put("manifest.json", b"2", first)
    assert (tmp_path / "manifest.json").read_bytes() == b"other"


def test_leaves_of_shuffled_parts_know_their_samples():
    """Of each source, in its order, the numbers of its samples in the dataset."""
    parts = [{"samples": count, "origin": {"kind": kind}} for kind, count in (("a", 4), ("b", 6))]
    order = shuffled_order(10, 7)
    sources = leaves({"kind": "x", "shuffled": 7, "origin": {"kind": "x", "parts": parts}}, 10)
    numbers = [number for source in sources for number in list(source.numbers)]
    assert [source.origin["kind"] for source in sources] == ["a", "b"]
    assert [order[number] for number in numbers] == list(range(10))
    plain = leaves({"kind": "x", "parts": parts}, 10)
    assert [list(source.numbers) for source in plain] == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]
