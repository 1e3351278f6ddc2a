"""Images and clips that know the files or streams they were decoded from, so that these can be stored as they are.

Sources yield them in the place of arrays; `jpeg` and `h264` store their files, all other codecs their pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray


class EncodedImage(np.ndarray[Any, np.dtype[Any]]):
    """An image (H, W, C), or a clip of them (T, H, W, C), that knows the files it was decoded from.

    A view, a copy or a result of arithmetic is not that image any more, and has no file.

    Attributes:
        files: all bytes of each file: one of an image, and of a clip one for every `steps` steps; empty ones where
            there is none, and () if there is none at all.
        steps: 1 of JPEG files, `GROUP_STEPS` of streams of H.264.
    """

    files: tuple[bytes, ...]
    steps: int

    @classmethod
    def of(cls, image: NDArray[Any], *files: bytes, steps: int = 1) -> EncodedImage:
        """Return an image, or a clip, that was decoded from files, with these files."""
        encoded = image.view(cls)
        encoded.files, encoded.steps = files, steps
        return encoded

    def __array_finalize__(self, source: Any) -> None:
        self.files, self.steps = (), 1

    def __reduce__(self) -> Any:
        return partial(EncodedImage.of, steps=self.steps), (np.asarray(self), *self.files)

    def bands(self, rows: int) -> Iterator[NDArray[Any]]:
        """Yield so many rows at a time; steps of a clip that knows its files know theirs."""
        has_file_of_each = rows % self.steps == 0 and len(self.files) == -(-len(self) // self.steps)
        for first in range(0, len(self), rows):
            band = self[first : first + rows]
            files = self.files[first // self.steps : (first + rows) // self.steps] if has_file_of_each else ()
            yield EncodedImage.of(band, *files, steps=self.steps) if files else band


def files_of(values: NDArray[Any], steps: int = 1) -> tuple[bytes, ...]:
    """Return the files of an image or a clip that hold so many steps each, see `EncodedImage`: 1 for JPEG files."""
    return values.files if isinstance(values, EncodedImage) and values.steps == steps else ()


def file_of(image: NDArray[Any], steps: int = 1) -> bytes:
    """Return the file of an image, or of so many steps of a clip; empty if it has none."""
    return next(iter(files_of(image, steps)), b"")


def with_files(clip: NDArray[Any], files: Sequence[bytes]) -> NDArray[Any]:
    """Return a clip that knows the JPEG files of its frames, empty ones where there is none; itself if all are."""
    return EncodedImage.of(clip, *files) if any(files) else clip


def bands_of(sample: NDArray[Any], rows: int) -> Iterator[NDArray[Any]]:
    """Yield so many rows of a sample at a time, which know what they are encoded as if the sample does."""
    if isinstance(sample, EncodedImage):
        yield from sample.bands(rows)
    else:
        yield from (sample[first : first + rows] for first in range(0, len(sample), rows))
