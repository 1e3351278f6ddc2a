"""A conversion shared by an array of jobs: parts that publish nothing, in any order, and the same bytes in the end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer import convert as module
from packer.convert import convert, convert_part
from packer.errors import UsageError
from packer.format import manifest as manifests
from packer.packing import Change, LocalPlace, Note, parse_part
from packer.verify import verify

#: 30 pairs of 8 x 8 and 16 x 16 px in 6 shards.
PAIRS, SHARDS = 30, 6
OPTIONS = {"codec": "none", "shard_size": 5 * 960, "workers": 0}


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    """Two folders of PNG files."""
    rng = np.random.default_rng(3)
    for field, size in (("lr", 8), ("hr", 16)):
        (tmp_path / field).mkdir()
        for number in range(PAIRS):
            pixels = rng.integers(0, 256, (size, size, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / field / f"{number:03}.png")
    return [f"{field}={tmp_path / field}" for field in ("lr", "hr")]


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files of a dataset, without its lock."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_parts_make_the_bytes_of_one_process(sources: list[str], tmp_path: Path) -> None:
    """Parts in any order, repeated, counted from 0 or from 1, and a call that publishes: the bytes of one call."""
    convert(sources, tmp_path / "whole", **OPTIONS)
    out = tmp_path / "parts"
    assert convert_part(sources, out, "3/4", **OPTIONS).missing == SHARDS - 1
    assert convert_part(sources, out, "0/4", **OPTIONS).shards == 1
    again = convert_part(sources, out, "4/4", **OPTIONS)
    assert (again.shards, again.kept_shards) == (1, 1)
    assert convert_part(sources, out, "1/4", **OPTIONS).shards == 2
    assert not (out / "manifest.json").exists()
    report = convert(sources, out, **OPTIONS)
    assert report.kept_shards == 4
    assert files_of(out) == files_of(tmp_path / "whole")
    assert not verify(out).damages


def test_parts_at_once(sources: list[str], tmp_path: Path) -> None:
    """Six processes at one time, two of them with the same part: none waits for another, none is refused."""
    arguments = ["--codec", "none", "--shard-size", "4800", "--workers", "0"]
    command = [sys.executable, "-m", "packer.cli", "convert", *sources, str(tmp_path / "out"), *arguments]
    parts = ["0/5", "1/5", "2/5", "3/5", "4/5", "4/5"]
    jobs = [subprocess.Popen([*command, "--part", part], stderr=subprocess.PIPE, text=True) for part in parts]
    assert [(job.communicate()[1], job.returncode)[1] for job in jobs] == [0] * len(jobs)
    assert convert(sources, tmp_path / "out", **OPTIONS).kept_shards == SHARDS
    convert(sources, tmp_path / "whole", **OPTIONS)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_a_part_with_another_version_of_a_file_is_refused(sources: list[str], tmp_path: Path) -> None:
    """All parts see the same files, or a sentence says that one has changed."""
    convert_part(sources, tmp_path / "out", "1/2", **OPTIONS)
    image = Path(sources[0].partition("=")[2]) / "000.png"
    os.utime(image, ns=(1, 1))
    with pytest.raises(UsageError, match="a source file has changed"):
        convert_part(sources, tmp_path / "out", "2/2", **OPTIONS)


def test_a_late_part_changes_nothing(sources: list[str], tmp_path: Path) -> None:
    """A part that comes after the dataset was published is told so, and the dataset stays as it is."""
    convert_part(sources, tmp_path / "out", "1/2", **OPTIONS)
    convert(sources, tmp_path / "out", **OPTIONS)
    before = files_of(tmp_path / "out")
    with pytest.raises(UsageError, match="is a packed dataset already"):
        convert_part(sources, tmp_path / "out", "2/2", **OPTIONS)
    assert files_of(tmp_path / "out") == before


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Makes a call right after the next part has packed its shards."""
    run = module._run

    def patch(call: Callable[[], object]) -> None:
        def overtaken(*arguments: Any) -> list[Any]:
            reports = list(run(*arguments))
            monkeypatch.setattr(module, "_run", run)
            call()
            return reports

        monkeypatch.setattr(module, "_run", overtaken)

    return patch


def test_a_part_that_is_overtaken_leaves_nothing(sources: list[str], tmp_path: Path, meanwhile: Any) -> None:
    """If the dataset is published while a part is packed, the part removes what it made and says so."""
    meanwhile(lambda: convert(sources, tmp_path / "out", **OPTIONS))
    with pytest.raises(UsageError, match="published or changed while this part"):
        convert_part(sources, tmp_path / "out", "1/2", **OPTIONS)
    assert not verify(tmp_path / "out").damages
    assert manifests.read(tmp_path / "out").samples == PAIRS
    assert not list((tmp_path / "out").glob("unfinished/*"))


def test_a_part_whose_run_is_replaced_says_so(sources: list[str], tmp_path: Path, meanwhile: Any) -> None:
    """If another command begins again while a part is packed, the part says so, and leaves that command's files."""
    others = {**OPTIONS, "codec": "lz4", "overwrite": True}
    change = Change(LocalPlace(tmp_path / "out"), is_alone=True)
    meanwhile(lambda: change.begin(Note(shards=1, settings=others)))
    with pytest.raises(UsageError, match="another command began here again"):
        convert_part(sources, tmp_path / "out", "1/2", **OPTIONS)
    assert files_of(tmp_path / "out").keys() == {f"unfinished/{change.run}.json"}


@pytest.mark.parametrize("part", ["5/4", "1", "a/b", "1/0", "-1/4", ""])
def test_what_is_no_part_is_refused(part: str) -> None:
    """A part is a number of n parts."""
    with pytest.raises(UsageError, match="such as 17/400"):
        parse_part(part)


def test_samples_in_memory_have_no_parts(tmp_path: Path) -> None:
    """Nothing tells whether another process has the same samples."""
    with pytest.raises(UsageError, match="samples in memory"):
        convert_part([{"x": np.zeros(3)}], tmp_path / "out", "1/2")
