"""Measures how fast a dataset is read in every setting, warm and cold, as a user would read it.

Settings are measured in turn, round after round, so that whatever else the machine does meets all alike. Worker
processes are running before anything is timed.
"""

from __future__ import annotations

import itertools
import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from packer.cli.machine import machine_of
from packer.cli.units import size_text
from packer.errors import DatasetError, PackerError
from packer.warm import can_drop, disk_bytes, drop_files, read_files
from readers import Loader, PackedDataset

INDEXING, LOADER, DATALOADER = "ds[indices]", "Loader", "DataLoader"
NO_TIME = "there was no time left; give more --seconds"
_CANNOT_DROP = "this system does not let a program take files out of memory"
_STAYED = (
    "hardly anything was read from the disk, although the files were dropped from memory: they are very small, their "
    "file system lies in memory or keeps a cache of its own, or another program has them mapped"
)

#: Shares of the time for warm and for cold rates.
_WARM, _COLD = 0.6, 0.4
#: Rounds that the time is shared out to, and rounds at most.
_WARM_ROUNDS, _COLD_ROUNDS, _MOST_ROUNDS = 3, 2, 7
#: If less than this share of the stored bytes came from the disk, it was not cold.
_COLD_SHARE = 0.5
#: What is thought of a disk and of reading before they have been measured, in bytes a second.
_DISK_SPEED, _READING_SPEED = 1e8, 5e8
#: Batches of a pass, for each worker, at least: fewer would measure how a loader starts and ends. And at most.
_LEAST_BATCHES, _MOST_BATCHES = 3, 100_000
#: The share of the free memory that the batches of one setting may take: several settings are open at once.
_MEMORY_SHARE = 0.25
#: Files of more bytes than this are not read through before each round: the samples of a pass are, before each pass.
_THROUGH_BYTES = 2**30

_log = logging.getLogger(__name__)

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Setting:
    """One way to read.

    Attributes:
        way: `ds[indices]`, `Loader` or `DataLoader`.
        batch_size: samples of a batch.
        workers: processes of a DataLoader, threads of a Loader.
        shuffle: `full`, or `block` if a Loader shuffles by blocks.
    """

    way: str
    batch_size: int
    workers: int = 0
    shuffle: str = "full"

    @property
    def text(self) -> str:
        """`ds[indices]`, `Loader 0`, `Loader block 2`, `DataLoader 4`."""
        if self.way == INDEXING:
            return self.way
        block = " block" if self.shuffle == "block" else ""
        return f"{self.way}{block} {self.workers}"


@dataclass(frozen=True)
class Choice:
    """What the user asked for.

    Attributes:
        fields: those to read; None for all.
        batch_sizes, workers: those to try, each once.
        seconds: of measuring, in all.
    """

    fields: tuple[str, ...] | None
    batch_sizes: Sequence[int]
    workers: Sequence[int]
    seconds: float

    def settings(self, batch_size: int, blocks: bool) -> list[Setting]:
        """Return all settings of one batch size, with a shuffle by blocks or without."""
        shuffles = ["full", "block"] if blocks else ["full"]
        return [
            Setting(INDEXING, batch_size),
            *(Setting(LOADER, batch_size, n, shuffle) for shuffle in shuffles for n in self.workers),
            *(Setting(DATALOADER, batch_size, n) for n in self.workers),
        ]


@dataclass(frozen=True)
class Rate:
    """How fast a setting is; the median of some passes.

    Attributes:
        samples: a second.
        slowest, fastest: the same of single passes.
        bytes: of values handed out, a second.
        passes: how many there were.
        batches: of the last pass.
        disk_bytes: read from the disk, in all passes.
        disk_bytes_per_sample: the same for one sample.
    """

    samples: float
    slowest: float
    fastest: float
    bytes: float
    passes: int
    batches: int
    disk_bytes: int
    disk_bytes_per_sample: float


@dataclass(frozen=True)
class Speed:
    """A setting and its rates; None if one could not be measured, for the reason in `failure`."""

    setting: Setting
    warm: Rate | None
    cold: Rate | None
    failure: str = ""


@dataclass(frozen=True)
class Report:
    """What was measured.

    Attributes:
        sample_bytes: mean size of the values of a sample.
        cold_failure: why nothing could be measured cold; empty if it could.
        fits_memory: whether the files stay in memory once they were read.
    """

    path: str
    samples: int
    sample_bytes: float
    file_bytes: int
    fields: Sequence[str]
    speeds: Sequence[Speed]
    cold_failure: str
    fits_memory: bool


class Subject:
    """The dataset that is measured, and those of its fields that are read.

    Raises:
        DatasetError: it cannot be read, or has no samples.
    """

    def __init__(self, path: Path, fields: tuple[str, ...] | None) -> None:
        self.path = path
        dataset = PackedDataset(path, fields)
        self.manifest = dataset.manifest
        self.fields = tuple(dataset.fields)
        if not len(dataset):
            raise DatasetError(f"{path}: it has no samples; there is nothing to read")
        self.samples = len(dataset)
        totals = [self.manifest.columns[name] for name in self.fields]
        self.sample_bytes = sum(column.raw for column in totals) / self.samples
        self.stored_bytes = sum(column.stored for column in totals) / self.samples
        self.shares_frames = any(field.codec and (field.frame.samples or 1) > 1 for field in dataset.fields.values())
        self.machine = machine_of(path)
        self.files = [path / shard.file for shard in self.manifest.shards]
        self.is_small = sum(shard.bytes for shard in self.manifest.shards) <= _THROUGH_BYTES

    def open(self) -> PackedDataset:
        """Open the dataset anew: nothing of it is mapped yet."""
        return PackedDataset(self.path, self.fields)

    @property
    def fits_memory(self) -> bool:
        """Whether the dataset stays in memory once it was read; True if that cannot be told."""
        return self.machine.free is None or self.manifest.file_bytes < self.machine.free


class Clock:
    """The time that is left.

    Args:
        seconds: of measuring, in all.
        told: called with the seconds gone by so far and the bytes read since the last call, now and then.
    """

    def __init__(self, seconds: float, told: Callable[[float, int], None] = lambda gone, nbytes: None) -> None:
        self._began = time.monotonic()
        self._told = told
        self.seconds = seconds

    @property
    def gone(self) -> float:
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        """Seconds that are left for what should be measured once in any case: somewhat more than the user gave."""
        return 1.5 * self.seconds + 5 - self.gone

    def tell(self, nbytes: int) -> None:
        """Take down that so many bytes were read."""
        self._told(self.gone, nbytes)


class Way:
    """Reads batches in one setting, pass after pass. A context manager: worker processes end with it."""

    def __init__(self, setting: Setting, dataset: PackedDataset) -> None:
        self._setting, self._dataset = setting, dataset
        self._numbers: list[int] = []  # of the present pass
        self._loader: Any = None
        size, workers = setting.batch_size, setting.workers
        if setting.way == DATALOADER:
            self._loader = DataLoader(
                dataset, size, sampler=self._numbers, num_workers=workers, persistent_workers=workers > 0
            )
        elif setting.shuffle == "block":
            self._loader = Loader(dataset, size, "block", threads=workers)

    def start(self, numbers: Numbers) -> Iterable[Any]:
        """Return the batches of the samples `numbers` (n,); by blocks as many samples of an epoch that they choose."""
        size = self._setting.batch_size
        if self._setting.way == INDEXING:
            return (self._dataset[numbers[at : at + size]] for at in range(0, len(numbers), size))
        if self._setting.way == DATALOADER:
            self._numbers[:] = numbers.tolist()
            return self._loader  # type: ignore[no-any-return]
        if self._loader is None:
            return Loader(self._dataset, size, sampler=numbers, threads=self._setting.workers)
        self._loader.set_epoch(int(numbers[0]))
        epochs = itertools.chain.from_iterable(itertools.repeat(self._loader))
        return itertools.islice(epochs, -(-len(numbers) // size))

    def __enter__(self) -> Way:
        return self

    def __exit__(self, *error: object) -> None:
        self._loader = None  # the workers end with the last reference to it


@dataclass
class Passes:
    """The passes of one setting.

    Attributes:
        samples_in_all: of the dataset.
        batch_seconds: what a batch takes, as far as is known.
        failure: why it cannot be measured; empty if it can.
    """

    setting: Setting
    samples_in_all: int
    batch_seconds: float = 0.0
    rates: list[float] = field(default_factory=list)
    samples: int = 0
    batches: int = 0
    disk: int = 0
    failure: str = ""
    _chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @property
    def least(self) -> int:
        """Batches of the shortest pass."""
        return _LEAST_BATCHES * max(self.setting.workers, 1)

    def drawn(self, batches: int) -> Numbers:
        """Draw the samples of the next pass by chance; each comes once before any comes again."""
        epochs, rest = divmod(batches * self.setting.batch_size, self.samples_in_all)
        whole = [self._chance.permutation(self.samples_in_all) for _ in range(epochs)]
        return np.concatenate([*whole, self._chance.choice(self.samples_in_all, rest, replace=False)]).astype(np.int64)

    def batches_in(self, seconds: float) -> int:
        """Return how many batches to take, so that a pass takes about so long."""
        return round(min(max(seconds / max(self.batch_seconds, 1e-6), self.least), _MOST_BATCHES))

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Take down why worker processes fail: too little shared memory is no fault of the dataset."""
        try:
            yield
        except (RuntimeError, PackerError) as error:
            if self.setting.way != DATALOADER or not self.setting.workers:
                raise
            lines = str(error).strip().splitlines()
            if isinstance(error, PackerError):
                # torch has put the worker's traceback before the sentence, which follows the name of its class.
                raise type(error)(lines[-1].partition(": ")[2] or lines[-1]) from None
            self.failure = lines[0]

    def start(self, way: Way, seconds: float) -> None:
        """Get workers started, and an idea of what a batch takes, in about so much time or what one batch takes."""
        batches = max(self.setting.workers, 1)
        taken = timed(way, self.drawn(batches))
        self.batch_seconds = taken / batches
        if taken < seconds:
            taken = 0.0  # of which starting the workers was a part
        while taken < seconds / 2 and batches <= _MOST_BATCHES:
            taken = timed(way, self.drawn(batches))
            self.batch_seconds = taken / batches
            batches *= 2

    def run(self, way: Way, numbers: Numbers) -> None:
        """Read the samples, and take down how long that took."""
        before = disk_bytes()
        seconds = timed(way, numbers)
        self.disk += max(0, disk_bytes() - before)
        self.batches = -(-len(numbers) // self.setting.batch_size)
        self.batch_seconds = seconds / self.batches
        self.samples += len(numbers)
        self.rates.append(len(numbers) / seconds)

    def rate(self, sample_bytes: float) -> Rate | None:
        """Return the median of the passes; None if there was none."""
        if not self.rates:
            return None
        samples = median(self.rates)
        return Rate(
            samples=samples,
            slowest=min(self.rates),
            fastest=max(self.rates),
            bytes=samples * sample_bytes,
            passes=len(self.rates),
            batches=self.batches,
            disk_bytes=self.disk,
            disk_bytes_per_sample=self.disk / self.samples,
        )


def timed(way: Way, numbers: Numbers) -> float:
    """Return the seconds that the batches of the samples take."""
    began = time.perf_counter()
    for batch in way.start(numbers):
        del batch  # the loader may use its memory again
    return time.perf_counter() - began


def measure(path: Path, choice: Choice, told: Callable[[float, int], None]) -> Report:
    """Measure a dataset in every setting of `choice`.

    Args:
        told: called now and then, with the seconds gone by and the bytes read since the last call.

    Raises:
        DatasetError: it cannot be read.
        UsageError: no field of a name in `choice`.
    """
    subject, clock = Subject(path, choice.fields), Clock(choice.seconds, told)
    blocks = subject.shares_frames or not subject.fits_memory
    settings = {size: choice.settings(size, blocks) for size in choice.batch_sizes}
    cold_failure = "" if can_drop() else _CANNOT_DROP
    with warnings.catch_warnings():
        # That there are more workers than processors is what is to be found out.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        warm: list[Passes] = []
        for size, some in settings.items():
            _log.info("measuring batches of %d, warm", size)
            warm += warm_passes(subject, some, (1.0 if cold_failure else _WARM) * choice.seconds / len(settings), clock)
        cold: list[Passes] = []
        if not cold_failure:
            _log.info("measuring cold")
            cold = _cold_passes(subject, [one for some in settings.values() for one in some], clock)
            needed = subject.stored_bytes * sum(one.samples for one in cold)
            if sum(one.disk for one in cold) <= _COLD_SHARE * needed:
                cold_failure, cold = _STAYED, []
    by_setting = {one.setting: one for one in cold}
    return Report(
        path=str(path),
        samples=subject.samples,
        sample_bytes=subject.sample_bytes,
        file_bytes=subject.manifest.file_bytes,
        fields=subject.fields,
        speeds=[_speed(one, by_setting.get(one.setting), subject.sample_bytes) for one in warm],
        cold_failure=cold_failure,
        fits_memory=subject.fits_memory,
    )


def warm_passes(subject: Subject, settings: Sequence[Setting], seconds: float, clock: Clock) -> list[Passes]:
    """Measure settings of one batch size, over samples that are in memory."""
    end = clock.gone + seconds
    found = [Passes(setting, subject.samples) for setting in settings]
    with ExitStack() as stack:
        # Each has a dataset of its own, since they keep decoded frames.
        ways = [stack.enter_context(Way(setting, subject.open())) for setting in settings]
        if subject.is_small:
            read_files(subject.files)
        for one, way in zip(found, ways, strict=True):
            one.failure = obstacle(one, subject, clock)
            if not one.failure:
                with one.guarded():
                    one.start(way, seconds / len(found) / (_WARM_ROUNDS + 1) / 2)
        share = max(end - clock.gone, 0.0) / _WARM_ROUNDS / len(found)
        for number in range(_MOST_ROUNDS):
            if number and clock.gone + share >= end:
                break
            if subject.is_small:
                read_files(subject.files)
            for one, way in zip(found, ways, strict=True):
                if one.failure or (number and clock.gone + share >= end):
                    continue
                numbers = one.drawn(one.batches_in(share))
                with one.guarded():
                    if not subject.is_small:
                        timed(way, numbers)
                    one.run(way, numbers)
                clock.tell(round(len(numbers) * subject.sample_bytes))
    return found


def _cold_passes(subject: Subject, settings: Sequence[Setting], clock: Clock) -> list[Passes]:
    """Measure settings over samples that lie on the disk; each pass by a dataset of its own.

    Pages that any process has mapped stay in memory, so every other dataset on these files has to be gone.
    """
    seconds = _COLD * clock.seconds
    end = clock.gone + seconds
    guess = subject.stored_bytes / _DISK_SPEED
    found = [Passes(setting, subject.samples, setting.batch_size * guess) for setting in settings]
    share = seconds / _COLD_ROUNDS / len(found)
    for number in range(_MOST_ROUNDS):
        for one in found:
            one.failure = one.failure or ("" if one.rates else obstacle(one, subject, clock))
            if one.failure or (number and clock.gone + share >= end):
                continue
            size = one.setting.batch_size
            # Half the time goes into starting workers; and each sample is read once: read again it would be warm.
            batches = min(one.batches_in(share / 2), max(subject.samples // size, 1))
            numbers = one.drawn(batches)[: subject.samples]
            with one.guarded(), Way(one.setting, subject.open()) as way:
                if one.setting.way == DATALOADER:
                    # The first sample, over and over, starts the workers: what will be measured stays unread.
                    timed(way, np.zeros(max(one.setting.workers, 1) * size, np.int64))
                drop_files(subject.files)
                one.run(way, numbers)
            clock.tell(round(len(numbers) * subject.sample_bytes))
    return found


def obstacle(one: Passes, subject: Subject, clock: Clock) -> str:
    """Say why a setting is better not measured; empty if nothing speaks against it."""
    setting, machine = one.setting, subject.machine
    batch = subject.sample_bytes * setting.batch_size
    held = batch * (3 + 2 * setting.workers)
    if machine.free is not None and held > _MEMORY_SHARE * machine.free:
        free = size_text(machine.free)
        return f"its batches would take {size_text(held)} of memory, more than a quarter of what is free ({free})"
    shared = machine.shared_free if setting.way == DATALOADER and setting.workers else None
    if shared is not None and held > shared:
        return (
            f"its batches would take {size_text(held)} of shared memory; /dev/shm has {size_text(shared)} free "
            "(docker: --shm-size)"
        )
    return NO_TIME if one.least * batch / _READING_SPEED * _WARM_ROUNDS > clock.left else ""


def _speed(warm: Passes, cold: Passes | None, sample_bytes: float) -> Speed:
    failure = warm.failure or (cold.failure if cold else "")
    return Speed(warm.setting, warm.rate(sample_bytes), cold.rate(sample_bytes) if cold else None, failure)
