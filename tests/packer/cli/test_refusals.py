"""Bad input: one clear line, exit status 1 or 2, and nothing left that looks finished."""

from __future__ import annotations

import os
import shutil

import pytest

from packer.errors import DatasetError, RemoteError
from readers import PackedDataset


@pytest.fixture
def out(tmp_path):
    """Where to pack to; after the test there must be no dataset."""
    path = tmp_path / "out"
    yield path
    with pytest.raises(DatasetError):
        PackedDataset(path)


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_png(refused, out, pairs, workers):
    """A PNG with a flipped bit is found and named, by a worker process too."""
    path = pairs.folder / "hr" / "005.png"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    refused(1, ["convert", *pairs.sources, out, "--workers", workers], path)


def test_out_holds_something_else(refused, out, rows):
    """A folder that holds anything, or a file, in the place of OUT is refused and left as it is, by --overwrite too."""
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    for place, words in ((out, ["not empty", "thesis.txt"]), (out / "thesis.txt", ["is a file"])):
        for options in ([], ["--overwrite"]):
            refused(2, ["convert", rows.path, place, *options], *words)
    assert [path.read_text() for path in out.iterdir()] == ["years of work"]


def test_out_within_source(refused, out, clouds):
    """An output folder that a second run would take for input is refused."""
    for path in (clouds.folder / "out", clouds.folder):
        refused(2, ["convert", clouds.folder, path], "lies within the source")
        refused(2, ["convert", clouds.folder, path, "--dry-run"], "lies within the source")
    assert not (clouds.folder / "out").exists()


@pytest.mark.parametrize("pattern", ["*.ply", "cl*/*.ply", "**/*.ply"])
def test_out_next_to_the_files_of_a_pattern(packer, clouds, monkeypatch, pattern):
    """A pattern finds files that fit it, none of which are a dataset's; so OUT may lie among them."""
    monkeypatch.chdir(clouds.folder.parent if "cl*" in pattern else clouds.folder)
    for _ in range(2):
        packer("convert", pattern, "out", "--overwrite")
    packer("verify", "out")


@pytest.mark.parametrize("option", [[], ["--dry-run"]])
def test_out_forgotten(refused, pairs, tmp_path, monkeypatch, option):
    """A source in the place of OUT is not taken for a folder of that name; `./` in front makes it one."""
    monkeypatch.chdir(tmp_path)
    for last in ("hr=pairs/hr", "hr=pairs/hr/*.png", "hr=s3://bucket/hr"):
        refused(2, ["convert", "lr=pairs/lr", last, *option], "OUT is missing", last)
    for last in ("hr=pairs/hr", "pairs/hr"):
        refused(2, ["convert", last, *option], f"{last} is the only path", "OUT")
    assert [path.name for path in tmp_path.iterdir()] == ["pairs"]


def test_an_equals_sign_in_out(packer, pairs, tmp_path, monkeypatch):
    """A folder may have one in its name, if nothing lies at what follows it, or with `./` in front."""
    monkeypatch.chdir(tmp_path)
    for out in ("scale=4", "./hr=pairs"):
        packer("convert", *pairs.sources, out, "--workers", 0)
        assert PackedDataset(out).names is not None


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--codec", "shrink", ["no codec 'shrink'", "lz4"]),
        ("--codec", "z=lz4", ["no field 'z'", "label, x"]),
        ("--codec", "x=lz4,x=none", ["lz4 and none are both for the field 'x'"]),
        ("--codec", "x=photo+zstd", ["photo is for images", "--codec x=auto"]),
        ("--codec", '{"id":"zstd"', ["not JSON"]),
        ("--field", "y=/nothing", ["/nothing"]),
        ("--field", "y", ["NAME=/PATH"]),
        ("--cast", "x=float64", ["--cast is for sources of ply"]),
        ("--mode", "gray", ["--mode is for sources of images"]),
        ("--shard-size", "much", ["'much' is not a size"]),
        ("--shard-size", "1k", ["too small"]),
        ("--workers", "-1", ["--workers"]),
        ("--colour", "red", ["--colour"]),
    ],
)
def test_wrong_options(refused, out, rows, option, value, words):
    """An option that cannot be carried out is wrong usage; a dataset that the file does not hold is bad data."""
    status = 1 if value == "y=/nothing" else 2
    refused(status, ["convert", rows.path, out, option, value], *words)
    assert not out.exists()


def test_a_file_name_that_is_not_text(refused, out, clouds):
    """A file name of bytes that are no UTF-8 is refused by name."""
    try:
        shutil.copy(clouds.folder / "c0.ply", os.fsencode(clouds.folder) + b"/c\xff.ply")
    except OSError:
        pytest.skip("this file system has no such names")
    refused(1, ["convert", clouds.folder, out, "--workers", 0], "c\\udcff")


def test_map_size_too_small(refused, out, rows):
    """A shard that does not fit --map-size is refused, and the option named."""
    refused(2, ["convert", rows.path, out, "--map-size", "16KiB", "--workers", 0], "--map-size")


def test_second_run_is_refused(packer, refused, rows, tmp_path, files_of):
    """A finished dataset is neither packed again nor changed without --overwrite."""
    packed = tmp_path / "packed"
    packer("convert", rows.path, packed, "--workers", 0)
    before = files_of(packed)
    refused(2, ["convert", rows.path, packed], "--overwrite")
    assert files_of(packed) == before


def test_unexpected_errors_ask_for_a_report(packer, rows, tmp_path, monkeypatch):
    """A fault of the program is one line that asks for a report, and a traceback with --verbose alone."""

    def fail(*_):
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("packer.packing.job.make_plan", fail)
    result = packer("convert", rows.path, tmp_path / "out", status=1)
    assert len(result.stderr.splitlines()) == 1
    assert "ZeroDivisionError: a fault" in result.stderr
    assert "--verbose" in result.stderr
    assert "Traceback" in packer("convert", rows.path, tmp_path / "out", "-v", status=1).stderr


def test_a_server_that_does_not_answer(refused, tmp_path, monkeypatch):
    """Commands that only read say so, and speak of no work to go on with."""

    def fail(*_):
        raise RemoteError("memory://set: no answer; check the connection and try again")

    monkeypatch.setattr("packer.remote.store.RemoteFolder.read", fail)
    for arguments in (["warm", "memory://set"], ["show", "memory://set", "-o", tmp_path / "page.html"]):
        assert "goes on" not in refused(1, arguments, "memory://set: no answer; check the connection")
