"""Images in folders as a source: what is found, refused, skipped and read."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from opened_sources import open_images, read_each
from picture_files import chunk, open_pairs, picture, save
from PIL import Image
from real_files import real_folder

from packer.errors import SourceError
from packer.format import FieldSpec
from packer.sources.images import SIGNATURE
from packer.sources.images.pixels import COLOUR_KEY, FEW_BITS

SET5 = real_folder("png_pairs/JingyunLiang+SwinIR/testsets/Set5")
KINDS = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


def test_pairs_become_samples_with_the_names_of_both(pairs):
    """Partners make a sample named without the marker, in natural order, with the pixels of the files."""
    source = open_pairs(pairs)
    assert source.names == ["1", "2", "10"]
    assert source.fields == (
        FieldSpec(name="lr", dtype="uint8", kind="image", shape=(4, 5, 3)),
        FieldSpec(name="hr", dtype="uint8", kind="image", shape=(8, 10, 3)),
    )
    (block,) = source.read()
    assert block["lr"].shape == (3, 4, 5, 3)
    np.testing.assert_array_equal(block["hr"], [picture(8, 10, seed=n + 100) for n in (1, 2, 10)])
    assert source.files()[:2] == [f"{pairs}/lr/1x2.png", f"{pairs}/hr/1.png"]


def test_many_headers_come_in_order(tmp_path):
    """Threads read headers, but samples and errors stand in the order of names, and the first error stops."""
    for number in range(200):
        save(tmp_path / f"{number}.png", picture(4 + number % 3, 5))
    bad = [70, 130, 199]
    for number in bad:
        (tmp_path / f"{number}.png").write_bytes(b"")
    told: list[str] = []
    source = open_images({"x": str(tmp_path)}, bad=lambda error: told.append(Path(error.path).name))
    kept = [number for number in range(200) if number not in bad]
    assert source.names == [str(number) for number in kept]
    assert source.shapes("x")[:, 0].tolist() == [4 + number % 3 for number in kept]
    assert told == [f"{number}.png" for number in bad]
    with pytest.raises(SourceError, match=r"70\.png: is empty"):
        open_images({"x": str(tmp_path)})


def test_the_plan_says_what_came_off_names(pairs):
    """And how the sizes relate, and which files were skipped; origin has no path."""
    (pairs / "lr" / "readme.txt").write_text("about")
    (pairs / "lr" / ".hidden").write_text("")
    source = open_pairs(pairs)
    assert source.remarks == [
        "field lr: skipped 1 .txt, 1 hidden",
        "field lr: most names have 'x2' at the end; samples are named without it",
        "hr is 2 times as large as lr in every sample",
    ]
    assert str(pairs) not in json.dumps(source.origin)


def test_sizes_that_differ_make_ragged_axes(tmp_path):
    """Only the axes that differ are ragged; blocks hold lists then, and shapes are known beforehand."""
    images = [save(tmp_path / f"{i}.png", picture(4, 5 + i, seed=i)) for i in range(3)]
    source = open_images({"x": str(tmp_path)})
    assert source.fields[0].shape == (4, None, 3)
    assert source.shapes("x").tolist() == [[4, 5, 3], [4, 6, 3], [4, 7, 3]]
    for got, expected in zip(read_each(source)["x"], images, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("suffix", "channels"),
    [(suffix, channels) for suffix in ("png", "tif") for channels in (1, 2, 3, 4)]
    + [("webp", 3), ("webp", 4), ("bmp", 1), ("bmp", 3), ("jpg", 1), ("jpg", 3)],
)
def test_every_format_equals_pillow(tmp_path, suffix, channels):
    """Each format gives what Pillow gives, with its channels; gray has one."""
    path = tmp_path / f"a.{suffix}"
    save(path, picture(channels=channels))
    with Image.open(path) as image:
        expected = np.asarray(image).reshape(4, 5, channels)
    (got,) = read_each(open_images({"x": str(path)}))["x"]
    np.testing.assert_array_equal(got, expected)


def test_16_bits_stay_16_bits_also_beside_8(tmp_path):
    """A pair may mix 8-bit colour with 16-bit depth; the plan says so."""
    depth = np.arange(20, dtype=np.uint16).reshape(4, 5) * 3000
    save(tmp_path / "rgb" / "a.png")
    save(tmp_path / "depth" / "a.png", depth)
    source = open_images({"rgb": str(tmp_path / "rgb"), "depth": str(tmp_path / "depth")})
    np.testing.assert_array_equal(read_each(source)["depth"][0][:, :, 0], depth)
    assert "bit depths differ: rgb is uint8, depth is uint16" in source.remarks


@pytest.mark.parametrize("suffix", ["tif", "png"])
def test_depth_maps_keep_their_dtype(tmp_path, suffix):
    """Gray of 16 bits, and float TIFF, come out in the dtype of the file."""
    values = np.linspace(0, 1, 20, dtype=np.float32).reshape(4, 5)
    values = values if suffix == "tif" else (values * 65535).astype(np.uint16)
    save(tmp_path / f"a.{suffix}", values)
    (got,) = read_each(open_images({"x": str(tmp_path)}))["x"]
    assert got.dtype == values.dtype
    np.testing.assert_array_equal(got[:, :, 0], values)


@pytest.mark.parametrize(("mode", "channels"), [("gray", 1), ("rgb", 3), ("rgba", 4)])
@pytest.mark.parametrize("bits", [8, 16])
def test_modes_convert_on_purpose(tmp_path, mode, channels, bits):
    """A mode makes all images alike, as Pillow converts them; 16 bits give the same at a finer step."""
    for number, kind in KINDS.items():
        image = picture(channels=number, seed=number)
        if bits == 8:
            save(tmp_path / f"{kind}.png", image)
        elif kind != "LA":  # which Pillow cannot read with 16 bits
            write_png16(tmp_path / f"{kind}.png", image.astype(np.uint16) * 257)
    source = open_images({"x": str(tmp_path)}, mode=mode)
    assert source.fields[0].shape == (4, 5, channels)
    numbers = {kind: number for number, kind in KINDS.items()}
    for name, got in zip(source.names, read_each(source)["x"], strict=True):
        original = Image.fromarray(picture(channels=numbers[name], seed=numbers[name]).squeeze())
        expected = np.asarray(original.convert("L" if mode == "gray" else mode.upper())).reshape(4, 5, channels)
        near = got if bits == 8 else np.rint(got / 257)
        assert np.abs(near.astype(int) - expected).max() <= (bits == 16)


@pytest.mark.parametrize(("name", "channels"), [("a.png", 3), ("a.png", 1), ("a.gif", 1)])
def test_a_colour_marked_as_transparent_becomes_alpha(tmp_path, name, channels):
    """With --mode rgba the mark is alpha, as Pillow converts it, and nothing is said; else its loss is noted."""
    image = np.arange(256 * channels, dtype=np.uint8).reshape(16, 16, channels)
    save(tmp_path / name, image, transparency=tuple(map(int, image[0, 1])) if channels > 1 else 7)
    source = open_images({"x": str(tmp_path)}, mode="rgba")
    with Image.open(tmp_path / name) as original:
        expected = np.asarray(original.convert("RGBA"))
    assert (expected[:, :, 3] == 0).sum() == 1
    np.testing.assert_array_equal(read_each(source)["x"][0], expected)
    assert source.remarks == []
    for mode in (None, "rgb", "gray"):
        assert any(COLOUR_KEY in note for note in open_images({"x": str(tmp_path)}, mode=mode).remarks)


def write_png16(path, image):
    height, width, channels = image.shape
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in image)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0))
    path.write_bytes(SIGNATURE + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND"))


def test_palettes_give_colours_or_the_numbers_of_masks(tmp_path):
    """Colours by default, with a remark; numbers on request, and for fields with the name of a mask."""
    coloured = Image.fromarray(picture()).quantize(8)
    coloured.save(tmp_path / "a.png")
    colours, numbers = np.asarray(coloured.convert("RGB")), np.asarray(coloured)[:, :, None]
    assert numbers.max() > 0
    for field, options, expected, said in [
        ("x", {}, colours, "1 file with a palette: their colours are packed; --palette index"),
        ("x", {"palette": "index"}, numbers, None),
        ("mask", {}, numbers, "1 file with a palette: the numbers of the colours are packed, as of masks; --palette c"),
        ("gt_seg2", {}, numbers, "numbers of the colours"),
        ("classic", {}, colours, "their colours"),
        ("mask", {"palette": "colour"}, colours, None),
        ("mask", {"mode": "rgb"}, colours, None),
    ]:
        source = open_images({field: str(tmp_path / "a.png")}, **options)
        np.testing.assert_array_equal(read_each(source)[field][0], expected)
        assert [said in note for note in source.remarks] == ([True] if said else [])


def test_palettes_beside_photographs_are_masks(tmp_path):
    """As in VOC, with gray masks among them; two fields with palettes alone keep their colours."""
    for number in range(3):
        save(tmp_path / "photo" / f"{number}.jpg", picture(seed=number))
        mask = Image.fromarray(np.full((4, 5), 2 + number, np.uint8))
        if number:
            mask = mask.convert("P")
            mask.putpalette(bytes(768))
        (tmp_path / "m").mkdir(exist_ok=True)
        mask.save(tmp_path / "m" / f"{number}.png")
    source = open_images({"photo": str(tmp_path / "photo"), "m": str(tmp_path / "m")})
    assert source.fields[1].shape == (4, 5, 1)
    assert [int(image.max()) for image in read_each(source)["m"]] == [2, 3, 4]
    assert any("field m, 2 files with a palette: the numbers" in note for note in source.remarks)
    (tmp_path / "m" / "0.png").unlink()
    source = open_images({"m": str(tmp_path / "m")})
    assert source.fields[0].shape == (4, 5, 3)


def test_changes_on_the_way_are_said(tmp_path):
    """Gray of 1 bit becomes 8 bits and a transparent colour loses its mark: both stand in the notes."""
    Image.fromarray(np.eye(4, dtype=bool)).save(tmp_path / "a.png", transparency=0)
    source = open_images({"x": str(tmp_path)})
    np.testing.assert_array_equal(read_each(source)["x"][0][:, :, 0], np.eye(4) * 255)
    assert source.remarks == [f"field x, 1 file: {FEW_BITS}; {COLOUR_KEY}"]


def test_globs_share_one_folder(tmp_path):
    """Two patterns pair within one folder; the wider one leaves to the narrower what that one names."""
    for name in ("a", "b"):
        save(tmp_path / f"{name}.png", picture(8, 10))
        save(tmp_path / f"{name}x2.png", picture())
    source = open_images({"lr": str(tmp_path / "*x2.png"), "hr": str(tmp_path / "*.png")})
    assert source.names == ["a", "b"]
    assert [Path(file).name for file in source.files()] == ["ax2.png", "a.png", "bx2.png", "b.png"]
    assert source.remarks[0] == "field hr: 2 files also fit lr, and go there"


def test_opening_decodes_nothing(pairs):
    """Damaged pixels are not seen before reading: headers alone make the plan."""
    for path in (pairs / "lr").iterdir():
        path.write_bytes(path.read_bytes()[:60])
    assert len(open_pairs(pairs)) == 3


def test_blocks_are_bounded(tmp_path):
    """A block holds at most half a MiB, or one sample."""
    side = 300
    for number in range(4):
        save(tmp_path / f"{number}.bmp", np.full((side, side, 3), number, np.uint8))
    blocks = [block["x"] for block in open_images({"x": str(tmp_path)}).read()]
    assert [len(block) for block in blocks] == [1, 1, 1, 1]
    assert blocks[0].nbytes <= 2**19 < 2 * blocks[0].nbytes
    assert [int(block[0, 0, 0, 0]) for block in blocks] == [0, 1, 2, 3]


def test_pairs_out_of_ratio_are_named(pairs):
    """The plan names samples whose sizes do not keep the usual ratio."""
    save(pairs / "hr" / "10.png", picture(8, 11))
    assert open_pairs(pairs).remarks[-1] == (
        "hr is 2 times as large as lr, but not in 1 of 3 samples: 10 (lr 4 x 5, hr 8 x 11); --on-error skip skips them"
    )


def test_pairs_out_of_ratio_are_skipped_with_other_bad_files(pairs):
    """Their error has both sizes; those that keep the ratio of most are packed."""
    save(pairs / "hr" / "10.png", picture(4, 5))
    errors = []
    source = open_pairs(pairs, bad=errors.append)
    assert source.names == ["1", "2"]
    assert [str(error) for error in errors] == [
        f"{pairs}/hr/10.png: hr is 4 x 5 pixels and lr 4 x 5, not 2 times as large as in most samples; "
        "crop or resize it"
    ]


def test_set5_equals_pillow():
    """Real pairs of images of different sizes pair by their marker and equal Pillow's decoding."""
    source = open_images({"lr": str(SET5 / "LR_bicubic" / "X4"), "hr": str(SET5 / "HR")})
    assert source.names == ["bird", "head"]
    images = read_each(source)
    expected = [np.asarray(Image.open(path)) for path in source.files()]
    for number in range(2):
        np.testing.assert_array_equal(images["lr"][number], expected[2 * number])
        np.testing.assert_array_equal(images["hr"][number], expected[2 * number + 1])
