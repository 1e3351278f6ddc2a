"""JPEG files from the folder to the dataset and back: which are kept, which are refused, and what the dataset gives."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jpeg_files import JPEGS, as_jpeg, by_pillow, photograph, with_scans
from opened_sources import open_images
from PIL import Image

from packer.codecs import EncodedImage
from packer.convert import convert
from packer.errors import DamagedError, SourceError, UsageError
from packer.export import export
from packer.format import manifest as manifests
from packer.repack import repack
from packer.sources import SourceOptions, as_arrays
from packer.sources.images import formats, image_in, pillow
from packer.sources.images.pixels import SEVERAL
from packer.sources.looking import AFTER_END
from packer.verify import verify
from packer.writer import DatasetWriter
from readers import Crop, PackedDataset, ResizedCrop


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six photographs of different sizes and sorts."""
    place = tmp_path / "photos"
    place.mkdir()
    names = ("(61, 75) 4:2:0 ", "(7, 9) of 440", "(15, 17) 4:2:2 progressive", "restart markers", "RGB", "quality 1")
    for number, name in enumerate(names):
        (place / f"{number}.jpg").write_bytes(JPEGS[name])
    return place


def codec(dataset: Path, field: str = "image") -> list[str]:
    return [config["id"] for f in manifests.read(dataset).fields if f.name == field for config in f.codec]


def check(dataset: Path, folder: Path, **options: Any) -> None:
    """Check that samples are as Pillow reads the files, and that an export gives the bytes of these back."""
    opened = PackedDataset(dataset, verify=True)
    assert opened.names is not None
    for number, name in enumerate(opened.names):
        image = opened[number]["image"].permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(image, by_pillow((folder / f"{name}.jpg").read_bytes(), **options))
    out = dataset.with_suffix(".files")
    assert export(dataset, out).files == len(opened)
    for file in folder.glob("*.jpg"):
        assert (out / "image" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("workers", [0, 2])
def test_files_are_kept_and_come_back(folder: Path, tmp_path: Path, workers: int) -> None:
    """`auto` keeps JPEG files; whatever is then done with the dataset, their bytes stay."""
    packed = tmp_path / "a.packed"
    report = convert(str(folder), packed, workers=workers)
    assert codec(packed) == ["jpeg"]
    assert report.manifest.columns["image"].stored <= 7 + sum(f.stat().st_size for f in folder.iterdir())
    check(packed, folder)
    assert not verify(packed).damages
    repack(packed, tmp_path / "b.packed", seed=3, shard_size=4096, workers=workers)
    check(tmp_path / "b.packed", folder)
    repack(packed, tmp_path / "c.packed", codec="none")
    assert codec(tmp_path / "c.packed") == []
    export(tmp_path / "c.packed", tmp_path / "out")  # pixels do not know their file
    assert {file.suffix for file in (tmp_path / "out" / "image").iterdir()} == {".png"}


def test_images_of_one_size(tmp_path: Path) -> None:
    """A field of fixed shape keeps files too, and comes as one tensor."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.jpg").write_bytes(as_jpeg(photograph(20, 30, number)))
    convert(str(folder), tmp_path / "a.packed")
    assert codec(tmp_path / "a.packed") == ["jpeg"]
    check(tmp_path / "a.packed", folder)
    assert PackedDataset(tmp_path / "a.packed")[:]["image"].shape == (4, 3, 20, 30)


def test_other_files_and_turned_colours_are_pixels(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """PNG, and CMYK that became RGB, are stored as they were decoded; gray that became RGB is kept as a file."""
    Image.fromarray(photograph(9, 9)).save(folder / "p.png")
    (folder / "c.jpg").write_bytes(as_jpeg(photograph(40, 30), "CMYK"))
    (folder / "g.jpg").write_bytes(as_jpeg(photograph(40, 30), "L"))
    packed = tmp_path / "a.packed"
    with caplog.at_level(logging.INFO):
        convert(str(folder), packed, codec="jpeg", source=SourceOptions(mode="rgb"))
    assert "1 file: CMYK is turned into other colours by Pillow; codec jpeg stores their pixels" in caplog.text
    opened = PackedDataset(packed)
    for name in ("c.jpg", "g.jpg", "p.png"):
        image = opened[name[0]]["image"].permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(image, by_pillow((folder / name).read_bytes(), "RGB"))
    export(packed, tmp_path / "out")
    assert sorted(f.name for f in (tmp_path / "out" / "image").iterdir() if f.suffix == ".png") == ["c.png", "p.png"]
    assert (tmp_path / "out" / "image" / "g.jpg").read_bytes() == (folder / "g.jpg").read_bytes()


def test_turned_files_are_pixels(folder: Path, tmp_path: Path) -> None:
    """With `--orient` they are no longer the pixels of their file; the others are kept."""
    exif = Image.Exif()
    exif[274] = 6
    (folder / "turned.jpg").write_bytes(as_jpeg(photograph(40, 30), exif=exif))
    convert(str(folder), tmp_path / "a.packed", codec="jpeg", source=SourceOptions(orient=True))
    image = PackedDataset(tmp_path / "a.packed")["turned"]["image"].permute(1, 2, 0).numpy()
    upright = by_pillow((folder / "turned.jpg").read_bytes())
    np.testing.assert_array_equal(image, np.rot90(upright, -1))
    export(tmp_path / "a.packed", tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out" / "image").glob("*.png")) == ["turned.png"]


def test_auto_takes_other_codecs_for_other_pixels(folder: Path, tmp_path: Path) -> None:
    """Patches are no files; nor are gray images made from colours."""
    convert(str(folder), tmp_path / "a.packed", source=SourceOptions(patch=8))
    convert(str(folder), tmp_path / "b.packed", source=SourceOptions(mode="gray"))
    assert "jpeg" not in codec(tmp_path / "a.packed") + codec(tmp_path / "b.packed")


def test_cmyk_is_refused(tmp_path: Path) -> None:
    """The sentence names the way out."""
    (tmp_path / "c.jpg").write_bytes(as_jpeg(photograph(40, 30), "CMYK"))
    with pytest.raises(SourceError, match=r"c\.jpg.*CMYK.*--mode rgb"):
        convert(str(tmp_path / "c.jpg"), tmp_path / "a.packed")


def test_odd_files_are_kept_as_files(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    """Unusual sampling, and bytes around the image that libjpeg warns of, which is said once; crops are the same."""
    monkeypatch.setattr(pillow, "_said", bytearray(3))
    folder = tmp_path / "odd"
    folder.mkdir()
    file = JPEGS["(61, 75) 4:2:0 "]
    odd = [JPEGS["sampling 42"], JPEGS["sampling 13"], file[:-2] + bytes(9) + file[-2:], file[:20] + b"abc" + file[20:]]
    for number, data in enumerate(odd):
        (folder / f"{number}.jpg").write_bytes(data)
    with caplog.at_level(logging.INFO):
        convert(str(folder), tmp_path / "a.packed", workers=0)
    assert codec(tmp_path / "a.packed") == ["jpeg"]
    check(tmp_path / "a.packed", folder)
    assert caplog.text.count("libjpeg warns of some JPEG files") == 1
    assert 'extraneous bytes before marker 0xd9"): their pixels are whole' in caplog.text
    convert(str(folder), tmp_path / "b.packed", codec="none")
    crop = ResizedCrop(16, of="image", at="center", exact=True)
    kept, pixels = (PackedDataset(tmp_path / f"{name}.packed", crop=crop) for name in "ab")
    assert [kept[n]["image"].tolist() for n in range(4)] == [pixels[n]["image"].tolist() for n in range(4)]


def test_verify_finds_files_that_readers_refuse(tmp_path: Path, monkeypatch: Any) -> None:
    """Frames that hold another size, other colours or too many scans, as a hostile writer makes them."""
    shape = (40, 40, 3)
    frames = [
        with_scans(301),
        as_jpeg(photograph(40, 40), "CMYK"),
        as_jpeg(photograph(41, 40)),
        as_jpeg(photograph(40, 40)),
    ]
    with DatasetWriter(tmp_path / "d", codec="jpeg") as writer:
        for file in frames:
            writer.add({"image": EncodedImage.of(np.zeros(shape, np.uint8), file)})
    found = {damage.samples: damage.what for damage in verify(tmp_path / "d").damages}
    assert list(found) == [(0, 1), (1, 2), (2, 3)]
    assert "301 scans" in found[0, 1]
    assert "of 4 components" in found[1, 2]
    assert "says 41 x 40 pixels" in found[2, 3]
    with pytest.raises(DamagedError, match="says 41 x 40 pixels"):
        _ = PackedDataset(tmp_path / "d")[2]


def broken(kind: str) -> bytes:
    """A damaged file: cut short, or with a byte less in the middle."""
    file = JPEGS["(61, 75) 4:2:0 "]
    return file[: len(file) * 2 // 3] if kind == "cut" else file[: len(file) // 2] + file[len(file) // 2 + 60 :]


@pytest.mark.parametrize("codec", ["auto", "jpeg", "lz4"])
@pytest.mark.parametrize("kind", ["cut", "changed"])
def test_a_damaged_file_is_found_when_it_is_packed(folder: Path, tmp_path: Path, kind: str, codec: str) -> None:
    """It is named, and follows `--on-error`, whatever the codec is."""
    (folder / "9.jpg").write_bytes(broken(kind))
    with pytest.raises(SourceError, match=r"9\.jpg.*damaged JPEG: .*--on-error skip"):
        convert(str(folder), tmp_path / "a.packed", codec=codec)
    report = convert(str(folder), tmp_path / "b.packed", codec=codec, on_error="skip")
    assert [Path(bad.file).name for bad in report.rejected] == ["9.jpg"]
    assert len(PackedDataset(tmp_path / "b.packed")) == 6


def test_the_codec_is_for_images_that_jpeg_holds(tmp_path: Path) -> None:
    """Other fields are refused in a sentence."""
    Image.fromarray(np.zeros((4, 4, 4), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(UsageError, match=r"jpeg is for images .* not image uint8"):
        convert(str(tmp_path / "a.png"), tmp_path / "a.packed", codec="jpeg")
    with pytest.raises(UsageError, match="jpeg"):
        convert([{"x": np.zeros(4)}], tmp_path / "b.packed", codec="jpeg")


def test_crops_and_regions(folder: Path, tmp_path: Path) -> None:
    """Parts of kept files are those of their pixels."""
    convert(str(folder), tmp_path / "a.packed")
    dataset = PackedDataset(tmp_path / "a.packed", crop=Crop(4, of="image", at=(2, 3)))
    for number in range(len(dataset)):
        pixels = by_pillow((folder / f"{number}.jpg").read_bytes())
        np.testing.assert_array_equal(dataset[number]["image"].permute(1, 2, 0).numpy(), pixels[2:6, 3:7])
        region = dataset.read(number, "image", rows=slice(1, 6), columns=slice(2, 9))
        np.testing.assert_array_equal(region.permute(1, 2, 0).numpy(), pixels[1:6, 2:9])


@pytest.mark.filterwarnings("ignore:Image appears to be a malformed MPO file")
@pytest.mark.parametrize("damage", [0, 1])
def test_of_several_pictures_the_first_is_packed(tmp_path: Path, damage: int) -> None:
    """An MPO of a phone, with a gain map, is its first picture; one remark counts such files, whose bytes are kept."""
    folder = tmp_path / "phone"
    folder.mkdir()
    for number in range(2):
        first, gain_map = (Image.fromarray(photograph(*size, number)) for size in ((40, 30), (10, 8)))
        first.save(folder / f"{number}.jpg", "MPO", save_all=True, append_images=[gain_map])
    data = bytearray((folder / "1.jpg").read_bytes())
    if damage:  # its list of pictures cannot be read: what it lists are bytes after the end
        at = data.index(b"MPF\0") + 4
        data[at : at + 8] = b"\xff" * 8
        (folder / "1.jpg").write_bytes(data)
    files = "1 file" if damage else "2 files"
    remark, *others = open_images({"image": str(folder)}).remarks
    assert remark == f"field image, {files}: {SEVERAL}"
    assert [AFTER_END in other for other in others] == [True] * damage
    convert(str(folder), tmp_path / "a.packed", codec="jpeg")
    check(tmp_path / "a.packed", folder)


def test_a_second_image_in_a_file_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of small files the plan counts its bytes; of large ones, and of those in memory, the first is named when read."""
    monkeypatch.setattr(pillow, "_said", bytearray(3))
    second = as_jpeg(photograph(10, 8))
    (tmp_path / "a.jpg").write_bytes(as_jpeg(photograph(30, 20)) + second)
    assert open_images({"image": str(tmp_path)}).remarks == [f"{AFTER_END}: a.jpg ({len(second):,} bytes)"]
    monkeypatch.setattr(formats, "JPEG_HEAD_BYTES", 700)
    for name in "bc":
        (tmp_path / f"{name}.jpg").write_bytes(as_jpeg(photograph(30, 20)) + second)
    with caplog.at_level(logging.INFO):
        convert(str(tmp_path), tmp_path.with_name("out"), workers=0)
    assert [text.rpartition("/")[2] for text in caplog.messages if "go on after their end" in text] == ["a.jpg"]
    for kind in ("JPEG", "WEBP"):
        file = io.BytesIO()
        Image.fromarray(photograph(30, 20)).save(file, kind)
        for more, said in ((b"", 0), (b"junk" * 9, 1)):
            monkeypatch.setattr(pillow, "_said", bytearray(3))
            caplog.clear()
            with caplog.at_level(logging.INFO):
                image_in(file.getvalue() + more, "image", SourceOptions())
            assert len(caplog.messages) == said


def test_a_turned_image_in_memory_is_said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """As bytes, or as an image of PIL: its tag is not applied, as in files; how to do it is said once."""
    exif = Image.Exif()
    exif[274] = 6
    file = as_jpeg(photograph(30, 20), exif=exif)
    for value in (file, Image.open(io.BytesIO(file))):
        monkeypatch.setattr(pillow, "_said", bytearray(3))
        caplog.clear()
        with caplog.at_level(logging.INFO):
            samples = [as_arrays({"image": value}, number) for number in range(2)]
        assert samples[0]["image"].shape == (30, 20, 3)
        (remark,) = caplog.messages
        assert "an image of field image has an orientation tag" in remark
