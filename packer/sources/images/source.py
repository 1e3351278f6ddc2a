"""Images as samples: one field a folder, one sample a name; opened by `opening`, decoded here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.format import FieldSpec
from packer.sources.base import Block, Source, faults_of, joined
from packer.sources.files import LMDB_DATA, join
from packer.sources.images.formats import ByteRange, ImageOptions, read_image

#: Decoded bytes that a block holds at most, unless one sample is larger.
BLOCK_BYTES = 2**19
#: Samples that a sentence names; the rest is counted.
NAMED = 3


@dataclass(eq=False)
class ImageSource(Source):
    """Samples made of one image a field. Pickles as relative paths and sizes.

    Attributes:
        folders: by field, the folder that `paths` count from.
        paths: by field, the file of every sample, relative; of an LMDB folder its key, with a suffix.
        sizes: by field, (n, 2) int32: height and width of every sample.
        options: by field, how its images are read.
        places: by field, where every value lies in the file of an LMDB folder; empty for files.
    """

    fields: tuple[FieldSpec, ...]
    names: Sequence[str]
    folders: dict[str, str]
    paths: dict[str, list[str]]
    sizes: dict[str, NDArray[np.int32]]
    options: Mapping[str, ImageOptions]
    origin: Mapping[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    places: dict[str, list[ByteRange]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kind = "basicsr" if self.places else "images"

    def __len__(self) -> int:
        return len(self.names)

    def shapes(self, field: str) -> NDArray[np.int64]:
        channels = next(spec for spec in self.fields if spec.name == field).shape[2] or 0
        return np.insert(self.sizes[field].astype(np.int64), 2, channels, axis=1)

    def part(self, start: int, stop: int) -> ImageSource:
        return self.take(range(start, stop))

    def take(self, numbers: Sequence[int]) -> ImageSource:
        """Return some of the samples, in the order given, as `part` does."""
        return replace(
            self,
            names=[self.names[i] for i in numbers],
            paths={name: [of_field[i] for i in numbers] for name, of_field in self.paths.items()},
            sizes={name: of_field[numbers] for name, of_field in self.sizes.items()},
            places={name: [of_field[i] for i in numbers] for name, of_field in self.places.items()},
            origin={},
            remarks=[],
        )

    def read(self) -> Iterator[Block]:
        return joined(self._samples(), self.fields, BLOCK_BYTES)

    def _samples(self) -> Iterator[dict[str, Any]]:
        shapes = {spec.name: self.shapes(spec.name) for spec in self.fields}
        for number in range(len(self)):
            with faults_of(sample=number):
                sample = {spec.name: self._image(spec, number, shapes[spec.name][number]) for spec in self.fields}
            yield sample

    def _image(self, spec: FieldSpec, number: int, shape: NDArray[np.int64]) -> NDArray[Any]:
        path, place = self.where(spec.name, number)
        image = read_image(path, self.options[spec.name], place)
        if image.dtype != spec.dtype or image.shape != tuple(shape.tolist()):
            was, now = (" x ".join(map(str, size)) for size in (shape, image.shape))
            reason = f"was {was} {spec.dtype} when its header was read, and is {now} {image.dtype} now; run again"
            raise SourceError(reason, path)
        return image

    def where(self, field: str, number: int) -> tuple[str, ByteRange | None]:
        """Return the path of an image, and where its bytes lie if it is no file of its own."""
        place = self.places[field][number] if self.places else None
        return join(self.folders[field], self.paths[field][number]), place

    def files(self) -> list[str]:
        if self.places:
            return [join(self.folders[spec.name], LMDB_DATA) for spec in self.fields]
        return [self.where(spec.name, number)[0] for number in range(len(self)) for spec in self.fields]


def compared(source: ImageSource) -> list[str]:
    """Return sentences on how the fields relate: whether they keep one ratio of size, and that bit depths differ."""
    sentences = []
    for first, second in combinations(source.sizes, 2):
        small, large = sorted((first, second), key=lambda field: int(source.sizes[field].sum(dtype=np.int64)))
        sentences.append(_ratio_in_words(source.names, source.sizes, small, large))
    if len({spec.dtype for spec in source.fields}) > 1:
        depths = ", ".join(f"{spec.name} is {spec.dtype}" for spec in source.fields)
        sentences.append(f"bit depths differ: {depths}")
    return sentences


def misfitting_sizes(sizes: Mapping[str, NDArray[np.int32]]) -> dict[int, tuple[str, str]]:
    """Return the samples without the ratio of sizes that most have: their numbers, a field at fault, and what is wrong.

    Args:
        sizes: by field, height and width of every sample, (n, 2).
    """
    odd: dict[int, tuple[str, str]] = {}
    for first, second in combinations(sizes, 2):
        small, large = sorted((first, second), key=lambda field: int(sizes[field].sum(dtype=np.int64)))
        usual, numbers = _usual_ratio(sizes[small], sizes[large])
        if usual is None or 2 * len(numbers) >= len(sizes[small]):
            continue
        for number in numbers.tolist():
            low, high = sizes[small][number], sizes[large][number]
            sizes_in_words = f"{large} is {high[0]} x {high[1]} pixels and {small} {low[0]} x {low[1]}"
            odd[number] = large, f"{sizes_in_words}, not {usual} times as large as in most samples; crop or resize it"
    return odd


def _usual_ratio(low: NDArray[np.int32], high: NDArray[np.int32]) -> tuple[int | None, NDArray[np.intp]]:
    """Return how many times as large most `high` are, None if no sample has a whole ratio, and who are not."""
    whole = ((high % low == 0).all(1)) & (high[:, 0] // low[:, 0] == high[:, 1] // low[:, 1])
    ratios = high[:, 0] // low[:, 0]
    values, counts = np.unique(ratios[whole], return_counts=True)
    usual = int(values[counts.argmax()]) if len(values) else None
    return usual, np.flatnonzero(~whole | (ratios != usual))


def _ratio_in_words(names: Sequence[str], sizes: Mapping[str, NDArray[np.int32]], small: str, large: str) -> str:
    low, high = sizes[small], sizes[large]
    usual, odd = _usual_ratio(low, high)
    if usual is None:
        return f"{large} is in no sample a whole number of times as large as {small}; check these"
    phrase = "has the size of" if usual == 1 else f"is {usual} times as large as"
    if not len(odd):
        return f"{large} {phrase} {small} in every sample"
    examples = ", ".join(
        f"{names[i]} ({small} {low[i, 0]} x {low[i, 1]}, {large} {high[i, 0]} x {high[i, 1]})" for i in odd[:NAMED]
    )
    more = f" and {len(odd) - NAMED} more" if len(odd) > NAMED else ""
    advice = "; --on-error skip skips them" if 2 * len(odd) < len(low) else "; check these"
    return f"{large} {phrase} {small}, but not in {len(odd)} of {len(names)} samples: {examples}{more}{advice}"
