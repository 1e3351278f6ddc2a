"""A conversion shared by an array of jobs: parts that publish nothing, in any order, and the same bytes in the end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
from packer.sources import SourceOptions
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


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The plans that are made in this process."""
    made: list[object] = []
    monkeypatch.setattr("packer.packing.job.log_plan", made.append)
    return made


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


def images_of(sources: list[str], shard: int) -> list[Path]:
    """Return the images of a shard of five pairs."""
    folders = [Path(source.partition("=")[2]) for source in sources]
    return [folder / f"{number:03}.png" for folder in folders for number in range(5 * shard, 5 * shard + 5)]


def test_the_plan_is_made_once(sources: list[str], tmp_path: Path) -> None:
    """A part that comes after the first one opens the files of its own shards alone, and packs the same bytes."""
    convert(sources, tmp_path / "whole", **OPTIONS)
    before = {
        image: (image.read_bytes(), image.stat().st_mtime_ns) for n in range(SHARDS) for image in images_of(sources, n)
    }
    out = tmp_path / "parts"
    convert_part(sources, out, "1/6", **OPTIONS)
    for image in {*before} - {*images_of(sources, 1)}:
        image.write_bytes(b"no image")
    report = convert_part(sources, out, "2/6", **OPTIONS)
    assert (report.shards, report.missing) == (1, 4)
    for image, (data, changed) in before.items():
        image.write_bytes(data)
        os.utime(image, ns=(changed, changed))
    assert convert(sources, out, **OPTIONS).kept_shards == 2
    assert files_of(out) == files_of(tmp_path / "whole")


def damage(images: Iterable[Path]) -> None:
    """Take away what files hold, but for their sizes and times."""
    for image in images:
        info = image.stat()
        image.write_bytes(bytes(info.st_size))
        os.utime(image, ns=(info.st_atime_ns, info.st_mtime_ns))


def test_what_publishes_opens_no_file_of_a_finished_shard(sources: list[str], tmp_path: Path) -> None:
    """It packs what is missing, and publishes, by the plan of the parts: all samples, names, splits and bytes."""
    options = {**OPTIONS, "splits": {"train": 0.5}}
    convert(sources, tmp_path / "whole", **options)
    convert_part(sources, tmp_path / "out", "1/2", **OPTIONS)
    for shard in (0, 2, 4):
        damage(images_of(sources, shard))
    report = convert(sources, tmp_path / "out", **options)
    assert (report.kept_shards, report.source_bytes) == (3, sum(p.stat().st_size for p in tmp_path.glob("?r/*")))
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_what_publishes_finds_files_that_came_after_the_plan(sources: list[str], tmp_path: Path) -> None:
    """A new pair is no part of the plan, which is an error; a file that lies beside data changes nothing."""
    convert_part(sources, tmp_path / "out", "1/2", **OPTIONS)
    (tmp_path / "lr" / "readme.txt").write_text("pairs")
    for field in ("lr", "hr"):
        shutil.copy(tmp_path / field / "000.png", tmp_path / field / "new.png")
    with pytest.raises(UsageError, match="the source files were 60 and are now 62"):
        convert(sources, tmp_path / "out", **OPTIONS)
    for field in ("lr", "hr"):
        (tmp_path / field / "new.png").unlink()
    assert convert(sources, tmp_path / "out", **OPTIONS).samples == PAIRS


def test_what_publishes_lists_files_that_the_plan_skipped(sources: list[str], tmp_path: Path) -> None:
    """Only who opens them can say what is wrong."""
    damage([tmp_path / "lr" / "003.png"])
    options = {**OPTIONS, "on_error": "skip"}
    convert(sources, tmp_path / "whole", **options)
    convert_part(sources, tmp_path / "out", "1/2", **options)
    assert [bad.file for bad in convert(sources, tmp_path / "out", **options).rejected] == [
        str(tmp_path / "lr/003.png")
    ]
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_one_of_many_parts_makes_the_plan(
    sources: list[str], tmp_path: Path, plans: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of parts that begin at one time one makes the plan, and the others wait for it."""
    monkeypatch.setattr("packer.packing.claims.POLL", 0.01)
    with ThreadPoolExecutor(4) as pool:
        parts = [f"{number}/4" for number in range(4)]
        pack = partial(convert_part, sources, tmp_path / "out", **OPTIONS)
        assert sum(report.shards for report in pool.map(pack, parts)) == SHARDS
    assert len(plans) == 1


@pytest.mark.parametrize(("moment", "made"), [("step", 1), ("done", 0)])
def test_the_plan_of_a_killed_part(
    sources: list[str], tmp_path: Path, plans: list[object], monkeypatch: pytest.MonkeyPatch, moment: str, made: int
) -> None:
    """A part that is killed while it makes the plan is replaced by another; one that is killed later leaves it."""
    code = (
        "import os, signal; from packer.convert import convert_part; from packer.watcher import Watcher; "
        f"convert_part({sources!r}, {str(tmp_path / 'out')!r}, '1/6', **{OPTIONS!r}, "
        f"watcher=Watcher({moment}=lambda *_: os.kill(os.getpid(), signal.SIGKILL)))"
    )
    monkeypatch.setattr("packer.packing.claims.POLL", 0.01)
    monkeypatch.setattr("packer.packing.claims.LOST", 0.1)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert len(list((tmp_path / "out/unfinished").glob("*.claim"))) == made
    convert_part(sources, tmp_path / "out", "2/6", **OPTIONS)
    assert len(plans) == made
    assert not list((tmp_path / "out/unfinished").glob("*.claim"))


def test_a_part_with_another_version_of_a_file_is_refused(
    sources: list[str], tmp_path: Path, plans: list[object]
) -> None:
    """A part looks at its own files, and the call that publishes at all; with `overwrite` a part makes a new plan."""
    out = tmp_path / "out"
    convert_part(sources, out, "1/2", **OPTIONS)
    os.utime(images_of(sources, 1)[0], ns=(1, 1))
    with pytest.raises(UsageError, match="a source file has changed"):
        convert_part(sources, out, "2/2", **OPTIONS)
    with pytest.raises(UsageError, match="a source file has changed"):
        convert(sources, out, **OPTIONS)
    plans.clear()
    report = convert_part(sources, out, "2/2", overwrite=True, **OPTIONS)
    assert (len(plans), report.kept_shards) == (1, 0)
    convert(sources, tmp_path / "whole", **OPTIONS)
    convert(sources, out, overwrite=True, **OPTIONS)
    assert files_of(out) == files_of(tmp_path / "whole")


def test_a_forgotten_overwrite_costs_nothing(sources: list[str], tmp_path: Path) -> None:
    """The call that would publish is refused without `overwrite`, and what the parts have packed stays."""
    out = tmp_path / "out"
    convert(sources, out, **OPTIONS)
    convert_part(sources, out, "1/2", overwrite=True, **OPTIONS)
    files = files_of(out)
    with pytest.raises(UsageError, match="use --overwrite to replace it"):
        convert(sources, out, **OPTIONS)
    assert files_of(out) == files
    assert convert(sources, out, overwrite=True, **OPTIONS).kept_shards == SHARDS // 2


def test_a_plan_opens_only_what_the_command_names(
    sources: list[str], tmp_path: Path, plans: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that has other files, by whoever writes there, is refused by parts and by the call that publishes."""
    for name in ("lr", "hr"):
        shutil.copytree(tmp_path / name, tmp_path / f"{name}-others")
    others = [f"{source}-others" for source in sources]
    named = [f"{source}/*.png" for source in sources]
    monkeypatch.setattr("packer.packing.shared_plan._command_digest", lambda inputs, options: "0123456789abcdef")
    monkeypatch.setattr("packer.packing.shared_plan._list_digest", lambda inputs, at_urls, options: "0")
    convert_part(others, tmp_path / "out", "1/2", **OPTIONS)
    refused = r"its plan unfinished/\w+.plan has the file .*-others/\d+.png, which this command does not name"
    with pytest.raises(UsageError, match=refused):
        convert_part(named, tmp_path / "out", "2/2", **OPTIONS)
    with pytest.raises(UsageError, match=refused):
        convert(named, tmp_path / "out", **OPTIONS)
    plans.clear()
    for part in ("1/2", "2/2"):
        convert_part(named, tmp_path / "named", part, **OPTIONS)
    assert len(plans) == 1


def test_a_plan_of_files_that_a_table_names_elsewhere_is_not_shared(
    sources: list[str], tmp_path: Path, plans: list[object]
) -> None:
    """Each part makes its own then, and the dataset is that of one process."""
    (tmp_path / "tables").mkdir()
    table, images = (
        tmp_path / "tables/faces.csv",
        [path for shard in range(SHARDS) for path in images_of(sources, shard)],
    )
    table.write_text("file\n" + "".join(f"{path}\n" for path in images if path.parent.name == "lr"))
    options = {**OPTIONS, "source": SourceOptions(files=("file",))}
    for part in ("1/2", "2/2"):
        convert_part(str(table), tmp_path / "out", part, **options)
    assert len(plans) == 2
    assert convert(str(table), tmp_path / "out", **options).samples == PAIRS


def test_a_plan_of_files_whose_names_are_no_utf_8_is_not_shared(tmp_path: Path, plans: list[object]) -> None:
    """Each part makes its own, and leaves nothing of it to others."""
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(folder / "a.png")
    for _ in range(2):
        convert_part(str(folder), tmp_path / "out", "1/1", **OPTIONS)
    assert (len(plans), list(tmp_path.glob("out/unfinished/*.plan"))) == (2, [])
    assert convert(str(folder), tmp_path / "out", **OPTIONS).samples == 1


def test_a_damaged_plan_is_made_again(sources: list[str], tmp_path: Path, plans: list[object]) -> None:
    """A plan, or the samples of a shard in it, that a power cut took or cut short costs no more than its time."""
    convert(sources, tmp_path / "whole", **OPTIONS)
    out = tmp_path / "out"
    plans.clear()
    for number, pattern in (
        (1, "unfinished/????????.plan"),
        (2, "unfinished/*-00002.plan"),
        (3, "unfinished/*-00003.plan"),
    ):
        convert_part(sources, out, f"{number}/6", **OPTIONS)
        (file,) = out.glob(pattern)
        file.write_bytes(file.read_bytes()[:-10])
    convert_part(sources, out, "4/6", **OPTIONS)
    assert len(plans) == 4
    convert(sources, out, **OPTIONS)
    assert files_of(out) == files_of(tmp_path / "whole")


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
    pack_shards = module.pack_shards

    def patch(call: Callable[[], object]) -> None:
        def overtaken(*arguments: Any) -> list[Any]:
            reports = list(pack_shards(*arguments))
            monkeypatch.setattr(module, "pack_shards", pack_shards)
            call()
            return reports

        monkeypatch.setattr(module, "pack_shards", overtaken)

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
    change = Change(LocalPlace(tmp_path / "out"), has_lock=True)
    meanwhile(lambda: change.begin(Note(shards=1, settings=others)))
    with pytest.raises(UsageError, match="another command began here again"):
        convert_part(sources, tmp_path / "out", "1/2", **OPTIONS)
    assert files_of(tmp_path / "out").keys() == {f"unfinished/{change.run}.json"}


@pytest.mark.parametrize("part", ["5/4", "1", "a/b", "1/0", "-1/4", "", None])
def test_what_is_no_part_is_refused(part: Any) -> None:
    """A part is a number of n parts."""
    with pytest.raises(UsageError, match=re.escape(f"part {part!r}: I/N is expected, with I from 1 to N")):
        parse_part(part)


def test_samples_in_memory_have_no_parts(tmp_path: Path) -> None:
    """Nothing tells whether another process has the same samples."""
    with pytest.raises(UsageError, match="samples in memory"):
        convert_part([{"x": np.zeros(3)}], tmp_path / "out", "1/2")
