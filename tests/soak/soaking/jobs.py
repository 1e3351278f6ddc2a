"""Every call that makes or changes files that users need, on small data, and the states that it may leave."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import fsspec
import h5py
import numpy as np
from made_datasets import plain_names
from PIL import Image

from packer import stats
from packer.append import append
from packer.convert import ConvertOptions, convert
from packer.drop import drop
from packer.errors import DatasetError, UsageError
from packer.export import export
from packer.format import LOCK, MANIFEST, MANIFEST_COPY
from packer.join import join
from packer.merge import merge
from packer.packing import open_source
from packer.repack import repack
from packer.repair import repair
from packer.sources import SourceOptions
from packer.split import split
from packer.verify import verify
from packer.watcher import Watcher
from packer.writer import DatasetWriter
from readers import PackedDataset

Files = dict[str, bytes]
OPTIONS = ConvertOptions(codec="zstd", shard_size=4096, on_error="skip")
NEW = ConvertOptions(shard_size=4096, on_error="skip")

#: What a job works at: a dataset, which is the old one or the new one at every instant; a folder that is filled file by
#: file; a cache, whose files are taken for whole if they have their name.
DATASET, EXPORTED, CACHE = "dataset", "exported", "cache"


@dataclass(frozen=True)
class Job:
    """A call, and the files of `out` before and after it.

    Attributes:
        out: the folder that it makes or changes, alone in the folder above.
        run: makes the call, with this number of workers.
        again: makes it once more after it was cut off; usually the same call.
        old: the files of `out` before the call; empty if there is nothing.
        wanted: `files(out)` after an undisturbed call.
        adds: whether each call adds more samples.
        keeps: whether tables of the old dataset stay for open readers, as long as nobody is killed.
    """

    name: str
    out: Path
    run: Callable[[int], object]
    again: Callable[[int], object]
    works_at: str = DATASET
    old: Files = field(default_factory=dict)
    wanted: Files = field(default_factory=dict)
    adds: bool = False
    keeps: bool = False

    @property
    def disk(self) -> Path:
        """Return the folder that holds all that the call changes."""
        return self.out.parent

    def reset(self) -> None:
        """Restore the state before the call."""
        shutil.rmtree(self.disk, ignore_errors=True)
        self.disk.mkdir()
        for name, content in self.old.items():
            path = self.out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def check_left(self) -> None:
        """Check the state after the call was cut off: the old dataset whole, or the new one."""
        if self.works_at != DATASET:
            return
        if MANIFEST in self.old:
            held = contents(self.out)
            is_old = held.items() >= {name: data for name, data in self.old.items() if name != MANIFEST_COPY}.items()
            assert is_old or self.is_new(), "the dataset is neither the old one nor the new one"
        elif _can_be_opened(self.out):
            assert self.is_new(), "a dataset can be opened that is not the new one"

    def check_over(self) -> None:
        """Check the state after the call has returned, whatever happened to the disk since."""
        if self.works_at != CACHE:
            held = files(self.out, self.keeps)
            wrong = [name for name, content in self.wanted.items() if held.get(name) != content]
            assert not wrong, f"the call had returned, and {wrong} are lost or not whole"
        if self.works_at == DATASET:
            assert not (damages := verify(self.out).damages), f"the call had returned, and there is {damages[0]}"

    def check_again(self, workers: int = 0) -> None:
        """Check that the call ends well when it is made again, and leaves the usual result and nothing else.

        A finished call that would add the same samples once more is not made again.
        """
        was_new = self.works_at == DATASET and self.is_new()
        if self.adds and was_new and not list(self.out.glob("unfinished/????????.json")):
            return
        with suppress(*[UsageError] * was_new):  # it is done
            self.again(workers)
        if self.works_at != CACHE:
            held = files(self.out, self.keeps)
            wrong = [name for name in held.keys() | self.wanted if held.get(name) != self.wanted.get(name)]
            assert not wrong, f"made again, {wrong} are not what they should be"
            assert [path.name for path in self.disk.iterdir()] == [self.out.name], "something is left beside it"

    def is_new(self) -> bool:
        """Return whether the dataset that the call makes is there."""
        return files(self.out, self.keeps).items() >= self.wanted.items()


def contents(folder: Path) -> Files:
    """Return the bytes of the files of a folder by relative path, without its lock."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != LOCK]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def files(folder: Path, keeps: bool = False) -> Files:
    """Return the same with the names of `plain_names`."""
    return plain_names(contents(folder), keeps)


def make_pairs(folder: Path, count: int) -> list[str]:
    """Make pairs of small pictures of noise, one of them damaged; return the sources."""
    rng = np.random.default_rng(count)
    for name, size in (("lr", 8), ("hr", 16)):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            image = Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8))
            image.save(folder / name / f"{folder.name}-{number:03}.png")
    bad = folder / "hr" / f"{folder.name}-{count // 2:03}.png"
    bad.write_bytes(bad.read_bytes()[:-60] + bytes(60))
    return [f"lr={folder / 'lr'}", f"hr={folder / 'hr'}"]


def _can_be_opened(folder: Path) -> bool:
    try:
        PackedDataset(folder)
    except DatasetError:
        return False
    return True


def new_job(folder: Path, name: str) -> Job:
    """Make a job in an empty folder: its sources and its disk."""
    (folder / "disk").mkdir(parents=True)
    job = _MAKERS[name](folder, folder / "disk" / "out")
    job.reset()
    job.run(0)
    if job.works_at not in (EXPORTED, CACHE):
        assert not verify(job.out).damages
    return replace(job, name=name, wanted=files(job.out, job.keeps))


def _job(out: Path, run: Callable[[int], object], again: Callable[[int], object] | None = None, **more: object) -> Job:
    return Job("", out, run, again or run, **more)  # type: ignore[arg-type]


def _pairs(folder: Path, out: Path) -> Job:
    pairs = make_pairs(folder / "pairs", 13)
    return _job(out, lambda workers: convert(pairs, out, OPTIONS, workers=workers))


def _overwrite(folder: Path, out: Path) -> Job:
    pairs = make_pairs(folder / "pairs", 13)
    old = _made(folder / "old", pairs, codec="none")
    return _job(out, lambda workers: convert(pairs, out, OPTIONS, workers=workers, overwrite=True), old=old)


def _constants(folder: Path, out: Path) -> Job:
    """Rows without names, and a grid that all of them share."""
    with h5py.File(folder / "rows.h5", "w") as file:
        file["x"] = np.random.default_rng(1).normal(size=(400, 6)).astype("f4")
        file["grid"] = np.arange(5.0)
    options = replace(OPTIONS, source=SourceOptions(once=("grid",)))
    return _job(out, lambda workers: convert(folder / "rows.h5", out, options, workers=workers))


def _anew(folder: Path, out: Path) -> Job:
    """An unfinished conversion of other options is begun anew."""
    pairs = make_pairs(folder / "pairs", 13)

    def stop(samples: int, nbytes: int) -> None:
        if len(list((folder / "old").glob("unfinished/*-*.json"))) > 1:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        convert(pairs, folder / "old", OPTIONS, codec="none", workers=0, watcher=Watcher(done=stop))
    old = contents(folder / "old")
    assert MANIFEST not in old
    return _job(out, lambda workers: convert(pairs, out, OPTIONS, workers=workers, overwrite=True), old=old)


def _append(folder: Path, out: Path) -> Job:
    more = make_pairs(folder / "more", 5)  # so few that their names get a table of their own
    old = _made(folder / "old", make_pairs(folder / "pairs", 9))
    return _job(out, lambda workers: append(out, more, NEW, workers=workers), old=old, keeps=True)


def _append_rows(folder: Path, out: Path) -> Job:
    """Rows without names: only a note records whether they were added."""
    for seed, name in enumerate(("some", "more")):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["x"] = np.random.default_rng(seed).normal(size=(150, 6)).astype("f4")
    old = _made(folder / "old", [str(folder / "some.h5")])
    more = str(folder / "more.h5")
    return _job(out, lambda workers: append(out, more, NEW, workers=workers), old=old, adds=True, keeps=True)


def _join(folder: Path, out: Path) -> Job:
    """Captions of the samples that are there; one has been skipped."""
    old = _made(folder / "old", make_pairs(folder / "pairs", 7))
    for name in PackedDataset(folder / "old").names:
        (folder / "captions").mkdir(exist_ok=True)
        (folder / "captions" / f"{name}.txt").write_text(f"sample {name}")
    captions = f"caption={folder / 'captions'}"
    return _job(out, lambda workers: join(out, [captions], workers=workers), old=old)


def _drop(folder: Path, out: Path) -> Job:
    old = _made(folder / "old", make_pairs(folder / "pairs", 7))
    return _job(out, lambda workers: drop(out, ["lr"], workers=workers), old=old)


def _merge(folder: Path, out: Path) -> Job:
    parts = [folder / "first", folder / "second"]
    for count, part in enumerate(parts, 7):
        _made(part, make_pairs(folder / f"{part.name}-pairs", count))
    return _job(out, lambda workers: merge(parts, out))


def _repack(folder: Path, out: Path) -> Job:
    _made(folder / "old", make_pairs(folder / "pairs", 13), codec="none")
    return _job(out, lambda workers: repack(folder / "old", out, NEW, codec="zstd", seed=1, workers=workers))


def _split(folder: Path, out: Path) -> Job:
    old = _made(folder / "old", make_pairs(folder / "pairs", 9))
    return _job(out, lambda workers: split(out, {"train": 0.7, "valid": 0.3}), old=old)


def _stats(folder: Path, out: Path) -> Job:
    old = _made(folder / "old", make_pairs(folder / "pairs", 9))
    return _job(out, lambda workers: stats.save(out, stats.statistics(out)), old=old)


def _repair(folder: Path, out: Path) -> Job:
    """Two shards and the table of names are damaged."""
    pairs = make_pairs(folder / "pairs", 13)
    old = _made(folder / "old", pairs)
    first, _, third, *_ = sorted(name for name in old if name.startswith("shards/"))
    for name in (first, third, next(name for name in old if name.startswith("names-"))):
        middle = len(old[name]) // 2
        old[name] = old[name][:middle] + bytes(999) + old[name][middle + 999 :]
    return _job(out, lambda workers: repair(out, open_source(pairs, OPTIONS, []), workers=workers), old=old)


def _rebuild(folder: Path, out: Path) -> Job:
    """The manifest is damaged, and taken from its copy."""
    old = _made(folder / "old", make_pairs(folder / "pairs", 13))
    old["manifest.json"] = old["manifest.json"][:-100] + bytes(100)
    return _job(out, lambda workers: repair(out, workers=workers), old=old)


def _writer(folder: Path, out: Path) -> Job:
    values = np.random.default_rng(1).normal(size=(20, 100))

    def write(overwrite: bool) -> None:
        with DatasetWriter(out, codec="zstd", shard_size=4096, overwrite=overwrite) as writer:
            for number, value in enumerate(values):
                writer.add({"x": value}, name=f"s{number}")

    return _job(out, lambda workers: write(overwrite=False), lambda workers: write(overwrite=True))


def _export(to: str) -> Callable[[Path, Path], Job]:
    def make(folder: Path, out: Path) -> Job:
        dataset = folder / "old"
        _made(dataset, make_pairs(folder / "pairs", 5))
        return _job(
            out,
            lambda workers: export(dataset, out, to=to),
            lambda workers: export(dataset, out, to=to, overwrite=True),
            works_at=EXPORTED,
        )

    return make


def _dataset_at_url(folder: Path, out: Path) -> Job:
    """A dataset at a URL, read through the cache `out`."""
    _made(folder / "old", make_pairs(folder / "pairs", 9))
    url = f"memory://{folder.name}/packed"
    _put(folder / "old", url)
    expected = _samples(PackedDataset(folder / "old"))

    def read(workers: int) -> None:
        dataset = PackedDataset(url, cache=out)
        assert _samples(dataset) == expected, "the cache gives other values than the URL has"
        assert len(dataset.names) == len(expected)

    return _job(out, read, works_at=CACHE)


def _sources_at_url(folder: Path, out: Path) -> Job:
    """Sources at a URL, fetched into the cache `out` and packed, each time into another folder."""
    pairs = make_pairs(folder / "pairs", 7)
    _put(folder / "pairs", f"memory://{folder.name}/pairs")
    sources = [source.replace(f"={folder}", f"=memory://{folder.name}") for source in pairs]
    _made(folder / "old", pairs)
    expected = _samples(PackedDataset(folder / "old"))
    packed = (folder / f"packed{number}" for number in itertools.count())

    def pack(workers: int) -> None:
        made = next(packed)
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(out)}):
            convert(sources, made, OPTIONS, workers=workers)
        assert _samples(PackedDataset(made)) == expected, "the cache gives other files than the URL has"

    return _job(out, pack, works_at=CACHE)


def _made(folder: Path, sources: list[str], codec: str = "zstd") -> Files:
    """Convert sources into a dataset, and return its files."""
    convert(sources, folder, OPTIONS, codec=codec, workers=0)
    return contents(folder)


def _put(folder: Path, url: str) -> None:
    """Put a folder at a URL of this process's memory: a server whose calls never fail."""
    for name, content in contents(folder).items():
        fsspec.filesystem("memory").pipe_file(f"{url.removeprefix('memory:/')}/{name}", content)


def _samples(dataset: PackedDataset) -> list[dict[str, bytes]]:
    return [{name: value.numpy().tobytes() for name, value in sample.items()} for sample in dataset]


_MAKERS: dict[str, Callable[[Path, Path], Job]] = {
    "convert": _pairs,
    "convert --overwrite": _overwrite,
    "convert --overwrite of an unfinished one": _anew,
    "convert --once": _constants,
    "append": _append,
    "append rows": _append_rows,
    "join": _join,
    "drop": _drop,
    "merge": _merge,
    "repack": _repack,
    "split": _split,
    "stats --save": _stats,
    "repair": _repair,
    "repair the manifest": _rebuild,
    "DatasetWriter": _writer,
    "export --to png": _export("png"),
    "export --to hdf5": _export("hdf5"),
    "export --to basicsr-lmdb": _export("basicsr-lmdb"),
    "read a URL": _dataset_at_url,
    "convert a URL": _sources_at_url,
}
JOBS = tuple(_MAKERS)
