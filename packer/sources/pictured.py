"""A source some of whose fields are pictures, though it holds arrays: gray microscopy, slices of scans, depth maps.

(n, H, W) of a file    (H, W, 1) in a sample, kind `image`, and (B, 1, H, W) in a batch
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.schema import FieldSpec
from packer.sources.base import Block, DerivedSource, LargeArray, Source

#: Channels of a picture at most: red, green, blue and alpha.
MOST_CHANNELS = 4


class PicturedSource(DerivedSource):
    """The samples of a source, in which the fields `names` are of kind `image`: (H, W) or (H, W, C).

    Raises:
        UsageError: there is no such field, or its samples are no pictures.
    """

    def __init__(self, source: Source, names: Sequence[str]) -> None:
        specs = {spec.name: spec for spec in source.fields}
        if unknown := [name for name in names if name not in specs]:
            raise UsageError(f"--image {unknown[0]}: there is no such field; fields are {', '.join(specs)}")
        #: Fields that get an axis of one channel.
        self._gray = {name for name in names if len(specs[name].shape) == 2}
        super().__init__(source)
        self.fields = tuple(_picture(spec) if spec.name in names else spec for spec in source.fields)

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        shapes = super().shapes(field)
        if shapes is None or field not in self._gray:
            return shapes
        return np.append(shapes, np.ones((len(shapes), 1), np.int64), axis=1)

    def read(self) -> Iterator[Block]:
        for block in self._source.read():
            yield {name: _with_channel(values) if name in self._gray else values for name, values in block.items()}


def _picture(spec: FieldSpec) -> FieldSpec:
    gray = len(spec.shape) == 2
    channels = 1 if gray else spec.shape[-1] if len(spec.shape) == 3 else None
    if spec.kind != "array" or channels not in range(1, MOST_CHANNELS + 1):
        what = "text" if spec.kind == "text" else f"of shape ({', '.join(str(n or '?') for n in spec.shape)})"
        raise UsageError(
            f"--image {spec.name}: its samples are {what}, which is no picture; (H, W) or (H, W, C) with 1 to "
            f"{MOST_CHANNELS} channels is expected"
        )
    return msgspec.structs.replace(spec, kind="image", shape=(*spec.shape, 1) if gray else spec.shape)


def _with_channel(values: Any) -> Any:
    """Return gray samples with an axis of one channel: an array of them, or a list of arrays."""
    if isinstance(values, list):
        return [_LargeGray(value) if isinstance(value, LargeArray) else value[..., None] for value in values]
    return values[..., None]


class _LargeGray(LargeArray):
    """A large gray picture with an axis of one channel."""

    def __init__(self, picture: LargeArray) -> None:
        self._picture = picture
        self.dtype, self.shape = picture.dtype, (*picture.shape, 1)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return self._picture[rows][..., None]
