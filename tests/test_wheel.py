"""The wheel: it holds packer and readers alone, and works without the source tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what it is built from, so that nothing old lies beside."""
    source = tmp_path_factory.mktemp("source")
    for folder in ("packer", "readers"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    out = tmp_path_factory.mktemp("dist")
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(source))
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked as pip does it; what it depends on is there already."""
    target = tmp_path_factory.mktemp("site")
    _pip("install", "--no-deps", "--target", str(target), str(wheel))
    return target


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"]
    subprocess.run(command, check=True, timeout=120)


def _run(installed: Path, folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_holds_packer_and_readers_alone(wheel: Path) -> None:
    """Every module of the two packages, their marks of types and the specification; no tests, no scripts."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {p.relative_to(ROOT).as_posix() for top in ("packer", "readers") for p in (ROOT / top).rglob("*.py")}
    assert names == modules | {"packer/py.typed", "readers/py.typed", "packer/format/FORMAT.md", "packer/cli/show.html"}


def test_it_packs_and_reads_without_the_source_tree(installed: Path, tmp_path: Path) -> None:
    """`packer convert`, then `PackedDataset`, in an empty folder: the same values come back."""
    values = np.arange(60, dtype=np.float32).reshape(20, 3)
    np.save(tmp_path / "x.npy", values)
    packer = installed / "bin" / "packer"
    _run(installed, tmp_path, sys.executable, str(packer), "convert", "x=x.npy", "x.packed", "--quiet")
    program = (
        "import packer, readers; print(packer.__file__); print(readers.__file__);"
        "print(readers.PackedDataset('x.packed')[:]['x'].flatten().tolist())"
    )
    places, readers, read = _run(installed, tmp_path, sys.executable, "-c", program).splitlines()
    assert Path(places).is_relative_to(installed)
    assert Path(readers).is_relative_to(installed)
    assert read == str(values.ravel().tolist())
