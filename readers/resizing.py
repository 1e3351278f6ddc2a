"""Reads the crops that a `ResizedCrop` draws: decodes no more of each sample than they need, cuts and resizes them.

Several crops of a sample are cut from one decoded image, at the least of their factors.

Every image is resized by one thread. torch would share some of the work out to its own threads, which then wait for
more in a loop, and take the processors from the other reading threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.codecs import decode_jpeg, file_of_frame
from packer.errors import UsageError
from packer.format import Located, Numbers
from readers.draws import Asked
from readers.fields import Describe, FieldReader, Places
from readers.gather import MEMORY, Allocate, fresh
from readers.resized_placing import ResizedPlacing
from readers.rows import RegionReader, part_field
from readers.windows import Steps, WindowReader

#: Values up to which torch works in the calling thread alone.
_ALONE = 2**15
#: What resizes with antialiasing, by interpolation: `torch.nn.functional.interpolate` calls these, too.
RESIZING: dict[str, Callable[..., Any]] = {
    "bilinear": torch.ops.aten._upsample_bilinear2d_aa.out,
    "bicubic": torch.ops.aten._upsample_bicubic2d_aa.out,
}


class ResizedReader(FieldReader):
    """Resized crops of one field. Reads like any other field of fixed shape; several views have an axis of their own.

    All steps of a window are cropped at one place.

    Args:
        places: where the whole samples lie.
        placing: where crops lie in them.
        interpolation: one of `RESIZING`.
        describe: gives a sample in words, by its number.
        steps: of the windows of clips; None if samples are images.
    """

    def __init__(
        self,
        places: Places,
        placing: ResizedPlacing,
        interpolation: str,
        describe: Describe,
        steps: Steps | None = None,
    ) -> None:
        channels, lengths = places.field.shape[-1] or 0, () if steps is None else (len(steps.offsets),)
        super().__init__(part_field(places.field, (*lengths, *placing.shape, channels)))
        self._places, self._placing, self._describe, self._steps = places, placing, describe, steps
        self._resize_pixels = RESIZING[interpolation]
        #: Reads whole windows; None if samples are images.
        self._windows = None if steps is None else WindowReader(places, steps)
        #: By name of the views: how many, steps of a window, height, width and channels.
        self._shapes = {name: (views.count, *lengths, *views.shape, channels) for name, views in placing.sets.items()}
        self._fixed_bytes = sum(map(math.prod, self._shapes.values()))

    @property
    def in_words(self) -> str:
        """Return what is read of a sample in a few words."""
        if self._placing.views is None:
            return super().in_words
        return ", ".join(f"{name} {self.field.dtype} {[*shape]}".strip() for name, shape in self._shapes.items())

    def locate(self, asked: Asked) -> Located:
        """Return where samples lie, the anchor steps of their windows, and their crops.

        Raises:
            UsageError: a sample has no pixels.
        """
        located = self._places.locate(asked.samples) if self._windows is None else self._windows.locate(asked)
        if not located.nbytes.all():
            number = int(asked.samples[located.nbytes.argmin()])
            raise UsageError(f"{self._describe(number)}: field {self.field.name!r} has no pixels to be resized")
        crops = self._placing.place(located.shape[:, -3:-1], asked.visits)
        return located.adding(**crops._asdict())

    def spans(self, located: Located) -> Numbers:
        """Return the first address of the frames of each sample, or window, and the one after the last, (n, 2)."""
        return located.spans if self._windows is None else self._windows.spans(located)

    def read(self, located: Located, allocate: Allocate | None = None) -> Any:
        """Return the crops in new memory or in what `allocate` gives.

        Returns:
            (n, *shape), of windows (n, T, *shape); with a number of views (n, views, ...); with a dict a dict of these.

        Raises:
            DamagedError: a frame cannot be decoded.
        """
        crops = {
            name: (allocate or fresh)(len(located) * math.prod(shape)).view(len(located), *shape)
            for name, shape in self._shapes.items()
        }
        for number in range(len(located)):
            self._resize(located[number : number + 1], [image for views in crops.values() for image in views[number]])
        if self._steps is not None:
            for views in crops.values():
                self._steps.fill(views.transpose(1, 2), located)
        if isinstance(self._placing.views, Mapping):
            return crops
        (values,) = crops.values()
        return values.squeeze(1) if self._placing.views is None else values

    def _resize(self, sample: Located, images: Sequence[torch.Tensor]) -> None:
        """Put the resized crops of a sample (1,) into their images (..., height, width, channels)."""
        corners, sides = sample.corners.reshape(-1, 2), sample.sides.reshape(-1, 2)
        first, stop = corners.min(axis=0), (corners + sides).max(axis=0)
        for number, (pixels, factor) in enumerate(self._decode(sample, first, stop)):
            of_step = images if self._steps is None else [image[number] for image in images]
            starts, stops = (corners - first) // factor, -(-(corners + sides - first) // factor)
            for image, start, end, is_mirrored in zip(of_step, starts, stops, sample.mirrored.reshape(-1), strict=True):
                crop = pixels[start[0] : end[0], start[1] : end[1]]
                if self._placing.short is None:
                    self._interpolate(crop, image)
                else:
                    self._cut_middle(crop, image, sides[0].tolist(), factor)
                if is_mirrored:
                    rows = max(1, _ALONE // image[0].numel())
                    for row in range(0, len(image), rows):
                        image[row : row + rows] = image[row : row + rows].flip(1)

    def _cut_middle(self, pixels: NDArray[np.uint8], image: torch.Tensor, sides: list[int], factor: int) -> None:
        """Resize a whole sample, and put its middle into an image (height, width, channels).

        Args:
            sides: its height and width.
            factor: how many times as small its pixels were decoded.
        """
        size = self._placing.shape
        (resized_sides,) = self._placing.resized_sides(np.array([sides])).tolist()
        resized = torch.empty((*resized_sides, image.shape[2]), dtype=torch.uint8)
        self._interpolate(pixels, resized, [side / factor for side in sides])
        top, left = (round((side - crop_side) / 2) for side, crop_side in zip(resized_sides, size, strict=True))
        image.numpy()[:] = resized[top : top + size[0], left : left + size[1]].numpy()

    def _decode(self, sample: Located, first: Numbers, stop: Numbers) -> Iterator[tuple[NDArray[np.uint8], int]]:
        """Yield a region of a sample (1,), or of each step of its window: (h, w, channels), and a factor.

        The factor says how many times as small it was decoded.

        Args:
            first: its first row and column, (2,).
            stop: the row and the column after its last, (2,).
        """
        rows, columns = (slice(*ends) for ends in zip(first.tolist(), stop.tolist(), strict=True))
        if not self._places.codec.is_jpeg:
            if self._windows is None:
                images = RegionReader(self._places, rows, columns).read(sample).numpy()
            else:
                (window,) = self._windows.read(sample)
                images = window.numpy()[:, rows, columns]
            yield from ((image, 1) for image in images)
            return
        steps = np.zeros(1, np.int64) if self._steps is None else self._steps.rows(sample)[0]
        frames = self._places.frames(sample, np.zeros_like(steps), steps)
        for number, (start, end) in enumerate(frames.spans.tolist()):
            nbytes, shape = int(frames.decoded[number]), frames.shape[number, -3:].tolist()
            file = file_of_frame(MEMORY.array.data[start:end], nbytes)
            if not file:
                yield MEMORY.array[start:end].reshape(shape)[rows, columns].copy(), 1
                continue
            factor = int(sample.factors.min())
            try:
                image = decode_jpeg(file, shape, factor=factor, rows=rows.stop)
            except ValueError:
                self._places.decode_frames(frames[number : number + 1], np.empty(nbytes, np.uint8))  # says the sample
                raise
            # The last row may stand for fewer than `factor`; then it is in no random crop.
            yield image[tuple(slice(ends.start // factor, -(-ends.stop // factor)) for ends in (rows, columns))], factor

    def _interpolate(self, pixels: NDArray[np.uint8], out: torch.Tensor, sides: Sequence[float] | None = None) -> None:
        """Resize (h, w, C) of uint8 to the size of `out` (H, W, C), as `torch.nn.functional.interpolate` does it.

        Args:
            sides: height and width that are resized, if the last row or column of `pixels` lies partly outside.
        """
        size = list(out.shape[:2])
        scales = (None, None) if sides is None else (size[0] / sides[0], size[1] / sides[1])
        images = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None]
        self._resize_pixels(images, size, False, *scales, out=out.permute(2, 0, 1)[None])
