"""A sequence of samples in memory, or anything with a length and numbered items, as a source.

Items are dicts of field name to array, number, str, torch tensor, PIL image or bytes of a file of an image; a list of
images is a clip. torch itself is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.codecs import EncodedImage
from packer.errors import SourceError, UsageError
from packer.format import FieldSpec, no_text, spec_of
from packer.sources.base import Block, Source, common_shape, faults_of, fits
from packer.sources.derived import LABEL

#: Samples looked at to tell which axes are ragged.
LOOK_AT = 64

#: Field name to value, text as it is.
Sample = dict[str, "NDArray[Any] | str"]


class ItemSequence(Protocol):
    """A list, a torch Dataset, or whatever has a length and numbered items."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...


class SampleSource(Source):
    """The items start..stop of a sequence.

    Args:
        items: samples by number, each a mapping of field name to value.
        fields: the schema; None to infer it from up to 64 samples spread over the sequence. Bad ones among them are
            skipped: whether they stop the conversion is decided when they are packed.
        keys: names of the fields of samples that are tuples.

    Raises:
        SourceError: there is no sample, or the samples looked at are all bad or do not fit each other.
    """

    kind = "samples"
    names = None

    def __init__(
        self,
        items: ItemSequence,
        fields: Sequence[FieldSpec] | None = None,
        start: int = 0,
        stop: int | None = None,
        keys: Sequence[str] = (),
    ) -> None:
        self._items = items
        self._keys = tuple(keys)
        self._start = start
        self._stop = len(items) if stop is None else stop
        if fields is None:
            fields = infer_fields(*self._look())
        self.fields = tuple(fields)
        self.origin, self.remarks = _kept_classes(items, self.fields)

    def __len__(self) -> int:
        return self._stop - self._start

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        return None

    def slice(self, start: int, stop: int) -> Source:
        return SampleSource(self._items, self.fields, self._start + start, self._start + stop, self._keys)

    def files(self) -> list[str]:
        return []

    def read(self) -> Iterator[Block]:
        for number in range(self._start, self._stop):
            with faults_of(sample=number - self._start):
                block = one_block(self._arrays(number), self.fields, f"sample {number}")
            yield block

    def _look(self) -> tuple[list[Sample], list[int]]:
        """Return some samples, from evenly spread places, and their numbers."""
        if not len(self):
            raise SourceError("the sequence is empty; there is no sample to pack")
        examples: list[Sample] = []
        numbers: list[int] = []
        errors: list[SourceError] = []
        for i in np.unique(np.linspace(self._start, self._stop - 1, min(LOOK_AT, len(self))).astype(int)).tolist():
            try:
                examples.append(self._arrays(i))
                numbers.append(i)
            except SourceError as error:
                errors.append(error)
        if not examples:
            raise errors[0]
        return examples, numbers

    def _arrays(self, number: int) -> Sample:
        """Return the values of an item by field, those of a tuple by the names that were given."""
        item = self._items[number]
        if self._keys and isinstance(item, tuple | list):
            if len(item) != len(self._keys):
                reason = f"sample {number} has {len(item)} values, but names are {', '.join(self._keys)}"
                raise SourceError(f"{reason}; give a name for each value")
            item = dict(zip(self._keys, item, strict=True))
        return as_arrays(item, number)


def _kept_classes(items: Any, fields: Sequence[FieldSpec]) -> tuple[dict[str, Any], list[str]]:
    """Return the names of classes that a dataset knows, as the manifest keeps them, and remarks on what is not kept.

    torchvision's datasets and packed ones have `classes`, Hugging Face's have them in `features`.
    """
    features = getattr(items, "features", None)
    label = features.get(LABEL) if isinstance(features, Mapping) else None
    known = getattr(items, "classes", None) or getattr(label, "names", None)
    remarks = []
    if isinstance(getattr(items, "names", None), Sequence):
        remarks.append("names of samples are not kept of a dataset in memory: DatasetWriter.add(sample, name=...) does")
    if not isinstance(known, list | tuple) or not known or not all(isinstance(name, str) for name in known):
        return {}, remarks
    if any(spec.name == LABEL and spec.kind == "array" and np.dtype(spec.dtype).kind in "iu" for spec in fields):
        return {"classes": list(known)}, remarks
    return {}, [*remarks, f"names of classes are kept with numbers in a field {LABEL!r}, and there is none"]


def as_arrays(item: Any, number: int) -> Sample:
    """Return the values of an item as arrays, native-endian and C-contiguous.

    Raises:
        SourceError: it is no mapping, a value cannot be an array, a text cannot be stored, or two fields share a name.
    """
    if not isinstance(item, Mapping):
        names = '; of tuples give the names, as in names=("image", "label")' * isinstance(item, tuple)
        raise SourceError(
            f"sample {number} is a {type(item).__name__}; a dict of field name to array is expected{names}"
        )
    arrays: Sample = {}
    for name, value in item.items():
        where = f"sample {number}: field {str(name)!r}"
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise no_text(where, error) from None
            arrays[str(name)] = value
            continue
        if isinstance(value, EncodedImage):
            arrays[str(name)] = value
            continue
        if (images := _images_in(value, str(name), where)) is not None:
            arrays[str(name)] = images
            continue
        if np.ma.is_masked(value):
            raise SourceError(f"{where} is masked in places, which is not kept; give value.filled(...) or value.data")
        try:
            array = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SourceError(f"{where} cannot be an array: {error}") from None
        arrays[str(name)] = np.require(array, array.dtype.newbyteorder("="), "C")
    if len(arrays) < len(item):
        raise SourceError(f"sample {number} has two fields with the same name as text: {', '.join(map(repr, item))}")
    return arrays


def _images_in(value: Any, field: str, where: str) -> NDArray[Any] | None:
    """Return an image (H, W, C), or those of a list as (T, H, W, C); None if there is anything else."""
    is_list = isinstance(value, list | tuple)
    first = value[0] if is_list and value else value
    if not isinstance(first, bytes | bytearray | Mapping) and type(first).__module__.partition(".")[0] != "PIL":
        return None
    from packer.sources.images import as_image  # which loads Pillow

    try:
        images = [as_image(one, field) for one in (value if is_list else [value])]
    except SourceError as error:
        raise SourceError(f"{where} {error}") from None
    pixels = [image for image in images if image is not None]
    if len(pixels) < len(images):
        return None
    if not is_list:
        return pixels[0]
    if len({(image.shape, image.dtype) for image in pixels}) > 1:
        raise SourceError(f"{where} is a list of images of several sizes or kinds; the frames of a clip must be alike")
    return np.stack([np.asarray(image) for image in pixels])


def infer_fields(samples: Sequence[Sample], numbers: Sequence[int] | None = None) -> tuple[FieldSpec, ...]:
    """Return the schema that all `samples` fit: axes that differ between them are ragged.

    Args:
        numbers: of the samples, for errors; None if they are numbered from 0.

    Raises:
        SourceError: they have no field, or differ in their fields, dtypes or numbers of axes.
    """
    first = samples[0]
    if not first:
        raise SourceError("samples have no field; a dict of field name to array is expected")
    for sample in samples:
        if sample.keys() != first.keys():
            raise SourceError(f"samples differ in their fields: {', '.join(first)} and {', '.join(sample)}")
    in_words = [f"sample {number}" for number in (range(len(samples)) if numbers is None else numbers)]
    return tuple(_infer(name, [sample[name] for sample in samples], in_words) for name in first)


def _infer(name: str, values: Sequence[NDArray[Any] | str], samples_in_words: Sequence[str]) -> FieldSpec:
    arrays = [value for value in values if not isinstance(value, str)]
    if not arrays:
        return FieldSpec(name=name, dtype="uint8", kind="text", shape=(None,))
    forms = [
        "text" if isinstance(value, str) else f"{value.dtype} of {value.ndim} {'axis' if value.ndim == 1 else 'axes'}"
        for value in values
    ]
    if len(set(forms)) > 1:
        number, other = next((at, form) for at, form in enumerate(forms) if form != forms[0])
        raise SourceError(
            f"field {name!r} differs in dtype or number of axes between samples: it is {forms[0]} in "
            f"{samples_in_words[0]}, {other} in {samples_in_words[number]}; convert the values"
        )
    try:
        are_images = all(isinstance(array, EncodedImage) for array in arrays)
        spec = spec_of(name, arrays[0], "image" if are_images else "array")
    except (UsageError, ValueError) as error:
        raise SourceError(str(error)) from None
    return msgspec.structs.replace(spec, shape=common_shape(array.shape for array in arrays))


def one_block(sample: Sample, fields: Sequence[FieldSpec], where: str) -> Block:
    """Return a block of one sample, after checking that it fits the schema.

    Raises:
        SourceError: a field is missing or unknown, or has another dtype or shape.
    """
    names = [field.name for field in fields]
    if set(sample) != set(names):
        raise SourceError(f"{where} has the fields {', '.join(sample)}; {', '.join(names)} are expected")
    block: Block = {}
    for field in fields:
        value = sample[field.name]
        if isinstance(value, str) != (field.kind == "text"):
            raise SourceError(f"{where}: field {field.name!r} is {type(value).__name__}, {field.kind} is expected")
        if isinstance(value, str):
            block[field.name] = [value]
            continue
        if value.dtype != np.dtype(str(field.dtype)) or not fits(value.shape, field.shape):
            expected = "(" + ", ".join("any" if n is None else str(n) for n in field.shape) + ")"
            raise SourceError(
                f"{where}: field {field.name!r} is {value.dtype} {value.shape}, {field.dtype} {expected} is expected; "
                "give `fields` with None for the axes that differ, or convert the values"
            )
        block[field.name] = [value] if field.is_ragged or isinstance(value, EncodedImage) else value[None]
    return block
