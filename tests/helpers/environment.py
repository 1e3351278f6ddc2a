"""Says in which environment the tests run: scripts/setup makes four kinds."""

from __future__ import annotations

import re
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
    """Stands for any name of a package that is not there."""

    def __new__(cls, *_: object, **__: object) -> _Absent:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")


class _AbsentPackage(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent


def import_without_torch() -> None:
    """Where torch is not there, let tests that use it, or readers, be imported: they fail when they do so."""
    if not HAS_TORCH:
        for name in ("torch", "torch.utils", "torch.utils.data", "readers"):
            sys.modules.setdefault(name, _AbsentPackage(name))


def skip_without_torch(report: pytest.TestReport) -> None:
    """Where torch is not there, make a failure that is due to it a skipped test."""
    if HAS_TORCH or not report.failed:
        return
    text = report.longreprtext + "".join(content for _, content in report.sections)
    if re.search(r"No module named 'torch'|needs the package torch|metadata was found for torch|at torch\.", text):
        report.outcome, report.longrepr = "skipped", (str(report.location[0]), 0, "torch is not installed here")
