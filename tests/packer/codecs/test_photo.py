"""The filter and the codecs for photographs: every bit comes back, by numpy and by machine code alike."""

from __future__ import annotations

import contextlib
import itertools
import random
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
from stored_frames import Guarded, numbers
from ways import handled

from packer.codecs import NAMED, FrameCodec, Frames, compiled, filters
from packer.convert import convert
from packer.export import export
from packer.format import FieldSpec
from packer.repack import repack
from packer.verify import verify
from packer.writer import DatasetWriter
from readers import Crop, PackedDataset

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


@every_dtype
@every_pixel
def test_machine_code_gives_what_numpy_gives(loops: ModuleType, dtype: str, channels: int) -> None:
    """Whatever the bytes are, at odd places too; nothing is written where none may be."""
    rng = np.random.default_rng(channels)
    stored = [rng.integers(0, 2**16, (h, w, channels)).astype(dtype) for h, w in SIZES]
    data = np.frombuffer(b"".join(values.tobytes() for values in stored), np.uint8)
    sizes = numbers([values.nbytes for values in stored])
    ends = sizes.cumsum()
    rows, item = numbers([w * channels * np.dtype(dtype).itemsize for _, w in SIZES]), np.dtype(dtype).itemsize
    spans = np.stack([ends - sizes, ends], axis=1)
    out = Guarded(len(data) + 1)
    done = loops.decode(
        compiled.CODECS["blosc"], data, spans, sizes, ends - sizes + 1, rows, item, channels, 0.0, out.out
    )
    assert done == len(stored)
    for values in stored:
        filters.restore_photo(values[None])
    assert out.out[1:].tobytes() == b"".join(values.tobytes() for values in stored)
    assert out.is_whole()


@pytest.mark.parametrize(("row", "channels"), [(20, 3), (20, -1), (20, 21), (20, 2**62), (0, 4), (-20, 4)])
def test_pixels_that_do_not_fit_are_refused(loops: ModuleType, row: int, channels: int) -> None:
    """A row is whole pixels; the frame counts as one that cannot be decoded."""
    out, at, size = Guarded(400), numbers([0]), numbers([400])
    data, span = np.zeros(400, np.uint8), numbers([[0, 400]])
    assert loops.decode(compiled.CODECS["blosc"], data, span, size, at, numbers([row]), 1, channels, 0.0, out.out) == 0
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
    frames = Frames(spans, sizes, rows=numbers([image.itemsize * image.shape[1] * channels for image in whole]))
    out = np.empty(int(sizes.sum()), np.uint8)
    with handled(by_machine=by_machine):
        undone = coder.decode_frames(memoryview(b"".join(stored)), frames, out)
    assert undone is by_machine
    for image, end in zip(whole, sizes.cumsum().tolist(), strict=True):
        found = out[end - image.nbytes : end].view(dtype).reshape(1, *image.shape)
        if not undone:
            coder.undo_filter(found)
        assert np.array_equal(found[0], image)


@every_codec
def test_damaged_frames_are_errors_or_values(loops: ModuleType, codec: str) -> None:
    """Two thousand frames with flipped, cut and added bytes: an error, or the same values in both ways."""
    chance = random.Random(5)
    image = picture(40, 33, 3, "uint8")
    coder = FrameCodec(NAMED[codec], np.dtype("u1"), 3)
    good = bytes(coder.encode(filters.store_photo(image[None])))
    assert len(good) < image.nbytes
    number, row = compiled.CODECS["blosc"], numbers([33 * 3])
    values = errors = 0
    for _ in range(2000):
        frame = bytearray(good[: chance.choice((len(good), len(good), chance.randrange(len(good))))])
        frame += bytes(chance.choice((0, 0, 0, 5)))
        for _ in range(chance.choice((1, 1, 2, 8)) if frame else 0):
            frame[chance.randrange(min(len(frame), chance.choice((16, 40, 10**6))))] = chance.randrange(256)
        out = Guarded(image.nbytes)
        span, size = numbers([[0, len(frame)]]), numbers([image.nbytes])
        data = np.frombuffer(bytes(frame), np.uint8)
        done = loops.decode(number, data, span, size, numbers([0]), row, 1, 3, 0.0, out.out)
        assert out.is_whole()
        with contextlib.suppress(ValueError):
            raw = coder.decode(memoryview(bytes(frame)), image.nbytes)
            plain = np.frombuffer(raw, np.uint8).reshape(1, *image.shape).copy()
            filters.restore_photo(plain)
            assert done == 1
            assert plain.tobytes() == out.out.tobytes()
            values += 1
            continue
        assert done == 0
        errors += 1
    assert values > 50
    assert errors > 500


# ---------------------------------------------------------------- datasets


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("codec", "dtype"), [("photo+lz4", "uint8"), ("photo+zstd", "uint16")])
@pytest.mark.parametrize(
    ("height", "shape"),
    [*itertools.product([12, 40], [(3,), (1,), (5,), "ragged", "mixed"]), (700, (3,)), (700, "ragged")],
)
def test_datasets_come_back(tmp_path: Path, codec: str, dtype: str, height: int, shape: Any) -> None:
    """Small images that share frames, those with frames of their own, large ones in bands: batches, crops, regions."""
    ragged = isinstance(shape, str)
    width = 16 if height < 20 else 600 if height == 700 else 50
    sizes = [
        (height + ragged * 3 * n, width + ragged * n, (1, 3, 4)[n] if shape == "mixed" else 3 if ragged else shape[0])
        for n in range(3)
    ]
    whole = [picture(*size, dtype, n) for n, size in enumerate(sizes)]
    axes = (None, None, None if shape == "mixed" else 3) if ragged else sizes[0]
    spec = FieldSpec(name="x", dtype=dtype, kind="image", shape=axes)
    with DatasetWriter(tmp_path / "d", [spec], codec=codec) as writer:
        for image in whole:
            writer.add({"x": image})
    dataset = PackedDataset(tmp_path / "d", verify=True)
    field = dataset.fields["x"]
    assert field.codec == NAMED[codec]
    assert (field.frame.rows is not None) == (max(image.nbytes for image in whole) > 2**20)
    assert verify(tmp_path / "d").damages == ()
    batch = dataset[[2, 0, 1]]["x"]
    found = list(batch)
    for number, ours in zip((2, 0, 1), found, strict=True):
        assert np.array_equal(ours.permute(1, 2, 0).numpy(), whole[number])
        assert np.array_equal(dataset[number]["x"].permute(1, 2, 0).numpy(), whole[number])
        region = dataset.read(number, "x", rows=slice(height // 3, height - 2), columns=slice(3, 11))
        assert np.array_equal(region.permute(1, 2, 0).numpy(), whole[number][height // 3 : height - 2, 3:11])
    if shape != "mixed":
        crops = PackedDataset(tmp_path / "d", crop=Crop(8, "x", at=(3, 5)))[[2, 0, 1]]["x"]
        for crop, number in zip(crops, (2, 0, 1), strict=True):
            assert np.array_equal(crop.permute(1, 2, 0).numpy(), whole[number][3:11, 5:13])


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
    """Packed with `none`, and with both codecs: equal pixels, of every kind of file.

    They are packed again and exported from one codec or the other, in turn, since that is done with samples.
    """
    for number, file in enumerate(real_files("png_odd/**/*.png", "png_pairs/**/*.png")):
        (tmp_path / f"in{number}").mkdir()
        (tmp_path / f"in{number}" / "a.png").write_bytes(file.read_bytes())
        source, wanted = tmp_path / f"in{number}", tmp_path / f"none{number}"
        convert([source], wanted, codec="none", workers=0)
        expected = pixels(wanted)
        for turn, codec in enumerate(CODECS):
            packed = tmp_path / f"{codec}{number}"
            convert([source], packed, codec=codec, workers=0)
            found = pixels(packed)
            assert found.dtype == expected.dtype
            assert np.array_equal(found.numpy(), expected.numpy()), file
            if (number + turn) % len(CODECS):
                continue
            export(packed, tmp_path / f"{codec}{number}e")
            (exported,) = (tmp_path / f"{codec}{number}e").rglob("*.png")
            convert([exported.parent], tmp_path / f"{codec}{number}c", codec="none", workers=0)
            assert np.array_equal(pixels(tmp_path / f"{codec}{number}c").numpy(), expected.numpy()), file
            repack(packed, tmp_path / f"{codec}{number}r", codec="none", workers=0)
            again = pixels(tmp_path / f"{codec}{number}r")
            assert np.array_equal(again.numpy(), expected.numpy()), file
