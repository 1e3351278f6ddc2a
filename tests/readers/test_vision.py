"""What torchvision and timm make of our batches: in a process of its own, see `requirements.vision.lock`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from environment import FOLDER, HAS_FRAMEWORKS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not HAS_FRAMEWORKS, reason="torchvision and timm are not installed here")
def test_beside_torchvision_and_timm() -> None:
    """Every test of `beside_torchvision.py` passes. It takes 10 s: a process imports both, and trains two networks."""
    vision = FOLDER / "vision"
    assert vision.is_dir(), "run scripts/setup"
    paths = os.pathsep.join([str(vision), os.environ.get("PYTHONPATH", "")])
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "tests/readers/beside_torchvision.py",
    ]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
