"""Bad input: one clear line, exit status 1 or 2, and nothing left that looks finished."""

from __future__ import annotations

import os
import shutil

import h5py
import numpy as np
import pytest

from packer.errors import DatasetError
from readers import PackedDataset


@pytest.fixture
def out(tmp_path):
    """Where to pack to; after the test there must be no dataset."""
    path = tmp_path / "out"
    yield path
    with pytest.raises(DatasetError):
        PackedDataset(path)


def test_empty_folder(refused, out, tmp_path):
    """A folder without files is bad data."""
    (tmp_path / "empty").mkdir()
    refused(1, ["convert", tmp_path / "empty", out], "is empty")


def test_mixed_kinds(refused, out, pairs, clouds):
    """Files of several kinds are refused, in one folder and across sources."""
    refused(2, ["convert", *pairs.sources, f"c={clouds.folder}", out], "several kinds")
    shutil.copy(clouds.folder / "c0.ply", pairs.folder / "lr")
    refused(2, ["convert", *pairs.sources, out], "images", "ply")


def test_missing_partner(refused, out, pairs):
    """A file without a partner is named."""
    (pairs.folder / "hr" / "003.png").unlink()
    refused(1, ["convert", *pairs.sources, out], "003.png", "partner")


def test_two_files_with_one_name(refused, out, pairs):
    """Two files that would both be one sample are named."""
    shutil.copy(pairs.folder / "lr" / "003.png", pairs.folder / "lr" / "003.PNG")
    refused(1, ["convert", *pairs.sources, out], "003.png", "003.PNG")


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_png(refused, out, pairs, workers):
    """A PNG with a flipped bit is found and named, by a worker process too."""
    path = pairs.folder / "hr" / "005.png"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    refused(1, ["convert", *pairs.sources, out, "--workers", workers], path)


def test_text_under_the_name_of_a_png(refused, out, pairs):
    """A git-lfs pointer in the place of a picture is said to be one."""
    (pairs.folder / "lr" / "000.png").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    refused(1, ["convert", *pairs.sources, out], "000.png", "git-LFS")


def test_damaged_ply(refused, out, clouds):
    """A cloud that ends too early is named."""
    path = clouds.folder / "c2.ply"
    path.write_text(path.read_text()[:-30])
    refused(1, ["convert", clouds.folder, out, "--workers", 0], path)


def test_ply_whose_fields_differ(refused, out, clouds):
    """A cloud without the colours of the first is named, and the way out is said."""
    path = clouds.folder / "c4.ply"
    path.write_text("ply\nformat ascii 1.0\nelement vertex 1\n" + ply_xyz())
    refused(1, ["convert", clouds.folder, out], path, "rgb is missing")


def ply_xyz():
    return "property float x\nproperty float y\nproperty float z\nend_header\n1 2 3\n"


def test_damaged_hdf5(refused, out, rows):
    """An HDF5 file that was cut short is named."""
    data = rows.path.read_bytes()
    rows.path.write_bytes(data[: len(data) // 2])
    refused(1, ["convert", rows.path, out], rows.path)


def test_hdf5_without_a_common_axis(refused, out, rows):
    """Datasets that differ in their first axis are listed with the option that picks some."""
    with h5py.File(rows.path, "a") as file:
        file["mean"] = np.zeros(3)
    refused(1, ["convert", rows.path, out], "/mean: 3 samples", "/x: 400 samples", "--field")


def test_out_not_empty(refused, out, rows):
    """A folder that holds something else is refused and left as it is, with --overwrite too."""
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    for option in ([], ["--overwrite"]):
        refused(2, ["convert", rows.path, out, *option], "not empty", "thesis.txt")
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]


def test_out_is_a_file(refused, out, rows):
    """A file in the place of OUT is refused and left as it is, with --overwrite too."""
    out.write_text("years of work")
    for option in ([], ["--overwrite"]):
        refused(2, ["convert", rows.path, out, *option], "is a file")
    assert out.read_text() == "years of work"


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
        assert packer("convert", pattern, "out", "--overwrite").exit_code == 0
    assert packer("verify", "out").exit_code == 0


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
        assert packer("convert", *pairs.sources, out, "--workers", 0).exit_code == 0
        assert PackedDataset(out).names is not None


def test_a_pattern_that_the_shell_took_apart(refused, out, rows, tmp_path):
    """Several files without FIELD= are said to be that, with the quotes that were forgotten."""
    shutil.copy(rows.path, tmp_path / "more.h5")
    refused(2, ["convert", rows.path, tmp_path / "more.h5", out], "'train_*.h5'", "lr=LR hr=HR")


def test_out_below_a_file(refused, out, rows, tmp_path):
    """An output folder that cannot be made is named."""
    (tmp_path / "file").write_text("")
    refused(1, ["convert", rows.path, tmp_path / "file" / "out"], "file/out", "cannot be written")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_out_without_permission(refused, out, rows, tmp_path):
    """A folder that may not be written to is named."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    refused(1, ["convert", rows.path, closed / "out"], "closed", "cannot be written")


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


def test_nothing_at_the_source(refused, out, tmp_path):
    """A path without a file is wrong usage."""
    refused(2, ["convert", tmp_path / "nothing", out], "no such file")


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
    assert packer("convert", rows.path, packed, "--workers", 0).exit_code == 0
    before = files_of(packed)
    refused(2, ["convert", rows.path, packed], "--overwrite")
    assert files_of(packed) == before


def test_unexpected_errors_ask_for_a_report(packer, rows, tmp_path, monkeypatch):
    """A fault of the program is one line that asks for a report, and a traceback with --verbose alone."""

    def fail(*_):
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("packer.convert.make_plan", fail)
    result = packer("convert", rows.path, tmp_path / "out")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert "ZeroDivisionError: a fault" in result.stderr
    assert "--verbose" in result.stderr
    assert "Traceback" in packer("convert", rows.path, tmp_path / "out", "-v").stderr
