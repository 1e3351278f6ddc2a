"""Pictures as samples: one field a folder, one sample a name; opened by `opening`, decoded here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.format.schema import FieldSpec
from packer.sources.base import Block, Source, runs
from packer.sources.files import join, open_raw
from packer.sources.images.copies import copies
from packer.sources.images.formats import read_image, unreadable
from packer.sources.images.pillow import ImageOptions

#: Decoded bytes that a block holds at most, unless one sample is larger.
BLOCK_BYTES = 8 * 2**20
#: Samples that a sentence names; the rest is counted.
NAMED = 3


@dataclass(eq=False)
class ImageSource(Source):
    """Samples made of one image file a field. Pickles as relative paths and sizes.

    Attributes:
        folders: by field, the folder that `paths` count from.
        paths: by field, the file of every sample, relative.
        sizes: by field, (n, 2) int32: height and width of every sample.
        marks: by field, what copies have in common (see `copies`); none in a part.
    """

    fields: tuple[FieldSpec, ...]
    names: Sequence[str]
    folders: dict[str, str]
    paths: dict[str, list[str]]
    sizes: dict[str, NDArray[np.int32]]
    options: ImageOptions
    origin: dict[str, Any]
    remarks: list[str] = field(default_factory=list)
    marks: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    _found: list[str] | None = field(default=None, init=False, repr=False)

    kind = "images"

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
            paths={name: [some[i] for i in numbers] for name, some in self.paths.items()},
            sizes={name: some[numbers] for name, some in self.sizes.items()},
            remarks=[],
            marks={},
        )

    def read(self) -> Iterator[Block]:
        kinds = [(spec, np.dtype(str(spec.dtype)), None if spec.is_ragged else spec.shape) for spec in self.fields]
        sizes = sum(self.shapes(spec.name).prod(1) * spec.itemsize for spec in self.fields)
        for start, end in runs(np.asarray(sizes), BLOCK_BYTES):
            block = {spec.name: _room(spec, end - start) for spec in self.fields}
            for number in range(start, end):
                try:
                    for spec, dtype, shape in kinds:
                        image = self._pixels(spec.name, number)
                        if image.dtype != dtype or image.shape != (shape or self._shape(spec, number)):
                            raise self._changed(spec, number, image)
                        block[spec.name][number - start] = image
                except SourceError as error:
                    if number > start:
                        yield {name: some[: number - start] for name, some in block.items()}
                    raise SourceError(error.reason, error.path, number) from error
            yield dict(block)

    def files(self) -> list[str]:
        return [self._path(spec.name, number) for number in range(len(self)) for spec in self.fields]

    def provenance(self) -> dict[str, Any]:
        return self.origin

    def notes(self) -> list[str]:
        dtypes = {spec.name: spec.dtype for spec in self.fields}
        return [*self.remarks, *_check_sizes(self.names, self.sizes), *_check_dtypes(dtypes), *self._copies()]

    def _copies(self) -> list[str]:
        """Return sentences on pictures that are there twice; looked for once."""
        if self._found is None:
            self._found = [
                said
                for name, marks in self.marks.items()
                for said in copies(self.names, name, marks.tolist(), partial(self._opened, name))
            ]
        return self._found

    @contextlib.contextmanager
    def _opened(self, name: str, number: int) -> Iterator[BinaryIO]:
        """Open the file of a picture; what goes wrong with the operating system is a SourceError."""
        path = self._path(name, number)
        try:
            with open_raw(path) as file:
                yield file
        except OSError as error:
            raise unreadable(error, path) from error

    def _path(self, name: str, number: int) -> str:
        return join(self.folders[name], self.paths[name][number])

    def _pixels(self, name: str, number: int) -> NDArray[Any]:
        return read_image(self._path(name, number), self.options)

    def _shape(self, spec: FieldSpec, number: int) -> tuple[int | None, ...]:
        return (*self.sizes[spec.name][number].tolist(), spec.shape[2])

    def _changed(self, spec: FieldSpec, number: int, image: NDArray[Any]) -> SourceError:
        was = " x ".join(map(str, self._shape(spec, number))) + f" {spec.dtype}"
        now = " x ".join(map(str, image.shape)) + f" {image.dtype}"
        reason = f"was {was} when its header was read, and is {now} now; start again"
        return SourceError(reason, self._path(spec.name, number))


def _room(spec: FieldSpec, count: int) -> NDArray[Any] | list[NDArray[Any]]:
    if spec.is_ragged:
        return [np.empty(0)] * count
    return np.empty((count, *spec.shape), spec.dtype)  # type: ignore[arg-type]


def _check_sizes(names: Sequence[str], sizes: Mapping[str, NDArray[np.integer]]) -> list[str]:
    """Say of every two fields whether they keep one whole ratio of size; `sizes`: (n, 2), height and width."""
    sentences = []
    for first, second in combinations(sizes, 2):
        small, large = sorted((first, second), key=lambda field: int(sizes[field].sum(dtype=np.int64)))
        sentences.append(_ratio(names, sizes, small, large))
    return sentences


def _ratio(names: Sequence[str], sizes: Mapping[str, NDArray[np.integer]], small: str, large: str) -> str:
    low, high = sizes[small], sizes[large]
    whole = ((high % low == 0).all(1)) & (high[:, 0] // low[:, 0] == high[:, 1] // low[:, 1])
    if not whole.any():
        return f"{large} is no whole multiple of {small} in size in any sample"
    ratios = high[:, 0] // low[:, 0]
    values, counts = np.unique(ratios[whole], return_counts=True)
    usual = int(values[counts.argmax()])
    phrase = "has the size of" if usual == 1 else f"is {usual} times as large as"
    odd = np.flatnonzero(~whole | (ratios != usual))
    if not len(odd):
        return f"{large} {phrase} {small} in every sample"
    some = ", ".join(
        f"{names[i]} ({small} {low[i, 0]} x {low[i, 1]}, {large} {high[i, 0]} x {high[i, 1]})" for i in odd[:NAMED]
    )
    more = f" and {len(odd) - NAMED} more" if len(odd) > NAMED else ""
    return f"{large} {phrase} {small}, but not in {len(odd)} of {len(names)} samples: {some}{more}; check these"


def _check_dtypes(dtypes: Mapping[str, str]) -> list[str]:
    """Say so if fields differ in bit depth, which is allowed."""
    if len(set(dtypes.values())) < 2:
        return []
    return ["bit depths differ: " + ", ".join(f"{field} is {dtype}" for field, dtype in dtypes.items())]
