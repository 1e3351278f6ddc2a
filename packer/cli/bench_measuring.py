"""Measures how fast a dataset is read in every setting, warm and cold, and says which setting to start from.

Settings are measured in turn, round after round, so that other work on the machine slows all alike. Worker
processes run before anything is timed.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from packer.cli.machine import machine_of
from packer.cli.text import counted, size_text
from packer.errors import DatasetError, PackerError
from packer.sources.base import Looking
from packer.warm import can_drop, disk_bytes, drop_files
from readers import Loader, PackedDataset

INDEXING, LOADER, DATALOADER = "ds[indices]", "Loader", "DataLoader"
_NO_TIME = "there was no time left; give more --seconds"
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
#: What is thought of a disk before it has been measured, in bytes a second.
_DISK_SPEED = 1e8
#: Batches of a pass, for each worker, at least: fewer would measure how a loader starts and ends. And at most.
_LEAST_BATCHES, _MOST_BATCHES = 3, 100_000
#: The share of the free memory that the batches of one setting may take: several settings are open at once.
_MEMORY_SHARE = 0.25
#: Of settings that reach this share of the best rate, the simplest is recommended.
_AS_GOOD = 0.9
#: Fastest over slowest pass from which it is said that rates waver.
_WAVERING = 1.5

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
        """Return `ds[indices]`, `Loader 0`, `Loader block 2` or `DataLoader 4`."""
        if self.way == INDEXING:
            return self.way
        block = " block" if self.shuffle == "block" else ""
        return f"{self.way}{block} {self.workers}"

    def reader(self, dataset: PackedDataset) -> Callable[[int, Numbers], Iterable[Any]]:
        """Return what begins a pass, by its number, over the samples of some numbers (n,), and returns their batches.

        A shuffle by blocks chooses samples itself: it reads as many, of the epoch that has the number of the pass.
        Worker processes end with the last reference to what is returned.
        """
        size, workers = self.batch_size, self.workers
        if self.way == INDEXING:
            return lambda _, numbers: (dataset[numbers[at : at + size]] for at in range(0, len(numbers), size))
        if self.way == DATALOADER:
            order: list[int] = []
            loader = DataLoader(dataset, size, sampler=order, num_workers=workers, persistent_workers=workers > 0)

            def begin(_: int, numbers: Numbers) -> Iterable[Any]:
                order[:] = numbers.tolist()
                return loader

            return begin
        if self.shuffle == "full":
            return lambda _, numbers: Loader(dataset, size, sampler=numbers, threads=workers)
        blocks = Loader(dataset, size, "block", threads=workers)

        def begin_blocks(number: int, numbers: Numbers) -> Iterable[Any]:
            blocks.set_epoch(number)
            epochs = itertools.chain.from_iterable(itertools.repeat(blocks))
            return itertools.islice(epochs, -(-len(numbers) // size))

        return begin_blocks


class Pass(NamedTuple):
    """A number of samples, the seconds in which they were read, and the bytes read from the disk meanwhile."""

    samples: int
    seconds: float
    disk_bytes: int


def _read_all(batches: Iterable[Any], samples: int = 0) -> Pass:
    """Read batches of this many samples, and note how long that takes."""
    before, began = disk_bytes(), time.perf_counter()
    for batch in batches:
        del batch  # the loader may use its memory again
    seconds = time.perf_counter() - began
    return Pass(samples, seconds, max(0, disk_bytes() - before))


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

    @classmethod
    def of(cls, passes: Sequence[Pass], batch_size: int, sample_bytes: float) -> Rate | None:
        """Return the rate of some passes; None if there is none."""
        if not passes:
            return None
        rates = [one.samples / one.seconds for one in passes]
        disk = sum(one.disk_bytes for one in passes)
        return cls(
            samples=median(rates),
            slowest=min(rates),
            fastest=max(rates),
            bytes=median(rates) * sample_bytes,
            passes=len(passes),
            batches=-(-passes[-1].samples // batch_size),
            disk_bytes=disk,
            disk_bytes_per_sample=disk / sum(one.samples for one in passes),
        )


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


@dataclass
class Measurement:
    """What is known of a setting while it is measured.

    Attributes:
        batches: of the next pass.
        warm, cold: the passes so far.
        failure: why there are no more; empty if there may be.
    """

    setting: Setting
    batches: int = 1
    warm: list[Pass] = field(default_factory=list)
    cold: list[Pass] = field(default_factory=list)
    failure: str = ""
    _chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @property
    def least(self) -> int:
        """Return the batches of the shortest pass."""
        return _LEAST_BATCHES * max(self.setting.workers, 1)

    def draw(self, total: int) -> Numbers:
        """Draw the samples of the next pass by chance; each of the `total` comes once before any comes again."""
        return np.resize(self._chance.permutation(total), self.batches * self.setting.batch_size)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Note why worker processes fail: too little shared memory is no fault of the dataset."""
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


class Bench:
    """The dataset that is measured, and the time that is left.

    Args:
        fields: those to read; None for all.
        seconds: about how long to measure, in all.
        looking: told now and then how many of the seconds have gone by.

    Raises:
        DatasetError: it cannot be read, or has no samples.
        UsageError: it has no field of one of the names.
    """

    def __init__(self, path: Path, fields: Sequence[str] | None, seconds: float, looking: Looking) -> None:
        dataset = PackedDataset(path, fields)
        self.path, self.seconds, self._looking = path, seconds, looking
        self.manifest, self.fields, self.samples = dataset.manifest, dataset.fields, len(dataset)
        if not self.samples:
            raise DatasetError(f"{path}: it has no samples; there is nothing to read")
        totals = [self.manifest.columns[name] for name in self.fields]
        self.sample_bytes = sum(column.raw for column in totals) / self.samples
        self.stored_bytes = sum(column.stored for column in totals) / self.samples
        self._machine = machine_of(path)
        self.fits_memory = self._machine.holds(self.manifest)
        self._began = time.monotonic()

    def measure(self, batch_sizes: Sequence[int], workers: Sequence[int]) -> Report:
        """Measure every setting of these batch sizes and numbers of workers."""
        shares_frames = any(field.codec and (field.frame.samples or 1) > 1 for field in self.fields.values())
        shuffles = ["full", "block"] if shares_frames or not self.fits_memory else ["full"]
        cold_failure = "" if can_drop() else _CANNOT_DROP
        measurements: list[Measurement] = []
        with warnings.catch_warnings():
            # That there are more workers than processors is what is to be found out.
            warnings.filterwarnings("ignore", "This DataLoader will create")
            for size in batch_sizes:
                settings = [
                    Setting(INDEXING, size),
                    *(Setting(LOADER, size, n, shuffle) for shuffle in shuffles for n in workers),
                    *(Setting(DATALOADER, size, n) for n in workers),
                ]
                some = [Measurement(setting) for setting in settings]
                self._warm(some, (1.0 if cold_failure else _WARM) * self.seconds / len(batch_sizes))
                measurements += some
            if not cold_failure:
                self._cold(measurements, _COLD * self.seconds)
        cold = [one for measurement in measurements for one in measurement.cold]
        from_disk = sum(one.disk_bytes for one in cold)
        if cold and from_disk <= _COLD_SHARE * self.stored_bytes * sum(one.samples for one in cold):
            cold_failure = _STAYED
        speeds = []
        for measurement in measurements:
            size = measurement.setting.batch_size
            warm_rate = Rate.of(measurement.warm, size, self.sample_bytes)
            cold_rate = None if cold_failure else Rate.of(measurement.cold, size, self.sample_bytes)
            speeds.append(Speed(measurement.setting, warm_rate, cold_rate, measurement.failure))
        return Report(
            path=str(self.path),
            samples=self.samples,
            sample_bytes=self.sample_bytes,
            file_bytes=self.manifest.file_bytes,
            fields=tuple(self.fields),
            speeds=speeds,
            cold_failure=cold_failure,
            fits_memory=self.fits_memory,
        )

    def _warm(self, measurements: Sequence[Measurement], seconds: float) -> None:
        """Measure settings of one batch size over samples that are in memory."""
        # Each has a dataset of its own, since they keep decoded frames.
        readers = {measurement.setting: measurement.setting.reader(self._open()) for measurement in measurements}

        def one_pass(number: int, measurement: Measurement, share: float) -> None:
            read = readers[measurement.setting]
            measurement.batches = max(measurement.batches, measurement.least)
            # Read before it is timed, so that it is in memory; more and more until that takes long enough.
            while _read_all(read(number, numbers := measurement.draw(self.samples))).seconds < share / 4:
                if measurement.batches >= _MOST_BATCHES:
                    break
                measurement.batches *= 2
            measurement.warm.append(_read_all(read(number, numbers), len(numbers)))

        self._rounds(measurements, seconds, _WARM_ROUNDS, one_pass)

    def _cold(self, measurements: Sequence[Measurement], seconds: float) -> None:
        """Measure settings over samples that lie on the disk; each pass by a dataset of its own.

        Pages that any process has mapped stay in memory, so every other dataset on these files has to be gone.
        """

        def one_pass(number: int, measurement: Measurement, share: float) -> None:
            size = measurement.setting.batch_size
            # Half the time goes into starting workers.
            rate = _DISK_SPEED / max(self.stored_bytes, 1)
            if measurement.cold:
                rate = measurement.cold[-1].samples / measurement.cold[-1].seconds
            # Each sample is read once: read again it would be warm.
            measurement.batches = min(
                max(round(share / 2 * rate / size), measurement.least), max(self.samples // size, 1)
            )
            numbers = measurement.draw(self.samples)[: self.samples]
            read = measurement.setting.reader(self._open())
            if measurement.setting.way == DATALOADER:
                # The first sample, over and over, starts the workers: what will be measured stays unread.
                _read_all(read(number, np.zeros(max(measurement.setting.workers, 1) * size, np.int64)))
            drop_files([self.path / shard.file for shard in self.manifest.shards])
            measurement.cold.append(_read_all(read(number, numbers), len(numbers)))

        self._rounds(measurements, seconds, _COLD_ROUNDS, one_pass)

    def _rounds(
        self,
        measurements: Sequence[Measurement],
        seconds: float,
        rounds: int,
        one_pass: Callable[[int, Measurement, float], None],
    ) -> None:
        """Let one setting after another have a pass, round after round, until the time is over.

        Args:
            rounds: that the time is shared out to.
            one_pass: told the number of the pass, and the seconds of its share.
        """
        share = seconds / rounds / len(measurements)
        end = self._gone + seconds - share
        for number in range(_MOST_ROUNDS):
            for measurement in measurements:
                if number == 0:
                    measurement.failure = measurement.failure or self._obstacle(measurement.setting)
                elif self._gone >= end:
                    return
                if not measurement.failure:
                    with measurement.guarded():
                        one_pass(number, measurement, share)
                    done = min(self._gone, self.seconds)
                    self._looking("measuring, in seconds", round(done), round(self.seconds))

    def _open(self) -> PackedDataset:
        return PackedDataset(self.path, tuple(self.fields))

    @property
    def _gone(self) -> float:
        return time.monotonic() - self._began

    def _obstacle(self, setting: Setting) -> str:
        """Return why a setting is better not measured; empty if nothing speaks against it."""
        held = self.sample_bytes * setting.batch_size * (3 + 2 * setting.workers)
        free, shared = self._machine.free, self._machine.shared_free
        if free is not None and held > _MEMORY_SHARE * free:
            return (
                f"its batches would take {size_text(held)} of memory, more than a quarter of what is free "
                f"({size_text(free)})"
            )
        if setting.way == DATALOADER and setting.workers and shared is not None and held > shared:
            return (
                f"its batches would take {size_text(held)} of shared memory; /dev/shm has {size_text(shared)} free "
                "(docker: --shm-size)"
            )
        return _NO_TIME if self._gone > 1.5 * self.seconds + 5 else ""


@dataclass(frozen=True)
class Advice:
    """A setting to start from.

    Attributes:
        code: line of Python.
        reasons: why, in sentences.
    """

    setting: Setting
    code: str
    reasons: Sequence[str]


def advice(report: Report) -> Advice | None:
    """Return the simplest of the fastest loaders, by the rates that count here; None if none was measured."""
    is_cold = not report.fits_memory and any(speed.cold for speed in report.speeds)
    found = {speed.setting: speed.cold if is_cold else speed.warm for speed in report.speeds}
    rates = {setting: rate for setting, rate in found.items() if rate and setting.way != INDEXING}
    if not rates:
        return None
    best = max(rate.samples for rate in rates.values())
    good = [one for one, rate in rates.items() if rate.samples >= _AS_GOOD * best]
    # What one would rather do without: worker processes, workers, an order that is not fully random.
    setting = min(
        good, key=lambda one: (one.way == DATALOADER, one.workers, one.shuffle != "full", -rates[one].samples)
    )
    return Advice(setting, _code(report, setting), list(_reasons(report, setting, rates, is_cold)))


def _code(report: Report, setting: Setting) -> str:
    """Return the line of Python that makes the loader."""
    shuffle = '"block"' if setting.shuffle == "block" else "True"
    given = f"dataset, batch_size={setting.batch_size}, shuffle={shuffle}"
    cuda = torch.cuda.is_available()
    if setting.way == DATALOADER:
        workers = f", num_workers={setting.workers}, persistent_workers=True" if setting.workers else ""
        return f"DataLoader({given}{workers}{', pin_memory=True' if cuda else ''})"
    is_auto = Loader(PackedDataset(report.path, report.fields), setting.batch_size).threads == setting.workers
    threads = "" if is_auto else f", threads={setting.workers}"
    device = ', device="cuda"' if cuda else ""
    return f"Loader({given}{threads}{device})"


def _reasons(report: Report, setting: Setting, rates: dict[Setting, Rate], is_cold: bool) -> Iterator[str]:
    """Yield what speaks for a setting: its rate next to others, its order, the memory, and what is in doubt."""
    rate = rates[setting]
    yield f"It reads {rate.samples:,.0f} samples/s, {size_text(rate.bytes)}/s."
    others = [one for one in rates if one.way != setting.way]
    if others:
        other = max(others, key=lambda one: rates[one].samples)
        noun = "worker" if other.way == DATALOADER else "thread"
        what = f"{counted(other.workers, noun)}, batch {other.batch_size}"
        yield f"The best {other.way} ({what}) reaches {rates[other].samples / rate.samples:.0%} of that."
    shares: dict[int, float] = {}
    for one, found in rates.items():
        if one.batch_size != setting.batch_size and one.way == setting.way:
            shares[one.batch_size] = max(shares.get(one.batch_size, 0.0), found.samples / rate.samples)
    if shares:
        told = ", ".join(f"{share:.0%} ({size})" for size, share in shares.items())
        yield f"Of the same kind, other batch sizes reach {told}."
    if setting.shuffle == "block":
        yield "A shuffle by blocks reads in long runs, and decodes what lies together once instead of again and again."
    size = size_text(report.file_bytes)
    if report.fits_memory:
        yield f"The dataset ({size}) fits into the free memory: from the second epoch on it is read warm."
    else:
        basis = "the cold rates count" if is_cold else "the cold rates would count, but could not be measured"
        yield f"The dataset ({size}) does not fit into the free memory: {basis}."
    spread = median(rate.fastest / rate.slowest for rate in rates.values())
    if spread > _WAVERING:
        yield (
            f"The passes of one setting differ by a factor of {spread:.1f}: the machine is busy, or --seconds too few; "
            "small differences mean nothing."
        )
