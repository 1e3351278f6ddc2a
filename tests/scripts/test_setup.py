"""What scripts/setup leaves alone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([folder / command[0], *command[1:]], capture_output=True, text=True, timeout=100)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder with what scripts/setup reads, and no environment."""
    (tmp_path / "mine" / "scripts").mkdir(parents=True)
    for file in ("scripts/setup", "scripts/bench", "requirements.lock", "requirements.vision.lock", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path / "mine" / file)
    return tmp_path / "mine"


def test_comparing_versions_installs_nothing(mine: Path) -> None:
    """`scripts/bench --against` runs in the environment that is there, and says so if another one is asked for."""
    assert "run scripts/setup first" in run(mine, "scripts/bench", "--against", "main").stderr
    assert not (mine / ".venv").exists()
    (mine / ".venv/bin").mkdir(parents=True)
    python = mine / ".venv/bin/python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || echo "$@"\n')
    python.chmod(0o755)
    for arguments in (["--against", "main"], ["--against=main", "--only", "rows"]):
        done = run(mine, "scripts/bench", *arguments)
        assert done.stdout.split() == ["scripts/bench.py", *arguments]
        assert ".venv is not what requirements.lock asks for, and stays as it is" in done.stderr
    locks = ("requirements.lock", "requirements.vision.lock", "pyproject.toml")
    data = b"".join((mine / file).read_bytes() for file in locks)
    checksum = subprocess.run(["cksum"], input=data, capture_output=True, check=True).stdout.decode()
    (mine / ".venv/setup.stamp").write_text(f"{checksum}/another/folder\n")
    assert run(mine, "scripts/bench", "--against", "main").stderr == ""
    assert sorted(path.name for path in (mine / ".venv").rglob("*")) == ["bin", "python", "setup.stamp"]


def test_an_environment_behind_a_link_is_not_emptied(tmp_path: Path, mine: Path) -> None:
    """A .venv that is a link belongs to another folder: setup says so and changes nothing."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "kept").touch()
    (mine / ".venv").symlink_to(tmp_path / "theirs")
    done = run(mine, "scripts/setup")
    assert done.returncode == 1
    assert ".venv is a link to" in done.stderr
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["kept"]
