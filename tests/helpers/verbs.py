"""Every verb that writes, on a small dataset in a folder or at a URL, and what it makes of what the dataset holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import fsspec
import numpy as np

from packer.append import append
from packer.convert import convert
from packer.drop import drop
from packer.format import manifest as manifests
from packer.join import join
from packer.merge import merge
from packer.repack import repack
from packer.repair import repair
from packer.split import split
from packer.stats import save as save_statistics
from packer.stats import statistics
from packer.verify import verify
from packer.writer import DatasetWriter
from readers import PackedDataset


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

    def keep_statistics(self) -> None:
        manifest = manifests.read(Path(self.path))
        save_statistics(self.path, statistics(Path(self.path)), manifest)

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
        assert manifest.stats in ({}, statistics(folder))
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
    "stats": Verb(Dataset.keep_statistics, lambda s: s._replace(has_statistics=True)),
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
