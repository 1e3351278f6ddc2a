"""Frame rules, and what `auto` picks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from inputs.pictures import photographs
from msgspec.structs import replace
from numpy.typing import NDArray

from packer.codecs import NAMED, codec_name, parse_codec
from packer.errors import UsageError
from packer.format import FieldSpec, FrameRule
from packer.packing import FieldSizes, framing
from packer.packing.framing import (
    BAND_BYTES,
    BAND_SAMPLE_BYTES,
    Extent,
    choose_codec,
    choose_frame_rule,
    codec_by_field,
    encode_samples,
    stored_field,
)

IMAGE = FieldSpec(name="hr", dtype="uint8", kind="image", shape=(None, None, 3))
CLOUD = FieldSpec(name="xyz", dtype="float32", shape=(None, 3))
CLIP = FieldSpec(name="clip", dtype="uint8", shape=(None, 84, 84, 3))
RECORD = FieldSpec(name="x", dtype="float32", shape=(1024,))


def photograph(rng: np.random.Generator, size: int = 96) -> NDArray[np.uint8]:
    """A smooth picture with grain, as photographs are: neighbours are alike, few bytes repeat."""
    y, x = np.mgrid[0:size, 0:size] / size
    waves = sum(60 / k * np.sin(k * (x * rng.normal() + y * rng.normal()) + rng.normal()) for k in (2, 5, 9))
    channels = [waves * weight + 128 + rng.normal(0, 1.5, (size, size)) for weight in (1, 0.9, 0.8)]
    return np.clip(np.stack(channels, axis=-1), 0, 255).astype(np.uint8)


@cache
def crops(size: int, count: int = 27) -> list[NDArray[np.uint8]]:
    """Squares from shipped photographs, in turn."""
    rng = np.random.default_rng(size)
    whole = [np.asarray(picture) for _, picture in photographs()]
    found = []
    for number in range(count):
        photo = whole[number % len(whole)]
        top, left = (int(rng.integers(0, length - size + 1)) for length in photo.shape[:2])
        found.append(photo[top : top + size, left : left + size])
    return found


def picks(spec: FieldSpec, samples: list[NDArray[Any]], share: float = 1.0) -> str:
    return codec_name(choose_codec(spec, samples, share, extent(spec, samples)))


def extent(spec: FieldSpec, samples: list[NDArray[Any]]) -> Extent:
    """How large these samples are."""
    shapes = np.array([sample.shape for sample in samples], np.int64).reshape(len(samples), len(spec.shape))
    return FieldSizes.of(spec, shapes).extent(spec)


def ratio(spec: FieldSpec, codec: str, samples: list[NDArray[Any]]) -> float:
    """Raw bytes over those stored by a codec."""
    column = encode_samples(stored_field(spec, NAMED[codec], extent(spec, samples)), samples)
    return column.raw_bytes / column.stored_bytes


# ---------------------------------------------------------------- auto


def image(dtype: str, *shape: int) -> FieldSpec:
    return FieldSpec(name="x", dtype=dtype, kind="image", shape=shape)


def mask(rng: np.random.Generator, size: int) -> NDArray[np.uint8]:
    """Discs of five classes."""
    y, x = np.mgrid[:size, :size]
    out = np.zeros((size, size, 1), np.uint8)
    for number, (top, left, radius) in enumerate(rng.integers(0, size, (5, 3))):
        out[(y - top) ** 2 + (x - left) ** 2 < (radius / 3) ** 2] = number + 1
    return out


def drawing(rng: np.random.Generator, size: int) -> NDArray[np.uint8]:
    """Rectangles of plain colours, as of charts and screens."""
    out = np.full((size, size, 3), rng.integers(0, 256, 3), np.uint8)
    for _ in range(9):
        top, bottom, left, right = rng.integers(0, size, 4)
        out[top:bottom, left:right] = rng.integers(0, 256, 3)
    return out


def normal(rng: np.random.Generator, digits: int | None) -> NDArray[Any]:
    values = rng.normal(0, 30, (700, 3))
    return (values if digits is None else np.round(values, digits)).astype("f4")


GRID = np.random.default_rng(3).normal(size=300).astype("f4")
#: What `auto` takes for some kind of samples: the schema, what makes a sample, and the codec.
CHOICES: dict[str, tuple[FieldSpec, Callable[[np.random.Generator], NDArray[Any]], str]] = {
    "noise": (IMAGE, lambda rng: rng.integers(0, 256, (96, 96, 3), np.uint8), "none"),
    "noise in arrays": (replace(IMAGE, kind="array"), lambda rng: rng.integers(0, 256, (96, 96, 3), np.uint8), "none"),
    "gray pictures": (image("uint8", 64, 64, 1), lambda rng: crops(64)[rng.integers(27)][..., :1], "photo+lz4"),
    "depth maps": (
        image("uint16", 96, 96, 1),
        lambda rng: (30_000 + rng.normal(0, 3, (96, 96, 1)).cumsum(0).cumsum(1)).astype("u2"),
        "photo+lz4",
    ),
    "small masks": (image("uint8", 64, 64, 1), lambda rng: mask(rng, 64), "zstd"),
    "masks": (image("uint8", 192, 192, 1), lambda rng: mask(rng, 192), "zstd"),
    "small drawings": (image("uint8", 64, 64, 3), lambda rng: drawing(rng, 64), "zstd"),
    "drawings": (image("uint8", 192, 192, 3), lambda rng: drawing(rng, 192), "zstd"),
    "coordinates close to each other": (CLOUD, lambda rng: rng.uniform(100, 101, (700, 3)).astype("f4"), "shuffle+lz4"),
    "coordinates on a grid": (CLOUD, lambda rng: rng.choice(GRID, (3000, 3)), "zstd"),
    "decimals, and some that are none": (CLOUD, lambda rng: normal(rng, 3 if rng.integers(6) else None), "decimal+lz4"),
    "empty clouds": (CLOUD, lambda rng: np.zeros((0, 3), "f4"), "none"),
    "labels": (FieldSpec(name="x", dtype="int64"), lambda rng: np.zeros((), "i8"), "none"),
    "small records": (FieldSpec(name="x", dtype="float32", shape=(33,)), lambda rng: np.zeros(33, "f4"), "none"),
    "records of 2,047 bytes": (
        FieldSpec(name="x", dtype="bool", shape=(2047,)),
        lambda rng: np.zeros(2047, bool),
        "none",
    ),
}


@pytest.mark.parametrize("kind", CHOICES)
def test_each_kind_of_samples_takes_its_codec(kind: str) -> None:
    """What does not shrink, or is small, stays raw; zstd finds rows that repeat others; the rest is filtered."""
    spec, make, codec = CHOICES[kind]
    rng = np.random.default_rng(len(kind))
    samples = [make(rng) for _ in range(24)]
    assert picks(spec, samples) == picks(spec, list(samples)) == codec
    assert picks(spec, []) == "none"


@pytest.mark.parametrize("spec", [IMAGE, CLOUD, RECORD])
def test_a_constant_is_encoded(spec: FieldSpec) -> None:
    """What shrinks a hundredfold is not kept raw."""
    assert picks(spec, [np.ones([n or 64 for n in spec.shape], spec.dtype)] * 8) != "none"


@pytest.mark.parametrize("size", [32, 48, 64, 192, 256])
def test_photographs_take_the_fast_codec_for_them(size: int) -> None:
    """Whatever their size: `photo+zstd` saves some more, and is read at half the speed."""
    whole = crops(size)
    assert picks(IMAGE, list(whole)) == "photo+lz4"
    assert ratio(IMAGE, "photo+lz4", list(whole)) > 1.25 * ratio(IMAGE, "lz4", list(whole))
    assert picks(IMAGE, [whole[0]] * 8) == "photo+lz4"


@pytest.mark.parametrize(("dtype", "digits"), [("float32", 3), ("float64", 4)])
def test_decimals_take_their_codec(dtype: str, digits: int) -> None:
    """Floats that were written with few decimals; their number is in the codec."""
    rng = np.random.default_rng(2)
    clouds = [np.round(rng.normal(0, 30, (700, 3)), digits).astype(dtype) for _ in range(8)]
    spec = replace(CLOUD, dtype=dtype)
    codec = choose_codec(spec, clouds, 1.0, extent(spec, clouds))
    assert codec_name(codec).startswith("decimal+")
    assert codec[0] == {"id": "decimal", "digits": digits}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e-3, 1, 1e3, 1e6])
def test_values_that_are_no_decimals_are_not_weighed_as_such(
    monkeypatch: pytest.MonkeyPatch, dtype: str, scale: float
) -> None:
    """They are told by a few of them: no sample is packed with a codec of decimals."""
    tried = []
    packed = framing.encode_samples
    monkeypatch.setattr(framing, "encode_samples", lambda field, some: tried.append(field.codec) or packed(field, some))
    rng = np.random.default_rng(5)
    clouds = [(rng.normal(0, scale, (700, 3))).astype(dtype) for _ in range(8)]
    choose_codec(replace(CLOUD, dtype=dtype), clouds, 1.0, extent(CLOUD, clouds))
    assert tried
    assert not [codec for codec in tried if codec[0]["id"] == "decimal"]


def test_single_bytes_are_not_shuffled() -> None:
    """A shuffle by bytes would leave them as they are."""
    rng = np.random.default_rng(4)
    spec = FieldSpec(name="rgb", dtype="uint8", shape=(None, 3))
    letters = [rng.choice(16, (3000, 3), p=rng.dirichlet(np.ones(16))).astype("u1") for _ in range(8)]
    assert picks(spec, list(letters)) in ("zstd", "bitshuffle")
    assert picks(IMAGE, [photograph(rng) // 16 * 16 for _ in range(8)]) == "zstd"


def test_a_field_of_little_share_stays_raw() -> None:
    """Where a field is less than a hundredth of all bytes nothing is gained."""
    samples = [np.zeros((64, 64, 3), np.uint8)] * 4
    assert picks(IMAGE, list(samples), share=0.009) == "none"
    assert picks(IMAGE, list(samples), share=0.02) != "none"


# ---------------------------------------------------------------- frame rules


@pytest.mark.parametrize(
    ("spec", "codec", "extent", "rule"),
    [
        (RECORD, "none", Extent(4096, 4096, 4), FrameRule(samples=16)),
        (RECORD, "zstd", Extent(4095, 4095, 4), FrameRule(samples=4)),
        (RECORD, "zstd", Extent(4096, 4096, 4), FrameRule(samples=1)),
        (RECORD, "lz4", Extent(500, 500, 4), FrameRule(samples=8)),
        (RECORD, "lz4", Extent(512, 512, 4), FrameRule(samples=1)),
        (FieldSpec(name="x", dtype="int64"), "none", Extent(8, 8, 8), FrameRule(samples=8192)),
        (CLOUD, "lz4", Extent(20_000, 900_000, 12), FrameRule(samples=1)),
        (IMAGE, "zstd", Extent(3e6, 3e6, 6000), FrameRule(rows=10)),
        (IMAGE, "none", Extent(3e6, 3e6, 6000), FrameRule(rows=10)),
        (IMAGE, "zstd", Extent(1e9, 1e9, 1e6), FrameRule(rows=1)),
        (CLOUD, "none", Extent(0, 0, 12), FrameRule(samples=2**16)),
        (CLIP, "lz4", Extent(2e5, 3e5, 21_168), FrameRule(rows=1)),
        (CLIP, "zstd", Extent(2e6, 3e6, 4096), FrameRule(rows=4)),
        (CLIP, "zstd", Extent(2e5, 3e5, 4095), FrameRule(samples=1)),
        (replace(CLIP, shape=(16, 84, 84, 3)), "none", Extent(3e5, 3e5, 21_168), FrameRule(rows=1)),
        (FieldSpec(name="x", dtype="float32", shape=(9, 9000)), "zstd", Extent(3e5, 3e5, 36_000), FrameRule(samples=1)),
        (
            FieldSpec(name="t", dtype="uint8", kind="text", shape=(None,)),
            "none",
            Extent(2e6, 3e6, 1),
            FrameRule(samples=1),
        ),
    ],
)
def test_frames_have_about_the_same_bytes(spec: FieldSpec, codec: str, extent: Extent, rule: FrameRule) -> None:
    """Small samples share a frame, large ones lie in bands of rows, large steps in bands of one or a few."""
    assert choose_frame_rule(spec, NAMED[codec], extent) == rule


def test_one_large_sample_among_small_ones() -> None:
    """Bands cost a few numbers a sample: most clouds must be worth it, but a picture that may be cropped has them."""
    largest = BAND_SAMPLE_BYTES + 1
    assert choose_frame_rule(CLOUD, (), Extent(BAND_BYTES - 1, largest, 12)).rows is None
    assert choose_frame_rule(CLOUD, (), Extent(BAND_BYTES, largest, 12)).rows == BAND_BYTES // 12
    assert choose_frame_rule(IMAGE, (), Extent(100, largest, 600)).rows == BAND_BYTES // 600
    assert choose_frame_rule(IMAGE, (), Extent(100, BAND_SAMPLE_BYTES, 600)).rows is None


def test_the_stored_field_keeps_its_spec() -> None:
    """Codec and frame rule are added; a codec that does not fit is a usage error."""
    field = stored_field(IMAGE, NAMED["photo+lz4"], Extent(3e6, 3e6, 6000))
    assert field.spec == IMAGE
    assert field.codec == NAMED["photo+lz4"]
    for spec in (CLOUD, replace(IMAGE, dtype="float32"), replace(IMAGE, kind="array")):
        with pytest.raises(UsageError, match=f"'{spec.name}': photo is for images of uint8 or uint16"):
            stored_field(spec, NAMED["photo+lz4"], Extent(100, 100, 12))


# ---------------------------------------------------------------- codec by field

ZSTD = '{"id": "zstd", "level": 5}'
LIST = '[{"id": "shuffle", "elementsize": 4}, {"id": "zlib", "level": 1}]'


@pytest.mark.parametrize("dtype", ["uint8", "bool", "float16", "uint16"])
def test_a_shuffle_of_larger_elements_is_refused(dtype: str) -> None:
    """numcodecs shuffles by 4 bytes unless told otherwise; the message says by how many, and which codec to take."""
    spec = FieldSpec(name="x", dtype=dtype, shape=(100,))
    extent = Extent(100, 100, 1)
    words = f"'x': shuffle by 4 bytes does not fit {dtype}, of {spec.itemsize}; take --codec x=shuffle\\+zstd, or"
    with pytest.raises(UsageError, match=words):
        stored_field(spec, parse_codec('[{"id": "shuffle"}, {"id": "zstd"}]'), extent)
    fitting = f'[{{"id": "shuffle", "elementsize": {spec.itemsize}}}, {{"id": "zstd"}}]'
    assert stored_field(spec, parse_codec(fitting), extent).codec[0]["elementsize"] == spec.itemsize
    assert stored_field(spec, parse_codec("shuffle+zstd"), extent).codec


@pytest.mark.parametrize(
    ("choice", "lr", "hr"),
    [
        ("auto", "auto", "auto"),
        ("lz4", "lz4", "lz4"),
        ("hr=zstd", "auto", "zstd"),
        ("hr=zstd,lr=none", "none", "zstd"),
        ("lz4,hr=zstd", "lz4", "zstd"),
        (" hr = zstd , lz4 ", "lz4", "zstd"),
        (ZSTD, ZSTD, ZSTD),
        (LIST, LIST, LIST),
        (f"hr={ZSTD}", "auto", ZSTD),
        (f"hr={ZSTD},lr={LIST}", LIST, ZSTD),
        (f"{LIST},lr=none", "none", LIST),
        ({}, "auto", "auto"),
        ({"lr": "lz4"}, "lz4", "auto"),
    ],
)
def test_codecs_are_named_for_all_fields_or_for_some(choice: Any, lr: str, hr: str) -> None:
    """A name, JSON, or a list by field; commas and equals signs within JSON part nothing."""
    assert codec_by_field(choice, {"lr": "auto", "hr": "auto"}) == {"lr": lr, "hr": hr}


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("hr=lz4,lr=none,hr=zstd", "lz4 and zstd are both for the field 'hr'"),
        ("lz4,none", "for all fields that are not"),
    ],
)
def test_two_codecs_for_one_field(choice: str, words: str) -> None:
    """Neither is taken in silence."""
    with pytest.raises(UsageError, match=words):
        codec_by_field(choice, {"lr": "auto", "hr": "auto"})


@pytest.mark.parametrize("choice", ["hx=zstd", {"hx": "zstd"}, "hr=lz4,hx=zstd"])
def test_a_codec_for_a_field_that_is_not_there(choice: Any) -> None:
    """The message names the field and those there are."""
    with pytest.raises(UsageError, match=r"'hx'.*lr, hr"):
        codec_by_field(choice, {"lr": "auto", "hr": "auto"})
