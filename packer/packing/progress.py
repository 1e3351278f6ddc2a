"""How those who wait are told what is done."""

from __future__ import annotations

from collections.abc import Callable

#: Told how many more samples and raw bytes are done.
Progress = Callable[[int, int], None]


def no_progress(samples: int, nbytes: int) -> None:
    """Tells nobody."""
