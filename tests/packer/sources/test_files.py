"""Which files a folder, a file name or a pattern stands for: the same for all sources."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import pathlib
import pickle
import random
import string
import struct
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from natsort import natsorted
from PIL import Image

import packer.writer
from packer.errors import SourceError
from packer.sources import SourceOptions, files, open_sources
from packer.sources.files import find, natural_order, of_one_kind
from packer.sources.kinds import suffixes
from packer.watcher import Watcher
from readers import PackedDataset
from tests.helpers.kinds import write_hdf5

NAMES = ["1.ply", "01.ply", "001.ply", "2.ply", "10.ply"]


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_folders_files_and_patterns(tmp_path, monkeypatch):
    """A folder gives all below it, a file itself, a pattern what fits; names count from the folder that is named."""
    fill(tmp_path, "a/1.ply", "a/b/2.ply", "3.ply", "a/b/notes.txt")
    every = ["3.ply", "a/1.ply", "a/b/2.ply", "a/b/notes.txt"]
    assert find(str(tmp_path)) == (str(tmp_path), every, frozenset(), {}, str(tmp_path), ())
    assert find(f"{tmp_path}/a/b/2.ply")[:2] == (f"{tmp_path}/a/b", ["2.ply"])
    assert find(f"{tmp_path}/a/**/*.ply")[:2] == (f"{tmp_path}/a", ["1.ply", "b/2.ply"])
    assert find(f"{tmp_path}/*/[12].ply")[:2] == (str(tmp_path), ["a/1.ply"])
    assert find(f"{tmp_path}/*.txt")[:2] == (str(tmp_path), [])
    monkeypatch.chdir(tmp_path)
    assert find(".")[:2] == find("**/*.*")[:2] == ("", every)
    assert [found.path(found.files[0]) for found in (find("."), find("a"))] == ["3.ply", "a/1.ply"]
    monkeypatch.chdir(tmp_path / "a")
    assert find("../*.ply")[:2] == ("..", ["3.ply"])


def test_hidden_files_are_counted_and_left_out(tmp_path):
    """What some systems leave next to files, and hidden folders, are no sources; a folder named by itself is one."""
    fill(tmp_path, "a.ply", "._a.ply", ".trash/b.ply", "c/.DS_Store", ".trash/.c/d.ply")
    assert find(str(tmp_path))[1:4] == (["a.ply"], frozenset(), {"hidden": 3})
    assert find(str(tmp_path / ".trash")).files == ["b.ply"]
    assert find(f"{tmp_path}/.trash/*.ply").files == ["b.ply"]
    assert find(str(tmp_path / "._a.ply")).files == ["._a.ply"]


@pytest.mark.parametrize("listed", list(itertools.permutations(NAMES))[::17], ids=" ".join)
def test_the_order_is_not_that_of_the_file_system(tmp_path, monkeypatch, listed):
    """Files come in natural order, and names of one number always in the same."""
    fill(tmp_path, *NAMES)
    scandir = os.scandir
    monkeypatch.setattr(
        "packer.sources.files.os.scandir",
        lambda folder: contextlib.nullcontext(sorted(scandir(folder), key=lambda entry: listed.index(entry.name))),
    )
    expected = ["001.ply", "01.ply", "1.ply", "2.ply", "10.ply"]
    assert find(str(tmp_path)).pick() == find(f"{tmp_path}/*.ply").pick() == expected


def test_a_link_to_a_folder_above_is_not_followed(tmp_path):
    """It would lead into other sources, and into outputs of earlier runs."""
    fill(tmp_path, "data/a.ply", "other/b.ply")
    (tmp_path / "data" / "sub").mkdir()
    (tmp_path / "data" / "loop").symlink_to("..")
    (tmp_path / "data" / "sub" / "loop").symlink_to(tmp_path.parent)
    assert find(str(tmp_path / "data")).files == ["a.ply"]


def test_many_strange_files_cost_no_more_each_than_few(tmp_path):
    """What their errors have in common is worked out once."""
    fill(tmp_path, *(f"{number}.png" for number in range(50)), *(f"{number}.strange" for number in range(50)))
    errors = []
    with mock.patch.object(files, "suffix_of", wraps=files.suffix_of) as looked_at:
        of_one_kind(find(str(tmp_path)), suffixes(), watcher=Watcher(errors.append))
    assert len(errors) == 50
    assert looked_at.call_count < 300


def test_links_are_followed_but_not_in_a_circle(tmp_path):
    """A linked folder is one of the folder's own, as often as it is linked; a way back up is not gone again."""
    fill(tmp_path, "disk/a.ply", "data/b.ply")
    for name in ("x", "y"):
        (tmp_path / "data" / name).symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "back").symlink_to(tmp_path / "data")
    assert find(str(tmp_path / "data")).files == ["b.ply", "x/a.ply", "y/a.ply"]


@pytest.mark.skipif(os.name == "nt", reason="named pipes are of POSIX")
def test_what_is_no_regular_file_is_told_and_never_opened(tmp_path):
    """A broken link or a pipe with the right name is an error that names it; one with another name is passed over."""
    fill(tmp_path, "a.ply")
    (tmp_path / "b.ply").symlink_to("gone")
    (tmp_path / "d.ply").symlink_to("d.ply")
    os.mkfifo(tmp_path / "c.ply")
    os.mkfifo(tmp_path / "c.txt")
    for text in (f"{tmp_path}", f"{tmp_path}/*.ply"):
        told: list[SourceError] = []
        _, found = of_one_kind(find(text), suffixes())
        assert found.pick(Watcher(told.append)) == ["a.ply"]
        assert sorted(str(error.path) for error in told) == [f"{tmp_path}/{name}.ply" for name in "bcd"]
        with pytest.raises(SourceError, match="is a broken link, or not a regular file"):
            found.pick()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such file names")
def test_a_name_that_is_no_text_is_an_error(tmp_path):
    """Its sample could have no name, whether the file or its folder is called so."""
    fill(tmp_path, "a/a.npy", os.fsdecode(b"\xff/a.npy"), os.fsdecode(b"b/\xff.npy"))
    told: list[SourceError] = []
    assert find(str(tmp_path)).pick(Watcher(told.append)) == ["a/a.npy"]
    assert ["has a name that is not valid text" in error.reason for error in told] == [True, True]


@pytest.mark.parametrize("name", ["a.png", "a.ply", "a.npy", "a.h5"])
def test_a_pointer_of_git_lfs_is_known_in_every_source(tmp_path, name):
    """What git-LFS has not fetched is said to be that, with the command that fetches it."""
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(SourceError, match=r"git-LFS pointer.*git lfs pull"):
        open_sources([str(tmp_path / name)])


MADE: dict[str, Callable[[Path], object]] = {
    "a.png": lambda path: Image.new("L", (4, 4)).save(path),
    "a.ply": lambda path: path.write_text("ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nend_header\n1\n"),
    "a.bin": lambda path: np.zeros(9, "<f4").tofile(path),
    "a.h5": lambda path: write_hdf5(path, {"x": np.arange(3)}),
    "a.npy": lambda path: np.save(path, np.arange(3)),
}


@pytest.fixture(params=MADE)
def options(tmp_path, request):
    """The options with which the folder is packed, which holds a file of some kind."""
    MADE[request.param](tmp_path / request.param)
    return SourceOptions(columns="x,y,z:float32") if request.param == "a.bin" else SourceOptions()


@pytest.mark.parametrize("other", ["b.exr", "b.csv", "b.parquet", "a.label", "b.npy.gz", "raw"])
def test_files_of_other_kinds_are_errors_that_name_them(tmp_path, options, other):
    """Whatever is packed, a file that is no such data, nor known to lie beside data, is never skipped in silence."""
    fill(tmp_path, other)
    with pytest.raises(
        SourceError, match=r"lies among .*move it away, or name .* pattern like '.*/\*\*/\*\."
    ) as caught:
        open_sources([str(tmp_path)], options)
    assert caught.value.path == f"{tmp_path}/{other}"
    told: list[SourceError] = []
    open_sources([str(tmp_path)], options, Watcher(told.append))
    assert [error.path for error in told] == [f"{tmp_path}/{other}"]
    pattern = str(caught.value).rpartition("pattern like '")[2].rstrip("'")
    assert open_sources([pattern], options).remarks == []


def test_what_is_known_to_lie_beside_data_is_counted(tmp_path, options):
    """Notes, licences and what systems leave behind are passed over in one remark, whatever is packed."""
    fill(tmp_path, "README", "readme.txt", "LICENSE-MIT", "Thumbs.db", "desktop.ini", "b.json", "c.YAML", ".DS_Store")
    counted = "skipped 1 .db, 1 .ini, 1 .json, 1 .txt, 1 .yaml, 1 hidden, 2 without suffix"
    assert [said for said in open_sources([str(tmp_path)], options).remarks if "skipped" in said] == [counted]


def test_every_file_of_a_large_folder_is_looked_at(tmp_path):
    """A file of another kind is found behind a thousand others."""
    for number in range(1000):
        (tmp_path / f"{number:05}.txt").touch()
    np.save(tmp_path / "0.npy", np.arange(3))
    fill(tmp_path, "x.csv")
    with pytest.raises(SourceError, match=r"x\.csv: lies among npy"):
        open_sources([str(tmp_path)])


def test_looking_is_told_how_many_are_found(tmp_path):
    """Whoever watches hears the number of files at the end."""
    told = []
    find(str(fill(tmp_path, *NAMES)), Watcher(step=lambda *step: told.append(step)))
    assert told[-1] == ("finding files", 5, 5)


def test_natural_order_is_that_of_natsort() -> None:
    """Names of ASCII are sorted by a quicker key: numbers by value, ties as they came; others by natsort itself."""
    rng = random.Random(0)
    letters = "\x01 !-./09AZ_az~" + string.digits
    names = ["".join(rng.choices(letters, k=rng.randrange(12))) for _ in range(3000)]
    names += ["1", "01", "a", "a1", "a01", "a-1", "0", "00", "", f"a{10**300}", f"a{10**299}"]
    assert natural_order(names) == natsorted(names)
    assert natural_order([*names, "é1"]) == natsorted([*names, "é1"])


def run_lines(source, out):
    """Run the lines of Python that the error of a source has, as they are; return where they pack."""
    with pytest.raises(SourceError, match=r"is read in Python \(docs/have/python.md\)") as error:
        open_sources([source])
    lines = textwrap.dedent("\n".join(str(error.value).splitlines()[1:]))
    modules = {"numpy": np, "packer": packer, "pathlib": pathlib, "pickle": pickle, "struct": struct, "torch": torch}
    exec(lines, modules | {"OUT": str(out)})
    return str(out)


def as_png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(("suffix", "dump"), [(".pkl", pickle.dump), (".pt", torch.save)])
def test_files_of_no_kind_come_with_the_lines_that_pack_them(tmp_path, suffix, dump):
    """The lines of the error are run as they are, and every file is a sample."""
    folder, out = tmp_path / "in", str(tmp_path / "out")
    folder.mkdir()
    for number in range(2):
        with (folder / f"{number}{suffix}").open("wb") as file:
            dump({"x": np.arange(number + 3) if suffix == ".pkl" else torch.arange(number + 3)}, file)
    run_lines(f"x={folder}", out)
    assert [sample["x"].tolist() for sample in PackedDataset(out)] == [[0, 1, 2], [0, 1, 2, 3]]


def test_files_of_tensorflow_come_with_a_loop_over_their_samples(tmp_path):
    """By the package tfrecord."""
    with pytest.raises(SourceError, match=r"for sample in tfrecord\.tfrecord_loader\(str\(p\), None\):\n +writer\.add"):
        open_sources([f"x={fill(tmp_path, '0.tfrecord')}"])


def test_files_of_mxnet_come_with_the_lines_that_pack_them(tmp_path):
    """Records have a label or several; one that holds the magic number lies in parts; one without image is left out."""
    magic, images = struct.pack("<I", 0xCED7230A), [as_png(np.full((4, 5 + n, 3), n, np.uint8)) for n in range(3)]
    records = [
        [struct.pack("<IfQQ", 2, 0, 0, 0) + struct.pack("<2f", 1, 3)],
        [struct.pack("<IfQQ", 0, 7, 11, 0) + images[0]],
        [struct.pack("<IfQQ", 2, 0, 12, 0), struct.pack("<f", 2.5) + images[1]],  # the magic number is its first label
        [struct.pack("<IfQQ", 1, 0, 13, 0) + struct.pack("<f", 9) + images[2]],
    ]
    with (tmp_path / "train.rec").open("wb") as file:
        for parts in records:
            for how, part in zip([1, 3] if len(parts) > 1 else [0], parts, strict=True):
                file.write(magic + struct.pack("<I", how << 29 | len(part)) + part + bytes(-len(part) % 4))
    out = run_lines(f"image={tmp_path}", tmp_path / "out")
    found = list(PackedDataset(out))
    assert [sample["image"][0, 0].tolist() for sample in found] == [[n] * (5 + n) for n in range(3)]
    assert [sample["id"].item() for sample in found] == [11, 12, 13]
    first = np.frombuffer(magic, "<f4").item()
    assert [sample["label"].tolist() for sample in found] == [[7.0], [first, 2.5], [9.0]]
