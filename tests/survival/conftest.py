"""A folder in memory: where files are made and removed by the thousand, most of the time is the disk's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder in memory, or else on the disk."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)
