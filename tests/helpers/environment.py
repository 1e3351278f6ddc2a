"""Says in which environment the tests run: scripts/setup makes four kinds."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

#: The folder of the environment.
FOLDER = Path(sys.prefix)
#: Whether it holds the lowest versions that pyproject.toml allows, and no frameworks.
IS_LOWEST = FOLDER.name == "lowest"
#: What the environment holds.
LOCK = "requirements.lowest.lock" if IS_LOWEST else "requirements.lock"
#: Whether the frameworks are there, and what builds the book.
HAS_FRAMEWORKS = sys.version_info >= (3, 11) and not IS_LOWEST
#: Whether torch is there. `scripts/test --packer VERSION` goes without: packing needs none.
HAS_TORCH = find_spec("torch") is not None


class _Absent:
    """Stands for any name of a package that is not there: a test that calls it is skipped."""

    def __new__(cls, *_: object, **__: object) -> _Absent:
        pytest.skip("torch is not installed here")


class _AbsentPackage(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent


def skip_without_torch() -> None:
    """Where torch is not there, have tests that use it, or readers, skipped when they do so."""
    if not HAS_TORCH:
        for name in ("torch", "torch.utils", "torch.utils.data", "readers"):
            sys.modules[name] = _AbsentPackage(name)
