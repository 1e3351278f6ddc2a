"""JPEG files kept as they are: decoded as Pillow does, given back byte for byte, and damaged ones never a crash."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from jpeg_files import JPEGS, as_jpeg, by_pillow, photograph
from numpy.typing import NDArray
from stored_frames import Guarded, numbers

from packer.codecs import (
    NAMED,
    EncodedImage,
    FrameCodec,
    FrameError,
    Frames,
    checked_jpeg,
    decode_jpeg,
    file_of,
    file_of_frame,
)


def decoded(frame: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """What a frame decodes to, in memory of its own between guard bytes."""
    out = Guarded(int(np.prod(shape)))
    frames = Frames(numbers([[0, len(frame)]]), numbers([len(out.out)]), None, numbers([shape]))
    try:
        FrameCodec(NAMED["jpeg"], np.dtype("u1"), shape[2]).decode_frames(memoryview(frame), frames, out.out)
    finally:
        assert out.is_whole()
    return out.out.reshape(shape)


def encoded(image: NDArray[Any]) -> bytes:
    return bytes(FrameCodec(NAMED["jpeg"], np.dtype("u1"), image.shape[2]).encode(image))


@pytest.mark.parametrize("name", JPEGS)
def test_pixels_are_those_of_pillow(name: str) -> None:
    """Of every size, subsampling and sort of file, bit for bit, whether it is checked or read; the file comes back."""
    file = JPEGS[name]
    pixels = by_pillow(file)
    np.testing.assert_array_equal(checked_jpeg(file, pixels.shape[2]), pixels)
    frame = encoded(EncodedImage.of(pixels, file))
    np.testing.assert_array_equal(decoded(frame, pixels.shape), pixels)
    assert bytes(file_of_frame(memoryview(frame), pixels.nbytes)) == file


def test_gray_files_fit_fields_of_colours() -> None:
    """Gray is repeated in each channel, as Pillow converts it."""
    file = as_jpeg(photograph(40, 30), "L")
    pixels = by_pillow(file, "RGB")
    np.testing.assert_array_equal(decoded(encoded(EncodedImage.of(pixels, file)), pixels.shape), pixels)


@pytest.mark.parametrize("more", [-1, 0, 1, 2])
def test_a_file_as_long_as_its_pixels_is_no_raw_frame(more: int) -> None:
    """Lengths around that of the pixels: the file comes back, and is decoded; so do raw pixels that look like one."""
    pixels = by_pillow(as_jpeg(photograph(16, 24)))
    plain = as_jpeg(photograph(16, 24))
    file = as_jpeg(photograph(16, 24), comment=b"c" * (pixels.nbytes + more - len(plain) - 4))
    assert len(file) == pixels.nbytes + more
    frame = encoded(EncodedImage.of(pixels, file))
    np.testing.assert_array_equal(decoded(frame, pixels.shape), pixels)
    assert bytes(file_of_frame(memoryview(frame), pixels.nbytes)) == file
    lookalike = np.frombuffer(file[:1152].ljust(1152, b"\0"), np.uint8).reshape(16, 24, 3)
    frame = encoded(lookalike)
    np.testing.assert_array_equal(decoded(frame, lookalike.shape), lookalike)
    assert not file_of_frame(memoryview(frame), lookalike.nbytes)


def test_what_is_made_from_an_image_has_no_file() -> None:
    """Crops, copies and sums are other images; pickling keeps the file."""
    image = EncodedImage.of(np.zeros((4, 4, 3), np.uint8), b"file")
    for other in (image[:2], image.copy(), image + 1, np.stack([image]), np.asarray(image), image.view()):
        assert file_of(other) == b""
    assert file_of(pickle.loads(pickle.dumps(image))) == b"file"


@pytest.mark.parametrize("name", ["(61, 75) 4:2:0 ", "(61, 75) 4:4:4 progressive", "gray", "restart markers"])
def test_a_damaged_frame_gives_an_error_or_pixels_of_its_shape(name: str) -> None:
    """Cut anywhere, or with bytes changed: nothing beyond its own memory is written, and nothing crashes."""
    file, rng = JPEGS[name], np.random.default_rng(0)
    shape = by_pillow(file).shape
    refused = 0
    for n in range(200):
        broken = bytearray(file[: rng.integers(len(file))] if n % 4 == 0 else file)
        for at in rng.integers(0, max(len(broken), 1), n % 3 + 1 if broken else 0).tolist():
            broken[at] = rng.integers(256)
        try:
            decoded(bytes(broken), shape)
        except FrameError:
            refused += 1
    assert refused


@pytest.mark.parametrize("shape", [(75, 61, 3), (30, 150, 3), (1, 13725, 1)])
def test_an_image_of_another_shape_is_refused(shape: tuple[int, int, int]) -> None:
    """Even one with as many pixels."""
    with pytest.raises(FrameError):
        decoded(JPEGS["(61, 75) 4:2:0 "][:-2], shape)


@pytest.mark.parametrize("name", JPEGS)
def test_the_first_rows_are_those_of_the_whole_image(name: str) -> None:
    """However many are wanted, bit for bit; of images that are decoded 2, 4 or 8 times as small, too."""
    file = memoryview(JPEGS[name])
    shape = by_pillow(JPEGS[name]).shape
    for factor in (1, 2, 4, 8):
        whole = decode_jpeg(file, shape, factor=factor)
        for rows in range(factor, shape[0] // factor * factor, 5 * factor):
            first = decode_jpeg(file, shape, factor=factor, rows=rows)
            np.testing.assert_array_equal(first[: rows // factor], whole[: rows // factor])


def test_rows_below_are_not_decoded() -> None:
    """Of a file whose rows lie one after another, restart markers between them or not."""
    for name in ("(61, 75) 4:2:0 ", "restart markers", "(61, 75) of 411"):
        assert len(decode_jpeg(memoryview(JPEGS[name]), (61, 75, 3), rows=8)) == 24
