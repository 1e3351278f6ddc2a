"""Wheel and sdist: they hold packer and readers alone, and work outside of the clone, without any extra."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest
import tifffile
from packaging.requirements import Requirement
from PIL import Image

ROOT = Path(__file__).parent.parent
#: What builds the sdist, as pip does it.
SDIST = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
#: pip of this environment, at work in another one, which comes next: to give that one a pip takes seconds.
PIP = ["-m", "pip", "--disable-pip-version-check", "--python"]
#: What the README shows of reading.
READ = """
import packer, readers
from readers import Loader, PackedDataset
dataset = PackedDataset("pairs.packed")
dataset[3], dataset["003"], dataset[[3, 5]], dataset[1:2]
for batch in Loader(dataset, batch_size=4, shuffle=True):
    lr, hr = batch["lr"], batch["hr"]
print(dataset["003"]["hr"].permute(1, 2, 0).flatten().tolist())
print(packer.__file__, readers.__file__, sep="\\n")
"""
#: Runs each command in a fork of one process, which has imported what all need; its stderr goes to a numbered file.
EACH = """
import json, os, sys
import packer.convert
from packer.cli.main import main
statuses = []
for number, command in enumerate(json.loads(sys.argv[1])):
    if not os.fork():
        os.dup2(os.open(f"{number}.txt", os.O_WRONLY | os.O_CREAT), 2)
        main(command)
    statuses.append(os.waitstatus_to_exitcode(os.wait()[1]))
print(json.dumps(statuses))
"""
#: An extra, and a command that needs it.
NEED_EXTRAS = {
    "nifti": ["convert", "x=a.nii", "out"],
    "zarr": ["convert", "a.zarr", "out"],
    "s3": ["convert", "s3://bucket/a", "out"],
    "fsspec": ["convert", "gs://bucket/a.h5", "out"],
    "distributed": ["convert", "x=x.npy", "out", "--scheduler", "tcp://127.0.0.1:1"],
    "ray": ["convert", "x=x.npy", "out", "--scheduler", "ray"],
    "ply": ["export", "cloud.packed", "out", "--to", "ply"],
    "lidar": ["convert", "a.las", "out"],
    "tables": ["convert", "a.csv", "out"],
    "video": ["convert", "a.mp4", "out"],
    "tiff": ["convert", "image=a.tif", "out"],
    "hdf5plugin": ["convert", "a.h5", "out"],
}


def _run(python: Path | str, folder: Path, *command: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the sdist, which is built from a copy of the packages: nothing old lies beside."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for folder in ("packer", "readers"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    _run(sys.executable, source, "-c", SDIST, out)
    (sdist,) = out.glob("*.tar.gz")
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check", "--wheel-dir", str(out)]
    _run(sys.executable, out, "-m", "pip", "wheel", *options, sdist)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and what it depends on, which is linked; no extra is there."""
    folder = tmp_path_factory.mktemp("apart") / "venv"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    _run(sys.executable, folder, *PIP, folder, "install", "--no-deps", "--quiet", wheel)
    for path in _packages(distribution("lmdb-packer"), set()):
        if not (site / path.name).exists():
            (site / path.name).symlink_to(path)
    return folder / "bin" / "python"


def _packages(needing: Distribution, seen: set[str]) -> Iterator[Path]:
    """Yield what lies in site-packages of all that a distribution needs, without its extras."""
    for requirement in map(Requirement, needing.requires or ()):
        if requirement.name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(requirement.name)
        found = distribution(requirement.name)
        tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
        yield from (Path(str(found.locate_file(top))) for top in tops)
        yield from _packages(found, seen)


def test_it_holds_packer_and_readers_alone(wheel: Path) -> None:
    """Every module of the two packages, their marks of types and the specification; no tests, no scripts."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {p.relative_to(ROOT).as_posix() for top in ("packer", "readers") for p in (ROOT / top).rglob("*.py")}
    assert names == modules | {"packer/py.typed", "readers/py.typed", "packer/format/FORMAT.md", "packer/cli/show.html"}


def test_the_readme_works_outside_of_the_clone(python: Path, tmp_path: Path) -> None:
    """Its commands and its lines of Python run on two folders of pictures; the values are theirs; pip is content."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), np.uint8)
    for field, step in (("lr", 2), ("hr", 1)):
        (tmp_path / field).mkdir()
        for number, image in enumerate(pixels[:, ::step, ::step]):
            Image.fromarray(image).save(tmp_path / field / f"{number:03}.png")
    packer = python.with_name("packer")
    assert "6 samples" in _run(packer, tmp_path, "plan", "lr=lr", "hr=hr").stdout
    assert "6 samples" in _run(packer, tmp_path, "convert", "lr=lr", "hr=hr", "pairs.packed").stdout
    assert "no damage" in _run(packer, tmp_path, "verify", "pairs.packed").stdout
    values, *files = _run(python, tmp_path, "-c", READ).stdout.splitlines()
    assert values == str(pixels[3].ravel().tolist())
    assert all(Path(file).is_relative_to(python.parents[1]) for file in files)
    assert "No broken requirements" in _run(sys.executable, tmp_path, *PIP, python, "check").stdout


def test_a_missing_extra_is_one_sentence(python: Path, tmp_path: Path) -> None:
    """It says what to type, for each extra that users need; where a file might be bad as well, the status is 1."""
    text = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    assert {*NEED_EXTRAS, "frameworks", "docs"} == set(re.findall(r"^(\w+) = \[", text, re.MULTILINE))
    packer = python.with_name("packer")
    np.save(tmp_path / "x.npy", np.zeros((4, 3), np.float32))
    np.save(tmp_path / "xyz.npy", np.zeros((4, 100, 3), np.float32))
    _run(packer, tmp_path, "convert", "xyz=xyz.npy", "cloud.packed", "--quiet")
    (tmp_path / "a.nii").write_bytes(b"")
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / "zarr.json").write_text("{}")
    for name in ("a.las", "a.csv", "a.mp4"):
        (tmp_path / name).touch()
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((8, 8, 3), np.uint16), photometric="rgb")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(100), chunks=(10,), **hdf5plugin.Zstd())
    statuses = json.loads(_run(python, tmp_path, "-c", EACH, json.dumps(list(NEED_EXTRAS.values()))).stdout)
    for number, (extra, status) in enumerate(zip(NEED_EXTRAS, statuses, strict=True)):
        said = (tmp_path / f"{number}.txt").read_text()
        assert status == (1 if extra in ("tiff", "hdf5plugin") else 2), extra
        assert re.search(rf"pip install ('\.\[{extra}\]'|-U {extra})", said), said
        assert len(said.splitlines()) == 1, said
