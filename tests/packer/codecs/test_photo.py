"""The filter and the codecs for photographs: every bit comes back, by numpy and by machine code alike."""

from __future__ import annotations

import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from real_files import real_files
from stored_frames import Guarded, as_memory, numbers
from ways import handled

from packer.codecs import NAMED, FrameCodec, Frames, compiled, filters
from packer.convert import convert
from packer.format import FieldSpec
from packer.writer import DatasetWriter
from readers import PackedDataset

CODECS = ("photo+lz4", "photo+zstd")
every_codec = pytest.mark.parametrize("codec", CODECS)
every_dtype = pytest.mark.parametrize("dtype", ["uint8", "uint16"])
every_pixel = pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
odd_shuffled = pytest.mark.skipif(
    tuple(map(int, numcodecs.__version__.split(".")[:2])) < (0, 16),
    reason="older numcodecs takes no elements that the frame is not made of, and LZ4 of odd sizes stays unshuffled",
)
images = hnp.arrays(
    st.sampled_from([np.uint8, np.uint16]), hnp.array_shapes(min_dims=4, max_dims=4, min_side=0, max_side=6)
)
#: Heights and widths: odd ones, of one row and of none.
SIZES = [(5, 7), (1, 9), (33, 31), (0, 4), (2, 1), (64, 64), (70, 3)]


def as_specified(image: NDArray[Any]) -> NDArray[Any]:
    """What FORMAT.md says is stored of one image (H, W, C), number by number."""
    bits, stored = 8 * image.itemsize, image.copy()
    height, width, channels = image.shape

    def less_green(y: int, x: int, c: int) -> int:
        colour = channels in (3, 4) and c in (0, 2)
        return int(image[y, x, c]) - (int(image[y, x, 1]) if colour else 0)

    for y, x, c in np.ndindex(height, width, channels):
        d = (less_green(y, x, c) - (less_green(y - 1, x, c) if y else 0)) % 2**bits
        stored[y, x, c] = 2 * d if d < 2 ** (bits - 1) else 2 * (2**bits - d) - 1
    return stored


def picture(height: int, width: int, channels: int, dtype: str, seed: int = 0) -> NDArray[Any]:
    """Something like a photograph: soft light, some noise, colours that go together."""
    rng = np.random.default_rng(seed)
    y, x, c = np.indices((height, width, channels))
    light = 90 + 60 * np.sin(y / 29 + seed) + 50 * np.cos(x / 27) + 8 * c
    return ((light + rng.integers(0, 2, light.shape)) * 257 ** (dtype == "uint16")).astype(dtype)


# ---------------------------------------------------------------- the filter


def test_literal_values() -> None:
    """Red and blue less green, less the row above, and signs in the lowest bit; alpha by itself."""
    image = np.array([[[10, 7, 7, 255]], [[9, 8, 5, 254]]], np.uint8)
    # less green: 3 7 0 255, then 1 8 253 254; differences -2 1 -3 -1
    assert filters.store_photo(image[None])[0].tolist() == [[[6, 14, 0, 1]], [[3, 2, 5, 1]]]
    assert filters.store_photo(image[None, ..., :2])[0].tolist() == [[[20, 14]], [[1, 2]]]
    assert filters.store_photo(np.array([[[[2**15]], [[0]]]], np.uint16))[0].tolist() == [[[2**16 - 1]], [[2**16 - 1]]]


@given(images=images)
def test_what_is_stored_is_what_the_format_says(images: NDArray[Any]) -> None:
    """Number by number, for both dtypes and any channels; the caller's images stay as they are."""
    before = images.copy()
    stored = filters.store_photo(images)
    assert stored.dtype == images.dtype
    assert np.array_equal(stored, np.stack([as_specified(image) for image in images]) if len(images) else images)
    assert np.array_equal(images, before)


@given(images=images)
def test_numpy_gives_every_bit_back(images: NDArray[Any]) -> None:
    """With the wrap-around of both dtypes, for every shape."""
    back = filters.store_photo(images)
    filters.restore_photo(back)
    assert np.array_equal(back, images)


@pytest.mark.parametrize(
    ("height", "channels", "decoded"),
    [(20, 4, 1), (20, 3, 0), (20, -1, 0), (20, 21, 0), (20, 2**62, 0), (0, 4, 0), (-20, 4, 0)],
)
def test_pixels_that_do_not_fit_are_refused(loops: ModuleType, height: int, channels: int, decoded: int) -> None:
    """A row is whole pixels; the frame counts as one that cannot be decoded."""
    out, at, size, context = Guarded(400), numbers([0]), numbers([400]), loops.ZstdContext()
    data, frames = np.zeros(400, np.uint8), (numbers([[0, 400]]), size, at, numbers([height]))
    settings = 1, channels, 0.0, context.address
    assert loops.decode(compiled.CODECS["blosc"], data, *frames, *settings, out.out) == decoded
    assert out.is_whole()


# ---------------------------------------------------------------- frames


@odd_shuffled
@every_codec
@every_dtype
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [(33, 31), (192, 192), (257, 255), (101, 75)])
def test_all_but_the_tail_is_shuffled(codec: str, dtype: str, channels: int, size: tuple[int, int]) -> None:
    """Elements are pixels, or some of them, and blocks hold whole eights of elements, also of images of odd sizes."""
    pixel = channels * np.dtype(dtype).itemsize
    values = filters.store_photo(picture(*size, channels, dtype)[None])
    header = bytes(FrameCodec(NAMED[codec], np.dtype(dtype), channels).encode(values))[:16]
    element, nbytes, block = struct.unpack("<3xBII4x", header)
    assert nbytes == values.nbytes
    assert element == pixel or (codec == "photo+lz4" and element % pixel == 0)
    assert block % (8 * element) == 0
    assert nbytes % block < 8 * element * -(-nbytes // 2**16)


@odd_shuffled
@every_codec
@pytest.mark.parametrize("size", [63, 191])
def test_odd_sizes_shrink_as_even_ones(codec: str, size: int) -> None:
    """One pixel less on each side takes an eighth more at most."""
    coder = FrameCodec(NAMED[codec], np.dtype("u1"), 3)
    whole = picture(size + 1, size + 1, 3, "uint8")
    even, odd = (len(coder.encode(filters.store_photo(part[None]))) / part.nbytes for part in (whole, whole[1:, 1:]))
    assert odd < 1.125 * even


@every_codec
@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=2, max_size=4),
    channels=st.integers(1, 5),
    dtype=st.sampled_from(["uint8", "uint16"]),
    by_machine=st.booleans(),
)
def test_frames_come_back(
    codec: str, shapes: list[tuple[int, int]], channels: int, dtype: str, by_machine: bool
) -> None:
    """Images of any sizes in one call, in both ways of decoding."""
    whole = [picture(h, w, channels, dtype, n) for n, (h, w) in enumerate(shapes)]
    coder = FrameCodec(NAMED[codec], np.dtype(dtype), channels)
    stored = [bytes(coder.encode(filters.store_photo(image[None]))) for image in whole]
    ends, sizes = np.cumsum([len(frame) for frame in stored]), numbers([image.nbytes for image in whole])
    spans = np.stack([ends - [len(frame) for frame in stored], ends], axis=1).astype(np.int64)
    frames = Frames(spans, sizes, shapes=numbers([image.shape for image in whole]))
    out = np.empty(int(sizes.sum()), np.uint8)
    with handled(by_machine=by_machine):
        coder.decode_frames(as_memory(b"".join(stored)), frames, out)
    assert out.tobytes() == b"".join(image.tobytes() for image in whole)


def test_frames_kept_raw_are_undone_too(tmp_path: Path) -> None:
    """Noise shrinks with no codec: its frames hold what the filter makes."""
    noise = np.random.default_rng(0).integers(0, 256, (4, 50, 50, 3), np.uint8)
    spec = FieldSpec(name="x", dtype="uint8", kind="image", shape=(50, 50, 3))
    with DatasetWriter(tmp_path / "d", [spec], codec="photo+lz4") as writer:
        for image in noise:
            writer.add({"x": image})
    assert np.array_equal(PackedDataset(tmp_path / "d")[[0, 1, 2, 3]]["x"].permute(0, 2, 3, 1).numpy(), noise)


def pixels(folder: Path) -> Any:
    """The one field of the first sample."""
    (values,) = PackedDataset(folder, verify=True)[0].values()
    return values


def test_every_valid_png_comes_back(tmp_path: Path) -> None:
    """Packed with `none`, and with both codecs: equal pixels, of every kind of file."""
    for number, file in enumerate(real_files("png_odd/**/*.png", "png_pairs/**/*.png")):
        if tuple(file.read_bytes()[24:26]) == (16, 4):  # gray with alpha of 16 bits, which is refused
            continue
        source = tmp_path / f"in{number}"
        source.mkdir()
        (source / "a.png").write_bytes(file.read_bytes())
        found = []
        for codec in ("none", *CODECS):
            convert([source], tmp_path / f"{codec}{number}", codec=codec, workers=0)
            found.append(pixels(tmp_path / f"{codec}{number}"))
        for values in found[1:]:
            assert values.dtype == found[0].dtype
            assert np.array_equal(values.numpy(), found[0].numpy()), file
