"""Boxes of COCO, YOLO and VOC beside pictures: as the files have them, to the bit; images without objects are empty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from opened_sources import read_each

from packer.append import append
from packer.convert import convert
from packer.drop import drop
from packer.errors import SourceError, UsageError
from packer.join import join
from packer.merge import merge
from packer.sources import SourceOptions, open_sources
from readers import Loader, Mix, PackedDataset
from tests.helpers.picture_files import picture, save

CATEGORIES = [{"id": 90, "name": "toothbrush"}, {"id": 1, "name": "person"}, {"id": 7, "name": "train"}]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the pictures a.png to d.png."""
    folder = tmp_path_factory.mktemp("detection") / "images"
    for number, name in enumerate("abcd"):
        save(folder / f"{name}.png", picture(20, 30, seed=number))
    return folder


def coco(objects: list[dict[str, Any]], names: str = "dbca", **more: Any) -> dict[str, Any]:
    """Return a json of COCO, whose images have the ids 10, 11, ..."""
    listed = [{"id": 10 + n, "file_name": f"{name}.png", "height": 20, "width": 30} for n, name in enumerate(names)]
    return {"info": {}, "images": listed, "annotations": objects, "categories": CATEGORIES, **more}


def boxed(image_id: int, category_id: int, box: list[float], number: int = 0, **more: Any) -> dict[str, Any]:
    """Return an object of the json."""
    more = {"area": box[2] * box[3], **more}
    return {"id": number, "image_id": image_id, "category_id": category_id, "bbox": box, **more}


def write(folder: Path, name: str, value: Any) -> str:
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def detr_target(image_id: int, objects: list[dict[str, Any]], width: int, height: int) -> dict[str, torch.Tensor]:
    """What DETR's `ConvertCocoPolysToMask` makes of the objects of an image, but for masks."""
    objects = [each for each in objects if "iscrowd" not in each or each["iscrowd"] == 0]
    boxes = torch.as_tensor([each["bbox"] for each in objects], dtype=torch.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    boxes[:, 0::2].clamp_(min=0, max=width)
    boxes[:, 1::2].clamp_(min=0, max=height)
    keep = (boxes[:, 3] > boxes[:, 1]) & (boxes[:, 2] > boxes[:, 0])
    classes = torch.tensor([each["category_id"] for each in objects], dtype=torch.int64)
    area = torch.tensor([each["area"] for each in objects], dtype=torch.float32)
    target = {"boxes": boxes[keep], "labels": classes[keep], "area": area[keep]}
    return {**target, "image_id": torch.tensor(image_id)}


def our_target(sample: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same of a sample, as the page on detection shows it."""
    height, width = sample["image"].shape[1:]
    x, y, w, h = sample["boxes"].unbind(1)
    boxes = torch.stack([x.clamp(0, width), y.clamp(0, height), (x + w).clamp(0, width), (y + h).clamp(0, height)], 1)
    keep = (sample["iscrowd"] == 0) & (boxes[:, 3] > boxes[:, 1]) & (boxes[:, 2] > boxes[:, 0])
    target = {"boxes": boxes[keep], "labels": sample["category_ids"][keep], "area": sample["areas"][keep]}
    return {**target, "image_id": sample["image_id"]}


SIDES = st.lists(st.floats(-5, 40, width=64), min_size=4, max_size=4)


@given(st.lists(st.tuples(st.integers(10, 13), st.sampled_from([1, 7, 90]), SIDES, st.integers(0, 1)), max_size=9))
def test_targets_of_coco_are_those_of_detr(images: Path, tmp_path_factory: pytest.TempPathFactory, made: Any) -> None:
    """Of every image, in the order of the json, in which images and categories come in any order."""
    folder = tmp_path_factory.mktemp("coco")
    objects = [boxed(i, c, box, n, iscrowd=crowd) for n, (i, c, box, crowd) in enumerate(made)]
    path = write(folder, "instances.json", coco(objects, segmentation=[]))
    source = open_sources([f"image={images}", f"boxes={path}"])
    assert source.names == ["a", "b", "c", "d"]
    found = read_each(source)
    fields = [spec.name for spec in source.fields]
    for number, image_id in enumerate((13, 11, 12, 10)):
        sample = {name: torch.from_numpy(np.asarray(found[name][number])) for name in fields}
        sample["image"] = sample["image"].permute(2, 0, 1)
        wanted = detr_target(image_id, [each for each in objects if each["image_id"] == image_id], 30, 20)
        ours = our_target(sample)
        assert ours.keys() == wanted.keys()
        assert all(torch.equal(ours[name], wanted[name]) for name in wanted)


def test_a_json_of_coco_is_packed_by_one_command(images: Path, tmp_path: Path) -> None:
    """Categories are classes; an image without objects is empty; ids are those of the json; remarks count."""
    path = write(
        tmp_path,
        "i.json",
        coco([boxed(13, 90, [1.5, 2, 3, 4], 5, segmentation=[]), boxed(13, 1, [0, 0, 9, 9], 4, track_id=7)]),
    )
    convert([f"image={images}", f"boxes={path}"], tmp_path / "out", workers=2)
    dataset = PackedDataset(tmp_path / "out")
    assert dataset.classes == ["person", "train", "toothbrush"]
    sample = dataset["a"]
    assert sample["boxes"].tolist() == [[1.5, 2, 3, 4], [0, 0, 9, 9]]
    assert (sample["labels"].tolist(), sample["category_ids"].tolist()) == ([2, 0], [90, 1])
    assert (sample["ids"].tolist(), sample["image_id"].item()) == ([5, 4], 13)
    assert "iscrowd" not in dataset.fields
    (batch,) = Loader(dataset, 4)
    assert batch["boxes"].lengths.tolist() == [2, 0, 0, 0]
    remarks = open_sources([f"image={images}", f"boxes={path}"]).remarks
    assert "3 of 4 images have no object, and no box" in remarks
    assert "of objects the annotations also have, and packer leaves out, segmentation, track_id" in remarks


def test_images_without_partner_are_named_or_left_out(images: Path, tmp_path: Path) -> None:
    """Those of the json and those of the folder alike: the first error counts both."""
    path = write(tmp_path, "i.json", coco([], names="abx"))
    reason = (
        "entry 2: file_name is 'x', which is no sample; 1 of 3 entries have no sample of their own, 2 of 4 samples no"
    )
    with pytest.raises(SourceError, match=reason):
        open_sources([f"image={images}", f"boxes={path}"])
    report = convert([f"image={images}", f"boxes={path}"], tmp_path / "out", on_error="skip", workers=0)
    assert (report.samples, len(report.rejected)) == (2, 3)


def test_images_of_lvis_are_named_by_their_url(images: Path, tmp_path: Path) -> None:
    """Its json has no file_name."""
    listed = [
        {"id": n, "coco_url": f"http://images.cocodataset.org/train2017/{name}.jpg"} for n, name in enumerate("bacd")
    ]
    path = write(tmp_path, "lvis.json", coco([boxed(1, 7, [1, 2, 3, 4])], images=listed))
    found = read_each(open_sources([f"image={images}", f"boxes={path}"]))
    assert [boxes.tolist() for boxes in found["boxes"]] == [[[1, 2, 3, 4]], [], [], []]


def test_a_json_joins_a_dataset_by_names(images: Path, tmp_path: Path) -> None:
    """`packer join DATASET boxes=instances.json` gives every packed image its objects, and the classes."""
    convert(f"image={images}", tmp_path / "out", workers=0)
    path = write(tmp_path, "i.json", coco([boxed(11, 7, [1, 2, 3, 4])]))
    assert join(tmp_path / "out", f"boxes={path}", workers=0).by_name
    dataset = PackedDataset(tmp_path / "out")
    assert (dataset["b"]["boxes"].tolist(), dataset.classes) == ([[1, 2, 3, 4]], ["person", "train", "toothbrush"])


def test_two_lists_of_classes_are_refused(images: Path, tmp_path: Path) -> None:
    """A dataset keeps one: the numbers of `label`, or those of boxes, would stand for the classes of the others."""
    for name in "abcd":
        save(tmp_path / "in" / "cat" / f"{name}.png", picture(8, 8))
    listed = [{"id": number, "file_name": f"cat/{name}.png"} for number, name in enumerate("abcd")]
    boxes = f"boxes={write(tmp_path, 'i.json', coco([], images=listed))}"
    options = SourceOptions(label="folder")
    with pytest.raises(UsageError, match="label and labels would stand for classes of their own, cat and person"):
        open_sources([f"image={tmp_path / 'in'}", boxes], options)
    convert(f"image={tmp_path / 'in'}", tmp_path / "out", source=options, workers=0)
    with pytest.raises(UsageError, match="label and labels would stand for classes of their own, cat and person"):
        join(tmp_path / "out", boxes, workers=0)
    assert PackedDataset(tmp_path / "out").classes == ["cat"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('{"images": [', "is no json of COCO's instances: Input data was truncated"),
        (json.dumps(coco([])) + " more", "is no json of COCO's instances: JSON is malformed: trailing characters"),
        ([], "is no json of COCO's instances: Expected `object`, got `array`"),
        (coco([{"id": 1, "image_id": 10, "caption": "x"}]), "missing required field `category_id`"),
        (coco([boxed(10, 1, [1, 2, 3, 4, 5])]), "Expected `array` of length 4"),
        (coco([boxed(99, 1, [1, 2, 3, 4])]), "annotation 0 names image_id 99, which is not listed"),
        (coco([boxed(10, 2, [1, 2, 3, 4])]), "annotation 0 names category_id 2, which is not listed"),
        (
            coco([boxed(10, 1, [1, 2, 3, 4]), boxed(10, 1, [1e39, 2, 3, 4])]),
            "bbox of annotation 1 is 1e[+]39 2.0 3.0 4.0",
        ),
        (coco([boxed(10, 1, [1, 2, 3, 4], area=1e39)]), "area of annotation 0 is 1e[+]39; finite numbers"),
        (coco([], categories=CATEGORIES * 2), "lists 3 ids of category twice"),
        (coco([], images=[{"id": 2**63, "file_name": "a.png"}]), "Expected `int` <= 9223372036854775807"),
        (coco([], images=[{"id": 3, "file_name": ""}]), "the image of id 3 has no file_name"),
        (coco([], images=[]), "lists no image"),
    ],
)
def test_other_jsons_are_refused(images: Path, tmp_path: Path, value: Any, reason: str) -> None:
    """The sentence names the file and what is wrong."""
    path = write(tmp_path, "i.json", value)
    with pytest.raises(SourceError, match=reason):
        open_sources([f"image={images}", f"boxes={path}"])


@pytest.mark.parametrize("kind", ["coco", "voc", "voc, some missing"])
def test_images_of_another_size_than_boxes_say(images: Path, tmp_path: Path, kind: str) -> None:
    """One remark counts them: they were resized, and the boxes perhaps were not. Sizes of 0 and words say nothing."""
    sizes, options = {"a": (20, 30), "b": (40, 60), "c": (0, 0), "d": ("?", "")}, SourceOptions()
    if kind == "coco":
        listed = [
            {"id": number, "file_name": f"{name}.png", "height": height, "width": width}
            for number, (name, (height, width)) in enumerate(sizes.items())
        ]
        boxes = write(tmp_path, "i.json", coco([], images=listed))
    else:
        for name, (height, width) in sizes.items():
            text = f"<size><width>{width}</width><height>{height}</height></size></annotation>"
            write(tmp_path / "boxes", f"{name}.xml", voc().replace("</annotation>", text))
        boxes = str(tmp_path / "boxes")
    if "missing" in kind:
        (tmp_path / "boxes" / "a.xml").unlink()
        options = SourceOptions(missing={"boxes": "empty"})
    remarks = open_sources([f"image={images}", f"boxes={boxes}"], options).remarks
    (remark,) = (one for one in remarks if "differ in size" in one)
    assert remark.startswith(
        "1 of 4 images differ in size from what their annotations say (such as b, where they say 40"
    )


def voc(*objects: tuple[str, str]) -> str:
    """Return an XML of objects, each a name and the text of its box."""
    sides = ("xmin", "ymin", "xmax", "ymax")
    texts = [
        f"<object><name>{name}</name><difficult>1</difficult><bndbox>"
        + "".join(f"<{side}>{word}</{side}>" for side, word in zip(sides, box.split(), strict=False))
        + "</bndbox><part><name>head</name></part></object>"
        for name, box in objects
    ]
    return f"<annotation><filename>x.jpg</filename>{''.join(texts)}</annotation>"


TEXTS = {
    ".txt": ["3 0.5 0.5 0.2 0.1\n\n0 0.25 0.25 0.1 0.5", "", "1 .5 .5 1 1.25\n"],
    ".xml": [voc(("dog", "1 2 10 12.5"), ("cat", "3 4 5 6")), voc(), voc(("owl", "1 1 2 2"))],
}


@pytest.mark.parametrize(
    ("suffix", "boxes", "labels", "remark"),
    [
        (
            ".txt",
            [[[0.5, 0.5, 0.2, 0.1], [0.25, 0.25, 0.1, 0.5]], [], [[0.5, 0.5, 1, 1.25]]],
            [[3, 0], [], [1]],
            "field boxes, 1 file: boxes have numbers outside 0 to 1, and are packed as they are",
        ),
        (
            ".xml",
            [[[1, 2, 10, 12.5], [3, 4, 5, 6]], [], [[1, 1, 2, 2]]],
            [[1, 0], [], [2]],
            "of objects the annotations also have, and packer leaves out, part",
        ),
    ],
)
def test_files_of_boxes_lie_beside_images(
    images: Path, tmp_path: Path, suffix: str, boxes: Any, labels: Any, remark: str
) -> None:
    """YOLO's and VOC's: by one command, with what is odd in a remark; `--missing boxes=empty`: some have no file."""
    for name, text in zip("abc", TEXTS[suffix], strict=True):
        write(tmp_path / "files", name + suffix, text)
    inputs = [f"image={images}", f"boxes={tmp_path / 'files'}"]
    with pytest.raises(SourceError, match=r"d\.png: field 'image' has this file, but there is no partner"):
        open_sources(inputs)
    convert(inputs, tmp_path / "out", source=SourceOptions(missing={"boxes": "empty"}), workers=0)
    dataset = PackedDataset(tmp_path / "out")
    batch = dataset[["a", "b", "c", "d"]]
    assert [each.tolist() for each in batch["boxes"].to_list()] == [np.float32(b).tolist() for b in [*boxes, []]]
    assert [each.tolist() for each in batch["labels"].to_list()] == [*labels, []]
    assert dataset.classes == (["cat", "dog", "owl"] if suffix == ".xml" else None)
    remarks = open_sources(inputs, SourceOptions(missing={"boxes": "empty"})).remarks
    assert any(each.startswith(remark) for each in remarks)


def test_targets_of_yolo_are_those_of_ultralytics(images: Path, tmp_path: Path) -> None:
    """As its `verify_image_label` reads lines, and its `collate_fn` joins images, to the bit."""
    rng, wanted = np.random.default_rng(0), []
    for number, name in enumerate("abcd"):
        lines = [f"{rng.integers(80)} " + " ".join(f"{n:.6f}" for n in rng.random(4)) for _ in range(20 * number)]
        text = write(tmp_path / "labels", f"{name}.txt", "\n".join(lines) + "\n" * (number % 2))
        rows = [line.split() for line in Path(text).read_text().strip().splitlines() if len(line)]
        labels = np.array(rows, dtype=np.float32).reshape(-1, 5)
        wanted.append({"cls": labels[:, 0:1], "bboxes": labels[:, 1:], "batch_idx": np.full(len(labels), number)})
    convert([f"image={images}", f"boxes={tmp_path / 'labels'}"], tmp_path / "out", workers=0)
    (batch,) = Loader(PackedDataset(tmp_path / "out"), 4)
    boxes = batch["boxes"]
    ours = {
        "cls": batch["labels"].values[:, None].float(),
        "bboxes": boxes.values,
        "batch_idx": boxes.batch_index().float(),
    }
    for key, values in ours.items():
        assert values.dtype == torch.float32
        assert np.array_equal(values.numpy(), np.concatenate([each[key] for each in wanted]))


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.txt", "0 0.1 0.2 0.3", "line 1 is '0 0.1 0.2 0.3', 4 words; class x y width height is expected"),
        ("a.txt", "0 0 0 1 1\n1 0.1 0.2 0.3 0.4 0.5 0.6", "line 2 is .*, 7 words; class x y width height"),
        ("a.txt", "a photograph of a dog", "another name than boxes= packs texts"),
        ("a.txt", "0.5 0 0 1 1", "the class a whole number"),
        ("a.txt", "0 0 0 1 1\n0 nan 0 1 1", "the box of object 1 is nan 0.0 1.0 1.0; finite numbers"),
        ("a.txt", "99999999999999999999 0 0 1 1", "the class a whole number"),
        ("a.xml", voc(("", "1 2 3 4")), "object 0: it has no name; name, difficult"),
        ("a.xml", voc(("dog</name><name>cat", "1 2 3 4")), "object 0: it has name twice"),
        ("a.xml", voc(("dog", "1 2 3 inf")), "the box of object 0 is 1.0 2.0 3.0 inf; finite numbers"),
        ("a.xml", "<annotation>", "is no XML"),
        ("a.xml", voc(("dog", "1 2 3 4")) + "more", "is no XML: junk after"),
        ("a.xml", "<html></html>", "is XML of html; an annotation of VOC is expected"),
        ("a.xml", voc(("dog", "1 2 3")), "object 0: .*; name, difficult and bndbox of xmin"),
    ],
)
def test_files_of_other_contents_are_refused(images: Path, tmp_path: Path, name: str, text: str, reason: str) -> None:
    """The sentence names the file, the line or object, and what is expected."""
    path = write(tmp_path, name, text)
    with pytest.raises(SourceError, match=f"{name}: .*{reason}"):
        open_sources([f"image={images / 'a.png'}", f"boxes={path}"])


def test_odd_boxes_and_names_are_said(images: Path, tmp_path: Path) -> None:
    """Boxes of COCO and VOC that end before they begin are counted, and so are categories of one name."""
    said = "1 box has a width or height below 0"
    objects = [boxed(10, 1, [1, 2, 3, 4]), boxed(10, 1, [1, 2, 3, -4])]
    named = [{"id": number, "name": "cat"} for number in (1, 2)]
    for path in (
        write(tmp_path, "i.json", coco(objects, categories=named)),
        write(tmp_path, "a.xml", voc(("a", "1 2 3 4"), ("a", "3 2 1 4"))),
    ):
        picture_of = images if path.endswith("json") else images / "a.png"
        remarks = open_sources([f"image={picture_of}", f"boxes={path}"]).remarks
        assert any(said in remark for remark in remarks)
        assert any("several categories have one name, cat" in remark for remark in remarks) == path.endswith("json")


def test_boxes_alone_are_refused(images: Path, tmp_path: Path) -> None:
    """They lie beside images; of several jsons the message asks which."""
    boxes = [write(tmp_path / "voc", "a.xml", voc()), write(tmp_path, "i.json", coco([]))]
    for path in boxes:
        with pytest.raises(UsageError, match=r"boxes= .*; name these as well: image=FOLDER"):
            open_sources([f"boxes={path}", f"more={path}"])
    for name in ("i.json", "j.json"):
        write(tmp_path / "annotations", name, coco([]))
    with pytest.raises(UsageError, match=r"has 2 jsons; name the one of these images: .*i\.json"):
        open_sources([f"image={images}", f"boxes={tmp_path / 'annotations'}"])


def test_boxes_that_are_written_otherwise_do_not_go_together(images: Path, tmp_path: Path) -> None:
    """By `merge`, `append`, `Mix` and `+`: four numbers would mean two things; those of an unknown way are taken."""
    write(tmp_path / "yolo", "a.txt", "0 .5 .5 .1 .1")
    corners = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>5</xmax><ymax>6</ymax></bndbox>"
    write(tmp_path / "voc", "b.xml", f"<annotation><object><name>cat</name>{corners}</object></annotation>")
    made = {}
    for kind, name, others in (("yolo", "a", ["labels"]), ("voc", "b", ["labels", "difficult"])):
        save(tmp_path / f"{kind}-images" / f"{name}.png", picture(20, 30))
        convert([f"image={tmp_path / kind}-images", f"boxes={tmp_path / kind}"], tmp_path / f"{kind}.packed", workers=0)
        drop(tmp_path / f"{kind}.packed", others, workers=0)
        made[kind] = tmp_path / f"{kind}.packed"
    convert([{"image": picture(20, 30), "boxes": np.ones((1, 4), "f4")}], tmp_path / "d", names=["c"], workers=0)
    one, other, unknown = map(PackedDataset, (*made.values(), tmp_path / "d"))
    said = "has boxes in field 'boxes' as voc writes them, but yolo is expected"
    with pytest.raises(UsageError, match=said):
        merge(made.values(), tmp_path / "m")
    with pytest.raises(UsageError, match=said):
        append(made["yolo"], made["voc"], workers=0)
    for together in (lambda: Mix({one: 1, other: 1}), lambda: one + other):
        with pytest.raises(
            UsageError, match=r"box_format of field 'boxes' are voc in .*, and yolo in .*tells the data"
        ):
            together()
    assert len(one + unknown) == len(Mix({one: 1, other: 1}, extras=("dataset",))) == 2
