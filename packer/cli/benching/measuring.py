"""All that `packer bench` measures, one after another, within the time there is."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from packer.cli.benching.passes import Clock, Passes
from packer.cli.benching.recommending import advice, fits_memory
from packer.cli.benching.results import Report, Speed, Split
from packer.cli.benching.settings import Choice, Setting
from packer.cli.benching.speeds import cold_speeds, warm_speeds
from packer.cli.benching.splits import Splitting, device_copy
from packer.cli.benching.subject import Subject
from packer.page_cache import can_drop

#: Shares of the time: warm and cold speeds, warm and cold splits.
_WARM, _COLD, _WARM_SPLIT, _COLD_SPLIT = 0.4, 0.3, 0.15, 0.15
#: Where less than this share of the stored bytes came from the disk, it was not cold.
_COLD_SHARE = 0.5
_CANNOT_DROP = "this system does not let a program take files out of memory"
_STAYED = (
    "little or nothing came from the disk, though the files were to leave the memory: they are very small, their file "
    "system lies in memory or keeps a cache of its own, or another program has them mapped"
)

_log = logging.getLogger(__name__)


def measure(path: Path, choice: Choice, told: Callable[[float, int], None]) -> Report:
    """Measures a dataset in every setting of `choice`.

    Args:
        told: called now and then, with the seconds gone by and the bytes read since the last call.

    Raises:
        DatasetError: it cannot be read.
        UsageError: no field of a name in `choice`.
    """
    with warnings.catch_warnings():
        # That there are more workers than processors is what is to be found out.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        return _measured(Subject(path, choice.fields), choice, told)


def _measured(subject: Subject, choice: Choice, told: Callable[[float, int], None]) -> Report:
    fits = fits_memory(subject)
    choice = replace(choice, blocks=subject.shares_frames or not fits)
    clock = Clock(choice.seconds, told)
    splitting = Splitting(subject, clock, device_copy())
    warm, splits = _warm(splitting, choice)
    cold, cold_splits, cold_failure = _cold(splitting, choice)
    speeds = [_speed(one, cold.get(one.setting), subject) for one in warm]
    splits += cold_splits
    return Report(
        path=str(subject.path),
        samples=subject.samples,
        sample_bytes=subject.sample_bytes,
        fields=subject.fields,
        speeds=speeds,
        splits=splits,
        remarks=[f"parts of {'; '.join(dict.fromkeys(which))}: {why}" for why, which in splitting.failures.items()],
        cold_failure=cold_failure,
        fits_memory=fits,
        advice=advice(subject, speeds, splits, fits),
    )


def _warm(splitting: Splitting, choice: Choice) -> tuple[list[Passes], list[Split]]:
    share = choice.seconds / len(choice.batch_sizes)
    longer = 1.0 if can_drop() else 1 / (_WARM + _WARM_SPLIT)
    passes: list[Passes] = []
    splits: list[Split] = []
    subject, clock = splitting.subject, splitting.clock
    for size in choice.batch_sizes:
        _log.info("measuring batches of %d, warm", size)
        passes += warm_speeds(subject, list(choice.settings(size)), _WARM * longer * share, clock)
        splits += splitting.warm(list(choice.alone(size)), _WARM_SPLIT * longer * share)
    return passes, splits


def _cold(splitting: Splitting, choice: Choice) -> tuple[dict[Setting, Passes], list[Split], str]:
    """Passes by setting, splits, and why there are none."""
    if not can_drop():
        return {}, [], _CANNOT_DROP
    _log.info("measuring cold")
    subject, clock = splitting.subject, splitting.clock
    settings = [setting for size in choice.batch_sizes for setting in choice.settings(size)]
    passes = cold_speeds(subject, settings, _COLD * choice.seconds, clock)
    if not _came_from_disk(passes, subject):
        return {}, [], _STAYED
    alone = [setting for size in choice.batch_sizes for setting in choice.alone(size)]
    splits = splitting.cold(alone, _COLD_SPLIT * choice.seconds)
    return {one.setting: one for one in passes}, splits, ""


def _came_from_disk(passes: Sequence[Passes], subject: Subject) -> bool:
    """Whether about as much was read from the disk as was asked for."""
    needed = subject.stored_bytes * sum(one.samples for one in passes)
    return sum(one.disk for one in passes) > _COLD_SHARE * needed


def _speed(warm: Passes, cold: Passes | None, subject: Subject) -> Speed:
    failure = warm.failure or (cold.failure if cold else "")
    return Speed(
        warm.setting, warm.rate(subject.sample_bytes), cold.rate(subject.sample_bytes) if cold else None, failure
    )
