"""Pairs of PNG files and of clips of them, JPEG files and videos, cut from the photographs that scikit-image ships."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import numpy as np
from PIL import Image

#: Colour photographs in the scikit-image wheel itself; the others of its gallery would be downloaded.
PHOTOGRAPHS = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "retina.jpg",
    "rocket.jpg",
)
SCALE = 4
PATCH = 64
PATCHES_PER_PHOTOGRAPH = 240
PICTURES = 40
CLIPS = 18
VIDEOS = 60
FILES_PER_CLASS = 16


def photographs() -> Iterator[tuple[str, Image.Image]]:
    """Yield the name and RGB picture of each photograph."""
    for file in PHOTOGRAPHS:
        with files("skimage").joinpath("data").joinpath(file).open("rb") as stream:
            picture = Image.open(stream).convert("RGB")
            picture.info.pop("icc_profile", None)  # one is Adobe RGB, of which each example would speak
            yield Path(file).stem, picture


def make_pairs(out: Path) -> None:
    """Write `out`/lr and `out`/hr: pairs of 16 and 64 px, the two files of a pair of one name."""
    lr, hr = out / "lr", out / "hr"
    rng = np.random.default_rng(0)
    for name, picture in photographs():
        for i in range(PATCHES_PER_PHOTOGRAPH):
            patch = _cut(picture, PATCH, PATCH, rng)
            _save_pair(patch, lr / f"{name}_{i:03d}.png", hr / f"{name}_{i:03d}.png")


def make_pictures(out: Path) -> None:
    """Write `out`/lr and `out`/hr: pairs of many sizes, named 0001x4.png and 0001.png."""
    lr, hr = out / "lr", out / "hr"
    rng = np.random.default_rng(1)
    whole = [picture for _, picture in photographs()]
    for i in range(PICTURES):
        picture = whole[i % len(whole)]
        # Every height is another one; both sides are multiples of the scale, as in the usual data sets.
        height = 120 + SCALE * i
        width = SCALE * int(rng.integers(30, min(picture.width, 480) // SCALE + 1))
        _save_pair(_cut(picture, height, width, rng), lr / f"{i + 1:04d}x{SCALE}.png", hr / f"{i + 1:04d}.png")


def make_clips(out: Path) -> None:
    """Write `out`/lr and `out`/hr: pairs of clips, such as lr/003/00000000.png.

    A camera of 96 x 128 pixels moves over a photograph; clips have 8 to 12 frames.
    """
    rng = np.random.default_rng(2)
    whole = [picture for _, picture in photographs()]
    for i in range(CLIPS):
        lr, hr = (out / name / f"{i:03d}" for name in ("lr", "hr"))
        for frame, picture in enumerate(_camera(whole[i % len(whole)], 8 + i % 5, rng)):
            name = f"{frame:08d}.png"
            _save_pair(picture, lr / name, hr / name)


def make_videos(out: Path) -> None:
    """Write `out`/CLASS/00.mp4 and so on: clips of 16 to 31 frames of 96 x 128 pixels, 12 a second.

    There is a folder for each photograph that they show.
    """
    import av  # here, since it is not needed to cut pictures

    rng = np.random.default_rng(4)
    whole = list(photographs())
    for i in range(VIDEOS):
        folder, picture = whole[i % len(whole)]
        (out / folder).mkdir(parents=True, exist_ok=True)
        with av.open(out / folder / f"{i // len(whole):02d}.mp4", "w") as file:
            # By one thread the same bytes come each time.
            stream = file.add_stream("libx264", rate=12, options={"threads": "1", "crf": "20"}, width=128, height=96)
            for frame in _camera(picture, 16 + i % 16, rng):
                file.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(frame))))
            file.mux(stream.encode(None))


def _camera(picture: Image.Image, frames: int, rng: np.random.Generator) -> Iterator[Image.Image]:
    """Yield what a camera of 96 x 128 pixels sees that moves over a picture."""
    speed = rng.integers(-3, 4, 2)
    room = (frames - 1) * np.abs(speed)
    start = rng.integers(0, np.array(picture.size) - (128, 96) - room + 1) + np.where(speed < 0, room, 0)
    for frame in range(frames):
        left, top = (start + frame * speed).tolist()
        yield picture.crop((left, top, left + 128, top + 96))


def make_photographs(out: Path) -> None:
    """Write `out`/CLASS/00.jpg and so on: JPEG files of many sizes, a folder for each photograph that they show."""
    rng = np.random.default_rng(3)
    for name, picture in photographs():
        (out / name).mkdir(parents=True)
        for i in range(FILES_PER_CLASS):
            height, width = rng.integers(96, 193, 2).tolist()
            file = out / name / f"{i:02d}.jpg"
            _cut(picture, height, width, rng).save(file, quality=90, progressive=i % 4 == 3)


def _cut(picture: Image.Image, height: int, width: int, rng: np.random.Generator) -> Image.Image:
    left = int(rng.integers(0, picture.width - width + 1))
    top = int(rng.integers(0, picture.height - height + 1))
    return picture.crop((left, top, left + width, top + height))


def _save_pair(patch: Image.Image, lr: Path, hr: Path) -> None:
    for path in (lr, hr):
        path.parent.mkdir(parents=True, exist_ok=True)
    patch.save(hr)
    small = (patch.width // SCALE, patch.height // SCALE)
    patch.resize(small, Image.Resampling.BICUBIC).save(lr)
