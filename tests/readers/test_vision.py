"""What other packages make of our batches and of the same files, in a process of its own: requirements.vision.lock."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import av
import pytest
from environment import FOLDER, HAS_FRAMEWORKS

ROOT = Path(__file__).resolve().parents[2]
_TESTS = ("tests/readers/beside_torchvision.py", "tests/readers/beside_lerobot.py")


def show_ffmpeg(folder: Path) -> list[str]:
    """Return the folders where torchcodec finds the FFmpeg of PyAV's wheel, which has other names there."""
    libraries = Path(av.__file__).parents[1] / "av.libs"
    for library in libraries.glob("lib[as][vw]*.so.*"):
        name, version = re.match(r"(lib\w+)-\w+\.so\.(\d+)", library.name).groups()  # type: ignore[union-attr]
        (folder / f"{name}.so.{version}").symlink_to(library)
    return [str(folder), str(libraries)]


@pytest.mark.skipif(not HAS_FRAMEWORKS, reason="torchvision, timm, lerobot and torchcodec are not installed here")
def test_beside_torchvision_timm_lerobot_and_torchcodec(tmp_path: Path) -> None:
    """Every test of `_TESTS` passes. It takes 15 s: a process imports all of them, and trains two networks."""
    vision = FOLDER / "vision"
    assert (vision / "lerobot").is_dir(), "run scripts/setup"
    paths = {"PYTHONPATH": [str(vision)], "LD_LIBRARY_PATH": show_ffmpeg(tmp_path)}
    joined = {name: os.pathsep.join([*values, os.environ.get(name, "")]) for name, values in paths.items()}
    env = os.environ | joined | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *_TESTS]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
