"""The one way in which datasets are made and changed: who may, what is there when, and what is never touched."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from broken import stopped_at
from made_datasets import make_plain

from packer.append import append
from packer.convert import convert
from packer.errors import ChangedMeanwhileError, DatasetError, UsageError, WriteError
from packer.export import export
from packer.format import LOCK, Shard
from packer.format import manifest as manifests
from packer.packing import Change, LocalPlace, Note, SourceFiles, changing, source_files
from packer.split import split
from packer.verify import verify

SMALL = [{"a": n} for n in range(3)]
OTHER = [{"b": n} for n in range(4)]


def note(**settings):
    return Note(shards=2, settings={"codec": "lz4", **settings}, files=SourceFiles(1, "digest", "/a.png", 10**18))


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != LOCK)


def packed(path):
    """A small finished dataset."""
    convert(SMALL, path)
    return path


def begun(path, overwrite=False, **settings):
    """A run that began at a path and was stopped; returns its name."""
    with changing(LocalPlace(path)) as change:
        change.begin(note(**settings), overwrite)
        return change.run


@pytest.mark.parametrize("left", [None, [], [LOCK]])
def test_a_new_folder_is_claimed_and_released(tmp_path, left):
    """OUT is made, or empty but for the lock of a process that was killed; its note says what is being made in it."""
    out = tmp_path / "deep" / "out"
    if left is not None:
        out.mkdir(parents=True)
        for name in left:
            (out / name).touch()
    run = begun(out)
    assert names(out) == ["shards", "unfinished"]
    assert names(out / "unfinished") == [f"{run}.json"]
    assert begun(out) == run


@pytest.mark.parametrize("name", [".", ".."])
def test_the_folder_one_is_in_is_replaced(tmp_path, monkeypatch, name):
    """No folder is renamed, so whoever is in it stays there."""
    packed(tmp_path / "out")
    monkeypatch.chdir(tmp_path / "out" / ("shards" if name == ".." else ""))
    assert convert(OTHER, name, overwrite=True).samples == 4
    assert manifests.read(tmp_path / "out").samples == 4


def test_a_second_conversion_is_refused_at_once(tmp_path):
    """While one process changes the folder another is refused, with overwrite too; then it may."""
    with changing(LocalPlace(tmp_path / "out")):
        for overwrite in (False, True):
            with pytest.raises(UsageError, match=r"out is being changed already"):
                convert(SMALL, tmp_path / "out", overwrite=overwrite)
    assert convert(SMALL, tmp_path / "out").samples == 3


def test_the_lock_stays(tmp_path):
    """Removed, it could be one that another process has opened; nobody minds that it is there."""
    out = packed(tmp_path / "out")
    held = (out / LOCK).stat().st_ino
    assert not verify(out).damages
    split(out, {"all": 1.0})
    convert(OTHER, out, overwrite=True)
    assert (out / LOCK).stat().st_ino == held


def test_a_folder_that_holds_the_lock_alone_is_empty(tmp_path):
    """What a refused conversion leaves may be converted into, and exported to."""
    for make in (lambda out: convert(SMALL, out), lambda out: export(packed(tmp_path / "from"), out)):
        out = tmp_path / f"out{len(names(tmp_path))}"
        out.mkdir()
        (out / LOCK).touch()
        make(out)
        assert names(out)


@pytest.mark.parametrize("left", ["thesis.txt", "shards.bak", ".git", "shards/thesis.txt"])
def test_foreign_files_are_never_removed(tmp_path, left):
    """A folder that holds anything else is refused, however it is asked for and whatever else it holds."""
    for made in (False, True):
        out = tmp_path / f"out{made}"
        if made:
            packed(out)
        (out / left).parent.mkdir(parents=True, exist_ok=True)
        (out / left).write_text("mine")
        for overwrite in (False, True):
            with pytest.raises(UsageError, match=f"is not empty: it holds {left}"):
                convert(OTHER, out, overwrite=overwrite)
        assert (out / left).read_text() == "mine"


@pytest.mark.parametrize("name", ["rejected.jsonl", "names.lmdb", "shards/00000.lmdb"])
def test_files_of_ours_without_their_context_are_kept(tmp_path, name):
    """A folder with a file that could be a dataset's, but no manifest and no note of a run, is refused."""
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(UsageError, match="not an unfinished conversion"):
        convert(SMALL, tmp_path / "out", overwrite=True)
    assert path.read_text() == "mine"


def test_an_empty_folder_in_the_place_of_a_stopped_replacement(tmp_path):
    """No folder is moved, so making OUT by hand, or anything beside it, can cost nothing."""
    out = packed(tmp_path / "out")
    stopped_at(lambda: convert(OTHER, out, overwrite=True), Change, "publish")
    (tmp_path / ".out.replaced").mkdir()
    out.mkdir(exist_ok=True)
    assert manifests.read(out).samples == 3
    assert not verify(out).damages
    assert convert(OTHER, out, overwrite=True).kept_shards == 1
    assert names(tmp_path) == [".out.replaced", "out"]


def test_going_on_drops_half_written_files(tmp_path):
    """The same conversion finds its note, and no half-written file."""
    out = tmp_path / "out"
    run = begun(out)
    (out / "shards" / f"{run}-00001.lmdb.01234567.partial").write_text("half")
    (out / f"names-{run}.lmdb.01234567.partial").write_text("half")
    (out / f"names-{run}.lmdb").write_text("of this run")
    begun(out)
    assert names(out) == [f"names-{run}.lmdb", "shards", "unfinished"]
    assert names(out / "shards") == []


@pytest.mark.parametrize("left", ["names-{run}.lmdb", "constants-{run}.npz", "left-out-{run}.jsonl"])
def test_what_was_begun_again_has_nothing_of_the_old(tmp_path, left):
    """Names, constants and lists of an unfinished conversion do not stay beside one that has none."""
    run = begun(tmp_path / "out")
    (tmp_path / "out" / left.format(run=run)).write_text("of the old one")
    convert(SMALL, tmp_path / "out", overwrite=True)
    assert names(tmp_path / "out") == ["manifest.copy.json", "manifest.json", "shards"]


def test_a_note_that_cannot_be_read_needs_overwrite(tmp_path):
    """A damaged note is taken for another conversion's."""
    run = begun(tmp_path / "out")
    (tmp_path / "out" / "unfinished" / f"{run}.json").rename(tmp_path / "out" / "unfinished" / "01234567.json")
    (tmp_path / "out" / "unfinished" / "01234567.json").write_text("{")
    with pytest.raises(UsageError, match="its note cannot be read"):
        convert(SMALL, tmp_path / "out")
    assert convert(SMALL, tmp_path / "out", overwrite=True).samples == 3


def test_a_note_that_cannot_be_read_now_is_not_given_up(tmp_path, monkeypatch):
    """Too many open files say nothing of it: an error, and what was packed stays, with overwrite too."""
    stopped_at(lambda: convert(SMALL, tmp_path / "out"), Change, "publish")

    open_path = Path.open

    def fail(path, mode="r", **settings):
        if mode == "rb":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return open_path(path, mode, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fail)
        with pytest.raises(DatasetError, match="Too many open files"):
            convert(OTHER, tmp_path / "out", overwrite=True)
    assert convert(SMALL, tmp_path / "out").kept_shards == 1


def test_the_old_dataset_stands_until_the_new_one_is_done(tmp_path, files_of):
    """While a dataset is replaced, and after that has failed, the old one is whole; then the new one is there alone."""
    out = packed(tmp_path / "out")
    before = files_of(out)
    stopped_at(lambda: convert(OTHER, out, overwrite=True), Change, "publish")
    assert files_of(out).items() >= before.items()
    with pytest.raises(UsageError, match="packed dataset already; use --overwrite"):
        convert(OTHER, out)
    assert convert(OTHER, out, overwrite=True).samples == 4
    assert (names(out), names(tmp_path)) == (["manifest.copy.json", "manifest.json", "shards"], ["out"])


def test_a_dataset_of_an_earlier_version_is_replaced(tmp_path):
    """Its files have names of their own, and go when the new manifest is in place."""
    out = make_plain(packed(tmp_path / "out"))
    assert names(out / "shards") == ["00000.lmdb"]
    assert convert(OTHER, out, overwrite=True).samples == 4
    assert len(names(out / "shards")) == 1
    assert not verify(out).damages


@pytest.mark.parametrize("name", ["manifest.copy.json", "manifest.json"])
def test_killed_around_the_rename(tmp_path, name):
    """Before the manifest has its name the dataset is the old one; after it the same call says that it is done."""
    out = packed(tmp_path / "out")
    replace = lambda: convert(OTHER, out, overwrite=True)  # noqa: E731
    stopped_at(replace, LocalPlace, "put", lambda place, at, *_: at == name)
    assert manifests.read(out).samples == 3
    assert not verify(out).damages
    stopped_at(replace, Change, "tidy")
    assert manifests.read(out) == manifests.read(out, "manifest.copy.json")
    assert manifests.read(out).samples == 4
    assert not verify(out).damages
    assert replace().kept_shards == 1
    assert names(out) == ["manifest.copy.json", "manifest.json", "shards"]


def test_a_run_whose_files_were_removed_publishes_nothing(tmp_path):
    """No manifest names shards that somebody has removed meanwhile, with the note of the run."""
    out, manifest = tmp_path / "out", manifests.read(packed(tmp_path / "other"))
    with changing(LocalPlace(out)) as change:
        change.begin(note())
        shutil.rmtree(out / "unfinished")
        with pytest.raises(ChangedMeanwhileError):
            change.publish(manifest)
    assert not list(out.glob("manifest*"))


def test_a_run_that_came_too_late_leaves_what_is_finished(tmp_path):
    """The same command may use it; what was half written goes."""
    with changing(LocalPlace(tmp_path / "out")) as change:
        change.begin(note())
        finished = tmp_path / "out" / "unfinished" / f"{change.run}-00000.json"
        half = tmp_path / "out" / "shards" / f"{change.run}-00001.lmdb.01234567.partial"
        for path in (finished, half):
            path.touch()
        assert change.leave() == 1
        assert (finished.exists(), half.exists()) == (True, False)


def test_a_copy_never_names_what_is_gone(tmp_path):
    """Stopped when the copy alone is new, and followed by another command, the copy is that of the dataset again."""
    out = packed(tmp_path / "out")
    stopped_at(lambda: convert(OTHER, out, overwrite=True), LocalPlace, "put")
    stopped_at(lambda: convert(SMALL * 2, out, overwrite=True), Change, "publish")
    assert (out / "manifest.copy.json").read_bytes() == (out / "manifest.json").read_bytes()


def test_two_runs_never_share_a_name(tmp_path):
    """A name that the dataset has already is not given again, though chance would have it."""
    digests = [note().run(()), note().run((note().run(()),))]
    assert digests[0] != digests[1]
    assert note().run(digests) not in digests


def test_a_folder_that_cannot_be_made(tmp_path):
    """An error of the system names the folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="file/out"):
        convert(SMALL, tmp_path / "file" / "out")


def test_a_link_stays_a_link(tmp_path):
    """What a symbolic link leads to is made and replaced."""
    (tmp_path / "disk").mkdir()
    packed(tmp_path / "disk" / "real")
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "real")
    for _ in range(2):
        assert convert(OTHER, tmp_path / "out", overwrite=True).samples == 4
    assert (tmp_path / "out").is_symlink()
    assert names(tmp_path / "disk") == ["real"]


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
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=held))
    caplog.clear()
    convert(SMALL, tmp_path / "new", codec="none")
    assert "more bytes" not in caplog.text


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((0, ""), "the source files were 1 and are now 0"),
        ((2, "other", "/a.png", 10**18), "the source files were 1 and are now 2"),
        ((2, "other", "/b.png", 2 * 10**18), "the source files were 1 and are now 2: /b.png, changed 2033-05-18 "),
        ((1, "other", "/a.png", 10**18 + 10**12), "a source file has changed: /a.png, changed 2001-09-09 "),
        ((1, "other", "/b.png", 10**17), "a source file has changed: /a.png, changed 2001-09-0"),
        ((1, "other", "/a.png", 10**18), "codec was lz4 and is now zstd"),
        ((1, "digest", "/a.png", 10**18), "codec was lz4 and is now zstd"),
    ],
)
def test_differences_between_sources(files, words):
    """Files that came, went or changed their size or time are told before the settings that may follow from that.

    The one with the latest time is named; files in another order are no change if a setting tells of it.
    """
    difference = note().difference(Note(shards=2, settings={"codec": "zstd"}, files=SourceFiles(*files)))
    assert difference is not None
    assert difference.startswith(words)


def test_files_that_may_have_changed():
    """A run is refused if all that is known of its files is that they differ."""
    files = SourceFiles(1, "other", "/a.png", 10**18)
    assert "or was renamed" in (note().difference(msgspec.structs.replace(note(), files=files)) or "")


def test_source_files_are_noted_by_size_and_time(tmp_path):
    """Path, size and time of change make the digest; no files make none."""
    path = tmp_path / "a.png"
    path.write_bytes(b"12345")
    first = source_files([str(path)])
    assert (first[0].count, first[0].last, first[1]) == (1, str(path), 5)
    os.utime(path, ns=(0, 0))
    assert source_files([str(path)]) != first
    assert source_files([]) == (SourceFiles(), 0)


@pytest.mark.parametrize("finished", [False, True])
def test_changed_settings_are_refused_and_named(tmp_path, caplog, finished):
    """What was finished stays then; with --overwrite all is made again, with a warning if anything was finished."""
    run = begun(tmp_path / "out")
    if finished:
        (tmp_path / "out" / "unfinished" / f"{run}-00000.json").write_text("finished")
    with pytest.raises(UsageError, match=r"codec was lz4 and is now none;.*use --overwrite to begin again"):
        begun(tmp_path / "out", codec="none")
    other = begun(tmp_path / "out", True, codec="none")
    assert names(tmp_path / "out" / "unfinished") == [f"{other}.json"]
    assert ("another command has finished there are not used: codec was" in caplog.text) == finished


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errno.EROFS, "Read-only file system; choose a folder on a file system that can be written"),
        (errno.EACCES, "Permission denied; choose a folder that you may write to"),
        (errno.ENAMETOOLONG, "File name too long; choose a shorter name"),
        (errno.ENOSPC, "No space left on device; free some space or choose another folder"),
    ],
)
def test_errors_say_what_helps(tmp_path, monkeypatch, error, words):
    """Freeing space helps where there is no space; elsewhere something else does."""

    def fail(path, *_, **__):
        raise OSError(error, os.strerror(error), str(path))

    monkeypatch.setattr("os.open", fail)
    with pytest.raises(WriteError, match=words):
        convert(SMALL, tmp_path / "out")


@pytest.mark.parametrize("verb", ["convert", "append"])
def test_a_manifest_that_no_reader_takes_replaces_nothing(tmp_path, monkeypatch, verb):
    """The limit is checked before the old dataset is replaced; files of sources are in the manifest alone."""
    out = packed(tmp_path / "out")
    before = (out / "manifest.json").read_bytes()
    monkeypatch.setattr("packer.packing.commit.MAX_MANIFEST_BYTES", len(before) // 2)
    command = {"convert": lambda: convert(OTHER, out, overwrite=True), "append": lambda: append(out, SMALL)}[verb]
    with pytest.raises(UsageError, match=r"readers take [0-9,]+: take a larger --shard-size"):
        command()
    assert (out / "manifest.json").read_bytes() == before
    assert not verify(out).damages
    for path in (out / "shards").iterdir():
        with Shard(path) as shard:
            assert not shard.header().origin
