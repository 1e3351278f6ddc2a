"""Source files are compared, before and after they are read, by whoever reads them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer.convert import convert, convert_part
from packer.errors import SourceError
from packer.packing import ConvertOptions, LocalPlace, commands_of, read_manifest, read_rejected, with_usual
from packer.sources import SourceOptions
from packer.watcher import PACKING, Watcher
from packer.workers import Limits
from readers import PackedDataset

SAMPLES = SourceOptions(samples="files")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Six files, a sample each."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(6):
        np.save(folder / f"a{number}.npy", np.full(600, number))
    return folder


def changes(path: Path) -> Watcher:
    """Return a watcher that replaces the values of a file, and keeps its size, once all has been planned."""

    def step(name: str, done: int, total: int | None) -> None:
        if name == PACKING:
            np.save(path, np.full(600, 99))

    return Watcher(step=step)


@pytest.mark.parametrize("way", ["here", "workers", "executor", "part"])
def test_a_file_that_changes_is_named_and_not_packed(sources: Path, tmp_path: Path, way: str) -> None:
    """Conversion stops there; with on_error="skip" the samples of the file are skipped, and all others are packed."""
    file, out = sources / "a3.npy", tmp_path / "out"
    options: dict[str, Any] = {"source": SAMPLES, "shard_size": 10_000, "workers": 2 if way == "workers" else 0}
    with ThreadPoolExecutor(2) as pool:
        if way == "executor":
            options["executor"] = pool

        def pack(**more: Any) -> Any:
            if way == "part":
                return convert_part(str(sources), out, "1/1", **options, **more)
            return convert(str(sources), out, **options, **more)

        with pytest.raises(SourceError, match=r"a3.npy: was 4,928 bytes of .* when it was planned, and is 4,928"):
            pack(watcher=changes(file))
        os.utime(file, (1, 1))  # planned anew
        report = pack(watcher=changes(file), on_error="skip", overwrite=True)
        (rejected,) = report.rejected
    assert rejected.file == str(file)
    if way != "part":
        assert read_rejected(out, report.manifest) == [rejected]
        (values,) = PackedDataset(out)[:].values()
        assert values[:, 0].tolist() == [0, 1, 2, 4, 5]


def test_a_file_that_changes_after_it_was_read(sources: Path, tmp_path: Path) -> None:
    """What was read of it is packed no more."""
    file, out = sources / "a0.npy", tmp_path / "out"
    changed = list[int]()

    def done(samples: int, nbytes: int) -> None:
        if not changed:
            np.save(file, np.full(600, 99))
        changed.append(samples)

    report = convert(str(sources), out, source=SAMPLES, workers=0, on_error="skip", watcher=Watcher(done=done))
    assert [bad.file for bad in report.rejected] == [str(file)]
    assert report.samples == sum(changed) == 5


def test_images_are_looked_at_once_while_they_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that changed before it was read is skipped, small or large; of others no path is looked at again."""
    folder = tmp_path / "in"
    folder.mkdir()
    values = np.random.default_rng(0)
    for number, side in enumerate((4, 200, 4, 200)):
        Image.fromarray(values.integers(0, 255, (side, side, 3), np.uint8)).save(folder / f"{number}.png")
    looked_at, real = list[str](), os.stat

    def stat(path: Any, **more: Any) -> os.stat_result:
        looked_at.append(str(path))
        return real(path, **more)

    def step(name: str, done: int, total: int | None) -> None:
        if name == PACKING and not done:
            for number in (2, 3):
                os.utime(folder / f"{number}.png", (1, 1))
            monkeypatch.setattr(os, "stat", stat)

    watcher = Watcher(step=step)
    report = convert(str(folder), tmp_path / "out", workers=0, codec="none", on_error="skip", watcher=watcher)
    assert [Path(bad.file or "").name for bad in report.rejected] == ["2.png", "3.png"]
    assert report.samples == 2
    assert not [path for path in looked_at if path.endswith(("0.png", "1.png"))]


def test_a_picture_is_of_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another file takes the name of a picture while it is read, the planned one is packed as a whole."""
    picture, other, real = tmp_path / "in" / "0.png", tmp_path / "other.png", os.open
    picture.parent.mkdir()
    for path, value in ((picture, 1), (other, 2)):
        Image.fromarray(np.full((4, 4), value, np.uint8)).save(path)

    def open_and_replace(path: Any, *more: Any, **others: Any) -> int:
        descriptor = real(path, *more, **others)
        if str(path) == str(picture):
            other.replace(picture)
        return descriptor

    watcher = Watcher(step=lambda name, *_: monkeypatch.setattr(os, "open", open_and_replace) if name == PACKING else 0)
    convert(str(picture.parent), tmp_path / "out", workers=0, watcher=watcher)
    monkeypatch.undo()
    assert not other.exists()
    assert (PackedDataset(tmp_path / "out")[0]["image"] == 1).all()


def test_a_manifest_keeps_no_secret_of_a_url() -> None:
    """Words are kept as they were given; of URLs neither the user nor what follows the path."""
    words = ["x=https://me:key@host/a.npy?signature=1", "y=in/b.npy", "z=s3://bucket/c@1.npy"]
    (command,) = commands_of("convert", words, ConvertOptions(source=SourceOptions(samples="files"), codec="lz4"))
    assert command.sources == ("x=https://host/a.npy", "y=in/b.npy", "z=s3://bucket/c@1.npy")
    assert command.options == {"--samples": "files", "--codec": "lz4"}


def test_limits_of_reading_are_kept_and_hold_again(sources: Path, tmp_path: Path) -> None:
    """Those of the conversion, and whether bad samples are skipped, hold where the samples are read again."""
    out = tmp_path / "out"
    convert(str(sources), out, source=SAMPLES, workers=0, on_error="skip", read_seconds=5.0, read_bytes=None)
    manifest = read_manifest(LocalPlace(out))
    assert manifest.commands[0].options.items() >= {"--read-timeout": 5.0, "--read-memory": 0}.items()
    again = with_usual(ConvertOptions(), manifest)
    assert (again.limits, again.on_error) == (Limits(5.0, None), "skip")
    assert with_usual(ConvertOptions(read_seconds=7.0), manifest).limits == Limits(7.0, None)
