"""The folder a dataset is made in: who may use it, what is replaced when, and what is never touched."""

from __future__ import annotations

import errno
import os
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from broken import stopped_at

from packer.convert import convert
from packer.errors import UsageError, WriteError
from packer.export import export
from packer.format import manifest as manifests
from packer.packing import LOCK, Note, OutputFolder, dataset_lock, next_to, source_files
from packer.split import split
from packer.verify import verify

SMALL = [{"a": n} for n in range(3)]
OTHER = [{"b": n} for n in range(4)]


def note(**settings):
    return Note(shards=2, settings={"codec": "lz4", **settings}, files=[("/a.png", 10, 100)])


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != LOCK)


def packed(path):
    """A small finished dataset."""
    convert(SMALL, path)
    return path


@pytest.mark.parametrize("left", [None, [], [LOCK]])
def test_a_new_folder_is_claimed_and_released(tmp_path, left):
    """OUT is made, or empty but for the lock of a process that was killed; it says what is being made in it."""
    if left is not None:
        (tmp_path / "deep" / "out").mkdir(parents=True)
        for name in left:
            (tmp_path / "deep" / "out" / name).touch()
    with OutputFolder(tmp_path / "deep" / "out", note()) as folder:
        assert folder.work == folder.path
        assert names(folder.path) == ["shards", "unfinished.json"]
    assert names(folder.path) == ["shards", "unfinished.json"]


@pytest.mark.parametrize("name", [".", ".."])
def test_the_folder_one_is_in_is_not_replaced(tmp_path, monkeypatch, name):
    """It cannot be renamed, which is said before anything is packed; nothing of it changes."""
    before = names(packed(tmp_path / "out"))
    monkeypatch.chdir(tmp_path / "out" / ("shards" if name == ".." else ""))
    with pytest.raises(UsageError, match="the folder you are in cannot be replaced"):
        convert(OTHER, name, overwrite=True)
    assert names(tmp_path / "out") == before
    assert names(tmp_path) == ["out"]


def test_a_second_conversion_is_refused_at_once(tmp_path):
    """While one conversion holds the folder another is refused, with overwrite too; then it may have it."""
    with OutputFolder(tmp_path / "out", note()):
        for overwrite in (False, True):
            with pytest.raises(UsageError, match=r"another conversion into .*out is running"):
                OutputFolder(tmp_path / "out", note(), overwrite)
    with OutputFolder(tmp_path / "out", note()):
        pass


def test_the_lock_stays(tmp_path):
    """Removed, it could be one that another process has opened and waits for; nobody minds that it is there."""
    out = packed(tmp_path / "out")
    with dataset_lock(out, manifests.read):
        pass
    held = (out / LOCK).stat().st_ino
    assert not verify(out).damages
    split(out, {"all": 1.0})
    assert (out / LOCK).stat().st_ino == held
    convert(OTHER, out, overwrite=True)
    assert (out / LOCK).exists()


def test_a_folder_that_holds_the_lock_alone_is_empty(tmp_path):
    """What a refused conversion leaves may be converted into, and exported to."""
    for make in (lambda out: convert(SMALL, out), lambda out: export(packed(tmp_path / "from"), out)):
        out = tmp_path / f"out{len(names(tmp_path))}"
        out.mkdir()
        (out / LOCK).touch()
        make(out)
        assert names(out)


@pytest.mark.parametrize("left", ["thesis.txt", "shards.bak", ".git"])
def test_foreign_files_are_never_removed(tmp_path, left):
    """A folder that holds anything else is refused, however it is asked for and whatever else it holds."""
    for made in (False, True):
        out = tmp_path / f"out{made}"
        if made:
            packed(out)
        out.mkdir(exist_ok=True)
        (out / left).mkdir()
        before = names(out)
        for overwrite in (False, True):
            with pytest.raises(UsageError, match=r"not empty|packed dataset already"):
                OutputFolder(out, note(), overwrite)
        assert names(out) == before


def test_files_of_ours_without_their_context_are_kept(tmp_path):
    """A folder with a file that could be a dataset's, but no manifest and no note of a conversion, is refused."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "rejected.jsonl").write_text("mine")
    with pytest.raises(UsageError, match="not an unfinished conversion"):
        OutputFolder(tmp_path / "out", note(), overwrite=True)
    assert (tmp_path / "out" / "rejected.jsonl").read_text() == "mine"


def test_going_on_keeps_shards_and_drops_partial_files(tmp_path):
    """The same conversion finds what it had finished, and no half-written file."""
    with OutputFolder(tmp_path / "out", note()) as folder:
        (folder.shards / "00000.lmdb").write_text("whole")
        (folder.shards / "00001.lmdb.partial").write_text("half")
        (folder.work / "names.lmdb.partial").write_text("half")
    with OutputFolder(tmp_path / "out", note()) as folder:
        assert names(folder.shards) == ["00000.lmdb"]
        assert "names.lmdb.partial" not in names(folder.work)


@pytest.mark.parametrize("left", ["names.lmdb", "constants.npz", "rejected.jsonl"])
def test_what_was_begun_anew_has_nothing_of_the_old(tmp_path, left):
    """Names, constants and lists of an unfinished conversion do not stay beside one that has none."""
    with OutputFolder(tmp_path / "out", note()) as folder:
        (folder.work / left).write_text("of the old one")
    convert(SMALL, tmp_path / "out", overwrite=True)
    assert names(tmp_path / "out") == ["manifest.json", "shards"]


def test_a_note_that_cannot_be_read_needs_overwrite(tmp_path):
    """A damaged unfinished.json is taken for another conversion's."""
    with OutputFolder(tmp_path / "out", note()):
        pass
    (tmp_path / "out" / "unfinished.json").write_text("{")
    with pytest.raises(UsageError, match=r"unfinished\.json cannot be read"):
        OutputFolder(tmp_path / "out", note())
    with OutputFolder(tmp_path / "out", note(), overwrite=True):
        pass


def test_a_note_that_cannot_be_read_now_is_not_given_up(tmp_path, monkeypatch):
    """Too many open files say nothing of it: an error, and what was packed stays, with overwrite too."""
    with OutputFolder(tmp_path / "out", note()) as folder:
        (folder.shards / "00000.lmdb").write_bytes(b"packed")

    def fail(path):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        with pytest.raises(WriteError, match="Too many open files"):
            OutputFolder(tmp_path / "out", note(), overwrite=True)
    assert (tmp_path / "out" / "shards" / "00000.lmdb").exists()


def test_the_old_dataset_stands_until_the_new_one_is_done(tmp_path, files_of):
    """While a dataset is replaced, and after that has failed, the old one is whole; then the new one is there alone."""
    out = packed(tmp_path / "out")
    before = files_of(out)
    with OutputFolder(out, note(), overwrite=True) as folder:
        assert folder.work != out
        assert files_of(out) == before
    assert files_of(out) == before
    with pytest.raises(UsageError, match="--overwrite"):
        OutputFolder(out, note())
    assert convert(OTHER, out, overwrite=True).samples == 4
    assert (names(out), names(tmp_path)) == (["manifest.json", "shards"], ["out"])


def test_a_rename_that_fails(tmp_path, monkeypatch, files_of):
    """If the new dataset cannot get its place, the old one is back in it."""
    out = packed(tmp_path / "out")
    before, rename = files_of(out), Path.rename

    def fail(path, target):
        if path.name == ".out.replacing":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(WriteError, match="Input/output error"):
        convert(OTHER, out, overwrite=True)
    assert files_of(out) == before


def test_killed_between_the_renames(tmp_path, files_of):
    """The old dataset comes back, and the same call puts the new one in its place without packing it again."""
    out = packed(tmp_path / "out")
    before = files_of(out)

    replace = partial(convert, OTHER, out, overwrite=True)
    stopped_at(replace, Path, "rename", lambda old, _: old.name == ".out.replacing")
    assert names(tmp_path) == [".out.replaced", ".out.replacing"]
    with pytest.raises(UsageError, match="packed dataset already"):
        convert(OTHER, out)
    assert files_of(out) == before
    assert convert(OTHER, out, overwrite=True).kept_shards == 1
    assert names(tmp_path) == ["out"]


def test_a_folder_that_cannot_be_made(tmp_path):
    """An error of the system names the folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="file/out"):
        OutputFolder(tmp_path / "file" / "out", note())


def test_a_link_stays_a_link(tmp_path):
    """What a symbolic link leads to is made and replaced; hidden folders stand beside that."""
    (tmp_path / "disk").mkdir()
    packed(tmp_path / "disk" / "real")
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "real")
    for _ in range(2):
        assert convert(OTHER, tmp_path / "out", overwrite=True).samples == 4
    assert (tmp_path / "out").is_symlink()
    assert names(tmp_path / "disk") == ["real"]
    assert next_to(tmp_path / "out", "appending") == next_to(tmp_path / "disk" / "real", "appending")


def test_a_place_that_is_taken_is_told_before_sources_are_looked_at(tmp_path):
    """Opening a million files takes a while; only to refuse the output folder then would be a waste of it."""
    packed(tmp_path / "out")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for place, words in (("out", "a packed dataset already"), ("other", "not empty")):
        with pytest.raises(UsageError, match=words):
            convert(str(tmp_path / "nothing"), tmp_path / place)
    with pytest.raises(UsageError, match="nothing"):
        convert(str(tmp_path / "nothing"), tmp_path / "out", overwrite=True)


def test_a_disk_that_may_be_too_small(tmp_path, monkeypatch, caplog):
    """A warning, since less may do where samples are compressed; what is there already counts, but to replace it."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=8191))
    convert(SMALL, tmp_path / "out", codec="none")
    held = sum(path.stat().st_size for path in (tmp_path / "out" / "shards").iterdir())
    assert f"may need up to {held:,} more bytes, but 8,191 are free" in caplog.text
    caplog.clear()
    convert(SMALL, tmp_path / "out", codec="none", overwrite=True)
    assert f"may need up to {held:,} more bytes" in caplog.text
    said = []
    for most in (0, held + 8191, held + 8192):
        caplog.clear()
        with OutputFolder(tmp_path / "new", note(), most=most) as folder:
            (folder.shards / "00000.lmdb").write_bytes(bytes(held))
        said.append("more bytes" in caplog.text)
    assert said == [False, False, True]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "/a.png is gone"),
        ([("/a.png", 10, 100), ("/b.png", 1, 1)], "/b.png is new"),
        ([("/a.png", 11, 100)], "/a.png has changed"),
        ([("/a.png", 10, 101)], "/a.png has changed"),
        ([("/a.png", 10, 100)], "codec was lz4 and is now zstd"),
    ],
)
def test_differences_between_sources(files, words):
    """A file that came, went or changed its size or time is named, before the settings that may follow from it."""
    assert note().difference(Note(shards=2, settings={"codec": "zstd"}, files=files)) == words


def test_source_files_are_noted_by_size_and_time(tmp_path):
    """Path, size and time of change in nanoseconds."""
    path = tmp_path / "a.png"
    path.write_bytes(b"12345")
    assert source_files([str(path)]) == [(str(path), 5, path.stat().st_mtime_ns)]


@pytest.mark.parametrize("finished", [False, True])
def test_changed_settings_are_refused_and_named(tmp_path, caplog, finished):
    """What was finished stays then; with --overwrite all is made anew, with a warning if anything was finished."""
    with OutputFolder(tmp_path / "out", note()) as folder:
        if finished:
            (folder.shards / "00000.lmdb").write_text("finished")
    with pytest.raises(UsageError, match=r"codec was lz4 and is now none;.*use --overwrite to begin anew"):
        OutputFolder(tmp_path / "out", note(codec="none"))
    assert names(folder.shards) == ["00000.lmdb"] * finished
    with OutputFolder(tmp_path / "out", note(codec="none"), overwrite=True):
        assert names(folder.shards) == []
    assert ("is packed anew" in caplog.text) == finished
