"""What a verb reports while it works: bad files, the current step, and how much of it is done.

The caller of a verb makes one `Watcher`; the verb hands it to every function below.

    convert("photos", "photos.packed", watcher=Watcher(step=lambda name, done, total: print(name, done, total)))
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from packer.errors import SourceError

#: Names of steps before the work itself.
FINDING, HEADERS, EXAMPLES = "finding files", "reading headers", "looking at samples"
#: Names of steps that are counted in samples.
PACKING, MERGING, EXPORTING = "packing", "merging", "exporting"
READING, COMPARING, DRAWING = "reading", "comparing", "drawing"
IN_SAMPLES = (PACKING, MERGING, EXPORTING, READING, COMPARING, DRAWING)
#: Names of steps that are counted in bytes.
FETCHING, CHECKING, WARMING = "fetching", "checking", "warming"
IN_BYTES = (FETCHING, CHECKING, WARMING)

#: Seconds between two calls for the items of one step.
_EVERY = 0.1

Item = TypeVar("Item")


def _stop(error: SourceError) -> NoReturn:
    raise error


def _ignore_step(name: str, done: int, total: int | None) -> None:
    """Do nothing."""


def _ignore_amount(samples: int, nbytes: int) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Watcher:
    """Functions that a verb calls, in the process and thread that called the verb.

    Attributes:
        bad: called with the error of each bad file found while sources are opened. It may raise, which stops the verb,
            or return: the sample is skipped. By default the first one is raised. If the error names a `sample`, it is
            an early warning: the sample is kept, and fails again when it is read.
        step: called with the name of the step (such as `reading headers`), how much of it is done, and how much there
            is (None while that is unknown). Steps of many items call it up to ten times a second, others when they
            begin: then `done` counts on from there.
        done: called with how many more samples and raw bytes of the last step are done. May be negative: a shard is
            packed again, and what it had done is taken back.
    """

    bad: Callable[[SourceError], None] = field(default=_stop, repr=False)
    step: Callable[[str, int, int | None], None] = field(default=_ignore_step, repr=False)
    done: Callable[[int, int], None] = field(default=_ignore_amount, repr=False)

    def watch(self, items: Iterable[Item], name: str, total: int | None = None) -> Iterator[Item]:
        """Yield `items`, and call `step` ten times a second, and at the end, with how many are done.

        Args:
            name: of the step.
            total: how many there are; None if that is not known before the end.
        """
        done, last_call = 0, time.monotonic()
        for item in items:
            yield item
            done += 1
            now = time.monotonic()
            if now - last_call >= _EVERY:
                last_call = now
                self.step(name, done, total)
        self.step(name, done, done)


#: Hears nothing, and stops at the first bad file.
NOBODY = Watcher()
