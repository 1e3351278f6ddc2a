"""Fields and their samples, for tests: any field with any frame rule, and values of any bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer.codecs import NAMED
from packer.format import DTYPES, Field, FrameRule

#: Codecs of every kind: raw, with one stage, and with a filter for images.
CODECS = ("none", "lz4", "zstd", "bitshuffle", "shuffle+lz4")
IMAGE_CODECS = (*CODECS, "photo+lz4", "photo+zstd")
#: For floats.
DECIMALS = tuple(({"id": "decimal", "digits": 2}, *NAMED[name][1:]) for name in ("decimal+lz4", "decimal+zstd"))


@st.composite
def any_field(
    draw: st.DrawFn,
    kinds: Sequence[str] = ("array", "array", "array", "image", "text"),
    dtypes: Sequence[str] = DTYPES,
    shapes: Sequence[tuple[int | None, ...]] = (),
) -> Field:
    """Draw a field `x` of any kind, dtype, shape (fixed or ragged, also of zero bytes), codec and frame rule.

    Args:
        dtypes, shapes: of arrays, to draw from; by default all.
    """
    kind: Any = draw(st.sampled_from(kinds))
    codec = NAMED[draw(st.sampled_from(IMAGE_CODECS if kind == "image" else CODECS))]
    dtype = draw(st.sampled_from({"array": dtypes, "image": ["uint8", "uint16"], "text": ["uint8"]}[kind]))
    if dtype in ("float32", "float64") and draw(st.booleans()):
        codec = draw(st.sampled_from(DECIMALS))
    axis = st.sampled_from([None, None, 0, 1, 2, 3, 7])
    shape: tuple[int | None, ...] = (None,)
    if kind == "image":
        shape = draw(st.tuples(axis, axis, axis))
    elif kind == "array":
        shape = draw(st.sampled_from(shapes) if shapes else st.lists(axis, max_size=4).map(tuple))
    rule = FrameRule(samples=draw(st.sampled_from([1, 2, 5, 50])))
    if draw(st.booleans()) and shape:
        rule = FrameRule(rows=draw(st.integers(1, 4)))
    return Field(name="x", dtype=dtype, kind=kind, shape=shape, codec=codec, frame=rule)


def any_value(rng: np.random.Generator, field: Field, longest: int = 9) -> NDArray[Any]:
    """Return a sample of any bits, NaN among them; text as its bytes. About half of the samples compress well.

    Of a field with a codec for decimals, these hold decimals.
    """
    shape = [int(rng.integers(0, longest + 1)) if n is None else n for n in field.shape]
    most = int(rng.choice([2, 256]))
    if field.kind == "text":
        return np.frombuffer("".join(rng.choice(list("aé\N{SNOWMAN}"), shape[0])).encode(), np.uint8)
    if field.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if field.codec in DECIMALS and most == 2:
        decimals = np.array(rng.integers(-9, 9, shape) / 100, field.np_dtype)
        decimals[rng.random(shape) < 0.1] = rng.choice([-0.0, np.nan, np.inf, -np.inf])
        return decimals
    data = rng.integers(0, most, int(np.prod(shape)) * field.itemsize).astype(np.uint8)
    return data.view(field.np_dtype).reshape(shape)


def same(found: Any, wanted: NDArray[Any]) -> bool:
    """Return whether a tensor, an array or a text has the dtype, shape and bits of an array."""
    if isinstance(found, str):
        return found.encode() == wanted.tobytes()
    array = np.asarray(found)
    return array.dtype == wanted.dtype and array.shape == wanted.shape and array.tobytes() == wanted.tobytes()


def flip(path: Path, at: int, bit: int = 16) -> None:
    """Flip bits of the byte at a place of a file; a place below 0 counts from the end."""
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(bytes(data))
