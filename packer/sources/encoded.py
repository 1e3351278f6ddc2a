"""Arrays of bytes that are files of images, as robots record them in HDF5: rows padded with zeros, or of any length.

(N,) uint8 a sample      an image (H, W, C)
(T, N) uint8 a sample    a clip (T, H, W, C), decoded as far as it is read
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
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


@dataclass(eq=False)
class EncodedSource(DerivedSource):
    """The samples of a source, in which the arrays of some fields are decoded.

    Attributes:
        decoded: what each of these fields is then: images (H, W, C), or arrays (T, H, W, C), which are clips.
        options: how images are read, such as turned by their orientation tags.
    """

    decoded: dict[str, FieldSpec]
    options: SourceOptions

    @classmethod
    def of(cls, source: Source, names: Sequence[str], options: SourceOptions) -> EncodedSource:
        """Return the samples of a source with the fields `names` decoded, as options for images say.

        The first, the middle and the last sample are read. Images of a field have one size if theirs do; frames of
        clips must.

        Raises:
            UsageError: there is no such field, or it holds no bytes.
            SourceError: all of these are bad.
        """
        from packer.sources.images import header_in  # which loads decoders

        specs = {spec.name: spec for spec in source.fields}
        for name in names:
            if name not in specs:
                raise UsageError(f"--encoded {name}: there is no such field; fields are {', '.join(specs)}")
            if specs[name].dtype != "uint8" or specs[name].kind != "array" or len(specs[name].shape) not in (1, 2):
                words = specs[name].in_words
                raise UsageError(f"--encoded {name}: {words} a sample; bytes, uint8 (N,) or (T, N), are expected")
        decoded, remarks = dict[str, FieldSpec](), list(source.remarks)
        numbers = sorted({0, len(source) // 2, len(source) - 1} - {-1})
        for name in names:
            is_clip = len(specs[name].shape) == 2
            images, errors, notes = list[NDArray[Any]](), list[SourceError](), Counter[str]()
            for number in numbers:
                try:
                    value: Any = next(iter(source.slice(number, number + 1).read()))[name][0]
                    file = _file_in(value[0:1][0] if is_clip else value)
                    images.append(_decoded(file, name, options))
                    notes[header_in(file, name, options).note] += 1
                except SourceError as error:  # it comes again when the sample is read
                    errors.append(error)
            if not images:
                raise SourceError(errors[0].reason, errors[0].path or next(iter(source.files()), None))
            shape = common_shape([image.shape for image in images])
            if None in shape[2:] or (is_clip and None in shape) or len({i.dtype for i in images}) > 1:
                sizes = " and ".join(" x ".join(map(str, image.shape)) for image in images)
                raise UsageError(f"--encoded {name}: its images differ ({sizes}); pack those of one form alone")
            shape, kind = ((specs[name].shape[0], *shape), "array") if is_clip else (shape, "image")
            decoded[name] = msgspec.structs.replace(specs[name], dtype=images[0].dtype.name, kind=kind, shape=shape)
            swapped = "images are decoded; if cv2.imencode was given RGB, red and blue are swapped in them"
            remarks.append(f"field {name}: {swapped}")
            looked_at = f"of {len(images)} images that were looked at"
            remarks += [f"field {name}, {times} {looked_at}: {note}" for note, times in notes.items() if note]
        source = cls(source, decoded, options)
        source.remarks = remarks
        return source

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fields = tuple(self.decoded.get(spec.name, spec) for spec in self.fields)

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        spec = self.decoded.get(field)
        shapes = None if spec and spec.kind == "image" else super().shapes(field)
        if spec is None or shapes is None:
            return shapes
        sides = np.broadcast_to(np.array(spec.shape[1:], np.int64), (len(shapes), 3))
        return np.concatenate([shapes[:, :1], sides], axis=1)

    def read(self) -> Iterator[Block]:
        return joined(self._samples(), self.fields)

    def _samples(self) -> Iterator[dict[str, Any]]:
        number = 0
        for block in self.source.read():
            for at in range(count(block)):
                sample = {name: values[at] for name, values in block.items()}
                with faults_of(sample=number):
                    for spec in self.decoded.values():
                        sample[spec.name] = _value(spec, sample[spec.name], number, self.options)
                yield sample
                number += 1


def _value(spec: FieldSpec, value: Any, number: int, options: SourceOptions) -> Any:
    """Return an image, or a clip: of a large one rows are decoded when they are asked for."""
    if spec.kind == "image":
        return _image(spec, value, options)
    shape = (len(value), *(n or 0 for n in spec.shape[1:]))
    clip = LargeArray(spec.np_dtype, shape, partial(_frames, spec, value, options), number=number)
    return clip if clip.nbytes > LARGE_BYTES else clip[:]


def _frames(spec: FieldSpec, value: Any, options: SourceOptions, start: int, stop: int) -> NDArray[Any]:
    rows, files = value[start:stop], []
    out = np.empty((len(rows), *(n or 0 for n in spec.shape[1:])), spec.dtype)
    for at, row in enumerate(rows):
        out[at] = image = _image(spec, row, options)
        files.append(file_of(image))
    return with_files(out, files)


def _image(spec: FieldSpec, row: Any, options: SourceOptions) -> NDArray[Any]:
    image, shape = _decoded(_file_in(row), spec.name, options), spec.shape[-3:]
    if image.dtype != spec.dtype or not fits(image.shape, shape):
        raise changed(spec.dtype, shape, image, spec.name)
    return image


def _file_in(row: Any) -> bytes:
    """Return a file, behind which there may be zeros."""
    return np.asarray(row).tobytes().rstrip(b"\0")


def _decoded(file: bytes, name: str, options: SourceOptions) -> NDArray[Any]:
    """Return the pixels of a file."""
    from packer.sources.images import image_in  # which loads decoders

    try:
        return image_in(file, name, options)
    except SourceError as error:
        raise SourceError(f"field {name}: an image {error.reason}") from error
