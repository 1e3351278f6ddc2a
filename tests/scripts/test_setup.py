"""What scripts/setup leaves alone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_an_environment_behind_a_link_is_not_emptied(tmp_path: Path) -> None:
    """A .venv that is a link belongs to another folder: setup says so and changes nothing."""
    (tmp_path / "mine" / "scripts").mkdir(parents=True)
    for file in ("scripts/setup", "requirements.lock", "requirements.vision.lock", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path / "mine" / file)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "kept").touch()
    (tmp_path / "mine" / ".venv").symlink_to(tmp_path / "theirs")
    done = subprocess.run([tmp_path / "mine" / "scripts" / "setup"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert ".venv is a link to" in done.stderr
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["kept"]
