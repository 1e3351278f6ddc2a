"""Verbs in any order, killed at any call, change datasets as a model of plain lists predicts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.platform.startswith("linux"):
    from tests.survival import model

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")


def test_a_few_lists_of_verbs(folder: Path) -> None:
    """Converted, joined, split, repacked, exported, damaged and repaired: every dataset holds the expected samples."""
    model.run(folder, examples=4, steps=15, seed=1)
