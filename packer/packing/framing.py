"""Chooses how each column is stored: its frame rule, and with `auto` its codec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.codecs import (
    DECIMAL,
    DECIMAL_DTYPES,
    GROUP_STEPS,
    H264,
    JPEG,
    LZ4,
    MOST_DIGITS,
    NAMED,
    Config,
    bands_of,
    digits_of,
    files_of,
)
from packer.errors import UsageError
from packer.format import ColumnWriter, Field, FieldSpec, FrameRule
from packer.sources import runs

#: Small samples share a compressed frame of about this size: below it codecs gain little. These sizes were measured:
#: docs/how/choices.md, "Sizes and shares".
FRAME_BYTES = 16 * 2**10
#: Samples at least this large have frames of their own, so that reading one at random decodes no neighbours.
OWN_FRAME_BYTES = 4 * 2**10
#: With LZ4 the shared frames are smaller: larger ones gain little, and LZ4 is chosen to read single samples quickly.
LZ4_FRAME_BYTES = 4 * 2**10
#: And samples at least this large have frames of their own: each one that does not shrink is kept raw.
LZ4_OWN_FRAME_BYTES = 512
#: Uncompressed frames only carry a checksum, which costs next to nothing.
RAW_FRAME_BYTES = 64 * 2**10
#: Larger samples are stored in bands of rows, so that a crop decodes only the bands it touches.
BAND_SAMPLE_BYTES = 2**20
#: Size of such a band before compression.
BAND_BYTES = 64 * 2**10
#: Smaller records of fixed shape stay raw under `auto`: to read one at random would mean decoding 16 KiB.
LEAST_RECORD = 2048
#: Fields with less than this share of all bytes stay raw under `auto`: nothing is gained.
LEAST_SHARE = 0.01

#: Decimals are weighed if their integers take at most this share of the bits of a float: with nine decimals every
#: float32 near 1 comes back, and nothing is gained.
MOST_BITS = 0.8

#: Bytes that `encode_samples` takes at once: samples of one shape are copied into one array.
_BLOCK_BYTES = 2**20
#: What blosc calls shuffling by bytes.
BYTE_SHUFFLE = 1
#: Codecs that `auto` weighs, the fastest to decode first, each with its minimum gain in ratio over the best before it:
#: little among those that decode LZ4, and more for those that decode zstd, which is slower.
_CANDIDATES: tuple[tuple[tuple[Config, ...], float], ...] = (
    (NAMED["lz4"], 1.15),
    (NAMED["shuffle+lz4"], 1.1),
    (NAMED["bitshuffle"], 1.1),
    (NAMED["photo+lz4"], 1.05),
    (NAMED["decimal+lz4"], 1.1),
    (NAMED["shuffle+zstd"], 1.25),
    (NAMED["zstd"], 1.25),
    (NAMED["decimal+zstd"], 1.25),
    (NAMED["photo+zstd"], 1.4),
)


@dataclass(frozen=True)
class Extent:
    """How large the samples of a field are: bytes of the mean sample, of the largest one, and of a typical row."""

    mean: float
    largest: int
    row: float


def choose_frame_rule(spec: FieldSpec, codec: Sequence[Config], extent: Extent) -> FrameRule:
    """Return how a column is cut into frames, from the size of its samples.

    If one image is large, all are cut into bands, since images may be cropped. Arrays are cut only if their mean is
    large too: otherwise small ones could not share frames. Large steps, such as frames of clips, get bands of one or a
    few steps, since windows of some steps may be read. A file of `jpeg` is a frame: an image, or a step of a clip;
    so is a group of `h264`.
    """
    if codec and codec[0]["id"] == H264:
        return FrameRule(rows=GROUP_STEPS)
    if codec and codec[0]["id"] == JPEG:
        return FrameRule(samples=1) if len(spec.shape) == spec.image_axes else FrameRule(rows=1)
    if spec.kind == "array" and extent.row >= OWN_FRAME_BYTES and (spec.shape[0] is None or len(spec.shape) > 3):
        return FrameRule(rows=max(1, int(FRAME_BYTES / extent.row)))
    is_banded = extent.largest > BAND_SAMPLE_BYTES and (spec.kind == "image" or extent.mean >= BAND_BYTES)
    if is_banded and spec.shape and spec.kind != "text":
        return FrameRule(rows=max(1, int(BAND_BYTES / max(extent.row, 1))))
    frame_bytes, own_bytes = _frame_bytes(codec)
    is_shared = extent.mean < own_bytes
    return FrameRule(samples=max(1, min(int(frame_bytes / max(extent.mean, 1)), 2**16)) if is_shared else 1)


def _frame_bytes(codec: Sequence[Config]) -> tuple[int, int]:
    """Return the usual bytes of a frame of several samples, and the bytes from which a sample has its own frame."""
    if not codec:
        return RAW_FRAME_BYTES, RAW_FRAME_BYTES
    if codec[0]["id"] in LZ4:
        return LZ4_FRAME_BYTES, LZ4_OWN_FRAME_BYTES
    return FRAME_BYTES, OWN_FRAME_BYTES


def choose_codec(spec: FieldSpec, samples: Sequence[NDArray[Any]], share: float, extent: Extent) -> tuple[Config, ...]:
    """Return the codec for a field, from some of its samples: the fastest one, unless a slower one gains enough.

    JPEG files stay as they are, if all these samples are such.

    The choice depends on the data alone, never on a clock, so that output is reproducible.

    Args:
        share: the field's share of the bytes of all fields.
        extent: sizes of all samples of the field, which decide how frames are cut.
    """
    file_sizes = [len(file) for sample in samples for file in files_of(sample) or (b"",)]
    if (
        file_sizes
        and all(file_sizes)
        and sum(file_sizes) < sum(s.nbytes for s in samples)
        and not spec.misfit(*NAMED["jpeg"])
    ):
        return NAMED["jpeg"]
    is_small = not spec.is_ragged and spec.fixed_bytes < LEAST_RECORD
    if is_small or share < LEAST_SHARE or not sum(s.nbytes for s in samples):
        return ()
    best, best_ratio = NAMED["none"], 1.0
    digits = digits_of(samples) if spec.dtype in DECIMAL_DTYPES else None
    for codec, gain in _CANDIDATES:
        # Values of one byte have no bytes to shuffle, only bits.
        if spec.misfit(codec[0]) or (spec.itemsize == 1 and codec[0].get("shuffle") == BYTE_SHUFFLE):
            continue
        if lacks_digits(codec):
            if digits is None or digits[1] > MOST_BITS:
                continue
            codec = ({**codec[0], "digits": digits[0]}, *codec[1:])
        column = encode_samples(stored_field(spec, codec, extent), samples)
        ratio = column.raw_bytes / column.stored_bytes
        if ratio >= best_ratio * gain:
            best, best_ratio = codec, ratio
    return best


def lacks_digits(codec: Sequence[Config]) -> bool:
    """Return whether a codec is for decimals and does not say how many digits these have."""
    return bool(codec) and codec[0]["id"] == DECIMAL and "digits" not in codec[0]


def with_digits(spec: FieldSpec, codec: tuple[Config, ...], samples: Sequence[NDArray[Any]]) -> tuple[Config, ...]:
    """Return a codec for decimals with the number of digits that some samples of a field have.

    Raises:
        UsageError: it cannot be used for this field, or the samples have no decimals.
    """
    _check_fits(spec, codec)
    digits = digits_of(samples)
    if digits is None and any(sample.size for sample in samples):
        raise UsageError(
            f"field {spec.name!r}: the values looked at are no decimals: rounded to 0 to {MOST_DIGITS} digits, they do "
            f"not come back bit for bit; take another codec, as in --codec {spec.name}=auto"
        )
    return ({**codec[0], "digits": digits[0] if digits else 0}, *codec[1:])


def stored_field(spec: FieldSpec, codec: Sequence[Config], extent: Extent) -> Field:
    """Return the schema of a field with its codec and frame rule.

    Raises:
        UsageError: the codec cannot be used for this field.
    """
    _check_fits(spec, codec)
    return Field(
        name=spec.name,
        dtype=spec.dtype,
        kind=spec.kind,
        shape=spec.shape,
        codec=tuple(codec),
        frame=choose_frame_rule(spec, codec, extent),
    )


def _check_fits(spec: FieldSpec, codec: Sequence[Config]) -> None:
    if misfit := next(filter(None, map(spec.misfit, codec)), None):
        raise UsageError(f"{misfit}; give it a codec of its own, as in --codec {spec.name}=auto")
    for config in codec:
        element_size = config.get("elementsize", _SHUFFLED)
        if (
            config["id"] == "shuffle"
            and isinstance(element_size, int)
            and element_size > 0
            and spec.itemsize % element_size
        ):
            raise UsageError(
                f"field {spec.name!r}: shuffle by {element_size} bytes does not fit {spec.dtype}, of {spec.itemsize}; "
                f'take --codec {spec.name}=shuffle+zstd, or "elementsize": {spec.itemsize}'
            )


def encode_samples(field: Field, samples: Sequence[NDArray[Any]] | NDArray[Any]) -> ColumnWriter:
    """Pack some samples of a field, drop the chunks, and return the column writer, which has counted their bytes.

    Args:
        samples: each an array; or all in one, which is quicker.
    """
    if rows := field.frame.rows:  # bands are packed as samples, since only a piece of a large sample may be here
        field = msgspec.structs.replace(field, shape=(None, *field.shape[1:]))
        samples = [band for sample in samples for band in bands_of(sample, rows)]
    column = ColumnWriter(field, lambda chunk: 0)
    if isinstance(samples, np.ndarray):
        sizes = np.full(len(samples), samples.nbytes // max(1, len(samples)), np.int64)
    else:
        sizes = np.array([sample.nbytes for sample in samples], np.int64)
    for start, stop in runs(sizes, _BLOCK_BYTES):
        column.add(samples[start:stop])
    column.flush()
    return column


#: Bytes of an element of numcodecs' shuffle if its config does not say.
_SHUFFLED = 4
#: The name under which the codec of all other fields is kept; no field can have it.
_OTHER_FIELDS = ""


def codec_by_field(choice: str | Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Return the codec text of every field, from `"lz4"`, `"hr=zstd,label=none"` or a mapping.

    Args:
        defaults: codec texts of all fields, for those that are not named.

    Raises:
        UsageError: a field is named that does not exist.
    """
    texts = codec_texts(choice)
    text_of_others = texts.pop(_OTHER_FIELDS, None)
    unknown = sorted(set(texts) - set(defaults))
    if unknown:
        raise UsageError(
            f"no field {unknown[0]!r} for the codec {texts[unknown[0]]!r}; fields are {', '.join(defaults)}"
        )
    return {name: texts.get(name, text_of_others or default) for name, default in defaults.items()}


def codec_texts(choice: str | Mapping[str, str]) -> dict[str, str]:
    """Return the codec text by field name; the one for all other fields is under `_OTHER_FIELDS`.

    Raises:
        UsageError: two are named for one field, or two for all others.
    """
    if isinstance(choice, Mapping):
        return dict(choice)
    texts: dict[str, str] = {}
    for part in _split_at_commas(choice):
        is_config = part.startswith(("{", "["))  # JSON may hold an equals sign too
        field, equals, codec = ("", "", part) if is_config else part.partition("=")
        name, text = (field.strip(), codec.strip()) if equals else (_OTHER_FIELDS, codec or field)
        if name in texts:
            fields_in_words = f"the field {name!r}" if equals else "all fields that are not named"
            raise UsageError(f"codecs {texts[name]} and {text} are both for {fields_in_words}; give one")
        texts[name] = text
    return texts


def _split_at_commas(text: str) -> list[str]:
    """Return the parts of `text` between the commas that are not within JSON."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "{[") - (character in "}]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]
