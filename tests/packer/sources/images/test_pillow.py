"""TIFF and EXIF: pixels are those that Pillow gives, and the plan says what was changed or not applied."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
from opened_sources import open_images
from PIL import Image, ImageCms, ImageOps, PngImagePlugin

from packer.errors import SourceError
from packer.sources import Source
from packer.sources.images import formats

COLOURS = np.random.default_rng(0).integers(0, 256, (3, 4, 4), dtype=np.uint8)


def tiff(pixels: np.ndarray, bits: int = 8, **tags: list[int]) -> bytes:
    """A little-endian TIFF of one strip; `tags` are further shorts by `t<number>`."""
    height, width, *more = pixels.shape
    samples = more[0] if more else 1
    data = np.packbits(pixels, axis=1).tobytes() if bits == 1 else pixels.tobytes()
    entries = {256: [width], 257: [height], 258: [bits] * samples, 259: [1], 262: [2 if samples > 2 else 1]}
    entries |= {273: [8], 277: [samples], 278: [height], 279: [len(data)]}
    entries |= {int(tag[1:]): values for tag, values in tags.items()}
    file = bytearray(b"II*\0" + struct.pack("<I", 0) + data + bytes(len(data) % 2))
    directory = struct.pack("<H", len(entries))
    for tag, values in sorted(entries.items()):
        packed = struct.pack(f"<{len(values)}H", *values)
        if len(packed) > 4:
            place = struct.pack("<I", len(file))
            file += packed
            packed = place
        directory += struct.pack("<HHI", tag, 3, len(values)) + packed.ljust(4, b"\0")
    file[4:8] = struct.pack("<I", len(file))
    return bytes(file + directory + bytes(4))


def opened(folder: Path, name: str, data: bytes) -> Source:
    """The source of one file, after a check that its pixels are those of `np.asarray(Image.open(...))`."""
    (folder / name).write_bytes(data)
    source = open_images({"x": str(folder / name)})
    (block,) = source.read()
    with Image.open(io.BytesIO(data)) as picture:
        expected = np.asarray(picture.convert("L") if picture.mode == "1" else picture)
    np.testing.assert_array_equal(np.squeeze(block["x"][0]), np.squeeze(expected))
    return source


MULTIPLIED = np.concatenate([COLOURS[..., :3].astype(int) * COLOURS[..., 3:] // 255, COLOURS[..., 3:]], 2).astype("u1")
GRAY = COLOURS[:, :, 0]
TIFFS: dict[str, tuple[np.ndarray, dict[str, Any], tuple[int, ...], str]] = {
    "RGB": (COLOURS[:, :, :3], {}, (3, 4, 3), ""),
    "alpha of its own": (COLOURS, {"t338": [2], "t274": [1]}, (3, 4, 4), ""),
    "colours multiplied by alpha": (MULTIPLIED, {"t338": [1]}, (3, 4, 4), formats.CHANGED_TIFF),
    "a fourth sample that is no alpha": (COLOURS, {"t338": [0]}, (3, 4, 3), formats.CHANGED_TIFF),
    "1 bit": ((GRAY > 99).astype("u1"), {"bits": 1}, (3, 4, 1), formats.FEW_BITS),
    "white is zero": (GRAY, {"t262": [0]}, (3, 4, 1), formats.CHANGED_TIFF),
    "white is zero in 16 bits": (GRAY.astype("u2"), {"bits": 16, "t262": [0]}, (3, 4, 1), formats.CHANGED_TIFF),
    "signed": (GRAY.astype("i2") - 99, {"bits": 16, "t339": [2]}, (3, 4, 1), ""),
} | {
    f"turn {turn}": (COLOURS[:, :, :3], {"t274": [turn]}, (3, 4, 3) if turn < 5 else (4, 3, 3), formats.CHANGED_TIFF)
    for turn in range(2, 9)
}


@pytest.mark.parametrize(("pixels", "tags", "shape", "said"), TIFFS.values(), ids=TIFFS)
def test_what_pillow_changes_of_a_tiff_is_said(
    tmp_path: Path, pixels: np.ndarray, tags: dict[str, Any], shape: tuple[int, ...], said: str
) -> None:
    """One remark says so; nothing is said of what stays as it is, as signed values of 16 bits do."""
    source = opened(tmp_path, "a.tif", tiff(pixels, **tags))
    assert (source.fields[0].shape, source.fields[0].dtype) == (shape, pixels.dtype)
    assert source.remarks == ([f"field x, 1 file: {said}"] if said else [])


@pytest.mark.parametrize("suffix", [".jpg", ".webp"])
def test_the_orientation_of_other_files_is_not_applied_and_said(tmp_path, suffix: str) -> None:
    """Pixels stay where a JPEG or WebP has them, whatever its tag says."""
    exif = Image.Exif()
    exif[274] = 6
    file = io.BytesIO()
    Image.fromarray(COLOURS[:, :, :3]).save(file, Image.registered_extensions()[suffix], exif=exif)
    source = opened(tmp_path, f"a{suffix}", file.getvalue())
    assert source.fields[0].shape == (3, 4, 3)
    assert source.remarks == [f"field x, 1 file: {formats.NOT_TURNED}"]


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
    said = formats.CHANGED_TIFF if suffix == ".tif" else formats.TURNED
    assert source.remarks == ([f"field x, 1 file: {said}"] if 2 <= turn <= 8 else [])


def test_a_png_with_a_tag_is_counted(tmp_path) -> None:
    """However far from the beginning the tag stands; its pixels stay without `--orient`."""
    exif, info = Image.Exif(), PngImagePlugin.PngInfo()
    exif[274] = 3
    info.add_text("more", "c" * 5000)
    Image.fromarray(COLOURS[:, :, :3]).save(tmp_path / "a.png", exif=exif, pnginfo=info)
    source = opened(tmp_path, "a.png", (tmp_path / "a.png").read_bytes())
    assert source.remarks == [f"field x, 1 file: {formats.NOT_TURNED}"]


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
        ("a.tif", {"t259": [34712]}, r"34712"),
        ("a.tif", {"t262": [32803]}, "unknown pixel mode"),
        ("a.tif", -30, "unknown pixel mode"),
        ("a.jpg", 12, "cannot handle 12-bit layers"),
        ("a.bmp", -5, "image file is truncated"),
    ],
)
def test_what_pillow_does_not_read_is_an_error_with_its_words(
    tmp_path, name: str, patch: int | dict[str, list[int]], reason: str
) -> None:
    """Damaged, or of a kind that it does not know: the error says both ways out."""
    path, kind = tmp_path / name, Image.registered_extensions()[Path(name).suffix]
    if isinstance(patch, dict):
        path.write_bytes(tiff(COLOURS[:, :, :3], **patch))
    else:
        file = io.BytesIO(tiff(COLOURS[:, :, :3])) if kind == "TIFF" else io.BytesIO()
        if kind != "TIFF":
            Image.new("RGB", (64, 64)).save(file, kind)
        data = bytearray(file.getvalue())
        if patch < 0:
            del data[patch:]
        else:
            data[data.index(b"\xff\xc0") + 4] = patch  # bits of a sample
        path.write_bytes(data)
    advice = "else save its values as .npy" if kind == "TIFF" else "else save it as PNG"  # which holds fewer types
    with pytest.raises(SourceError, match=rf"by Pillow \(.*{reason}.*\); download it again if it is damaged, {advice}"):
        list(open_images({"x": str(path)}).read())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (tiff(COLOURS[:, :, :3], t262=[8]), "has LAB colours, which cannot be kept; save it as RGB"),
        (tiff(np.zeros((3, 4, 5), "u1")), "by Pillow .* else save its values as .npy"),
        (tiff(np.zeros((3, 4), "f2"), 16, t339=[3]), "by Pillow .* else save its values as .npy"),
        (tiff(np.zeros((3, 4), "i1"), t339=[2]), "signed 8-bit L, .*; save its values as .npy"),
    ],
    ids=["LAB", "five bands", "float16", "int8"],
)
def test_the_advice_on_a_tiff_can_be_followed(tmp_path, data: bytes, message: str) -> None:
    """Neither PNG nor --mode is proposed where it cannot hold the values."""
    (tmp_path / "a.tif").write_bytes(data)
    for options in ({}, {"mode": "rgb"}):
        with pytest.raises(SourceError, match=message):
            open_images({"x": str(tmp_path)}, **options)


def test_gray_multiplied_by_alpha_is_divided(tmp_path) -> None:
    """As RGBA is, with the same remark; Pillow before 13 does not read it, and that is said."""
    gray = np.minimum(COLOURS[:, :, :2], COLOURS[:, :, 1:2])
    (tmp_path / "a.tif").write_bytes(tiff(gray, t338=[1]))
    if int(PIL.__version__.split(".")[0]) < 13:
        with pytest.raises(SourceError, match="cannot be read as TIFF by Pillow"):
            open_images({"x": str(tmp_path)})
        return
    source = open_images({"x": str(tmp_path)})
    (block,) = source.read()
    expected = Image.frombytes("La", (4, 3), np.ascontiguousarray(gray).tobytes()).convert("LA")
    np.testing.assert_array_equal(block["x"][0], np.asarray(expected))
    assert source.remarks == [f"field x, 1 file: {formats.CHANGED_TIFF}"]


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
    assert open_images({"x": str(tmp_path)}).remarks == ([f"field x, 2 files: {formats.PROFILE}"] if said else [])
    assert len(source) == 1
