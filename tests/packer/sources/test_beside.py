"""Fields out of files that lie beside those of the samples: boxes, labels of points, captions."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from packer.checking import compare
from packer.convert import ConvertOptions, convert
from packer.errors import PackerError, SourceError, UsageError
from packer.sources import SourceOptions, open_sources
from readers import PackedDataset
from tests.helpers.picture_files import picture, save

BOXES = "boxes=cls,x,y,w,h:float32"


@pytest.fixture
def yolo(tmp_path: Path) -> dict[str, Path]:
    """Five images in two folders, each with as many boxes as its number: none beside the first."""
    for number in range(5):
        place = f"{'ab'[number % 2]}/{number}"
        save(tmp_path / "images" / f"{place}.png", picture(8, 8 + number, seed=number))
        rows = "".join(f"{n} 0.5 0.25 0.{number} 1\n" for n in range(number))
        (tmp_path / "labels" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "labels" / f"{place}.txt").write_text(rows)
    return {"image": tmp_path / "images", "boxes": tmp_path / "labels"}


def opened(sources: object, out: Path, columns: tuple[str, ...] = (), on_error: str = "stop") -> PackedDataset:
    options = ConvertOptions(source=SourceOptions(columns=columns), on_error=on_error, workers=0)
    return PackedDataset(convert(sources, out, options).path)


def test_boxes_beside_pictures(yolo: dict[str, Path], tmp_path: Path) -> None:
    """The columns of a text are one field, in the sample of the image of its name; a text without lines is no box."""
    held = opened(yolo, tmp_path / "out", (BOXES,))
    assert {field.name: (field.kind, field.dtype, field.shape) for field in held.manifest.fields} == {
        "image": ("image", "uint8", (8, None, 3)),
        "boxes": ("array", "float32", (None, 5)),
    }
    for number in range(5):
        sample = held[f"{'ab'[number % 2]}/{number}"]
        wanted = np.array([[n, 0.5, 0.25, number / 10, 1] for n in range(number)], "f4").reshape(-1, 5)
        np.testing.assert_array_equal(sample["boxes"].numpy(), wanted)
        np.testing.assert_array_equal(sample["image"].permute(1, 2, 0).numpy(), picture(8, 8 + number, seed=number))


@pytest.mark.parametrize("same", [False, True])
def test_a_missing_file_may_be_an_empty_value(yolo: dict[str, Path], tmp_path: Path, same: bool) -> None:
    """With `--missing boxes=empty`; a remark counts such samples, and parts of the source are as all of it."""
    for file in ("a/2", "b/3"):
        (yolo["boxes"] / f"{file}.txt").unlink()
    if same:  # one box each, so that the field would have one shape
        for file in yolo["boxes"].glob("*/*.txt"):
            file.write_text("1 2 3 4 5")
    options = SourceOptions(columns=(BOXES,), missing={"boxes": "empty"})
    source = open_sources([f"{name}={path}" for name, path in yolo.items()], options)
    assert "field boxes: 2 samples have no file of it, and an empty value" in source.remarks
    lengths = [len(boxes) for block in source.read() for boxes in block["boxes"]]
    assert lengths == ([1, 0, 1, 1, 0] if same else [0, 0, 4, 1, 0])
    assert lengths == source.shapes("boxes")[:, 0].tolist()
    assert lengths[1:4] == [len(boxes) for block in source.slice(1, 4).read() for boxes in block["boxes"]]
    packed = PackedDataset(convert(yolo, tmp_path / "out", ConvertOptions(source=options, workers=0)).path)
    assert packed["a/2"]["boxes"].shape == (0, 5)
    (yolo["image"] / "a/4.png").unlink()
    with pytest.raises(SourceError, match=r"a/4\.txt: has no partner"):
        open_sources([f"{name}={path}" for name, path in yolo.items()], options)


@pytest.mark.parametrize("missing", [{"boxes": "zero"}, {"image": "empty"}, {"other": "empty"}])
def test_only_fields_of_files_beside_may_be_missing(yolo: dict[str, Path], missing: dict[str, str]) -> None:
    """The error says which these are."""
    with pytest.raises(
        UsageError, match=r"--missing .*: FIELD=empty is expected, of a field of files beside \(boxes\)"
    ):
        open_sources(
            [f"{name}={path}" for name, path in yolo.items()], SourceOptions(columns=(BOXES,), missing=missing)
        )


@pytest.mark.parametrize("side", ["boxes", "image"])
def test_a_missing_file_is_an_error_that_names_it(yolo: dict[str, Path], tmp_path: Path, side: str) -> None:
    """Nothing is skipped in silence; with `on_error` skip the other samples are packed."""
    (gone,) = yolo[side].glob("a/2.*")
    gone.unlink()
    there = next(yolo["image" if side == "boxes" else "boxes"].glob("a/2.*"))
    with pytest.raises(SourceError, match=f"^{there}: .* no partner of that name in '{side}'"):
        opened(yolo, tmp_path / "out", (BOXES,))
    held = opened(yolo, tmp_path / "out", (BOXES,), "skip")
    assert sorted(held.names) == ["a/0", "a/4", "b/1", "b/3"]
    assert len(held["b/3"]["boxes"]) == 3


@pytest.mark.parametrize("bad", ["image", "row", "number"])
def test_a_bad_file_costs_its_sample_alone(yolo: dict[str, Path], tmp_path: Path, bad: str) -> None:
    """Whichever of the two files is bad, and whenever it is found; the others keep what is theirs."""
    if bad == "image":
        (yolo["image"] / "a" / "2.png").write_bytes(b"nothing")
    else:
        (yolo["boxes"] / "a" / "2.txt").write_text("1 2 3\n" if bad == "row" else "1 2 3 4 five\n")
    with pytest.raises(SourceError, match=r"/a/2\."):
        opened(yolo, tmp_path / "out", (BOXES,))
    held = opened(yolo, tmp_path / "out", (BOXES,), "skip")
    assert {name: len(held[name]["boxes"]) for name in held.names} == {"a/0": 0, "a/4": 4, "b/1": 1, "b/3": 3}


def test_captions_beside_pictures(yolo: dict[str, Path], tmp_path: Path) -> None:
    """A folder of text without columns is text, as it is in the files; in one folder, patterns tell them apart."""
    for number in range(5):
        name = f"{'ab'[number % 2]}/{number}"
        (yolo["boxes"] / f"{name}.txt").write_text(f"Bild {number}: schön\n", "utf-8")
        shutil.copy(yolo["image"] / f"{name}.png", yolo["boxes"] / f"{name}.png")
    sources = {"image": yolo["image"], "caption": f"{yolo['boxes']}/**/*.txt"}
    held = opened(sources, tmp_path / "out")
    assert held[[4, 0]]["caption"] == ["Bild 3: schön\n", "Bild 0: schön\n"]
    (yolo["boxes"] / "a" / "2.txt").write_bytes(b"\xff")
    with pytest.raises(SourceError, match=r"a/2\.txt: is not text in UTF-8"):
        opened(sources, tmp_path / "again")
    assert len(opened(sources, tmp_path / "again", on_error="skip")) == 4


def test_labels_beside_clouds(tmp_path: Path) -> None:
    """As SemanticKITTI has them, in folders of their own below each sequence; columns of 16 bits take a label apart."""
    scans, wanted = {}, {}
    for name, count in (("00/000000", 3), ("00/000001", 5), ("01/000000", 2)):
        sequence, scan = name.split("/")
        for kind in ("velodyne", "labels"):
            (tmp_path / "sequences" / sequence / kind).mkdir(parents=True, exist_ok=True)
        scans[name] = np.random.default_rng(count).normal(size=(count, 4)).astype("<f4")
        wanted[name] = np.arange(count, dtype="<u4") * 65536 + 40
        scans[name].tofile(tmp_path / "sequences" / sequence / "velodyne" / f"{scan}.bin")
        wanted[name].tofile(tmp_path / "sequences" / sequence / "labels" / f"{scan}.label")
    sources = [f"{tmp_path}/sequences/*/velodyne/*.bin", f"label={tmp_path}/sequences/*/labels/*.label"]
    scan = "x,y,z,intensity:float32"
    held = opened(sources, tmp_path / "out", (scan, "label=label:uint32"))
    apart = opened(sources, tmp_path / "apart", (scan, "label=semantic,instance:uint16"))
    for name, number in zip(scans, range(3), strict=True):
        assert held[number]["label"].tolist() == wanted[name].tolist()
        assert apart[number]["label"].tolist() == [[40, n] for n in range(len(scans[name]))]
        np.testing.assert_array_equal(held[number]["xyz"].numpy(), scans[name][:, :3])
    whole = [f"points={tmp_path}/sequences/*/velodyne/*.bin", sources[1]]
    assert opened(whole, tmp_path / "whole", (f"points={scan}", "label=label:uint32"))[0]["points"].shape == (3, 4)


REFUSED = {
    "no such source": (("image",), ("boxs=x:float32",), "--columns boxs=x:float32: no source is named boxs="),
    "given twice": (("image", "boxes"), (BOXES, BOXES), "there are columns of boxes already"),
    "several types": (("image", "boxes"), ("boxes=c:uint8,x,y,w,h:float32",), "one field has one type, but these are"),
    "columns of images": (
        ("image",),
        ("x,y:float32",),
        "--columns is for sources of clouds and tables, but this one holds images",
    ),
    "text alone": (("boxes",), (), "not a kind of file|none of a kind that can be packed"),
}


@pytest.mark.parametrize(("names", "columns", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(
    yolo: dict[str, Path], tmp_path: Path, names: tuple[str, ...], columns: tuple[str, ...], said: str
) -> None:
    """The message names the option and what is wrong with it."""
    with pytest.raises(PackerError, match=said):
        opened({name: yolo[name] for name in names}, tmp_path / "out", columns)


def test_squares_have_no_boxes(yolo: dict[str, Path], tmp_path: Path) -> None:
    """What lies beside whole images cannot lie beside patches of them."""
    options = SourceOptions(columns=(BOXES,), patch=4)
    with pytest.raises(UsageError, match=r"boxes: these lie beside whole files.*leave out --patch"):
        convert(yolo, tmp_path / "out", source=options, workers=0)


def test_text_beside_clouds(tmp_path: Path) -> None:
    """Columns that are given without FIELD= are those of the scans; text of a field is text, as KITTI has it."""
    (tmp_path / "label_2").mkdir()
    (tmp_path / "velodyne").mkdir()
    for number in range(2):
        np.zeros((number + 1, 4), "<f4").tofile(tmp_path / "velodyne" / f"{number}.bin")
        (tmp_path / "label_2" / f"{number}.txt").write_text(f"Car {number}\n")
    sources = [str(tmp_path / "velodyne"), f"label={tmp_path / 'label_2'}"]
    held = opened(sources, tmp_path / "out", ("x,y,z,intensity:float32",))
    assert ([len(held[n]["xyz"]) for n in (0, 1)], held[[0, 1]]["label"]) == ([1, 2], ["Car 0\n", "Car 1\n"])


def test_labels_of_another_length_than_their_points(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The plan names them: readers that sample points would take other rows of each."""
    for folder in ("velodyne", "labels"):
        (tmp_path / folder).mkdir()
    for number in range(3):
        np.zeros((10 + number, 4), "f4").tofile(tmp_path / f"velodyne/{number}.bin")
        np.zeros(10 + number - (number == 1), "u4").tofile(tmp_path / f"labels/{number}.label")
    columns = ("x,y,z,i:float32", "label=label:uint32")
    caplog.set_level("INFO", "packer")
    options = ConvertOptions(source=SourceOptions(columns=columns), workers=0)
    convert([str(tmp_path / "velodyne"), f"label={tmp_path / 'labels'}"], tmp_path / "out", options)
    assert "label differ in length in 1 of 3 samples, such as '1': 11 and 10 rows" in caplog.text


def test_fields_of_several_kinds(tmp_path: Path) -> None:
    """A JPEG, a depth map, an embedding and normals of a sample are joined by name, whatever the order of the files."""
    for number in range(12):
        save(tmp_path / "rgb" / f"{number}.jpg", picture(8, 8 + number, seed=number))
        save(tmp_path / "depth" / f"{number}_depth.png", picture(4, 4, 1, seed=number))
        for folder, shape in (("emb", (5,)), ("normals", (number + 1, 3))):
            (tmp_path / folder).mkdir(exist_ok=True)
            np.save(tmp_path / folder / f"{number}.npy", np.full(shape, number, "f4"))
    fields = ("emb", "rgb", "depth", "normals")
    held = opened({name: str(tmp_path / name) for name in fields}, tmp_path / "out")
    assert {field.name: (field.kind, field.shape) for field in held.manifest.fields} == {
        "rgb": ("image", (8, None, 3)),
        "depth": ("image", (4, 4, 1)),
        "emb": ("array", (5,)),
        "normals": ("array", (None, 3)),
    }
    for number in range(12):
        sample = held[str(number)]
        assert sample["emb"].tolist() == [number] * 5
        assert sample["normals"].shape == (number + 1, 3)
        assert sample["rgb"].shape == (3, 8, 8 + number)
        assert np.array_equal(sample["depth"][0], picture(4, 4, 1, seed=number)[:, :, 0])
    assert compare(tmp_path / "out", open_sources([f"{name}={tmp_path / name}" for name in fields])).damages == []


def test_a_bad_array_costs_its_sample_alone(tmp_path: Path) -> None:
    """Found by its header or when it is read; the others keep what is theirs."""
    for number in range(6):
        save(tmp_path / "rgb" / f"{number}.png", picture(seed=number))
        (tmp_path / "emb").mkdir(exist_ok=True)
        np.save(tmp_path / "emb" / f"{number}.npy", np.full(5, number, "f4"))
    (tmp_path / "emb" / "1.npy").write_bytes(b"no array")
    path = tmp_path / "rgb" / "3.png"
    path.write_bytes(path.read_bytes()[:-20])
    held = opened({"rgb": tmp_path / "rgb", "emb": tmp_path / "emb"}, tmp_path / "out", on_error="skip")
    assert list(held.names) == ["0", "2", "4", "5"]
    assert held[:]["emb"][:, 0].tolist() == [0, 2, 4, 5]


def test_clouds_beside_images(tmp_path: Path) -> None:
    """PLY files name their fields themselves, and lie beside images without FIELD=."""
    for number in range(3):
        save(tmp_path / "rgb" / f"{number}.png", picture(seed=number))
        head = f"ply\nformat ascii 1.0\nelement vertex {number + 1}\n" + "".join(f"property float {c}\n" for c in "xyz")
        (tmp_path / "ply").mkdir(exist_ok=True)
        (tmp_path / "ply" / f"{number}.ply").write_text(head + "end_header\n" + "1 2 3\n" * (number + 1))
    held = opened([f"rgb={tmp_path / 'rgb'}", str(tmp_path / "ply")], tmp_path / "out")
    assert [len(held[str(number)]["xyz"]) for number in range(3)] == [1, 2, 3]
    (tmp_path / "ply" / "1.ply").unlink()
    with pytest.raises(SourceError, match=r"1\.png: field 'rgb' has this file, .* name in the source without FIELD="):
        opened([f"rgb={tmp_path / 'rgb'}", str(tmp_path / "ply")], tmp_path / "again")


def test_texts_in_one_folder_with_images(yolo: dict[str, Path], tmp_path: Path) -> None:
    """The plan proposes the command for captions or boxes beside images, and it works as it stands."""
    for folder in ("a", "b"):
        for path in (tmp_path / "labels" / folder).iterdir():
            path.replace(tmp_path / "images" / folder / path.name)
    source = open_sources([str(tmp_path / "images")])
    command = f"packer convert image={tmp_path}/images 'boxes={tmp_path}/images/**/*.txt' OUT"
    (told,) = (remark for remark in source.remarks if "packer convert" in remark)
    assert told.replace("boxes='", "'boxes=") == f"5 .txt are named like images; to pack them as well: {command}"
    words = shlex.split(told.partition("packer convert ")[2])
    assert len(opened(words[:2], tmp_path / "out", ())["a/4"]["boxes"]) == 4
    same = [f"image={tmp_path}/images/a", f"caption={tmp_path}/images/a"]
    with pytest.raises(
        UsageError, match=rf"are the same files; for the texts there, write caption='{tmp_path}/.*\.txt"
    ):
        open_sources(same)
    with pytest.raises(UsageError, match="no source is named boxes=; write boxes=FOLDER"):
        open_sources([str(tmp_path / "images")], SourceOptions(columns=(BOXES,)))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_mark_of_a_text_is_no_part_of_it(yolo: dict[str, Path], tmp_path: Path, encoding: str) -> None:
    """UTF-8 and UTF-16 are told apart by it; Windows writes both."""
    for number in range(5):
        (tmp_path / "labels" / f"{'ab'[number % 2]}/{number}.txt").write_text("eine Tür", encoding=encoding)
    held = opened({"image": yolo["image"], "caption": yolo["boxes"]}, tmp_path / "out")
    assert held["a/2"]["caption"] == "eine Tür"
