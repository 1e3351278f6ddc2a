"""Which kind of source the words of a command line name, and what is refused before it is opened."""

from __future__ import annotations

import pathlib
import shutil
import textwrap
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import packer.writer
from packer.convert import convert
from packer.errors import SourceError, UsageError
from packer.sources import SourceOptions, all_kinds, flag_of, kinds_with, open_sources
from packer.sources.files import CLOUDS, IMAGES
from packer.sources.kinds import check_options, suffixes
from packer.watcher import Watcher
from readers import PackedDataset


def names(specs):
    return [spec.name for spec in specs]


def test_the_book_names_all_files_that_can_be_packed():
    """The page of sources names every suffix; of images and HDF5, which have many, what such files are called."""
    page = (Path(__file__).parents[3] / "docs/reference/sources.md").read_text()
    named = {IMAGES.get(suffix) or ("HDF5" if kind == "hdf5" else f"`{suffix}`") for suffix, kind in suffixes().items()}
    assert [name for name in sorted(named | {f"`{suffix}`" for suffix in CLOUDS}) if name not in page] == []


def test_kinds_are_told_by_suffix(pairs, clouds, rows):
    """Images, clouds and rows are each opened as what they are, in folders, as files and by pattern."""
    assert open_sources(pairs.sources).kind == "images"
    for text in (str(clouds.folder), str(clouds.folder / "c0.ply"), str(clouds.folder / "*.ply")):
        assert open_sources([text]).kind == "ply"
    shutil.copy(rows.path, capitals := rows.path.with_name("CAPITALS.H5"))
    for text in (str(rows.path), str(rows.path.parent / "*.h5"), str(capitals)):
        assert open_sources([text]).kind == "hdf5"


def test_a_folder_of_folders_of_pairs_is_told_how_to_name_its_fields(pairs):
    """Files of the same names in folders may be pairs: the command is proposed, unless an option says otherwise."""

    def proposals(**options):
        remarks = open_sources([str(pairs.folder)], SourceOptions(**options)).remarks
        return [remark for remark in remarks if "packer convert" in remark]

    command = f"packer convert hr={pairs.folder}/hr lr={pairs.folder}/lr OUT"
    (told,) = proposals()
    assert told.startswith("the folders hr, lr hold files of the same names")
    assert told.endswith(command)
    assert len(open_sources(command.split()[2:-1])) == len(open_sources([str(pairs.folder)])) // 2
    assert proposals(label="folder") == []
    (pairs.folder / "lr" / "000.png").unlink()
    assert proposals() == []


def test_folders_of_masks_beside_those_of_images_are_told(tmp_path):
    """As of CamVid: each folder has a partner whose name is longer by the same mark; folders without are no pairs."""
    for folder, name in (("train", "a"), ("trainannot", "a"), ("val", "b"), ("valannot", "b")):
        (tmp_path / folder).mkdir()
        Image.new("L", (4, 4)).save(tmp_path / f"{folder}/{name}.png")
    proposed = f"packer convert image={tmp_path}/train mask={tmp_path}/trainannot OUT, and apart from them val and"
    assert [remark for remark in open_sources([str(tmp_path)]).remarks if proposed in remark]
    (tmp_path / "test").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "test/c.png")
    assert not [remark for remark in open_sources([str(tmp_path)]).remarks if "packer convert" in remark]


def test_nothing_is_skipped_without_a_word(pairs):
    """Who watches the steps alone still hears of the first bad file by its error."""
    (pairs.folder / "lr" / "000.png").write_bytes(b"no image")
    with pytest.raises(SourceError, match=r"000\.png"):
        open_sources(pairs.sources, watcher=Watcher(step=lambda *step: None))
    assert len(open_sources(pairs.sources, watcher=Watcher(bad=lambda error: None))) == len(pairs.names) - 1


def test_names_of_fields(pairs):
    """FIELD=PATH names a field, a lone folder of images is the field `image`."""
    assert names(open_sources(pairs.sources).fields) == ["lr", "hr"]
    assert names(open_sources([str(pairs.folder / "lr")]).fields) == ["image"]


def test_an_equals_sign_in_a_path(pairs, tmp_path, monkeypatch):
    """A path that exists is taken whole, and so is one whose folder holds the sign."""
    folder = pairs.folder.rename(tmp_path / "a=b")
    assert names(open_sources([str(folder / "lr")]).fields) == ["image"]
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder / "lr", "x=y")
    assert names(open_sources(["x=y"]).fields) == ["image"]
    assert names(open_sources(["x=a=b/hr"]).fields) == ["x"]


def test_a_path_and_a_field_of_one_name(pairs, tmp_path, monkeypatch):
    """Where `hr=hr` is a path and `hr` is one too, neither is guessed; both can still be written."""
    monkeypatch.chdir(pairs.folder)
    shutil.copytree("lr", "hr=hr")
    with pytest.raises(UsageError, match=r"write \./hr=hr for the path, hr=/.*/hr for the field"):
        open_sources(["lr=lr", "hr=hr"])
    assert names(open_sources(["./hr=hr"]).fields) == ["image"]
    assert names(open_sources(["lr=lr", f"hr={tmp_path / 'pairs' / 'hr'}"]).fields) == ["lr", "hr"]


def test_options_reach_their_source(pairs, clouds, rows):
    """Each source takes what concerns it."""
    gray = open_sources(pairs.sources, SourceOptions(mode="gray"))
    assert gray.fields[0].shape[2] == 1
    cast = open_sources(clouds.sources, SourceOptions(fields="xyz, rgb", cast={"xyz": "float64"}))
    assert [(spec.name, spec.dtype) for spec in cast.fields] == [("xyz", "float64"), ("rgb", "uint8")]
    assert names(open_sources(rows.sources, SourceOptions(skip=("x",))).fields) == ["label"]
    picked = open_sources(rows.sources, SourceOptions(pick={"points": "/x"}, axis=-1))
    assert len(picked) == 3


@pytest.mark.parametrize("option", fields(SourceOptions), ids=flag_of)
def test_options_that_do_not_concern_the_source(option):
    """An option that would be passed over in silence is refused: each, for each kind of source that it is not for."""
    asked = replace(SourceOptions(), **{option.name: "asked"})
    for kind in {kind.name for kind in all_kinds().values() if kind.units} - set(kinds_with(option.name)):
        with pytest.raises(UsageError, match=f"{flag_of(option)} is for sources of .*, but this one holds {kind};"):
            check_options(asked, kind)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "cmyk"}, "--mode cmyk: gray or rgb or rgba is expected"),
        ({"max_pixels": 0}, "--max-pixels 0: 1 or more is expected"),
        ({"label": "names"}, "--label names: folder is expected"),
    ],
)
def test_values_that_an_option_cannot_have(options, words):
    """The message says which are expected."""
    with pytest.raises(UsageError, match=words):
        check_options(SourceOptions(**options), "images")


def test_what_does_not_go_together(pairs, clouds, rows):
    """Several kinds, two clouds, a name twice, a name for what names itself."""
    for inputs, words in [
        ([*pairs.sources, str(rows.path)], "several kinds"),
        ([*pairs.sources, f"c={clouds.folder}"], "ply files name their fields themselves; leave c= out"),
        ([str(clouds.folder), f"b={clouds.folder}"], "only one source of ply can be packed at a time"),
        ([pairs.sources[0], pairs.sources[0]], "both named lr="),
        (
            [f"image={pairs.folder}/lr", str(pairs.folder / "hr")],
            "hr is given without FIELD=, so it would be the field image, but",
        ),
        ([str(pairs.folder / "lr"), str(pairs.folder / "hr")], "2 sources are given without FIELD="),
        ([pairs.sources[0], *[str(rows.path)] * 3], r"3 sources .*, .*, .*: quote a pattern"),
        (["my", "photos"], "my: there is no such file or folder; a path that holds spaces needs quotes"),
        ([f"x={rows.path}"], "name their fields themselves"),
        (["x="], "names no path"),
        ([f" x={pairs.folder}"], "field name"),
        ([], "no source"),
    ]:
        with pytest.raises(UsageError, match=words):
            open_sources(inputs)


def test_nothing_to_pack(tmp_path):
    """A path where nothing is, an empty folder, and files of another kind."""
    with pytest.raises(UsageError, match="no such file"):
        open_sources([str(tmp_path / "nothing")])
    (tmp_path / ".hidden.png").write_text("")
    with pytest.raises(SourceError, match="is empty, apart from hidden files and empty folders; check"):
        open_sources([str(tmp_path)])
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(SourceError, match=r"holds 1 files, but none .*; files that can be packed: .*\.webp"):
        open_sources([str(tmp_path)])
    with pytest.raises(UsageError, match=r"not a kind of file.*\.png"):
        open_sources([str(tmp_path / "a.txt")])


def test_files_that_python_reads_come_with_the_lines_for_it(tmp_path):
    """The commonest kinds that are no source: what the error prints packs them."""
    (tmp_path / "in").mkdir()
    for number in range(3):
        torch.save({"x": torch.full((2,), number)}, tmp_path / f"in/{number}.pt")
    with pytest.raises(SourceError, match=r"none of a kind .*\.pt is read in Python") as caught:
        open_sources([str(tmp_path / "in")])
    lines = textwrap.dedent(str(caught.value).partition("\n")[2])
    out = str(tmp_path / "out")
    exec(lines, {"packer": packer, "pathlib": pathlib, "torch": torch, "OUT": out})
    assert [sample["x"].tolist() for sample in PackedDataset(out)] == [[n, n] for n in range(3)]
    (tmp_path / "a.exr").write_bytes(b"v/1")
    with pytest.raises(UsageError, match="cv2"):
        open_sources([str(tmp_path / "a.exr")])


def test_a_packed_dataset(rows, tmp_path):
    """It is packed again by other commands, which the message names."""
    convert(rows.sources, tmp_path / "out", workers=0)
    with pytest.raises(UsageError, match="is a packed dataset; `packer repack`"):
        open_sources([str(tmp_path / "out")])


@pytest.mark.parametrize("suffix", IMAGES)
def test_every_kind_of_image_alone(tmp_path, suffix):
    """What is packed beside other images is packed alone too, as a file and as a folder of such files."""
    path = tmp_path / f"a{suffix}"
    Image.new("L", (4, 4)).save(path)
    assert open_sources([str(path)]).kind == "images"
    assert open_sources([str(tmp_path)]).kind == "images"


def test_a_folder_of_several_kinds(pairs, clouds):
    """Counts of both kinds are said, and how to name one."""
    shutil.copytree(clouds.folder, pairs.folder / "lr" / "clouds")
    with pytest.raises(UsageError, match=r"12 of images, 5 of ply.*quoted pattern"):
        open_sources([str(pairs.folder / "lr")])
