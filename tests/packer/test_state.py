"""What tells a conversion from another, and which changes do no harm to what is finished."""

from __future__ import annotations

import pytest

from packer.errors import UsageError
from packer.output import OutputFolder
from packer.state import State, source_files


def state(**settings):
    return State(shards=2, settings={"codec": "lz4", **settings}, files=[("/a.png", 10, 100)])


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "/a.png is gone"),
        ([("/a.png", 10, 100), ("/b.png", 1, 1)], "/b.png is new"),
        ([("/a.png", 11, 100)], "/a.png has changed"),
        ([("/a.png", 10, 101)], "/a.png has changed"),
        ([("/a.png", 10, 100)], None),
    ],
)
def test_differences_between_sources(files, words):
    """A file that came, went or changed its size or time is named."""
    assert state().difference(State(shards=2, settings={"codec": "lz4"}, files=files)) == words


def test_source_files_are_noted_by_size_and_time(tmp_path):
    """Path, size and time of change in nanoseconds."""
    path = tmp_path / "a.png"
    path.write_bytes(b"12345")
    assert source_files([str(path)]) == [(str(path), 5, path.stat().st_mtime_ns)]


@pytest.mark.parametrize(
    ("name", "was", "now", "finished", "goes_on"),
    [
        ("--on-error", "stop", "skip", True, True),
        ("--on-error", "skip", "stop", True, False),
        ("--on-error", "skip", "stop", False, True),
        ("--map-size", 4096, None, False, True),
        ("--map-size", 4096, None, True, False),
        ("codec", "lz4", "none", False, False),
    ],
)
def test_settings_that_harm_no_finished_shard_may_change(tmp_path, name, was, now, finished, goes_on):
    """What an error has asked to change can be changed, where finished shards are what they would be now."""
    with OutputFolder(tmp_path / "out", state(**{name: was})) as folder:
        if finished:
            (folder.shards / "00000.lmdb").write_text("finished")
    if goes_on:
        with OutputFolder(tmp_path / "out", state(**{name: now})) as folder:
            assert sorted(path.name for path in folder.shards.iterdir()) == ["00000.lmdb"] * finished
    else:
        with pytest.raises(UsageError, match=f"{name} was {was} and is now {now}"):
            OutputFolder(tmp_path / "out", state(**{name: now}))
