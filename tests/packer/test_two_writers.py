"""Two commands write one dataset at the same time, without locks: each stops before each operation of its place."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from packer.append import append
from packer.convert import convert
from packer.drop import drop
from packer.errors import ChangedMeanwhileError
from packer.format import manifest as manifests
from packer.packing import LocalPlace, RemotePlace
from packer.split import split
from packer.verify import verify
from readers import PackedDataset

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


class Dataset:
    """A small dataset in a folder or at a URL, made anew for each pair of stops."""

    def __init__(self, folder: Path, at_url: bool) -> None:
        self.folder = folder
        self.fresh = folder / "fresh"
        for name, start in (("old", 0), ("first", 10), ("second", 20)):
            np.save(folder / f"{name}.npy", np.arange(start, start + 3.0))
        np.save(folder / "wide.npy", np.arange(6.0).reshape(3, 2))
        convert({"x": str(folder / "old.npy"), "w": str(folder / "wide.npy")}, self.fresh, workers=0)
        np.save(folder / "wide.npy", np.arange(6.0, 12.0).reshape(3, 2))
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

    def append(self, name: str) -> object:
        return append(self.path, {"x": str(self.folder / f"{name}.npy"), "w": str(self.folder / "wide.npy")}, workers=0)


VERBS: dict[str, tuple[Callable[[Dataset], object], Callable[[Any], bool]]] = {
    "append first": (lambda d: d.append("first"), lambda s: {10.0, 11.0, 12.0} <= set(s["x"])),
    "append second": (lambda d: d.append("second"), lambda s: {20.0, 21.0, 22.0} <= set(s["x"])),
    "split": (lambda d: split(d.path, {"a": 0.5}), lambda s: "a" in s["splits"]),
    "drop": (lambda d: drop(d.path, ["w"], workers=0), lambda s: "w" not in s["fields"]),
}


def state_of(folder: Path) -> dict[str, Any]:
    """Return what a dataset holds; every sample is read, and every file is compared with its digest."""
    manifest, dataset = manifests.read(folder), PackedDataset(folder)
    assert not verify(folder).damages
    values = dataset[list(range(len(dataset)))]["x"].tolist()
    assert len(values) == len(set(values))
    shuffles = str(manifest.origin).count("shuffled")
    assert shuffles <= 1
    return {"x": values, "splits": manifest.splits, "fields": list(dataset.fields), "shuffled": shuffles == 1}


def stops() -> Iterator[tuple[int, int]]:
    """Yield where the two stop: the first at each operation, the second at every 18th, others each time."""
    yield from ((first, second) for first in range(60) for second in range(first * 5 % 18, 60, 18))


PAIRS = [("append first", "append second"), ("split", "append first"), ("drop", "split")]


@pytest.mark.usefixtures("stopping")
@pytest.mark.parametrize(
    ("pair", "at_url"),
    [(pair, False) for pair in PAIRS] + [(pair, True) for pair in PAIRS[:1]],
    ids=lambda value: " beside ".join(value) if isinstance(value, tuple) else "at a URL" if value else "in a folder",
)
def test_what_was_reported_is_there_and_the_others_are_told(
    tmp_path: Path, pair: tuple[str, str], at_url: bool
) -> None:
    """One ends while the other is stopped, then the other; who was late is told so, and does it by the same command."""
    dataset = Dataset(tmp_path, at_url)
    is_over = set[int]()
    for first_stop, second_stop in stops():
        if first_stop in is_over:
            continue
        dataset.renew()
        writers = [
            Writer(lambda verb=verb: VERBS[verb][0](dataset), stop)
            for verb, stop in zip(pair, (first_stop, second_stop), strict=True)
        ]
        for writer in writers:
            writer.wait()
        was_stopped = [writer.is_alive() for writer in writers]
        for writer in writers:
            writer.end()
        where = f"{pair[0]} stopped at {first_stop}, {pair[1]} at {second_stop}"
        state = state_of(dataset.copied())
        for verb, writer in zip(pair, writers, strict=True):
            assert writer.error is None or isinstance(writer.error, ChangedMeanwhileError), f"{where}: {writer.error!r}"
            assert VERBS[verb][1](state) == (writer.error is None), f"{where}: {verb}: {writer.error}"
        for verb, writer in zip(pair, writers, strict=True):
            if writer.error is not None:
                VERBS[verb][0](dataset)
        state = state_of(dataset.copied())
        assert all(VERBS[verb][1](state) for verb in pair), where
        left = [name for name in dataset.copied().rglob("unfinished/*") if name.is_file()]
        assert not left, f"{where}: {left}"
        if not was_stopped[0]:
            break
        if not was_stopped[1]:
            is_over.add(first_stop)
