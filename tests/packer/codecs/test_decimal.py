"""The filter and the codecs for decimals: every bit comes back, by numpy and by machine code alike."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from stored_frames import as_bytes, as_memory, numbers

from packer.append import append
from packer.codecs import MOST_DIGITS, NAMED, FrameCodec, Frames, codec_name, digits_of, parse_codec
from packer.codecs.filters import restore_decimals, store_decimals
from packer.convert import ConvertOptions, convert
from packer.errors import UsageError
from packer.format import Field
from packer.repack import repack
from readers import PackedDataset

CODECS = ("decimal+lz4", "decimal+zstd")
PLAIN = ('[{"id": "decimal", "digits": 2}, {"id": "lz4"}]', '[{"id": "decimal", "digits": 2}, {"id": "zlib"}]')
STRANGE = (-0.0, np.nan, np.inf, -np.inf)
DTYPES = ("float32", "float64")
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
#: Floats of any bits, and such as were decimals once.
any_floats = st.one_of(
    hnp.arrays(st.sampled_from(DTYPES), st.integers(0, 20)),
    st.builds(
        lambda ints, digits, dtype: (np.array(ints, np.int64) / 10.0**digits).astype(dtype),
        st.lists(st.integers(-(2**33), 2**33), max_size=20),
        st.integers(0, 9),
        st.sampled_from(DTYPES),
    ),
)


def as_specified(values: NDArray[Any], digits: int) -> list[int] | None:
    """What FORMAT.md says is stored of values, number by number, in Python's own arithmetic; None if raw."""
    size = values.itemsize
    to_bytes = struct.Struct("<f" if size == 4 else "<d").pack
    strange = {to_bytes(value): -(2 ** (8 * size - 1)) + n for n, value in enumerate(STRANGE)}
    stored = []
    for value in values:
        own = value.tobytes()
        if own in strange:
            stored.append(strange[own])
            continue
        scaled = float(value) * 10.0**digits
        q = round(scaled) if abs(scaled) < 2**60 else 2**60
        if abs(q) >= (2**31 if size == 4 else 2**53) - 8 or to_bytes(q / 10.0**digits) != own:
            return None
        stored.append(q)
    return stored


def decimals(count: int, dtype: str = "float32", digits: int = 2, seed: int = 0) -> NDArray[Any]:
    """Values of few decimals, close to each other as measurements are."""
    walk = np.random.default_rng(seed).integers(-9, 10, count).cumsum()
    return (walk / 10.0**digits).astype(dtype)


def with_digits(codec: str, digits: int = 2) -> tuple[dict[str, Any], ...]:
    """The codec of that name for so many digits."""
    configs = parse_codec(codec)
    return ({"digits": digits, **configs[0]}, *configs[1:])


# ---------------------------------------------------------------- the filter


@every_dtype
def test_literal_values(dtype: str) -> None:
    """Integers of the dtype's size; what they cannot be has the lowest ones."""
    values = np.array([1.25, -0.5, 0.0, *STRANGE, 12345.67], dtype)
    stored = store_decimals(values, 2)
    low = -(2**31) if dtype == "float32" else -(2**63)
    assert stored is not None
    assert stored.dtype == np.dtype("int32" if dtype == "float32" else "int64")
    assert stored.tolist() == [125, -50, 0, low, low + 1, low + 2, low + 3, 1234567]


@given(values=any_floats, digits=st.integers(0, MOST_DIGITS))
@settings(max_examples=400)
def test_what_is_stored_is_what_the_format_says(values: NDArray[Any], digits: int) -> None:
    """Number by number, for floats of any bits; the caller's values stay as they are."""
    before = values.tobytes()
    stored = store_decimals(values, digits)
    assert (None if stored is None else stored.tolist()) == as_specified(values, digits)
    assert values.tobytes() == before
    if stored is not None:
        back = np.empty_like(values)
        restore_decimals(stored, digits, back)
        assert back.tobytes() == before


@every_dtype
@pytest.mark.parametrize("wrong", [np.pi, 0.125, 2.0**31, -(2.0**53), 1e30, -1e300, 1e-44])
@pytest.mark.parametrize("place", [0, 2**15 - 1, 2**15, 69_999])
def test_one_value_that_would_not_come_back_keeps_the_frame(dtype: str, wrong: float, place: int) -> None:
    """Wherever it is: one of more digits, one that is too large, or hardly more than 0."""
    values = decimals(70_000, dtype)
    with np.errstate(over="ignore"):
        values[place] = wrong
    lost = as_specified(values[place : place + 1], 2) is None
    assert lost or wrong == 2.0**31 or np.isinf(values[place])
    assert (store_decimals(values, 2) is None) == lost


@every_dtype
@pytest.mark.parametrize("bit", [0, 11, -1])
def test_another_nan_keeps_the_frame(dtype: str, bit: int) -> None:
    """Of all kinds of NaN one has an integer: the quiet one whose sign and other bits are 0."""
    values = np.array([0.5, np.nan, 1.5], dtype)
    assert store_decimals(values, 1) is not None
    bits = values.view(f"u{values.itemsize}")
    bits[1] ^= np.array(1, bits.dtype) << (bit % (8 * values.itemsize))
    assert np.isnan(values[1])
    assert store_decimals(values, 1) is None


def test_values_that_are_as_large_as_integers_get() -> None:
    """Below 2**31 - 8 and 2**53 - 8, so that none is taken for a strange value."""
    assert store_decimals(np.array([2.0**31 - 128, -(2.0**31) + 128], "f4"), 0) is not None
    assert store_decimals(np.array([-(2.0**31)], "f4"), 0) is None
    assert store_decimals(np.array([2.0**53 - 9, -(2.0**53) + 9]), 0) is not None
    for value in (2.0**53 - 8, -(2.0**53) + 8, 2.0**53, -(2.0**63)):
        assert store_decimals(np.array([value]), 0) is None


# ---------------------------------------------------------------- digits


@pytest.mark.parametrize("digits", [0, 1, 3, 6])
@every_dtype
def test_digits_are_found(dtype: str, digits: int) -> None:
    """The fewest that give the values back; small, large and strange samples, of any shape."""
    values = decimals(6000, dtype, digits)
    values[::700] = -0.0
    samples = [values[:7], values[7:4000].reshape(-1, 3), values[4000:], np.zeros((0, 3), dtype)]
    assert (digits_of(samples) or (None,))[0] == digits


@every_dtype
def test_a_few_other_values_do_not_change_the_digits(dtype: str) -> None:
    """Frames of the others are kept raw; with as many digits as these have, all would take more room."""
    samples = [decimals(3000, dtype, 3, n) for n in range(20)]
    samples[4] = np.random.default_rng(0).normal(size=3000).astype(dtype)
    samples[5][::500] = np.round(np.pi, 9)
    assert (digits_of(samples) or (None,))[0] == 3


@every_dtype
@pytest.mark.parametrize("scale", [1e-4, 1, 50, 1e4])
def test_noise_has_no_digits_that_gain(dtype: str, scale: float) -> None:
    """float32 holds so few digits that with nine decimals most values come back, in as many bits."""
    found = digits_of([np.random.default_rng(0).normal(0, scale, 5000).astype(dtype)])
    assert found is None or found[1] > 0.8


def test_no_values_have_no_digits() -> None:
    """No sample, or none with a value."""
    assert digits_of([]) is None
    assert digits_of([np.zeros((0, 3))]) is None


# ---------------------------------------------------------------- frames


@pytest.mark.usefixtures("way")
@every_dtype
@pytest.mark.parametrize("codec", [*CODECS, *PLAIN])
def test_frames_come_back(codec: str, dtype: str) -> None:
    """Of any length, those among them that are kept raw: of other values, of noise and of none."""
    raw = [decimals(count, dtype, seed=count) for count in (900, 0, 3, 20_000, 4001)]
    raw.insert(2, np.random.default_rng(0).normal(size=700).astype(dtype))
    raw[4][11] = np.pi
    raw[5][:400:7] = np.resize(STRANGE, len(raw[5][:400:7]))
    coder = FrameCodec(with_digits(codec), np.dtype(dtype))
    stored = [bytes(coder.encode(values)) for values in raw]
    assert len(stored[0]) < raw[0].nbytes * 0.7
    assert len(stored[5]) < raw[5].nbytes * 0.7
    assert stored[2] == raw[2].tobytes()
    assert stored[4] == raw[4].tobytes()
    ends, sizes = np.cumsum([len(frame) for frame in stored]), numbers([values.nbytes for values in raw])
    spans = np.stack([ends - [len(frame) for frame in stored], ends], axis=1).astype(np.int64)
    out = np.empty(int(sizes.sum()), np.uint8)
    coder.decode_frames(as_memory(b"".join(stored)), Frames(spans, sizes), out)
    assert np.array_equal(out, as_bytes(raw))


@pytest.mark.usefixtures("way")
@every_dtype
def test_half_a_value_is_an_error(dtype: str) -> None:
    """A frame whose bytes are no whole values was written by nobody, or an index is wrong."""
    nbytes = 100 * np.dtype(dtype).itemsize + 3
    frame = bytes(FrameCodec(NAMED["lz4"], np.dtype("u1")).encode(np.zeros(nbytes, np.uint8)))
    coder = FrameCodec(with_digits(PLAIN[0]), np.dtype(dtype))
    with pytest.raises(ValueError, match="multiple"):
        coder.decode_frames(
            as_memory(frame), Frames(numbers([[0, len(frame)]]), numbers([nbytes])), np.empty(nbytes, np.uint8)
        )


# ---------------------------------------------------------------- the codec of a field


def test_the_name_is_that_of_any_digits() -> None:
    """What an index calls it can be given again; with other settings it is another codec."""
    assert codec_name(with_digits("decimal+lz4", 7)) == "decimal+lz4"
    assert codec_name(parse_codec(PLAIN[0])) == "decimal+lz4" or codec_name(parse_codec(PLAIN[0])).startswith("[")
    assert parse_codec(codec_name(parse_codec(PLAIN[0]))) == parse_codec(PLAIN[0])


@pytest.mark.parametrize("digits", [-1, 16, 1.0, True, "2", None])
def test_digits_that_cannot_be_are_refused(digits: Any) -> None:
    """By the schema, and so in a manifest of another writer."""
    codec = ({"id": "decimal", "digits": digits}, {"id": "lz4"})
    with pytest.raises(ValueError, match="digits from 0 to 15"):
        Field(name="x", dtype="float32", shape=(3,), codec=codec)


@pytest.mark.parametrize(
    ("dtype", "codec", "words"),
    [
        ("float32", ({"id": "decimal"}, {"id": "lz4"}), "without its digits"),
        ("float32", ({"id": "lz4"}, {"id": "decimal", "digits": 2}), "comes first"),
        ("float16", ({"id": "decimal", "digits": 2}, {"id": "lz4"}), "for float32 or float64, not float16"),
        ("int32", ({"id": "decimal", "digits": 2}, {"id": "lz4"}), "for float32 or float64, not int32"),
    ],
)
def test_a_schema_says_what_is_wrong(dtype: str, codec: Any, words: str) -> None:
    """Digits are in it, decimals come first, and are floats."""
    with pytest.raises(ValueError, match=words):
        Field(name="x", dtype=dtype, shape=(3,), codec=codec)


def test_digits_are_found_for_each_field(tmp_path: Path) -> None:
    """By the name of the codec, or by its config without digits; those that are given are taken."""
    samples = [{"a": decimals(900, digits=1, seed=n), "b": decimals(700, "float64", 4, n)} for n in range(4)]
    report = convert(samples, tmp_path / "d", ConvertOptions(codec="decimal+lz4", workers=0))
    assert [field.codec[0] for field in report.manifest.fields] == [{"id": "decimal", "digits": n} for n in (1, 4)]
    plain = '[{"id": "decimal", "digits": 3}, {"id": "zstd"}]'
    codec = {"a": plain, "b": '[{"id": "decimal"}, {"id": "zstd"}]'}
    report = convert(samples, tmp_path / "e", ConvertOptions(codec=codec, workers=0))
    assert [field.codec[0]["digits"] for field in report.manifest.fields] == [3, 4]
    for folder in ("d", "e"):
        for number, sample in enumerate(PackedDataset(tmp_path / folder, verify=True)):
            assert not [name for name in "ab" if sample[name].numpy().tobytes() != samples[number][name].tobytes()]


def test_fields_that_have_no_decimals_are_refused(tmp_path: Path) -> None:
    """Before anything is written, with what to do; a field of no values has any digits."""
    noise = [{"a": np.random.default_rng(0).normal(size=900), "n": np.int64(3)}]
    for codec, words in (("a=decimal+lz4", "'a'.*no decimals.*--codec a=auto"), ("n=decimal+lz4", "'n'.*not int64")):
        with pytest.raises(UsageError, match=words):
            convert(noise, tmp_path / "d", ConvertOptions(codec=codec, workers=0))
        assert not (tmp_path / "d" / "shards").exists()
    report = convert([{"a": np.zeros((0, 3))}], tmp_path / "e", ConvertOptions(codec="decimal+lz4", workers=0))
    assert report.manifest.fields[0].codec[0]["digits"] == 0


# ---------------------------------------------------------------- datasets


def test_what_is_made_of_it_comes_back(tmp_path: Path) -> None:
    """Packed again, with and without another codec, and appended to."""
    samples = [{"x": decimals(600, digits=2, seed=n)} for n in range(6)]
    convert(samples[:4], tmp_path / "d", ConvertOptions(codec="decimal+lz4", workers=0))
    append(tmp_path / "d", samples[4:], workers=0)
    repack(tmp_path / "d", tmp_path / "same", workers=0)
    repack(tmp_path / "d", tmp_path / "none", codec="none", workers=0)
    repack(tmp_path / "none", tmp_path / "again", codec="decimal+zstd", workers=0)
    for folder, name in (("d", "decimal+lz4"), ("same", "decimal+lz4"), ("none", "none"), ("again", "decimal+zstd")):
        dataset = PackedDataset(tmp_path / folder, verify=True)
        assert codec_name(dataset.fields["x"].codec) == name
        assert [sample["x"].numpy().tobytes() for sample in dataset] == [sample["x"].tobytes() for sample in samples]
