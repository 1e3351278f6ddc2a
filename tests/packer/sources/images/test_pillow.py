"""EXIF, profiles and odd files: pixels are those that Pillow gives; the plan says what was changed or not applied."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from opened_sources import open_images
from picture_files import chunk
from PIL import Image, ImageCms, ImageOps, PngImagePlugin

from packer.errors import SourceError
from packer.sources import Source
from packer.sources.images.pixels import COLOURS as OTHER_COLOURS
from packer.sources.images.pixels import NOT_TURNED, PROFILE, TURNED

COLOURS = np.random.default_rng(0).integers(0, 256, (3, 4, 4), dtype=np.uint8)


def opened(folder: Path, name: str, data: bytes) -> Source:
    """The source of one file, after a check that its pixels are those of `np.asarray(Image.open(...))`."""
    (folder / name).write_bytes(data)
    source = open_images({"x": str(folder / name)})
    (block,) = source.read()
    with Image.open(io.BytesIO(data)) as picture:
        expected = np.asarray(picture.convert("L") if picture.mode == "1" else picture)
    np.testing.assert_array_equal(np.squeeze(block["x"][0]), np.squeeze(expected))
    return source


@pytest.mark.parametrize("suffix", [".jpg", ".webp"])
def test_the_orientation_of_other_files_is_not_applied_and_said(tmp_path, suffix: str) -> None:
    """Pixels stay where a JPEG or WebP has them, whatever its tag says."""
    exif = Image.Exif()
    exif[274] = 6
    file = io.BytesIO()
    Image.fromarray(COLOURS[:, :, :3]).save(file, Image.registered_extensions()[suffix], exif=exif)
    source = opened(tmp_path, f"a{suffix}", file.getvalue())
    assert source.fields[0].shape == (3, 4, 3)
    assert source.remarks == [f"field x, 1 file: {NOT_TURNED}"]


@pytest.mark.parametrize("mode", [None, "gray"])
@pytest.mark.parametrize("suffix", [".jpg", ".webp", ".png", ".tif"])
@pytest.mark.parametrize("turn", range(10))
def test_orient_turns_pixels_as_pillow_does(tmp_path, suffix: str, turn: int, mode: str | None) -> None:
    """Size and pixels are those of `ImageOps.exif_transpose`, whatever the tag says; the plan counts such files."""
    exif, path = Image.Exif(), tmp_path / f"a{suffix}"
    exif[274] = turn
    Image.fromarray(COLOURS[:, :, :3]).save(path, exif=exif)
    source = open_images({"x": str(path)}, orient=True, mode=mode)
    (block,) = source.read()
    with Image.open(path) as picture:
        turned = ImageOps.exif_transpose(picture)
        expected = np.asarray(turned.convert("L") if mode else turned)
    np.testing.assert_array_equal(np.squeeze(block["x"][0]), expected)
    assert source.fields[0].shape == block["x"][0].shape
    assert source.origin["orient"]
    assert source.remarks == ([f"field x, 1 file: {TURNED}"] if 2 <= turn <= 8 else [])


def test_a_png_with_a_tag_is_counted(tmp_path) -> None:
    """However far from the beginning the tag stands; its pixels stay without `--orient`."""
    exif, info = Image.Exif(), PngImagePlugin.PngInfo()
    exif[274] = 3
    info.add_text("more", "c" * 5000)
    Image.fromarray(COLOURS[:, :, :3]).save(tmp_path / "a.png", exif=exif, pnginfo=info)
    source = opened(tmp_path, "a.png", (tmp_path / "a.png").read_bytes())
    assert source.remarks == [f"field x, 1 file: {NOT_TURNED}"]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("exif", [b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0neither", b"Exif\0\0II*\0\x08"])
def test_damaged_exif_harms_no_pixel(tmp_path, exif: bytes) -> None:
    """What cannot be read beside the pixels is passed over."""
    file = io.BytesIO()
    Image.fromarray(COLOURS[:, :, :3]).save(file, "JPEG", exif=exif)
    assert opened(tmp_path, "a.jpg", file.getvalue()).remarks == []


@pytest.mark.parametrize(
    ("name", "patch", "reason"),
    [
        ("a.jpg", 12, "cannot handle 12-bit layers"),
        ("a.bmp", -5, "image file is truncated"),
    ],
)
def test_what_pillow_does_not_read_is_an_error_with_its_words(tmp_path, name: str, patch: int, reason: str) -> None:
    """Damaged, or of a kind that it does not know: the error says both ways out."""
    path, file = tmp_path / name, io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, Image.registered_extensions()[path.suffix])
    data = bytearray(file.getvalue())
    if patch < 0:
        del data[patch:]
    else:
        data[data.index(b"\xff\xc0") + 4] = patch  # bits of a sample
    path.write_bytes(data)
    message = rf"by Pillow \(.*{reason}.*\); download it again if it is damaged, else save it as PNG"
    with pytest.raises(SourceError, match=message):
        list(open_images({"x": str(path)}).read())


def profile(**columns: tuple[float, float, float]) -> bytes:
    """The profile of sRGB, with other colours for `rXYZ`, `gXYZ` and `bXYZ`."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    for at in range(132, 132 + 12 * int.from_bytes(data[128:132], "big"), 12):
        name, offset, _ = struct.unpack_from(">4sII", data, at)
        if values := columns.get(name.decode()):
            struct.pack_into(">3i", data, offset + 8, *[round(value * 65536) for value in values])
    return bytes(data)


DISPLAY_P3 = {"rXYZ": (0.5151, 0.2412, -0.0011), "gXYZ": (0.2920, 0.6922, 0.0419), "bXYZ": (0.1571, 0.0666, 0.7841)}


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif", ".webp"])
@pytest.mark.parametrize(
    ("data", "said"),
    [(profile(), False), (profile(**DISPLAY_P3), True), (b"no profile", False)],
    ids=["s", "p3", "bad"],
)
def test_profiles_other_than_srgb_are_counted(tmp_path, suffix: str, data: bytes, said: bool) -> None:
    """However the profile is called; values stay, and one that nobody can read says nothing."""
    for name in "ab":
        Image.fromarray(COLOURS[:, :, :3]).save(tmp_path / f"{name}{suffix}", icc_profile=data)
    source = opened(tmp_path, f"a{suffix}", (tmp_path / f"a{suffix}").read_bytes())
    assert open_images({"x": str(tmp_path)}).remarks == ([f"field x, 2 files: {PROFILE}"] if said else [])
    assert len(source) == 1


@pytest.mark.parametrize(
    ("chunks", "said"),
    [
        ({b"gAMA": struct.pack(">I", 100_000)}, True),
        ({b"gAMA": struct.pack(">I", 45_455)}, False),
        ({b"gAMA": struct.pack(">I", 100_000), b"sRGB": b"\0"}, False),
        ({b"cICP": bytes((9, 16, 0, 1)), b"sRGB": b"\0"}, True),
        ({b"cICP": bytes((1, 13, 0, 1)), b"gAMA": struct.pack(">I", 100_000)}, False),
    ],
)
def test_colours_of_png_other_than_srgb_are_counted(tmp_path, chunks: dict[bytes, bytes], said: bool) -> None:
    """Linear light and HDR: the first chunk of cICP, iCCP, sRGB and gAMA that is there decides; values stay."""
    file = io.BytesIO()
    Image.fromarray(COLOURS[:, :, :3]).save(file, "PNG")
    head, pixels = file.getvalue()[:33], file.getvalue()[33:]  # an older Pillow leaves out chunks that it does not know
    data = head + b"".join(chunk(kind, body) for kind, body in chunks.items()) + pixels
    assert opened(tmp_path, "a.png", data).remarks == ([f"field x, 1 file: {OTHER_COLOURS}"] if said else [])


def test_orient_refuses_a_tag_behind_the_pixels(tmp_path) -> None:
    """The size of a PNG is taken from what stands before its pixels; without `--orient` they stay."""
    exif, file = Image.Exif(), io.BytesIO()
    exif[274] = 6
    Image.fromarray(COLOURS[:, :, :3]).save(file, "PNG")
    data = file.getvalue()
    opened(tmp_path, "a.png", data[:-12] + chunk(b"eXIf", exif.tobytes()[6:]) + data[-12:])
    with pytest.raises(SourceError, match=r"a\.png: has its orientation tag \(EXIF\) behind the pixels"):
        list(open_images({"x": str(tmp_path)}, orient=True).read())
