"""Reads damaged datasets in forked children: none may die, hang, or take memory without bound. Linux alone."""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from packer.codecs import compiled
from packer.errors import PackerError, UsageError
from packer.verify import verify
from readers import Crop, Loader, PackedDataset, PointSample, Ragged
from soaking.mutations import mutate

#: Memory that a child may take beyond what it was forked with.
MOST_BYTES = 2**30
#: Samples read one by one, and batches read in order, at most.
_MOST_READ = 40


@dataclass(frozen=True)
class Outcome:
    """What came of one damaged dataset.

    Attributes:
        what: `right` where all of it could be read, `refused` where an error of our own said why not; else the fault.
        damage: what was done to it.
    """

    seed: int
    what: str
    damage: str

    @property
    def is_fault(self) -> bool:
        return self.what not in ("right", "refused")


def read_damaged(template: Path, folder: Path, seeds: range, seconds: float = 30) -> list[Outcome]:
    """Makes the damaged dataset of each seed and reads all of it, in one child; in another, behind one that died.

    Args:
        template: the sound dataset.
        folder: an empty one, for the damaged ones.
        seconds: how long one dataset may take.
    """
    compiled.loading.load()  # once, for all children
    outcomes: list[Outcome] = []
    while len(outcomes) < len(seeds):
        outcomes += _in_child(template, folder, seeds[len(outcomes) :], seconds)
    return outcomes


def _in_child(template: Path, folder: Path, seeds: range, seconds: float) -> list[Outcome]:
    """Outcomes of as many datasets as a child came through, and of the one that it died of."""
    end, begin = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(end)
        _read_all(template, folder, seeds, seconds, begin)
    os.close(begin)
    with os.fdopen(end, encoding="utf-8") as pipe:
        lines = [line.rstrip("\n").split("\t") for line in pipe]
    status = os.waitpid(pid, 0)[1]
    done = [Outcome(int(seed), what, damage) for seed, damage, what in (line for line in lines if len(line) == 3)]
    if len(done) < len(seeds):
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        hung = number == signal.SIGALRM
        how = f"not done in {seconds} s" if hung else f"signal {number}" if number else f"exit {status}"
        damage = lines[-1][1] if lines and len(lines[-1]) == 2 else "?"
        done.append(Outcome(seeds[len(done)], how, damage))
    return done


def _read_all(template: Path, folder: Path, seeds: range, seconds: float, pipe: int) -> None:
    """Reads the dataset of each seed; tells of each when it begins and when it is done. Does not return."""
    try:
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + MOST_BYTES, held + MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        loops = compiled.loading.load()
        for seed in seeds:
            # Every other dataset is decoded by machine code, the rest frame by frame.
            compiled.loading.found, compiled.loading.seconds = (loops if seed % 2 else None), 0.0
            place = folder / str(seed)
            damage = mutate(template, place, seed)
            os.write(pipe, f"{seed}\t{damage}\n".encode())
            signal.setitimer(signal.ITIMER_REAL, seconds)
            what = read_all_ways(place, parts=seed % 4 == 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.write(pipe, f"{seed}\t{damage}\t{what}\n".encode())
            shutil.rmtree(place)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def read_all_ways(folder: Path, parts: bool = True) -> str:
    """Reads all of a dataset in every way there is; returns `right`, `refused`, or the fault.

    Args:
        parts: parts of samples too (crops, points, regions), which takes as long as all else.
    """
    try:
        dataset, checked = PackedDataset(folder), PackedDataset(folder, verify=True)
    except PackerError:
        return "refused"
    ways: list[Callable[[], object]] = [
        lambda: verify(folder),
        lambda: _check_batch(dataset[:], dataset, len(dataset)),
        lambda: _one_by_one(dataset),
        lambda: _loaded(dataset, threads=0, shuffle=True),
        lambda: _loaded(dataset, threads=1, shuffle="block"),
        lambda: _loaded(checked, threads=0, shuffle=False),
        lambda: _names(dataset),
    ]
    if parts:
        ways += [lambda: _parts(folder), lambda: _regions(checked)]
    refused = 0
    for number, way in enumerate(ways):
        try:
            way()
        except PackerError:
            refused += 1
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = f"way {number}: {type(error).__name__}: {error} at {place.filename}:{place.lineno}"
            return " ".join(text.split())
    return "refused" if refused else "right"


def _check_batch(batch: dict[str, Any], dataset: PackedDataset, count: int) -> None:
    """Whether a batch, damaged or not, has the shapes that the schema says."""
    for name, field in dataset.fields.items():
        value = batch[name]
        if isinstance(value, Ragged):
            assert len(value.offsets) == count + 1, f"{name} has {len(value.offsets)} offsets"
        else:
            assert len(value) == count, f"{name} has {len(value)} samples"
        if isinstance(value, torch.Tensor):
            assert value[0].numel() == field.fixed_bytes // field.itemsize, f"{name} has shape {value.shape}"


def _one_by_one(dataset: PackedDataset) -> None:
    """Every third sample alone, also of those behind one that cannot be read."""
    wrong = None
    for number in range(0, min(len(dataset), _MOST_READ), 3):
        try:
            dataset[number]
        except PackerError as error:
            wrong = error
    if wrong:
        raise wrong


def _loaded(dataset: PackedDataset, threads: int, shuffle: bool | str) -> None:
    loader = Loader(dataset, 4, shuffle=shuffle, threads=threads)
    left = len(dataset)
    for batch in itertools.islice(loader, _MOST_READ):
        _check_batch(batch, dataset, min(4, left))
        left -= 4


def _parts(folder: Path) -> None:
    """Crops and subsets of points of every field that can be read like this; every other field is checked."""
    wrong = None
    for number, field in enumerate(PackedDataset(folder).fields.values()):
        parts: dict[str, Any] = {}
        if field.kind == "image":
            parts["crop"] = Crop(1, of=field.name)
        elif field.shape[:1] == (None,) and field.kind == "array":
            parts["sample_points"] = PointSample(7, fields=[field.name])
        else:
            continue
        try:
            _cut(PackedDataset(folder, field.name, verify=number % 2 == 1, **parts))
        except PackerError as error:
            wrong = error
    if wrong:
        raise wrong


def _cut(dataset: PackedDataset) -> None:
    """Some samples, one by one, and those that could be read as a batch."""
    sound = []
    wrong = None
    for number in range(0, min(len(dataset), _MOST_READ), 13):
        try:
            dataset[number]
            sound.append(number)
        except UsageError:  # no points, or pixels, to choose from
            pass
        except PackerError as error:
            wrong = error
    for name, value in dataset[sound].items():
        assert len(value) == len(sound), f"{name} has {len(value)} samples"
    if wrong:
        raise wrong


def _regions(dataset: PackedDataset) -> None:
    """Some rows and columns of every thirteenth sample, also of those behind one that cannot be read."""
    wrong = None
    for field in dataset.fields.values():
        if field.kind == "text" or not field.shape:
            continue
        columns = slice(0, 5) if len(field.shape) > 1 else None
        for number in range(0, min(len(dataset), _MOST_READ), 13):
            try:
                dataset.read(number, field.name, rows=slice(1, 30, 2), columns=columns)
                dataset.read(number, field.name, rows=slice(0, 2))
            except PackerError as error:
                wrong = error
    if wrong:
        raise wrong


def _names(dataset: PackedDataset) -> None:
    if dataset.names is None:
        return
    for number in range(min(len(dataset), _MOST_READ)):
        name = dataset.names[number]
        assert isinstance(name, str)
        if dataset.name_table.contains(name):
            dataset.numbers([name])


def soak(folder: Path, template: Path, count: int, seed: int, seconds: float = 30, each: int = 20) -> list[Outcome]:
    """Outcomes of `count` damaged datasets, a child for every `each` of them."""
    outcomes: list[Outcome] = []
    for start in range(seed, seed + count, each):
        outcomes += read_damaged(template, folder, range(start, min(start + each, seed + count)), seconds)
    return outcomes
