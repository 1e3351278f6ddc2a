"""Pairs of images for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from picture_files import save_pairs


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """A folder of three pairs of one size: lr/<n>x2.png and hr/<n>.png."""
    return save_pairs(tmp_path)
