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


def test_a_few_faults_while_an_epoch_is_streamed(tmp_path: Path) -> None:
    """Wrong bytes, signals and a full disk end in right batches or in an error, and the next run goes on."""
    outcomes = soak.run("stream", tmp_path, [36, 1, 111, 232])
    assert {outcome.partition(":")[0] for outcome in outcomes} == {"wrong bytes", "SIGINT", "SIGKILL", "no space"}
