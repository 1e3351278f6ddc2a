"""Images made from images: each cut into patches (`PatchSource`), or with a small one made (`DownscaledSource`).

A patch of `size` pixels is cut every `stride` pixels out of the largest field; a field that is n times as small gives
patches of size / n pixels. Pixels left over at the right and bottom edge are not packed. Small images become a field
`lr` next to the one field of an image source; one of `KERNELS` makes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from PIL import Image

from packer.errors import SourceError, UsageError
from packer.format import FieldSpec
from packer.sources.base import Block, DerivedSource, Source
from packer.sources.images.kind import BLOCK_BYTES
from packer.sources.options import SourceOptions
from packer.sources.source import TableSource
from packer.sources.views import in_order

#: Name of the field that is made.
FIELD = "lr"


@dataclass(eq=False)
class DownscaledSource(DerivedSource):
    """The images of a source of one field, and in front of it a field of the same images, `factor` times as small.

    Attributes:
        factor: 2 or more.
        kernel: one of `KERNELS`.
    """

    factor: int
    kernel: str

    @classmethod
    def of(cls, source: TableSource, factor: int, kernel: str) -> DownscaledSource:
        """Return the images of a source, with smaller ones.

        Raises:
            UsageError: several fields, or one that is called `lr`.
            SourceError: images of another kind, or with sides that are no multiples of `factor`.
        """
        if len(source.fields) > 1 or source.fields[0].name == FIELD:
            names = ", ".join(spec.name for spec in source.fields)
            raise UsageError(
                f"--downscale makes {FIELD!r} from one other field, but the fields are {names}; give only hr=FOLDER"
            )
        (spec,) = source.fields
        if spec.dtype != "uint8" or spec.shape[2] not in (1, 3):
            values = f"{spec.dtype} with {spec.shape[2]} channels"
            raise SourceError(
                f"field {spec.name!r}: --downscale is for 8-bit gray and RGB, not {values}; convert with --mode"
            )
        _check_sides(source, spec.name, factor)
        return cls(source, factor, kernel)

    def __post_init__(self) -> None:
        super().__post_init__()
        (spec,) = self.fields
        kernel = {} if self.kernel == "pillow" else {"kernel": self.kernel}
        self.origin = {**self.origin, "downscale": self.factor, **kernel}
        made = f"field {FIELD} is made from {spec.name}, {self.factor} times as small, by {_IN_WORDS[self.kernel]}"
        self.remarks = [*self.remarks, made]
        sides = tuple(None if side is None else side // self.factor for side in spec.shape[:2])
        small = FieldSpec(name=FIELD, dtype="uint8", kind="image", shape=sides + spec.shape[2:])
        self.fields = (small, spec)

    def shapes(self, field: str) -> NDArray[np.int64]:
        shapes = np.asarray(self.source.shapes(self.fields[1].name))
        return shapes // np.array([self.factor, self.factor, 1]) if field == FIELD else shapes

    def in_order(self, numbers: Sequence[int]) -> DownscaledSource:
        """Return some of the samples, in the order given."""
        return replace(self, source=in_order(self.source, numbers))

    def read(self) -> Iterator[Block]:
        small_spec, spec = self.fields
        for block in self.source.read():
            images: Any = block[spec.name]
            smaller = [KERNELS[self.kernel](image, self.factor) for image in images]
            yield {FIELD: smaller if small_spec.is_ragged else np.stack(smaller), spec.name: images}


def seen_as(source: Any, options: SourceOptions) -> Source:
    """Return images as the options ask for them: with smaller ones beside them, or patches of them.

    Raises:
        UsageError: an option is not for these images.
    """
    asked = options.patch or options.stride or options.downscale
    if asked and any(spec.kind == "text" for spec in source.fields):
        raise UsageError("--patch, --stride and --downscale are for images without a text of each; leave them out")
    if asked and any(spec.kind == "array" for spec in source.fields):
        raise UsageError("--patch, --stride and --downscale are for single images, not for clips; leave them out")
    if options.downscale is None and options.kernel != "pillow":
        raise UsageError("--kernel needs --downscale, which says how many times smaller images are made")
    if options.patch is None and options.stride is not None:
        raise UsageError("--stride needs --patch, which says how large the patches are")
    smaller = source if options.downscale is None else DownscaledSource.of(source, options.downscale, options.kernel)
    return smaller if options.patch is None else PatchSource.of(smaller, options.patch, options.stride or options.patch)


def _sizes(source: Source) -> dict[str, NDArray[np.int64]]:
    """Return height and width of every image by field, (n, 2)."""
    shapes: dict[str, Any] = {spec.name: source.shapes(spec.name) for spec in source.fields}
    return {name: np.asarray(of_field)[:, :2] for name, of_field in shapes.items()}


def _check_sides(source: TableSource, field: str, factor: int) -> None:
    sizes = _sizes(source)[field]
    odd = np.flatnonzero((sizes % factor).any(axis=1))
    if len(odd):
        height, width = sizes[odd[0]]
        names = source.names or []
        more = f" (one of {len(odd):,} such samples)" if len(odd) > 1 else ""
        reason = f"sample {names[odd[0]]!r} is {height} x {width} pixels, not a multiple of {factor}{more}"
        raise SourceError(f"{reason}; crop such images first, or leave them out")


def smaller_by_pillow(image: NDArray[Any], factor: int) -> NDArray[Any]:
    """Return an image (H, W, C) of uint8 `factor` times as small, by Pillow's bicubic."""
    height, width, channels = image.shape
    pil_image = Image.fromarray(image[:, :, 0] if channels == 1 else image)
    small = np.asarray(pil_image.resize((width // factor, height // factor), Image.Resampling.BICUBIC))
    return small.reshape(height // factor, width // factor, channels)


def smaller_by_matlab(image: NDArray[Any], factor: int) -> NDArray[Any]:
    """Return an image (H, W, C) of uint8 `factor` times as small, as MATLAB's `imresize(image, 1 / factor)` does.

    Bicubic with antialiasing (Keys 1981, a = -1/2, stretched by `factor`). The image is mirrored beyond its edges.
    Computed in float64 and rounded once at the end, halves up; BasicSR's `imresize` is the same in float32.
    """
    weights, before = _matlab_weights(factor)
    values = image.astype(np.float64)
    for axis in (0, 1):
        ends = [(0, 0)] * 3
        ends[axis] = before, len(weights) - before - factor
        pixels = sliding_window_view(np.pad(values, ends, "symmetric"), len(weights), axis)
        values = (pixels[::factor] if axis == 0 else pixels[:, ::factor]) @ weights
    return np.floor(values.clip(0, 255) + 0.5).astype(np.uint8)


@lru_cache
def _matlab_weights(factor: int) -> tuple[NDArray[np.float64], int]:
    """Return the weights of the pixels behind one small pixel, and how many come before the `factor` that it covers."""
    middle = (factor - 1) / 2
    pixels = np.arange(np.ceil(middle - 2 * factor), np.floor(middle + 2 * factor) + 1)
    x = np.abs(pixels - middle) / factor
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    weights = np.where(x <= 1, near, np.where(x <= 2, far, 0))
    return weights / weights.sum(), -int(pixels[0])


#: Ways to make an image smaller, as `--kernel` names them, and what they are called in a sentence.
KERNELS = {"pillow": smaller_by_pillow, "matlab": smaller_by_matlab}
_IN_WORDS = {"pillow": "Pillow's bicubic", "matlab": "MATLAB's bicubic with antialiasing"}


@dataclass(eq=False)
class PatchSource(DerivedSource):
    """The patches of all images of a source, image by image, row by row.

    A patch is named `NAME_r_c`: the image, its row and its column of patches, counted from 0.

    Attributes:
        patches: image, row and column of every patch, (n, 3).
        size: side of a patch, in pixels of the largest field.
        stride: distance to the next one.
        scales: by field how many times smaller it is than the largest one.
        bad: reason and path of images that could not be read; slices share it, so that no patch reads one again.
    """

    patches: NDArray[np.int64]
    size: int
    stride: int
    scales: dict[str, int]
    bad: dict[str, tuple[str, str | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, source: TableSource | DownscaledSource, size: int, stride: int) -> PatchSource:
        """Return the patches of all images of a source. An image that is smaller than a patch is not read.

        Raises:
            UsageError: `size` or `stride` is no whole number of pixels of some field.
            SourceError: the fields have no whole ratio that all samples share, or no image is as large as a patch.
        """
        largest, scales = _scales(source)
        for name, scale in scales.items():
            if size % scale or stride % scale:
                flags, small = f"--patch {size} --stride {stride}", f"field {name!r} is {scale} times as small"
                raise UsageError(f"{flags}: {small}, so both must be multiples of {scale}")
        sides = _sizes(source)[largest]
        grid = np.maximum((sides - size) // stride + 1, 0)
        cut = np.flatnonzero(grid.all(axis=1)).tolist()
        if not cut:
            raise SourceError(
                f"no image of field {largest!r} is as large as {size} x {size} pixels; give a smaller --patch"
            )
        patches = [
            (image, row, column)
            for image, (rows, columns) in enumerate(grid[cut].tolist())
            for row in range(rows)
            for column in range(columns)
        ]
        remark = f"{len(patches):,} patches of {size} pixels are cut from {len(source):,} images"
        if left := len(source) - len(cut):
            remark += f"; {left:,} images are smaller than that and skipped"
        if cropped := int(((sides[cut] - size) % stride).any(axis=1).sum()):
            remark += f"; of {cropped:,} images, pixels at the right or bottom edge are in no patch"
        if stride > size and (grid[cut] > 1).any():
            remark += "; pixels between patches are in none"
        cut_source = cls(source.in_order(cut), np.array(patches, np.int64), size, stride, scales)
        cut_source.remarks = [*source.remarks, remark]
        return cut_source

    def __post_init__(self) -> None:
        super().__post_init__()
        self.origin, self.cuts = {**self.origin, "patch": self.size, "stride": self.stride}, None
        images, patches = self._image_names, self.patches.tolist()
        self.names = [f"{images[image]}_{row}_{column}" for image, row, column in patches]
        sides = {name: self.size // scale for name, scale in self.scales.items()}
        self.fields = tuple(
            FieldSpec(name=s.name, dtype=s.dtype, kind="image", shape=(sides[s.name],) * 2 + s.shape[2:])
            for s in self.fields
        )

    def __len__(self) -> int:
        return len(self.patches)

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        return None

    def slice(self, start: int, stop: int) -> PatchSource:
        patches = self.patches[start:stop]
        first, last = (int(patches[0, 0]), int(patches[-1, 0]) + 1) if len(patches) else (0, 0)
        return replace(self, source=self.source.slice(first, last), patches=patches - np.array([first, 0, 0]))

    def read(self) -> Iterator[Block]:
        # The number of the first patch of every image, and the number after the last patch.
        edges = np.searchsorted(self.patches[:, 0], np.arange(len(self.source) + 1)).tolist()
        most = max(1, BLOCK_BYTES // sum(spec.fixed_bytes for spec in self.fields))
        try:
            if known := self.bad.get(next(iter(self._image_names), "")):
                raise SourceError(*known, 0)
            for images, (start, stop) in zip(self._images(), pairwise(edges), strict=True):
                windows = {name: self._windows(image, self.scales[name]) for name, image in images.items()}
                for at in range(start, stop, most):
                    _, rows, columns = self.patches[at : min(at + most, stop)].T
                    yield {name: window[rows, columns] for name, window in windows.items()}
        except SourceError as error:
            if error.sample is None:
                raise
            self.bad[self._image_names[error.sample]] = error.reason, error.path
            raise SourceError(error.reason, error.path, edges[error.sample]) from error

    @property
    def _image_names(self) -> Sequence[str]:
        return self.source.names or ()

    def _images(self) -> Iterator[dict[str, NDArray[Any]]]:
        for block in self.source.read():
            images: Any = block
            for sample in zip(*images.values(), strict=True):
                yield dict(zip(images, sample, strict=True))

    def _windows(self, image: NDArray[Any], scale: int) -> NDArray[Any]:
        """Return all patches of an image as a view, (rows, columns, side, side, C)."""
        side, step = self.size // scale, self.stride // scale
        windows = sliding_window_view(image, (side, side), axis=(0, 1))[::step, ::step]
        return windows.transpose(0, 1, 3, 4, 2)


def _scales(source: TableSource | DownscaledSource) -> tuple[str, dict[str, int]]:
    """Return the largest field, and by field how many times smaller it is."""
    sizes_of = _sizes(source)
    largest = max(sizes_of, key=lambda name: int(sizes_of[name].sum()))
    scales = {}
    for name, sizes in sizes_of.items():
        scale = int(sizes_of[largest][0, 0] // sizes[0, 0])
        odd = np.flatnonzero((sizes_of[largest] != sizes * scale).any(axis=1))
        if len(odd):
            fault = f"{largest!r} is not {scale} times as large as {name!r}, as it is in the first sample"
            raise SourceError(
                f"sample {(source.names or ())[odd[0]]!r}: {fault}, so patches would not match; fix the pair"
            )
        scales[name] = scale
    return largest, scales
