"""Small pictures made from large ones: a field `lr` beside the one field of an image source, by Pillow's bicubic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packer.errors import SourceError, UsageError
from packer.format.schema import FieldSpec
from packer.sources.base import Block, Source
from packer.sources.images.source import ImageSource

#: Name of the field that is made.
FIELD = "lr"


class DownscaledSource(Source):
    """The pictures of a source of one field, and each of them `factor` times as small, in front.

    Args:
        source: 8-bit gray or RGB pictures whose sides are multiples of `factor`.
        factor: 2 or more.

    Raises:
        UsageError: several fields, one that is called `lr`, or a factor that is none.
        SourceError: pictures of another kind, or with sides that are no multiples of `factor`.
    """

    names: Sequence[str]

    def __init__(self, source: ImageSource, factor: int) -> None:
        if factor < 2:
            raise UsageError(f"--downscale {factor}: 2 or more is expected")
        if len(source.fields) > 1 or source.fields[0].name == FIELD:
            held = ", ".join(spec.name for spec in source.fields)
            raise UsageError(
                f"--downscale makes {FIELD!r} from one other field, and there is {held}; give hr=FOLDER alone"
            )
        (spec,) = source.fields
        if spec.dtype != "uint8" or spec.shape[2] not in (1, 3):
            what = f"{spec.dtype} with {spec.shape[2]} channels"
            raise SourceError(f"field {spec.name!r}: --downscale is for 8-bit gray and RGB, not {what}; see --mode")
        _check_sides(source, spec.name, factor)
        self.kind, self.names = source.kind, source.names
        self._source, self._factor, self._large = source, factor, spec.name
        sides = tuple(None if side is None else side // factor for side in spec.shape[:2])
        small = FieldSpec(name=FIELD, dtype="uint8", kind="image", shape=sides + spec.shape[2:])
        self.fields = (small, spec)
        self.sizes = {FIELD: source.sizes[spec.name] // factor, spec.name: source.sizes[spec.name]}

    def __len__(self) -> int:
        return len(self._source)

    def shapes(self, field: str) -> NDArray[np.int64]:
        shapes = self._source.shapes(self._large)
        return shapes // np.array([self._factor, self._factor, 1]) if field == FIELD else shapes

    def part(self, start: int, stop: int) -> DownscaledSource:
        part = object.__new__(DownscaledSource)
        part.__dict__.update(self.__dict__)
        part._source = self._source.part(start, stop)
        part.names = part._source.names
        part.sizes = {name: some[start:stop].copy() for name, some in self.sizes.items()}
        return part

    def read(self) -> Iterator[Block]:
        for block in self._source.read():
            images: Any = block[self._large]
            smaller = [_smaller(image, self._factor) for image in images]
            small = smaller if self.fields[0].is_ragged else np.stack(smaller)
            yield {FIELD: small, self._large: images}

    def files(self) -> list[str]:
        return self._source.files()

    def provenance(self) -> dict[str, Any]:
        return {**self._source.provenance(), "downscale": self._factor}

    def notes(self) -> list[str]:
        made = f"field {FIELD} is made from {self._large}, {self._factor} times as small, by bicubic interpolation"
        return [*self._source.notes(), made]


def _check_sides(source: ImageSource, field: str, factor: int) -> None:
    odd = np.flatnonzero((source.sizes[field] % factor).any(axis=1))
    if len(odd):
        height, width = source.sizes[field][odd[0]]
        names: Sequence[str] = source.names
        more = f" (one of {len(odd):,} such samples)" if len(odd) > 1 else ""
        reason = f"sample {names[odd[0]]!r} is {height} x {width}, no multiple of {factor}{more}"
        raise SourceError(f"{reason}; crop such pictures first, or leave them out")


def _smaller(image: NDArray[Any], factor: int) -> NDArray[Any]:
    height, width, channels = image.shape
    picture = Image.fromarray(image[:, :, 0] if channels == 1 else image)
    small = np.asarray(picture.resize((width // factor, height // factor), Image.Resampling.BICUBIC))
    return small.reshape(height // factor, width // factor, channels)
