"""Calls that are stopped, and files that are cut short."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def stopped_at(call: Callable[[], Any], owner: Any, name: str, when: Callable[..., bool] = lambda *_: True) -> None:
    """Make a call that Ctrl-C stops when it calls `owner.name` with arguments for which `when` is true."""
    function = getattr(owner, name)

    def stop(*arguments: Any, **options: Any) -> Any:
        if when(*arguments):
            raise KeyboardInterrupt
        return function(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, stop)
        with pytest.raises(KeyboardInterrupt):
            call()


def cut(path: Path, nbytes: int = 20) -> None:
    """Cut the last bytes off a file."""
    path.write_bytes(path.read_bytes()[:-nbytes])
