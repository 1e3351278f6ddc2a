"""A call that hangs in a process of its own, and a clock by which nothing else is late."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from packer import workers

#: The process that hangs.
_HANGING = workers.process_context().RawValue("i", 0)  # type: ignore[attr-defined]


def hang() -> None:
    """Do nothing for long."""
    _HANGING.value = os.getpid()
    time.sleep(600)


def count_hanging_alone(patch: pytest.MonkeyPatch) -> None:
    """Let the time in which steps are measured go on while a process hangs, and stand still otherwise.

    So limits are short, and a busy machine takes no good step for one that hangs.
    """
    now, _HANGING.value = itertools.count(), 0

    def monotonic() -> float:
        is_hanging = _HANGING.value and Path(f"/proc/{_HANGING.value}").exists()
        return float(next(now) if is_hanging else 0)

    patch.setattr(workers, "TICK", 0.01)
    patch.setattr(workers, "time", SimpleNamespace(monotonic=monotonic))
