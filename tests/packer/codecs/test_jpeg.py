"""JPEG files kept as they are: decoded as Pillow does, given back byte for byte, and damaged ones never a crash."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import numpy as np
import pytest
import simplejpeg
from jpeg_files import JPEGS, as_jpeg, by_pillow, changed, photograph, segment, with_scans
from numpy.typing import NDArray
from stored_frames import Guarded, as_memory, numbers

from packer.codecs import (
    NAMED,
    EncodedImage,
    FrameCodec,
    FrameError,
    Frames,
    check_jpeg,
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
        FrameCodec(NAMED["jpeg"], np.dtype("u1"), shape[2]).decode_frames(as_memory(frame), frames, out.out)
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
    np.testing.assert_array_equal(checked_jpeg(file, pixels.shape[2])[0], pixels)
    frame = encoded(EncodedImage.of(pixels, file))
    np.testing.assert_array_equal(decoded(frame, pixels.shape), pixels)
    assert bytes(file_of_frame(memoryview(frame), pixels.nbytes)) == file


# ---------------------------------------------------------------- what libjpeg says

_PLAIN, _RESTARTS = JPEGS["(61, 75) 4:2:0 "], JPEGS["restart markers"]
_PROGRESSIVE, _LARGE = JPEGS["(61, 75) 4:4:4 progressive"], as_jpeg(photograph(200, 300))
_HEAD_END, _DATA = segment(_PLAIN, 0xDB).start, segment(_LARGE, 0xDA).stop


def after(file: bytes, at: int, more: bytes, instead: int = 0) -> bytes:
    """A file with `more` bytes from one place on, instead of some of its own."""
    return file[:at] + more + file[at + instead :]


def with_byte(file: bytes, code: int, offset: int, value: int) -> bytes:
    """A file with another byte in the first segment of a marker."""
    return after(file, segment(file, code).start + offset, bytes([value]), 1)


def in_data(more: bytes, instead: int | None = None) -> bytes:
    """A large file with `more` bytes at a third of its data."""
    return after(_LARGE, _DATA + (len(_LARGE) - _DATA) // 3, more, len(more) if instead is None else instead)


_ICC = b"\xff\xe2\x00\x14ICC_PROFILE\0\x02\x01more"
_ADOBE = b"\xff\xee\x00\x0eAdobe\x00\x64\0\0\0\0\x07"
#: Files that libjpeg warns of, though nothing is lost.
SOUND = {
    "unknown JFIF revision": with_byte(_PLAIN, 0xE0, 9, 7),
    "3 extraneous bytes before marker 0xdb": after(_PLAIN, _HEAD_END, b"abc"),
    "extraneous bytes before marker 0xd9": after(_PLAIN, len(_PLAIN) - 2, bytes(20)),
    "bad ICC marker": after(_PLAIN, _HEAD_END, _ICC),
    "Unknown Adobe color transform": after(
        changed(_PLAIN, segment(_PLAIN, 0xE0), b""), segment(_PLAIN, 0xE0).start, _ADOBE
    ),
    "Invalid SOS parameters for sequential": JPEGS["an odd scan"],
}
#: Files that have lost pixels, by the words of libjpeg.
DAMAGED = {
    "Unsupported marker type 0xf7": in_data(b"\xff\xf7"),
    "Unsupported JPEG process: SOF type 0xc7": in_data(b"\xff\xc7\0\x08\x08\0\x01\0\x01\0"),
    "two SOI markers": in_data(_PLAIN, len(_LARGE)),
    "two SOF markers": after(_PLAIN, _HEAD_END, 2 * _PLAIN[segment(_PLAIN, 0xC0)]),
    "Bogus Huffman table definition": with_byte(_PLAIN, 0xC4, 5, 200),
    "Bogus marker length": in_data(b"\xff\xc4\0\x01"),
    "Bogus DQT index 9": with_byte(_PLAIN, 0xDB, 4, 9),
    "Bogus DAC index": in_data(b"\xff\xcc\0\4\x99\x01"),
    "Bogus sampling factors": with_byte(_PLAIN, 0xC0, 11, 0x77),
    "Quantization table 0x03 was not defined": with_byte(_PLAIN, 0xC0, 12, 3),
    "Invalid component ID": with_byte(_PLAIN, 0xDA, 5, 77),
    "cannot handle 9-bit layers": with_byte(_PLAIN, 0xC0, 4, 9),
    "Premature end of JPEG file": _LARGE[: len(_LARGE) // 2],
    "premature end of data segment": in_data(b"\xff\xd9"),
    "bad Huffman code": after(_LARGE, _DATA + 4774, b"\xff\0" * 8, 16),
    "instead of RST": after(_RESTARTS, _RESTARTS.index(b"\xff\xd1"), b"\xff\xd4", 2),
    "extraneous bytes before marker 0xd1": after(_RESTARTS, _RESTARTS.index(b"\xff\xd1"), b"abcdefghijkl"),
    "extraneous bytes before marker 0xc4": after(
        _PROGRESSIVE, _PROGRESSIVE.index(b"\xff\xc4", segment(_PROGRESSIVE, 0xDA).stop), b"abcdefghijkl"
    ),
}


@pytest.mark.parametrize("message", SOUND)
def test_files_that_libjpeg_warns_of_but_are_whole(message: str) -> None:
    """The pixels are those of Pillow, and the warning is told; a loss in the data is found behind it."""
    pixels, warning = checked_jpeg(SOUND[message], 3)
    assert message in warning
    np.testing.assert_array_equal(pixels, by_pillow(SOUND[message]))
    file = SOUND[message]
    middle = (segment(file, 0xDA).stop + len(file)) // 2
    for broken in (after(file, middle, b"\xff\xd9", 2), after(file, middle, b"\xff\xf7", 2), file[:middle]):
        with pytest.raises(ValueError, match=r"."):
            checked_jpeg(broken, 3)


@pytest.mark.parametrize("message", DAMAGED)
def test_files_that_have_lost_pixels(message: str) -> None:
    """Every error of libjpeg refuses a file, and every warning within a scan, also behind a harmless one.

    Of errors before the first scan, Pillow tells no more than that there is one.
    """
    with pytest.raises(ValueError, match=f"{message}|broken data stream"):
        checked_jpeg(DAMAGED[message], 3)
    at = segment(DAMAGED[message], 0xDB).start
    with pytest.raises(ValueError, match=r"."):
        checked_jpeg(after(DAMAGED[message], at, _ICC), 3)


def test_whatever_pillow_refuses_is_refused() -> None:
    """Two bytes of a marker, random bytes, an unknown marker again and again, a cut, another file behind a cut."""
    rng, others = np.random.default_rng(5), [JPEGS["gray"], _PROGRESSIVE, _RESTARTS]
    files = [_LARGE, as_jpeg(photograph(150, 90), progressive=True), as_jpeg(photograph(150, 90), "L", quality=95)]
    refused = 0
    for number in range(300):
        file = files[number % 3]
        at = int(rng.integers(segment(file, 0xDA).stop, len(file) - 80))
        broken = (
            after(file, at, bytes([0xFF, rng.integers(1, 255)]), 2),
            after(file, at, rng.bytes(512), 512),
            after(file, at, b"\xff\x99" * 32, 64),
            file[:at],
            file[:at] + others[number % 3],
        )[number % 5]
        try:
            wanted = by_pillow(broken)
        except (OSError, SyntaxError):
            refused += 1
            with pytest.raises(ValueError, match=r"."):
                checked_jpeg(broken, by_pillow(file).shape[2])
            continue
        with contextlib.suppress(ValueError):
            np.testing.assert_array_equal(checked_jpeg(broken, wanted.shape[2])[0], wanted)
    assert refused > 150


# ---------------------------------------------------------------- before anything is decoded


@pytest.mark.parametrize("claim", [(65500, 65500, 3), (61, 76, 3), (62, 75, 3)])
@pytest.mark.parametrize("how", [{}, {"factor": 8}, {"rows": 8}])
def test_a_file_of_another_size_is_not_decoded(
    claim: tuple[int, int, int], how: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever part of it is asked for, and so is one of other colours, or with very many scans."""
    monkeypatch.setattr(simplejpeg, "decode_jpeg", None)
    frame = segment(_PLAIN, 0xC0).start
    large = after(_PLAIN, frame + 5, claim[0].to_bytes(2, "big") + claim[1].to_bytes(2, "big"), 4)
    for file, shape, reason in (
        (large, (61, 75, 3), f"says {claim[0]} x {claim[1]} pixels of 3 components; 61 x 75 of 1 or 3"),
        (as_jpeg(photograph(61, 75), "CMYK"), (61, 75, 3), "of 4 components"),
        (_PLAIN, (61, 75, 1), "of 3 components; 61 x 75 of 1 are"),
        (with_scans(301), (40, 40, 3), "301 scans, more than 300"),
        (_PLAIN[: segment(_PLAIN, 0xDA).start], (61, 75, 3), "ends before its pixels begin"),
    ):
        with pytest.raises(ValueError, match=reason):
            decode_jpeg(memoryview(file), shape, **how)  # type: ignore[arg-type]
        if "scans" in reason or "ends" in reason:
            with pytest.raises(ValueError, match=reason):
                checked_jpeg(file, 3)


def test_heads_of_files_that_begin_alike() -> None:
    """One after another, of one program: a changed byte or a cut before the data of the first scan is seen."""
    scan = segment(_PLAIN, 0xDA)
    taller = after(_PLAIN, segment(_PLAIN, 0xC0).start + 5, (62).to_bytes(2, "big"), 2)
    for file, height in ((_PLAIN, 61), (taller, 62), (_PLAIN[: scan.stop], 61), (_PLAIN, 61), (taller, 62)):
        assert check_jpeg(file).height == check_jpeg(memoryview(file)).height == height
        with pytest.raises(ValueError, match="ends before"):
            check_jpeg(file[: scan.stop - 1])


def test_many_scans_are_read() -> None:
    """As many as any program writes."""
    file = with_scans(200)
    np.testing.assert_array_equal(decode_jpeg(memoryview(file), (40, 40, 3)), by_pillow(file))
    assert check_jpeg(file).is_sequential is False


# ---------------------------------------------------------------- frames


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
