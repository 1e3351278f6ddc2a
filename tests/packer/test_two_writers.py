"""Commands write one dataset at the same time, without locks: each stops before operations of its place."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from broken import stopped_at

from packer.append import append
from packer.convert import convert
from packer.errors import ChangedMeanwhileError, UsageError
from packer.format import MANIFEST
from packer.format import manifest as manifests
from packer.merge import merge
from packer.packing import Change, LocalPlace, RemotePlace, named_files
from packer.repack import repack
from tests.helpers.verbs import VERBS, Dataset, State

#: How many times the commands of a test are stopped, at random operations.
TIMES = int(os.environ.get("STOPS", "8"))

OPERATIONS = ("files", "read_tagged", "put", "write", "put_draft", "remove", "prepare", "local")


class Writer(threading.Thread):
    """A command in a thread of its own, which waits before one operation of its place until it may go on.

    Attributes:
        operations: the names of those that it has made.
        error: what it raised.
    """

    def __init__(self, command: Callable[[], object], stop: int) -> None:
        super().__init__(daemon=True)
        self.command, self.stop = command, stop
        self.operations: list[str] = []
        self.error: BaseException | None = None
        self.is_there, self.may_go_on = threading.Event(), threading.Event()

    def run(self) -> None:
        try:
            self.command()
        except BaseException as error:
            self.error = error
        self.is_there.set()

    def wait(self) -> None:
        """Let it come to where it stops, or to its end."""
        self.start()
        assert self.is_there.wait(100)

    def end(self) -> None:
        """Let it come to its end."""
        self.may_go_on.set()
        self.join(100)
        assert not self.is_alive()

    def before_operation(self, name: str) -> None:
        if len(self.operations) == self.stop:
            self.is_there.set()
            assert self.may_go_on.wait(100)
        self.operations.append(name)


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers stop, and there are no locks."""

    def before(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if isinstance(writer := threading.current_thread(), Writer):
                writer.before_operation(method.__name__)
            return method(*arguments, **options)

        return call

    for place in (LocalPlace, RemotePlace):
        monkeypatch.setattr(place, "lock", lambda place: contextlib.nullcontext(False))
        for name in OPERATIONS:
            monkeypatch.setattr(place, name, before(getattr(place, name)))
    folder_of = RemotePlace._cache_folder.fget
    own = property(lambda place: folder_of(place) / threading.current_thread().name)
    monkeypatch.setattr(RemotePlace, "_cache_folder", own)  # as of other machines


def results(state: State, verbs: Iterable[str]) -> set[State]:
    """Return what a dataset may hold after some commands, one after another in any order."""
    states = set()
    for order in itertools.permutations(verbs):
        after: State | None = state
        for verb in order:
            after = after and VERBS[verb].result(after)
        if after is not None:
            states.add(after)
    return states


def play(dataset: Dataset, verbs: Sequence[str], stops: Sequence[int]) -> list[list[str]]:
    """Let each command come to its stop, then each to its end, then those that were late once more.

    Returns:
        the operations that each has made.
    """
    dataset.renew()
    writers = [Writer(partial(VERBS[verb].run, dataset), stop) for verb, stop in zip(verbs, stops, strict=True)]
    for writer in writers:
        writer.wait()
    for writer in writers:
        writer.end()
    where = ", ".join(f"{verb} stopped at {stop}" for verb, stop in zip(verbs, stops, strict=True))
    errors = {verb: writer.error for verb, writer in zip(verbs, writers, strict=True) if writer.error is not None}
    done = [verb for verb, writer in zip(verbs, writers, strict=True) if writer.error is None]
    state = State.of(dataset.copied())
    # The same command in two processes may have made one change.
    assert state in results(State(), done) | results(State(), set(done)), f"{where}: {state}; {errors}"
    folder = dataset.copied()
    files = [path.name for path in (folder / "unfinished").glob("*")]
    runs = {name.partition("-")[0] for name in files if "-" in name} | manifests.read(folder).runs.keys()
    assert all(name[:8] in runs for name in files), f"{where}: {files} of commands that were late and keep no shard"
    assert all(f"{name[:8]}.json" in files for name in files), f"{where}: {files}, and a note is gone"
    refused = set[str]()
    for verb, error in errors.items():
        assert isinstance(error, UsageError), f"{where}: {verb}: {error!r}"
        after = VERBS[verb].result(state)
        if after is None:
            refused.add(verb)
            continue
        assert re.search("changed (meanwhile|since)", str(error)), f"{where}: {verb}: {error!r}"
        VERBS[verb].run(dataset)
        state = State.of(dataset.copied())
        assert state == after, where
    folder = dataset.copied()
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    left = names - named_files(manifests.read(folder)) - {".lock"}
    assert not left or refused, f"{where}: {left}"
    return [writer.operations for writer in writers]


#: Commands that are at work at one time. One of two that replace the dataset, or that add to it, stands for its like.
IN_A_FOLDER = [
    *(
        ("append", other)
        for other in ("append another", "join", "drop", "split", "stats", "repack", "convert", "write")
    ),
    *(("repack", other) for other in ("split", "drop", "join")),
    *(("drop", other) for other in ("drop", "split", "join", "write")),
    *(("write", other) for other in ("convert", "repair")),
    ("convert", "stats"),
    ("append", "append another", "append a third"),
    ("drop", "append", "split"),
]
AT_A_URL = [
    ("append", "append another"),
    ("drop", "join"),
    ("append", "convert"),
    ("append", "drop", "join"),
    ("merge", "split"),
]


@pytest.mark.usefixtures("stopping")
@pytest.mark.parametrize(
    ("verbs", "at_url"),
    [(verbs, False) for verbs in IN_A_FOLDER] + [(verbs, True) for verbs in AT_A_URL],
    ids=lambda value: " beside ".join(value) if isinstance(value, tuple) else "at a URL" if value else "in a folder",
)
def test_what_was_reported_is_there_and_the_others_are_told(
    tmp_path: Path, verbs: tuple[str, ...], at_url: bool
) -> None:
    """Stopped before any operations, each in turn ends; who was late is told so, and does it by the same command."""
    dataset = Dataset(tmp_path, at_url)
    operations = play(dataset, verbs, [1_000] * len(verbs))
    random = Random(" ".join(verbs))  # the same stops each time
    for _ in range(TIMES):
        play(dataset, verbs, [random.randrange(len(names)) for names in operations])


@pytest.mark.usefixtures("stopping")
def test_a_run_that_is_replaced_keeps_no_shard_without_its_note(tmp_path: Path) -> None:
    """Whenever it ends while the command that has replaced it tidies up, its note and its shards are there, or gone."""
    dataset = Dataset(tmp_path, False)
    verbs = ("append", "convert")  # what is appended suits the new dataset, too
    replaced, replacing = play(dataset, verbs, [1_000] * 2)
    published = len(replacing) - replacing[::-1].index("put")
    for stop in range(published, len(replacing) + 2):
        play(dataset, verbs, [replaced.index("put_draft"), stop])


@pytest.mark.usefixtures("stopping")
def test_a_run_is_replaced_by_what_is_published_alone(tmp_path: Path) -> None:
    """A command that was to replace it, and is killed before it publishes anything, costs it nothing."""
    dataset = Dataset(tmp_path, False)
    (operations,) = play(dataset, ["drop"], [1_000])
    dataset.renew()
    replaced = Writer(partial(VERBS["drop"].run, dataset), operations.index("put") - 2)  # its last look comes first
    replaced.wait()
    convert_anew = partial(VERBS["convert"].run, dataset)
    stopped_at(convert_anew, LocalPlace, "put", lambda place, name, *_: name == MANIFEST)
    replaced.end()
    assert replaced.error is None


@pytest.mark.usefixtures("stopping")
@pytest.mark.parametrize(
    ("other", "words", "kept"), [("split", "goes on after the shard that", 1), ("append", "begins with the dataset", 0)]
)
def test_who_was_late_says_what_it_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, words: str, kept: int
) -> None:
    """Shards that were made from those of the dataset are kept as long as it has these."""
    dataset = Dataset(tmp_path, False)
    dataset.renew()
    publish = Change.publish

    def publish_late(change: Change, *arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(Change, "publish", publish)
        VERBS[other].run(dataset)
        return publish(change, *arguments, **options)

    monkeypatch.setattr(Change, "publish", publish_late)
    with pytest.raises(ChangedMeanwhileError, match=f"was changed meanwhile.*the same command again: it {words}"):
        VERBS["drop"].run(dataset)
    assert len(list(Path(dataset.path).glob("unfinished/*-00000.json"))) == kept


@pytest.mark.parametrize(
    "command",
    [
        lambda d: merge([d.folder / "other", d.folder / "last"], d.path, overwrite=True),
        lambda d: append(d.path, d.folder / "last", workers=0),
        lambda d: repack(d.folder / "last", d.folder / "new", workers=0),
    ],
    ids=["merge", "append", "repack"],
)
def test_a_dataset_that_is_read_may_be_changed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[[Dataset], object]
) -> None:
    """The error says so and names it, not that it is damaged; the same command then takes it as it is now."""
    dataset = Dataset(tmp_path, False)
    dataset.renew()
    begin = Change.begin

    def begin_late(change: Change, *arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(Change, "begin", begin)
        convert(dataset.sources("third"), tmp_path / "last", overwrite=True, workers=0)
        begin(change, *arguments, **options)

    monkeypatch.setattr(Change, "begin", begin_late)
    with pytest.raises(ChangedMeanwhileError, match=r"last was changed meanwhile.*run the same command again"):
        command(dataset)
    command(dataset)
    made = tmp_path / "new" if (tmp_path / "new").exists() else Path(dataset.path)
    assert State.of(made).values >= {30.0, 31.0, 32.0}
