"""Pictures in folders: one field a folder, one sample a name.

    source = open_images({"lr": "DIV2K/LR_x4", "hr": "DIV2K/HR"})

Opening reads names and headers alone; `ImageSource.read` decodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.format.schema import FieldSpec
from packer.sources.base import Block, Looking, OnBad, Source, not_looking, stop
from packer.sources.files import join
from packer.sources.images.checks import check_dtypes, check_sizes
from packer.sources.images.copies import Stored, copies, files_stored
from packer.sources.images.files import find
from packer.sources.images.formats import read_image
from packer.sources.images.modes import MAX_PIXELS, ImageOptions
from packer.sources.images.pairing import pair
from packer.sources.images.samples import (
    changes,
    field_spec,
    left_out,
    marker_values,
    markers,
    read_headers,
    report_partners,
    share_out,
)

#: Decoded bytes that a block holds at most, unless one sample is larger.
BLOCK_BYTES = 8 * 2**20


def open_images(
    inputs: Mapping[str, str],
    *,
    on_bad: OnBad = stop,
    mode: str | None = None,
    palette: str = "colour",
    max_pixels: int = MAX_PIXELS,
    looking: Looking = not_looking,
) -> ImageSource:
    """The images of one or more fields, partners paired by name.

    Args:
        inputs: by field name a folder (searched to any depth), a file, or a glob pattern.
        on_bad: told of every file that cannot be packed; where it returns, the sample is left out.
        mode: `gray`, `rgb` or `rgba` converts every image; None keeps what the files hold.
        palette: `colour` or `index`: what becomes of palette pictures.
        max_pixels: larger pictures are refused before they take memory.
        looking: told how far finding files and reading headers is.

    Raises:
        UsageError: an input is not there or holds no image; two are the same files; a field name or an option
            cannot be.
        SourceError: what `on_bad` raises; no sample is left; images of one field differ in kind.
    """
    options = ImageOptions(mode, palette, max_pixels)
    if not inputs:
        raise UsageError("no images are named; say FIELD=FOLDER, for example hr=DIV2K/HR")
    found = {name: find(name, text, on_bad, looking) for name, text in inputs.items()}
    notes = [*left_out(found), *share_out(found)]
    paired = pair({name: some.files for name, some in found.items()})
    report_partners(paired, found, on_bad)
    samples = read_headers(paired, found, options, on_bad, looking)
    return ImageSource(
        fields=tuple(field_spec(name, samples, found[name].folder) for name in inputs),
        names=samples.names,
        folders={name: some.folder for name, some in found.items()},
        paths=samples.paths,
        sizes={name: np.array([h[:2] for h in some], np.int32) for name, some in samples.headers.items()},
        options=options,
        origin={"mode": options.mode, "palette": options.palette, "markers": marker_values(paired)},
        remarks=[*notes, *markers(paired), *changes(samples)],
    )


@dataclass(eq=False)
class ImageSource(Source):
    """Samples made of one image file a field. Pickles as relative paths and sizes.

    Attributes:
        folders: by field, the folder that `paths` count from.
        paths: by field, the file of every sample, relative.
        sizes: by field, (n, 2) int32: height and width of every sample.
    """

    fields: tuple[FieldSpec, ...]
    names: Sequence[str]
    folders: dict[str, str]
    paths: dict[str, list[str]]
    sizes: dict[str, NDArray[np.int32]]
    options: ImageOptions
    origin: dict[str, Any]
    remarks: list[str] = field(default_factory=list)
    _found: list[str] | None = field(default=None, init=False, repr=False)

    kind = "images"

    def __len__(self) -> int:
        return len(self.names)

    def shapes(self, field: str) -> NDArray[np.int64]:
        channels = next(spec for spec in self.fields if spec.name == field).shape[2] or 0
        return np.insert(self.sizes[field].astype(np.int64), 2, channels, axis=1)

    def part(self, start: int, stop: int) -> ImageSource:
        return replace(
            self,
            names=self.names[start:stop],
            paths={name: some[start:stop] for name, some in self.paths.items()},
            sizes={name: some[start:stop].copy() for name, some in self.sizes.items()},
            remarks=[],
        )

    def read(self) -> Iterator[Block]:
        for start, end in self._runs():
            block = {spec.name: _room(spec, end - start) for spec in self.fields}
            for number in range(start, end):
                try:
                    images = {spec.name: self._image(spec, number) for spec in self.fields}
                except SourceError as error:
                    if number > start:
                        yield {name: some[: number - start] for name, some in block.items()}
                    raise SourceError(error.reason, error.path, number) from error
                for name, image in images.items():
                    block[name][number - start] = image
            yield dict(block)

    def files(self) -> list[str]:
        return [self._path(spec.name, number) for number in range(len(self)) for spec in self.fields]

    def provenance(self) -> dict[str, Any]:
        return self.origin

    def notes(self) -> list[str]:
        dtypes = {spec.name: spec.dtype for spec in self.fields}
        return [*self.remarks, *check_sizes(self.names, self.sizes), *check_dtypes(dtypes), *self._copies()]

    def _copies(self) -> list[str]:
        """Sentences on pictures that are there twice; looked for once."""
        if self._found is None:
            self._found = [said for spec in self.fields for said in copies(self.names, spec.name, self._stored(spec))]
        return self._found

    def _stored(self, spec: FieldSpec) -> Stored:
        return files_stored([self._path(spec.name, number) for number in range(len(self))])

    def _path(self, name: str, number: int) -> str:
        return join(self.folders[name], self.paths[name][number])

    def _image(self, spec: FieldSpec, number: int) -> NDArray[Any]:
        path = self._path(spec.name, number)
        image = read_image(path, self.options)
        height, width = self.sizes[spec.name][number]
        if image.shape != (height, width, spec.shape[2]) or image.dtype != spec.dtype:
            was = f"{height} x {width} x {spec.shape[2]} {spec.dtype}"
            now = " x ".join(map(str, image.shape)) + f" {image.dtype}"
            raise SourceError(f"was {was} when its header was read, and is {now} now; start again", path)
        return image

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Samples start..end of every block."""
        each = sum(self.shapes(spec.name).prod(1) * spec.itemsize for spec in self.fields)
        ends = np.cumsum(each)
        start = 0
        while start < len(self):
            before = int(ends[start - 1]) if start else 0
            end = max(start + 1, int(np.searchsorted(ends, before + BLOCK_BYTES, "right")))
            yield start, end
            start = end


def _room(spec: FieldSpec, count: int) -> NDArray[Any] | list[NDArray[Any]]:
    if spec.is_ragged:
        return [np.empty(0)] * count
    return np.empty((count, *spec.shape), spec.dtype)  # type: ignore[arg-type]
