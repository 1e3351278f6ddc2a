"""Arrays of bytes that are files of images, as robots record them in HDF5: rows padded with zeros, or of any length.

(N,) uint8 a sample      an image (H, W, C)
(T, N) uint8 a sample    a clip (T, H, W, C), decoded as far as it is read
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs import file_of, with_files
from packer.errors import SourceError, UsageError
from packer.format import FieldSpec
from packer.sources.base import (
    LARGE_BYTES,
    Block,
    DerivedSource,
    LargeArray,
    Source,
    changed,
    common_shape,
    count,
    faults_of,
    fits,
    joined,
)
from packer.sources.options import SourceOptions


class EncodedSource(DerivedSource):
    """The samples of a source, in which the arrays of the fields `names` are decoded.

    The first, the middle and the last sample are read when it is made. Images of a field have one size if theirs do;
    frames of clips must.

    Raises:
        UsageError: there is no such field, or it holds no bytes.
        SourceError: all of these are bad.
    """

    def __init__(self, source: Source, names: Sequence[str]) -> None:
        super().__init__(source)
        specs = {spec.name: spec for spec in source.fields}
        for name in names:
            if name not in specs:
                raise UsageError(f"--encoded {name}: there is no such field; fields are {', '.join(specs)}")
            if specs[name].dtype != "uint8" or specs[name].kind != "array" or len(specs[name].shape) not in (1, 2):
                words = specs[name].in_words
                raise UsageError(f"--encoded {name}: {words} a sample; bytes, uint8 (N,) or (T, N), are expected")
        self._clips = {name for name in names if len(specs[name].shape) == 2}
        self._images: dict[str, tuple[int | None, ...]] = {}
        self._dtypes: dict[str, str] = {}
        self.remarks = list(source.remarks)
        numbers = sorted({0, len(source) // 2, len(source) - 1} - {-1})
        for name in names:
            images, errors, notes = list[NDArray[Any]](), list[SourceError](), Counter[str]()
            for number in numbers:
                try:
                    value: Any = next(iter(source.slice(number, number + 1).read()))[name][0]
                    file = _file_in(value[0:1][0] if name in self._clips else value)
                    images.append(_decoded(file, name))
                    notes[_note_of(file, name)] += 1
                except SourceError as error:  # it comes again when the sample is read
                    errors.append(error)
            if not images:
                raise SourceError(errors[0].reason, errors[0].path or next(iter(source.files()), None))
            shape, self._dtypes[name] = common_shape([image.shape for image in images]), images[0].dtype.name
            if None in shape[2:] or (name in self._clips and None in shape) or len({i.dtype for i in images}) > 1:
                sizes = " and ".join(" x ".join(map(str, image.shape)) for image in images)
                raise UsageError(f"--encoded {name}: its images differ ({sizes}); pack those of one form alone")
            self._images[name] = shape
            swapped = "images are decoded; if cv2.imencode was given RGB, red and blue are swapped in them"
            self.remarks.append(f"field {name}: {swapped}")
            looked_at = f"of {len(images)} images that were looked at"
            self.remarks += [f"field {name}, {times} {looked_at}: {note}" for note, times in notes.items() if note]
        self.fields = tuple(self._decoded_spec(spec) if spec.name in names else spec for spec in source.fields)

    def _decoded_spec(self, spec: FieldSpec) -> FieldSpec:
        name, shape = spec.name, self._images[spec.name]
        if name in self._clips:
            return FieldSpec(name=name, dtype=self._dtypes[name], shape=(spec.shape[0], *shape))
        return FieldSpec(name=name, dtype=self._dtypes[name], kind="image", shape=shape)

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        if field not in self._images:
            return super().shapes(field)
        shapes = super().shapes(field) if field in self._clips else None
        if shapes is None:
            return None
        sides = np.broadcast_to(np.array(self._images[field], np.int64), (len(shapes), len(self._images[field])))
        return np.concatenate([shapes[:, :1], sides], axis=1)

    def read(self) -> Iterator[Block]:
        return joined(self._samples(), self.fields)

    def _samples(self) -> Iterator[dict[str, Any]]:
        number = 0
        for block in self._source.read():
            for at in range(count(block)):
                sample = {name: values[at] for name, values in block.items()}
                with faults_of(sample=number):
                    for name in self._images:
                        sample[name] = self._value(name, sample[name], number)
                yield sample
                number += 1

    def _value(self, name: str, value: Any, number: int) -> Any:
        """Return an image, or a clip: of a large one rows are decoded when they are asked for."""
        if name not in self._clips:
            return self._image(name, value)
        shape = (len(value), *(n or 0 for n in self._images[name]))
        clip = LargeArray(np.dtype(self._dtypes[name]), shape, partial(self._frames, name, value), number=number)
        return clip if clip.nbytes > LARGE_BYTES else clip[:]

    def _frames(self, name: str, value: Any, start: int, stop: int) -> NDArray[Any]:
        rows = value[start:stop]
        out = np.empty((len(rows), *(n or 0 for n in self._images[name])), self._dtypes[name])
        files = []
        for at, row in enumerate(rows):
            out[at] = image = self._image(name, row)
            files.append(file_of(image))
        return with_files(out, files)

    def _image(self, name: str, row: Any) -> NDArray[Any]:
        image = _decoded(_file_in(row), name)
        if image.dtype != self._dtypes[name] or not fits(image.shape, self._images[name]):
            raise changed(self._dtypes[name], self._images[name], image, name)
        return image


def _file_in(row: Any) -> bytes:
    """Return a file, behind which there may be zeros."""
    return np.asarray(row).tobytes().rstrip(b"\0")


def _decoded(file: bytes, name: str) -> NDArray[Any]:
    """Return the pixels of a file."""
    from packer.sources.images import image_in  # which loads decoders

    try:
        return image_in(file, name, SourceOptions())
    except SourceError as error:
        raise SourceError(f"field {name}: an image {error.reason}") from error


def _note_of(file: bytes, name: str) -> str:
    """Return what is not kept as it is in a file, without the option that these sources do not have."""
    from packer.sources.images import ORIENT_ADVICE, header_in

    return header_in(file, name, SourceOptions()).note.replace(ORIENT_ADVICE, "")
