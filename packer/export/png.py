"""Image files, one for each image, or frame of a clip: OUT/FIELD/NAME.png, or the JPEG file that the dataset keeps."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packer.codecs import EncodedImage, bands_of, file_of, files_of
from packer.errors import UsageError
from packer.export.files import Files, Writer
from packer.format import FieldSpec
from packer.sources import Block, PackedSource
from packer.sources.images import GRAY, GRAY_ALPHA, IHDR, RGB, RGBA, SIGNATURE, chunk_parts

#: Pillow's modes and PNG's colour types, by channels.
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_COLOURS = {1: GRAY, 2: GRAY_ALPHA, 3: RGB, 4: RGBA}
_OTHER_FIELDS = "name other fields with --fields"
#: For each format: its dtypes, its channels, both in words, and advice for all others.
_FORMATS: dict[str, tuple[Sequence[str], Sequence[int], str, str]] = {
    "PNG": (
        ("uint8", "uint16"),
        (1, 2, 3, 4),
        "uint8 or uint16 with 1 to 4 channels",
        f"{_OTHER_FIELDS}, or export to hdf5",
    ),
    "BMP": (("uint8",), (1, 3), "uint8 with 1 or 3 channels", f"use --values png, or {_OTHER_FIELDS}"),
}
#: Axes of a clip: frames, height, width, channels.
_CLIP_AXES = 4
#: PNG stores height and width as 31-bit numbers, neither of them 0.
_LONGEST = 2**31 - 1
#: Bytes of an IDAT chunk: PNG allows 2^31 - 1, but smaller chunks are read with less memory.
_CHUNK_BYTES = 2**24


class PngWriter(Writer):
    """Writes a PNG file for each sample and field, or for each frame of a clip: OUT/FIELD/NAME/00000000.png."""

    keeps_files = False

    def __init__(self, source: PackedSource, files: Files) -> None:
        for spec in source.fields:
            check_image(image_spec(spec))
        super().__init__(source, files)

    def write(self) -> Generator[Block]:
        for block, names in self._blocks():
            for field, values in block.items():
                for value, name in zip(values, names, strict=True):
                    sides = value.shape[:-1]
                    if not 0 < min(sides) <= max(sides) <= _LONGEST:
                        raise UsageError(
                            f"field {field!r}, sample {name!r}: PNG cannot hold {sides} pixels; export to hdf5"
                        )
                    for file_name, image in images_of(name, value):
                        self._write_image(field, file_name, image)
            yield block

    def _write_image(self, field: str, name: str, image: NDArray[Any]) -> None:
        if self.keeps_files and (data := file_of(image)):
            with self._files.create(f"{field}/{name}", ".jpg") as file:
                file.write(data)
            return
        with self._files.create(f"{field}/{name}", ".png") as file:
            write_png(file, image)


class FilesWriter(PngWriter):
    """Writes the JPEG files that the dataset keeps, byte for byte, and PNG files of all other images."""

    keeps_files = True


def image_spec(spec: FieldSpec) -> FieldSpec:
    """Return the field of the frames of clips; of images their own."""
    is_clip = spec.kind == "array" and len(spec.shape) == _CLIP_AXES
    return msgspec.structs.replace(spec, kind="image", shape=spec.shape[1:]) if is_clip else spec


def images_of(name: str, value: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the images that a sample holds, with their names: that of the sample, in a clip with the frame's number."""
    if value.ndim < _CLIP_AXES:
        yield name, value
        return
    for number, step in enumerate(bands_of(value, 1)):
        yield f"{name}/{number:08d}", EncodedImage.of(step[0], *files_of(step))


def write_png(file: BinaryIO, image: NDArray[Any], level: int = 6) -> None:
    """Write an image (H, W, C) of uint8 or uint16 and 1 to 4 channels; `level` is zlib's, 0 to 9."""
    if image.dtype == np.uint8:
        pixels = image[:, :, 0] if image.shape[2] == 1 else image
        Image.fromarray(np.ascontiguousarray(pixels), _MODES[image.shape[2]]).save(file, "PNG", compress_level=level)
        return
    # Pillow's only 16-bit mode is gray.
    height, width, channels = image.shape
    file.write(SIGNATURE)
    file.writelines(chunk_parts(b"IHDR", IHDR.pack(width, height, 16, _COLOURS[channels], 0, 0, 0)))
    data = zlib.compress(_scanlines(image), level)
    for start in range(0, len(data), _CHUNK_BYTES):
        file.writelines(chunk_parts(b"IDAT", data[start : start + _CHUNK_BYTES]))
    file.writelines(chunk_parts(b"IEND", b""))


def _scanlines(image: NDArray[Any]) -> bytes:
    """Return the rows with PNG's filter `up` before each: every byte less the one above it."""
    rows = np.ascontiguousarray(image.astype(">u2")).view(np.uint8).reshape(len(image), -1)
    lines = np.empty((len(rows), rows.shape[1] + 1), np.uint8)
    lines[:, 0] = 2
    lines[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=lines[1:, 1:])
    return lines.tobytes()


def check_image(spec: FieldSpec, format_name: str = "PNG") -> None:
    """Raise UsageError if a field cannot be written to PNG, or BMP, without a loss."""
    dtypes, channels, images_in_words, advice = _FORMATS[format_name]
    if spec.kind != "image" or spec.dtype not in dtypes or spec.shape[2] not in channels:
        values_in_words = f"{spec.kind} of {spec.dtype}" + (
            f" with {spec.shape[2]} channels" if spec.kind == "image" else ""
        )
        raise UsageError(
            f"field {spec.name!r} is {values_in_words}: {format_name} holds images of {images_in_words}; {advice}"
        )
