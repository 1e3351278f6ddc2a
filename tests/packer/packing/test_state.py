"""What tells a conversion from another, and which changes do no harm to what is finished."""

from __future__ import annotations

import pytest

from packer.errors import UsageError
from packer.packing.output import OutputFolder
from packer.packing.state import State, source_files


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


STOP, SKIP = {"--on-error": "stop"}, {"--on-error": "skip"}
CHANGES = [
    # What was asked for before and now, beside "codec"; whether a shard is finished; whether --go-on takes it.
    (STOP, SKIP, True, True),
    (SKIP, STOP, True, False),
    (SKIP, STOP, False, True),
    ({"--map-size": 4096}, {"--map-size": 8192}, False, True),
    (STOP | {"--map-size": 4096}, STOP | {"--map-size": 8192}, True, False),
    (STOP | {"--read-timeout": 1.0}, STOP | {"--read-timeout": 2.0}, True, True),
    (STOP | {"--read-timeout": 1.0}, STOP | {"--read-timeout": None}, True, True),
    (STOP | {"--read-timeout": 2.0}, STOP | {"--read-timeout": 1.0}, True, False),
    (STOP | {"--read-timeout": None}, STOP | {"--read-timeout": 1.0}, True, False),
    (STOP | {"--read-memory": 20}, SKIP | {"--read-memory": 10}, True, False),
    (STOP | {"--read-memory": 10}, SKIP | {"--read-memory": 20}, True, True),
    (SKIP | {"--read-timeout": 1.0}, SKIP | {"--read-timeout": 2.0}, True, False),
    (SKIP | {"--read-memory": 10}, SKIP | {"--read-memory": 20}, True, False),
    (SKIP | {"--read-memory": 20}, SKIP | {"--read-memory": 10}, False, True),
    ({"codec": "lz4"}, {"codec": "none"}, False, False),
]


@pytest.mark.parametrize(("was", "now", "finished", "goes_on"), CHANGES)
def test_changed_settings_are_refused_and_named(tmp_path, was, now, finished, goes_on):
    """Every one; and --go-on is named where it would help, which is where no finished shard would be another one."""
    begun(tmp_path / "out", was, finished)
    name = next(name for name in was if was[name] != now[name])
    advice = "use --go-on to go on with the change" if goes_on else "use --overwrite to begin anew"
    with pytest.raises(UsageError, match=f"{name} was {was[name]} and is now {now[name]};.*{advice}"):
        OutputFolder(tmp_path / "out", state(**now))
    assert shards(tmp_path / "out") == ["00000.lmdb"] * finished


@pytest.mark.parametrize(("was", "now", "finished", "goes_on"), CHANGES)
def test_changed_settings_that_are_meant(tmp_path, caplog, was, now, finished, goes_on):
    """With --go-on or --overwrite what is finished is kept, and the change noted, if it would be made the same now."""
    begun(tmp_path / "out", was, finished)
    if not goes_on:
        with pytest.raises(UsageError, match="differs"):
            OutputFolder(tmp_path / "out", state(**now), go_on=True)
        with OutputFolder(tmp_path / "out", state(**now), overwrite=True):
            assert shards(tmp_path / "out") == []
        assert ("is packed anew" in caplog.text) == finished
        return
    with OutputFolder(tmp_path / "out", state(**now), overwrite=True):
        assert shards(tmp_path / "out") == ["00000.lmdb"] * finished
    begun(tmp_path / "again", was, finished)
    with OutputFolder(tmp_path / "again", state(**now), go_on=True):
        assert shards(tmp_path / "again") == ["00000.lmdb"] * finished
    with OutputFolder(tmp_path / "again", state(**now)):
        assert shards(tmp_path / "again") == ["00000.lmdb"] * finished


def begun(out, settings, finished):
    """An unfinished conversion."""
    with OutputFolder(out, state(**settings)) as folder:
        if finished:
            (folder.shards / "00000.lmdb").write_text("finished")


def shards(out):
    return sorted(path.name for path in (out / "shards").iterdir())
