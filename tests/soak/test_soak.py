"""A few rounds of the soaks that no other test runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.platform.startswith("linux"):
    import soak

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")


def test_a_few_replaced_datasets(tmp_path: Path) -> None:
    """A replaced dataset is never read under the manifest of the old one."""
    assert sum(soak.run("replace", tmp_path, range(12)).values()) == 12


def test_a_few_plans(tmp_path: Path) -> None:
    """Files are as large as the plan of a random dataset says, to the byte."""
    assert sum(soak.run("plan", tmp_path, range(4)).values()) == 4
