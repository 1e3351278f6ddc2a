"""Tells which sample a worker was reading when it died, hung or ran out of memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packer.errors import SourceError
from packer.packing.rejected import Rejected
from packer.packing.tasks import ShardTask, read_blocks
from packer.sources import child
from packer.sources.apart import TICK, each
from packer.sources.base import Block, Source, count
from packer.sources.limits import Limits, memory_within

_NOWHERE = -1


class Watch:
    """Where in its shard a worker reads: written by the worker, looked at by its parent, in memory that both share.

    A number a block is all it costs: 0.1 us, where a message would cost 20.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._at: Any = child.context().RawValue("q", _NOWHERE)
        self._seen = _NOWHERE
        self._waited = 0.0

    @property
    def at(self) -> int | None:
        """Number of the first sample of the block that is being read, or was when the worker ended; or None."""
        return None if self._at.value == _NOWHERE else int(self._at.value)

    def over(self, blocks: Iterator[Block], start: int) -> Iterator[Block]:
        """The blocks of samples from number `start` on, as the worker reads them.

        Raises:
            MemoryError: the limit was reached; `at` still says where.
        """
        at = start
        while True:
            self._at.value = at
            try:
                with memory_within(self.limits.nbytes):
                    block = next(blocks, None)
            except MemoryError:
                raise
            except BaseException:
                self._at.value = _NOWHERE
                raise
            self._at.value = _NOWHERE
            if block is None:
                return
            yield block
            at += count(block)

    def is_late(self, seconds: float) -> bool:
        """Whether one block takes too long; asked by the parent, `seconds` after it was asked last."""
        at = self._at.value
        if at == _NOWHERE or at != self._seen or self.limits.seconds is None:
            self._seen, self._waited = at, 0.0
            return False
        self._waited += min(seconds, TICK)
        return self._waited >= self.limits.seconds


def culprit(task: ShardTask, at: int, limits: Limits) -> tuple[int, SourceError] | None:
    """The sample of the block at number `at` that ends the process that reads it, and how; None where all are well.

    Reads in processes of their own: the block again, then halves of it.
    """
    source = task.source
    if _fault(_read_block, source.part(at, len(source)), limits) is None:
        return None
    good, step = at, 1
    while (error := _fault(_read_all, source.part(good, min(good + step, len(source))), limits)) is None:
        good, step = good + step, step * 2
        if good >= len(source):
            return None
    bad = min(good + step, len(source))
    while bad - good > 1:
        middle = (good + bad) // 2
        found = _fault(_read_all, source.part(good, middle), limits)
        if found is None:
            good = middle
        else:
            bad, error = middle, found
    return good, _named(task, good, error)


def _named(task: ShardTask, number: int, error: SourceError) -> SourceError:
    """The error with the file and the sample in it; a sample of several files may be the fault of any of them."""
    names = task.source.names
    which = f"{task.first + number:,}" if names is None else repr(names[number])
    files = task.source.part(number, number + 1).files()
    return SourceError(f"sample {which}: {error.reason}", " or ".join(files) or None, number)


def _fault(function: Any, part: Source, limits: Limits) -> SourceError | None:
    """What ended the process that reads; None where it came through."""
    return next((found for found in each(function, [part], limits) if isinstance(found, SourceError)), None)


def _read_all(source: Source) -> None:
    """Reads all samples; bad ones are passed over."""
    rejected: list[Rejected] = []
    try:
        for _ in read_blocks(source, rejected):
            pass
    except SourceError:
        return  # an error is no crash; whoever packs the shard meets it too


def _read_block(source: Source) -> None:
    try:
        next(source.read(), None)
    except SourceError:
        return
