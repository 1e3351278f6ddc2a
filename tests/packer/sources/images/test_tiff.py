"""TIFF: pixels are those that the file means, by Pillow where it gives these and else by tifffile."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from opened_sources import open_images, read_each
from PIL import Image

from packer.errors import SourceError
from packer.sources import Source
from packer.sources.images import as_image, kind, tiff
from packer.sources.images.pixels import FEW_BITS, NOT_TURNED
from packer.sources.looking import NEVER_WRITTEN

COLOURS = np.random.default_rng(0).integers(0, 256, (3, 4, 4), dtype=np.uint8)
GRAY, RGB = COLOURS[:, :, 0], COLOURS[:, :, :3]
PAGES = np.random.default_rng(1).integers(0, 60000, (6, 32, 48), dtype=np.uint16)


def made(pixels: np.ndarray, bits: int = 8, **tags: list[int] | bytes) -> bytes:
    """A little-endian TIFF of one strip; `tags` are further shorts, or texts, by `t<number>`."""
    height, width, *more = pixels.shape
    samples = more[0] if more else 1
    data = np.packbits(pixels, axis=1).tobytes() if bits == 1 else pixels.tobytes()
    entries = {256: [width], 257: [height], 258: [bits] * samples, 259: [1], 262: [2 if samples > 2 else 1]}
    entries |= {273: [8], 277: [samples], 278: [height], 279: [len(data)]}
    entries |= {int(tag[1:]): values for tag, values in tags.items()}
    file = bytearray(b"II*\0" + struct.pack("<I", 0) + data + bytes(len(data) % 2))
    directory = struct.pack("<H", len(entries))
    for tag, values in sorted(entries.items()):
        packed = values if isinstance(values, bytes) else struct.pack(f"<{len(values)}H", *values)
        if len(packed) > 4:
            place = struct.pack("<I", len(file))
            file += packed
            packed = place
        directory += struct.pack("<HHI", tag, 2 if isinstance(values, bytes) else 3, len(values)) + packed.ljust(
            4, b"\0"
        )
    file[4:8] = struct.pack("<I", len(file))
    return bytes(file + directory + bytes(4))


def opened(path: Path, **options: Any) -> tuple[Source, np.ndarray]:
    """The source of one file, and its values."""
    source = open_images({"x": str(path)}, **options)
    (block,) = source.read()
    return source, np.asarray(block["x"][0])


ONE_BIT, WIDE = (GRAY > 99).astype("u1"), GRAY.astype("u2")
MEANT: dict[str, tuple[np.ndarray, dict[str, Any], np.ndarray, str]] = {
    "RGB": (RGB, {}, RGB, ""),
    "alpha of its own": (COLOURS, {"t338": [2], "t274": [1]}, COLOURS, ""),
    "colours multiplied by alpha": (COLOURS, {"t338": [1]}, COLOURS, tiff.MULTIPLIED),
    "gray multiplied by alpha": (COLOURS[:, :, :2], {"t338": [1]}, COLOURS[:, :, :2], tiff.MULTIPLIED),
    "a fourth sample that is no alpha": (COLOURS, {"t338": [0]}, COLOURS, ""),
    "five bands": (np.dstack([COLOURS, GRAY]), {"t338": [0, 0]}, np.dstack([COLOURS, GRAY]), ""),
    "1 bit": (ONE_BIT, {"bits": 1}, 255 * ONE_BIT, FEW_BITS),
    "white is zero": (GRAY, {"t262": [0]}, 255 - GRAY, tiff.INVERTED),
    "white is zero in 16 bits": (
        GRAY.astype("u2"),
        {"bits": 16, "t262": [0]},
        65535 - GRAY.astype("u2"),
        tiff.INVERTED,
    ),
    "signed": (GRAY.astype("i2") - 99, {"bits": 16, "t339": [2]}, GRAY.astype("i2") - 99, ""),
    "int8": (GRAY.view("i1"), {"t339": [2]}, GRAY.view("i1"), ""),
    "float16": (GRAY.astype("f2"), {"bits": 16, "t339": [3]}, GRAY.astype("f2"), ""),
    "colours of 16 bits": (RGB.astype("u2") * 200, {"bits": 16}, RGB.astype("u2") * 200, ""),
    "turned": (RGB, {"t274": [6]}, RGB, NOT_TURNED),
    "nodata": (GRAY, {"t42113": [48]}, GRAY, tiff.NO_VALUE),
    "scale": (GRAY, {"t42112": b'<Item name="SCALE" sample="0" role="scale">0.1</Item>'}, GRAY, tiff.SCALED),
    "scale of 16 bits": (WIDE, {"bits": 16, "t42112": b'role="offset"', "t262": [1]}, WIDE, tiff.SCALED),
    "GeoTIFF": (GRAY, {"t34735": [1, 1, 0, 0]}, GRAY, tiff.GEO),
}


@pytest.mark.parametrize(("pixels", "tags", "meant", "said"), MEANT.values(), ids=MEANT)
def test_pixels_are_those_that_the_file_means(
    tmp_path: Path, pixels: np.ndarray, tags: dict[str, Any], meant: np.ndarray, said: str
) -> None:
    """All of them with all their bits, where the file has them; one remark says what is not as it is in the file."""
    (tmp_path / "a.tif").write_bytes(made(pixels, **tags))
    source, values = opened(tmp_path / "a.tif")
    assert (values.dtype, source.fields[0].kind) == (meant.dtype, "image")
    np.testing.assert_array_equal(values, meant.reshape(*meant.shape[:2], -1))
    assert source.remarks == ([f"field x, 1 file: {said}"] if said else [])


STACKS: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
    "pages": (PAGES, {"metadata": None}),
    "one directory": (PAGES, {"metadata": {}, "truncate": True}),
    "compressed": (PAGES, {"compression": "lzw", "tile": (16, 16)}),
    "BigTIFF": (PAGES, {"bigtiff": True}),
    "RGB": (PAGES.view("u1").reshape(6, 32, 32, 3), {"photometric": "rgb"}),
    "planes": (PAGES.reshape(2, 3, 32, 48), {"photometric": "rgb", "planarconfig": "separate"}),
    "OME": (PAGES.reshape(3, 2, 32, 48), {"ome": True, "metadata": {"axes": "ZCYX"}}),
    "ImageJ": (PAGES.reshape(3, 2, 32, 48), {"imagej": True, "metadata": {"axes": "ZCYX"}}),
    "big-endian": (PAGES, {"byteorder": ">"}),
    "slices": (PAGES, {"volumetric": True, "photometric": "minisblack"}),
}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("values", "written"), STACKS.values(), ids=STACKS)
def test_pages_are_a_stack(
    tmp_path: Path, values: np.ndarray, written: dict[str, Any], large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the axes that tifffile gives, samples last; a large one is read some pages at a time."""
    monkeypatch.setattr(kind, "LARGE_BYTES", 0 if large else 2**30)
    tifffile.imwrite(tmp_path / "a.tif", values, **written)
    source, stack = opened(tmp_path / "a.tif")
    np.testing.assert_array_equal(stack, np.moveaxis(values, 1, -1) if "planarconfig" in written else values)
    assert (source.fields[0].kind, source.fields[0].shape, source.remarks) == ("array", stack.shape, [])


def test_stacks_of_different_lengths_and_others(tmp_path: Path) -> None:
    """Their lengths may differ, their axes may not: the file that differs is named."""
    for number in (2, 3):
        tifffile.imwrite(tmp_path / f"{number}.tif", PAGES[:number], photometric="minisblack")
    assert open_images({"x": str(tmp_path)}).fields[0].shape == (None, 32, 48)
    tifffile.imwrite(tmp_path / "1.tif", PAGES[0])
    message = r"1\.tif: differs from most .* is gray uint16, not a stack of axes [QI], Y, X, uint16"
    with pytest.raises(SourceError, match=message):
        open_images({"x": str(tmp_path)})


@pytest.mark.parametrize("sub", [0, 2])
def test_of_overviews_the_first_level_is_packed(tmp_path: Path, sub: int) -> None:
    """As GDAL writes them, and as directories below the first; a remark counts such files."""
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for step in (1, 2, 4):
            levels = {"subfiletype": 1} if step > 1 else {"subifds": sub}
            file.write(PAGES[0][::step, ::step], tile=(16, 16), metadata=None, **levels)
    source, values = opened(tmp_path / "a.tif")
    np.testing.assert_array_equal(values[:, :, 0], PAGES[0])
    assert source.remarks == [f"field x, 1 file: {tiff.LEVELS}"]


def test_tiles_that_were_never_written_are_counted(tmp_path: Path) -> None:
    """They are zeros, said by one remark, or an error if they are refused."""
    for name in "ab":
        tiles = iter([PAGES[0][:16, :16], None, PAGES[0][16:, :16], None])
        tifffile.imwrite(tmp_path / f"{name}.tif", tiles, shape=(32, 32), dtype="u2", tile=(16, 16), metadata=None)
    _, values = opened(tmp_path / "a.tif")
    np.testing.assert_array_equal(values[:, :, 0], np.hstack([PAGES[0][:, :16], np.zeros((32, 16), "u2")]))
    (remark,) = open_images({"x": str(tmp_path)}).remarks
    assert remark == f"{NEVER_WRITTEN}: 4 pieces of 2 samples, the first: {tmp_path}/a.tif"
    with pytest.raises(SourceError, match=r"a\.tif: 2 tiles, .* never written; write them, or leave out --unwritten"):
        open_images({"x": str(tmp_path)}, unwritten="refuse")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (made(RGB, t262=[8]), "has LAB colours, which cannot be kept; save it as RGB"),
        (made(RGB, t262=[32803]), "has CFA colours, which cannot be kept; save it as RGB"),
        (made(RGB.astype("u2"), 16, t262=[5]), "has SEPARATED colours, which cannot be kept"),
        (made(RGB, t259=[34712])[:-4] + bytes(4), "cannot be read as TIFF by tifffile .* else save its values as .npy"),
        (made(RGB, t279=[9999], t274=[3]), "is cut short: it has .* bytes, and says that there are more"),
        (made(GRAY.astype("c8"), 64, t339=[6], t274=[3]), ""),
    ],
    ids=["LAB", "CFA", "CMYK", "compression", "short", "complex"],
)
def test_what_cannot_be_packed_is_said(tmp_path: Path, data: bytes, message: str) -> None:
    """What it is, and what to do; complex values are packed as they are."""
    (tmp_path / "a.tif").write_bytes(data)
    if not message:
        assert opened(tmp_path / "a.tif")[1].dtype == "c8"
        return
    with pytest.raises(SourceError, match=message):
        list(open_images({"x": str(tmp_path)}).read())


def test_what_is_no_single_image_is_said(tmp_path: Path) -> None:
    """Images of different sizes, and stacks where an image is expected."""
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as file:
        for page in (PAGES[0], PAGES[0, :16]):
            file.write(page, metadata=None)
    with pytest.raises(
        SourceError, match=r"holds 2 images of different sizes or types \(32 x 48 uint16, 16 x 48 uint16"
    ):
        open_images({"x": str(path)})
    tifffile.imwrite(path, PAGES)
    with pytest.raises(SourceError, match="holds a stack of images, which --mode does not convert"):
        open_images({"x": str(path)}, mode="rgb")
    with pytest.raises(SourceError, match="holds a stack of images where one is expected"):
        as_image(path.read_bytes(), "x")
    tifffile.imwrite(path, np.dstack([PAGES[0]] * 3), photometric="rgb")
    image = as_image(path.read_bytes(), "x")
    assert image is not None
    np.testing.assert_array_equal(image, np.dstack([PAGES[0]] * 3))


def test_without_the_extra_pillow_reads_what_it_reads_as_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all else the error says what to install."""
    monkeypatch.setattr(tiff, "find_spec", lambda name: None)
    (tmp_path / "a.tif").write_bytes(made(RGB))
    np.testing.assert_array_equal(opened(tmp_path / "a.tif")[1], RGB)
    tifffile.imwrite(tmp_path / "a.tif", PAGES)
    with pytest.raises(SourceError, match=r"tifffile does: pip install '\.\[tiff\]' in a clone of packer"):
        open_images({"x": str(tmp_path)})


@pytest.mark.parametrize("pages", [1, 3])
def test_strips_that_are_jpeg_and_have_lost_pixels_are_refused(tmp_path: Path, pages: int) -> None:
    """libtiff and imagecodecs give something in their place; sound ones are packed, by Pillow and as a stack."""
    smooth = np.repeat(np.repeat(COLOURS[:, :, :3], 40, 0), 40, 1)
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.stack([smooth] * pages) if pages > 1 else smooth, compression="jpeg", photometric="rgb")
    _, values = opened(path)
    assert np.array_equal(values, tifffile.imread(path))
    with tifffile.TiffFile(path) as file:
        page = file.pages[pages - 1]
        middle = page.dataoffsets[0] + page.databytecounts[0] // 2
    data = bytearray(path.read_bytes())
    data[middle : middle + 2] = b"\xff\xf7"
    path.write_bytes(data)
    with pytest.raises(SourceError, match="damaged JPEG strip or tile"):
        opened(path)


def test_pillow_logs_nothing_of_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files of more bands than Pillow reads are read by tifffile, and nobody hears that Pillow does not."""
    pixels = np.arange(4 * 5 * 13, dtype="u2").reshape(4, 5, 13)
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="minisblack", planarconfig="contig")
    (found,) = read_each(open_images({"image": str(tmp_path)}))["image"]
    assert (np.asarray(found).tolist(), caplog.records) == (pixels.tolist(), [])


def test_libtiff_writes_nothing_of_its_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A damaged file is one error of ours; libtiff would write a line for each to stderr besides."""
    path = tmp_path / "a.tif"
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(pixels).save(path, compression="tiff_lzw")
    data = bytearray(path.read_bytes())
    data[3000:3040] = b"\xff" * 40
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"decoder error|Pillow \(-2\)"):  # so says Pillow 11.0
        opened(path)
    assert capfd.readouterr().err == ""
