"""The schema: what each field of a sample is, and how its column is stored."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from packer.codecs import (
    DECIMAL,
    DECIMAL_DTYPES,
    GROUP_STEPS,
    H264,
    H264_CHANNELS,
    H264_DTYPE,
    JPEG,
    JPEG_CHANNELS,
    JPEG_DTYPE,
    MAX_STAGES,
    MOST_CRF,
    MOST_DIGITS,
    MOST_QUALITY,
    PHOTO,
    PHOTO_DTYPES,
)
from packer.errors import SourceError, UsageError

Kind = Literal["image", "array", "text"]

#: Names of the dtypes that can be stored; on disk they are little-endian, bool is one byte of 0 or 1.
DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)

MAX_NAME_BYTES = 255
MAX_AXES = 16
MAX_AXIS = 2**48
#: Bytes of one sample with every ragged or empty axis counted as 1: nothing larger is ever allocated.
MAX_SAMPLE_BYTES = 2**48
#: Most raw bytes of a compressed frame of several samples of one shape: a thousand times what packer writes.
MAX_SHARED_FRAME = 2**24

Axis = Annotated[int, msgspec.Meta(ge=0, le=MAX_AXIS)] | None


class FieldSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one field of every sample is.

    Attributes:
        name: field name; printable, without `=`, `/` or white space at its ends.
        dtype: one of `DTYPES`; text is stored as UTF-8 bytes, `uint8`.
        kind: `image` (axes H, W, C), `array` or `text` (one ragged axis of bytes).
        shape: length of each axis of one sample; `None` for a ragged axis.
    """

    name: str
    dtype: Literal[DTYPES]  # type: ignore[valid-type]
    kind: Kind = "array"
    shape: Annotated[tuple[Axis, ...], msgspec.Meta(max_length=MAX_AXES)] = ()

    def __post_init__(self) -> None:
        check_field_name(self.name)
        if self.dtype not in DTYPES:
            raise ValueError(f"field {self.name!r}: dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if len(self.shape) > MAX_AXES:
            raise ValueError(f"field {self.name!r}: {len(self.shape)} axes; at most {MAX_AXES} can be stored")
        if self.itemsize * math.prod(n or 1 for n in self.shape) > MAX_SAMPLE_BYTES:
            raise ValueError(f"field {self.name!r}: a sample of shape {list(self.shape)} is too large")
        if self.kind == "image" and len(self.shape) != 3:
            raise ValueError(f"field {self.name!r}: an image has three axes (H, W, C), not {len(self.shape)}")
        if self.kind == "text" and (self.shape != (None,) or self.dtype != "uint8"):
            raise ValueError(f"field {self.name!r}: text has shape [null] and dtype uint8")

    def misfit(self, config: dict[str, Any]) -> str:
        """Return in words why the config of a codec does not suit this field; an empty text if it does."""
        if config["id"] == DECIMAL:
            digits = config.get("digits", 0)
            if self.dtype not in DECIMAL_DTYPES:
                return f"field {self.name!r}: {DECIMAL} is for {' or '.join(DECIMAL_DTYPES)}, not {self.dtype}"
            if type(digits) is not int or not 0 <= digits <= MOST_DIGITS or not set(config) <= {"id", "digits"}:
                return f"field {self.name!r}: {config}: digits from 0 to {MOST_DIGITS} are expected, and nothing else"
        if config["id"] == PHOTO and (self.kind != "image" or self.dtype not in PHOTO_DTYPES):
            images = " or ".join(PHOTO_DTYPES)
            return f"field {self.name!r}: {PHOTO} is for images of {images}, not {self.kind} {self.dtype}"
        if config["id"] == H264:
            crf = config.get("crf")
            if (
                self.kind != "array"
                or self.dtype != H264_DTYPE
                or len(self.shape) != 4
                or self.shape[3] != H264_CHANNELS
            ):
                return f"field {self.name!r}: {H264} is for clips (T, H, W, 3) of {H264_DTYPE}, not {self.in_words}"
            if type(crf) is not int or not 1 <= crf <= MOST_CRF or set(config) != {"id", "crf"}:
                return (
                    f"field {self.name!r}: {config}: a rate factor from 1 to {MOST_CRF} is expected, and nothing else"
                )
        if config["id"] == JPEG:
            quality = config.get("quality", MOST_QUALITY)
            are_images = self.kind == "array" or (self.kind == "image" and self.shape[-1] in JPEG_CHANNELS)
            if not are_images or self.dtype != JPEG_DTYPE or len(self.shape) - self.image_axes not in (0, 1):
                images = f"images (H, W) or (H, W, C) and clips of them of {JPEG_DTYPE} with 1 or 3 channels"
                return f"field {self.name!r}: {JPEG} is for {images}, not {self.in_words}"
            if type(quality) is not int or not 1 <= quality <= MOST_QUALITY or not set(config) <= {"id", "quality"}:
                return (
                    f"field {self.name!r}: {config}: a quality from 1 to {MOST_QUALITY} is expected, and nothing else"
                )
        return ""

    @property
    def in_words(self) -> str:
        """Return the field in a few words, such as `image uint8 [any, any, 3]` or `one int64`."""
        if not self.shape:
            return f"one {self.dtype}"
        axes = ", ".join("any" if n is None else str(n) for n in self.shape)
        return f"{self.kind} {self.dtype} [{axes}]"

    @property
    def image_axes(self) -> int:
        """Return how many of the last axes are one image, for `jpeg`: 2 if an array has no axis of 1 or 3 channels.

        An axis before them is that of the steps of a clip.
        """
        return 3 if self.kind == "image" or (self.shape and self.shape[-1] in JPEG_CHANNELS) else 2

    @property
    def np_dtype(self) -> np.dtype[Any]:
        """Return the dtype as it is on disk: little-endian."""
        return np.dtype(str(self.dtype)).newbyteorder("<")

    @property
    def itemsize(self) -> int:
        return np.dtype(str(self.dtype)).itemsize

    @property
    def channels(self) -> int:
        """Return the channels of every image; 0 if they differ, or these are no images."""
        return (self.shape[-1] or 0) if self.kind == "image" else 0

    @property
    def ragged_axes(self) -> tuple[int, ...]:
        """Return the numbers of the axes whose length differs between samples."""
        return tuple(i for i, n in enumerate(self.shape) if n is None)

    @property
    def is_ragged(self) -> bool:
        return None in self.shape

    @property
    def fixed_bytes(self) -> int:
        """Return the bytes of one sample with every ragged axis counted as 1."""
        return self.itemsize * math.prod(1 if n is None else n for n in self.shape)


def check_field_name(name: str) -> None:
    """Raise ValueError if `name` cannot be a field name."""
    if not name or not name.isprintable() or name != name.strip() or any(c in name for c in "=/\\"):
        raise ValueError(f"field name {name!r}: printable characters without =, / or \\ are expected")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"field name {name[:20]!r}... is longer than {MAX_NAME_BYTES} bytes")


class FrameRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a column is cut into frames: `samples` whole samples a frame, or `rows` of one sample a frame."""

    samples: Annotated[int, msgspec.Meta(ge=1, le=2**32)] | None = None
    rows: Annotated[int, msgspec.Meta(ge=1, le=2**32)] | None = None

    def __post_init__(self) -> None:
        if (self.samples is None) == (self.rows is None):
            raise ValueError("a frame rule has either samples or rows")


class Field(FieldSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field and how its column is stored.

    Attributes:
        codec: configs of the codec, applied first to last when encoding; empty for raw frames.
        frame: how the column is cut into frames.
    """

    codec: Annotated[tuple[dict[str, Any], ...], msgspec.Meta(max_length=MAX_STAGES)] = ()
    frame: FrameRule = FrameRule(samples=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frame.rows is not None and not self.shape:
            raise ValueError(f"field {self.name!r}: a scalar has no rows to be framed by")
        together = self.frame.samples or 1
        if self.codec and together > 1 and not self.is_ragged and together * self.fixed_bytes > MAX_SHARED_FRAME:
            raise ValueError(
                f"field {self.name!r}: frames of {together} samples are larger than {MAX_SHARED_FRAME} bytes"
            )
        for number, config in enumerate(self.codec):
            if not isinstance(config.get("id"), str):
                raise ValueError(f"field {self.name!r}: codec {number} has no id")
            one_image = FrameRule(samples=1) if len(self.shape) == self.image_axes else FrameRule(rows=1)
            if config["id"] == JPEG and (len(self.codec) > 1 or self.frame != one_image):
                raise ValueError(f"field {self.name!r}: {JPEG} is a codec by itself, of frames of one image")
            if config["id"] == H264 and (len(self.codec) > 1 or self.frame != FrameRule(rows=GROUP_STEPS)):
                raise ValueError(f"field {self.name!r}: {H264} is a codec by itself, of frames of {GROUP_STEPS} steps")
            if number and config["id"] in (DECIMAL, PHOTO):
                raise ValueError(f"field {self.name!r}: {config['id']} comes first in a codec, not after another")
            if wrong := self.misfit(config):
                raise ValueError(wrong)
            if config["id"] == DECIMAL and "digits" not in config:
                raise ValueError(f"field {self.name!r}: {DECIMAL} without its digits")

    @property
    def bands(self) -> int:
        """Return the number of frames of one sample, if frames hold rows and all samples have as many of these."""
        return -(-(self.shape[0] or 0) // (self.frame.rows or 1))

    @property
    def spec(self) -> FieldSpec:
        return FieldSpec(name=self.name, dtype=self.dtype, kind=self.kind, shape=self.shape)


def spec_of(name: str, array: np.ndarray[Any, Any], kind: Kind = "array") -> FieldSpec:
    """Return the schema of a field whose samples all look like `array`.

    Raises:
        UsageError: the dtype cannot be stored.
    """
    dtype = array.dtype.newbyteorder("=").name
    if dtype not in DTYPES:
        raise UsageError(
            f"field {name!r}: dtype {array.dtype} cannot be stored; convert it to one of {', '.join(DTYPES)}"
        )
    return FieldSpec(name=name, dtype=dtype, kind=kind, shape=tuple(array.shape))


def no_text(subject: str, error: UnicodeEncodeError) -> SourceError:
    """Return the error of a str with half a surrogate pair, as file names that are no text have.

    Args:
        subject: the text at fault, in words.
    """
    letter = error.object[error.start]
    return SourceError(
        f"{subject} cannot be stored as UTF-8: its character {error.start} is {letter!r}, half of a surrogate pair; "
        "fix the text, or decode the bytes it comes from with errors='replace'"
    )
