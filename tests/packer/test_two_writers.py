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
from typing import Any, NamedTuple

import fsspec
import numpy as np
import pytest

from packer.append import append
from packer.convert import convert
from packer.drop import drop
from packer.errors import ChangedMeanwhileError, UsageError
from packer.format import manifest as manifests
from packer.join import join
from packer.merge import merge
from packer.packing import Change, LocalPlace, RemotePlace, named_files
from packer.repack import repack
from packer.repair import repair
from packer.split import split
from packer.stats import save as save_statistics
from packer.stats import statistics
from packer.verify import verify
from packer.writer import DatasetWriter
from readers import PackedDataset

#: How many times the commands of a test are stopped, at random operations.
TIMES = int(os.environ.get("STOPS", "12"))

OPERATIONS = ("files", "read_tagged", "put", "write", "put_draft", "remove", "prepare", "local")


class Writer(threading.Thread):
    """A command in a thread of its own, which waits before one operation of its place until it may go on.

    Attributes:
        operations: how many it has made.
        error: what it raised.
    """

    def __init__(self, command: Callable[[], object], stop: int) -> None:
        super().__init__(daemon=True)
        self.command, self.stop = command, stop
        self.operations, self.error = 0, None
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
        assert self.is_there.wait(60)

    def end(self) -> None:
        """Let it come to its end."""
        self.may_go_on.set()
        self.join(60)
        assert not self.is_alive()

    def before_operation(self) -> None:
        if self.operations == self.stop:
            self.is_there.set()
            assert self.may_go_on.wait(60)
        self.operations += 1


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers stop, and there are no locks."""

    def before(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if isinstance(writer := threading.current_thread(), Writer):
                writer.before_operation()
            return method(*arguments, **options)

        return call

    for place in (LocalPlace, RemotePlace):
        monkeypatch.setattr(place, "lock", lambda place: contextlib.nullcontext(False))
        for name in OPERATIONS:
            monkeypatch.setattr(place, name, before(getattr(place, name)))
    folder_of = RemotePlace._cache_folder.fget
    own = property(lambda place: folder_of(place) / threading.current_thread().name)
    monkeypatch.setattr(RemotePlace, "_cache_folder", own)  # as of other machines


class Dataset:
    """A small dataset in a folder or at a URL, made anew for each pair of stops."""

    def __init__(self, folder: Path, at_url: bool) -> None:
        self.folder = folder
        self.fresh = folder / "fresh"
        for name, start in (("old", 0), ("first", 10), ("second", 20), ("third", 30), ("other", 60), ("last", 70)):
            np.save(folder / f"{name}.npy", np.arange(start, start + 3.0))
        np.save(folder / "wide.npy", np.arange(6.0).reshape(3, 2))
        convert({"x": str(folder / "old.npy"), "w": str(folder / "wide.npy")}, self.fresh, workers=0)
        for name in ("other", "last"):
            convert(self.sources(name), folder / name, workers=0)
        self.url = f"memory://{folder.name}" if at_url else ""
        self.count = itertools.count()

    def renew(self) -> None:
        self.path = f"{self.url}/{next(self.count)}" if self.url else str(self.folder / f"d{next(self.count)}")
        fs = fsspec.filesystem("memory" if self.url else "file")
        for file in self.fresh.rglob("*"):
            if file.is_file():
                name = f"{self.path}/{file.relative_to(self.fresh)}"
                fs.makedirs(name.rpartition("/")[0], exist_ok=True)
                fs.pipe_file(name.removeprefix("memory:/"), file.read_bytes())

    def copied(self) -> Path:
        """Return a folder of this machine that holds the dataset."""
        if not self.url:
            return Path(self.path)
        copy = self.folder / f"copy{next(self.count)}"
        fs = fsspec.filesystem("memory")
        for name in fs.find(self.path.removeprefix("memory:/")):
            target = copy / name.removeprefix(f"{self.path.removeprefix('memory:/')}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(fs.cat_file(name))
        return copy

    def sources(self, name: str) -> dict[str, str]:
        return {"x": str(self.folder / f"{name}.npy"), "w": str(self.folder / "wide.npy")}

    def append(self, name: str) -> object:
        return append(self.path, self.sources(name), workers=0)

    def write(self) -> None:
        with DatasetWriter(self.path, overwrite=True) as writer:
            for x in (50.0, 51.0):
                writer.add({"x": np.float64(x), "w": np.zeros(2)})


class State(NamedTuple):
    """What a dataset holds."""

    values: frozenset[float] = frozenset((0.0, 1.0, 2.0))
    fields: frozenset[str] = frozenset("xw")
    splits: frozenset[str] = frozenset()
    has_statistics: bool = False
    is_shuffled: bool = False

    def with_samples(self, start: float) -> State | None:
        more = {start, start + 1, start + 2}
        if self.fields != {"x", "w"} or more & self.values:
            return None
        return self._replace(values=self.values | more, has_statistics=False)

    @classmethod
    def of(cls, folder: Path) -> State:
        """Return that of a dataset; every sample is read, and every file is compared with its digest."""
        manifest, dataset = manifests.read(folder), PackedDataset(folder)
        assert not (damages := verify(folder).damages), damages
        values = dataset[list(range(len(dataset)))]["x"].tolist()
        assert len(values) == len(set(values))
        shuffles = str(manifest.origin).count("shuffled")
        assert shuffles <= 1
        splits, fields = frozenset(manifest.splits), frozenset(dataset.fields)
        return cls(frozenset(values), fields, splits, bool(manifest.stats), shuffles == 1)


class Verb(NamedTuple):
    """A command, and what it makes of what a dataset holds; None if it is refused."""

    run: Callable[[Dataset], object]
    result: Callable[[State], State | None]


VERBS = {
    "append": Verb(lambda d: d.append("first"), lambda s: s.with_samples(10.0)),
    "append another": Verb(lambda d: d.append("second"), lambda s: s.with_samples(20.0)),
    "append a third": Verb(lambda d: d.append("third"), lambda s: s.with_samples(30.0)),
    "join": Verb(
        lambda d: join(d.path, {"j": str(d.folder / "other.npy")}, workers=0),
        lambda s: s._replace(fields=s.fields | {"j"}) if len(s.values) == 3 and "j" not in s.fields else None,
    ),
    "drop": Verb(
        lambda d: drop(d.path, ["w"], workers=0),
        lambda s: s._replace(fields=s.fields - {"w"}) if "w" in s.fields else None,
    ),
    "split": Verb(lambda d: split(d.path, {"a": 0.5}), lambda s: s._replace(splits=s.splits | {"a"})),
    "stats": Verb(
        lambda d: save_statistics(d.path, statistics(Path(d.path))), lambda s: s._replace(has_statistics=True)
    ),
    "repack": Verb(
        lambda d: repack(d.path, d.path, overwrite=True, seed=3, workers=0),
        lambda s: s._replace(is_shuffled=True, has_statistics=False),
    ),
    "convert": Verb(
        lambda d: convert(d.sources("other"), d.path, overwrite=True, workers=0),
        lambda s: State(frozenset((60.0, 61.0, 62.0))),
    ),
    "write": Verb(Dataset.write, lambda s: State(frozenset((50.0, 51.0)))),
    "merge": Verb(
        lambda d: merge([d.folder / "other", d.folder / "last"], d.path, overwrite=True),
        lambda s: State(frozenset((60.0, 61.0, 62.0, 70.0, 71.0, 72.0))),
    ),
    "repair": Verb(lambda d: repair(d.path), lambda s: s),
}


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


def play(dataset: Dataset, verbs: Sequence[str], stops: Sequence[int]) -> list[int]:
    """Let each command come to its stop, then each to its end, then those that were late once more.

    Returns:
        how many operations each has made.
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
        for other in ("append another", "join", "drop", "split", "stats", "repack", "convert", "merge", "write")
    ),
    *(("repack", other) for other in ("split", "drop", "join")),
    *(("drop", other) for other in ("drop", "split", "join", "write")),
    *(("write", other) for other in ("convert", "stats", "repair")),
    ("append", "append another", "append a third"),
    ("drop", "append", "split"),
]
AT_A_URL = [("append", "append another"), ("drop", "join"), ("append", "convert"), ("append", "drop", "join")]


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
        play(dataset, verbs, [random.randrange(count) for count in operations])


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
