"""Where a side spends its time: the functions it spends most of it in, with what threads of its own do."""

from __future__ import annotations

import cProfile
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from benchmark.measuring import Side
from benchmark.page_cache import warm

#: Functions that are told.
SHOWN = 8


def profiled(side: Side) -> tuple[str, ...]:
    """A line for each of the functions that take most of a run, their own time alone: share, us an item, function.

    A profile makes calls dearer, so that the shares of small functions are too high. Of threads it tells up to Python
    3.11, which should end with the run, or they stay profiled; what processes of their own do it never sees.
    """
    warm(side.files)
    side.prepare()
    profiles = [cProfile.Profile()]

    def begin(_frame: FrameType, _event: str, _argument: Any) -> None:
        profile = cProfile.Profile()
        profiles.append(profile)
        profile.enable()  # takes the place of this function in the thread that called it

    if sys.version_info < (3, 12):
        threading.setprofile(begin)
    try:
        items = profiles[0].runcall(side.run)
    finally:
        threading.setprofile(None)
        profiles[0].disable()
    own: dict[str, float] = {}
    for profile in profiles:
        for entry in profile.getstats():
            function = _told(entry.code)
            own[function] = own.get(function, 0.0) + entry.inlinetime
    total = sum(own.values())
    most = sorted(own.items(), key=lambda one: -one[1])[:SHOWN]
    each = 1e6 / max(items, 1)
    return tuple(f"{seconds / total:4.0%} {each * seconds:9.2f} us  {function}" for function, seconds in most)


def _told(code: CodeType | str) -> str:
    """A function in words: file and line where there are any."""
    if isinstance(code, str):
        return code
    path = Path(code.co_filename)
    return f"{path.parent.name}/{path.name}:{code.co_firstlineno} {code.co_name}"
