"""What a plan says of fields: lengths that differ between them, and files of images that they become or stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs import GROUP_STEPS, H264, JPEG, NAMED, FrameCodec
from packer.errors import first_few
from packer.format import Field, FieldSpec
from packer.packing.examples import Examples
from packer.packing.framing import codec_by_field
from packer.packing.sizes import FieldSizes
from packer.sources import Source

#: Kinds of lengths with which others are compared.
_KINDS_OF_LENGTHS = 16


def sample_text(source: Source, number: int) -> str:
    """Return a sample as messages name it."""
    return f"number {number}" if source.names is None else repr(source.names[number])


def remark_on_lengths(source: Source, sizes: Mapping[str, FieldSizes]) -> list[str]:
    """Return a sentence for each field that has as many rows as another one in most samples, but not in all.

    Such fields are those of points or steps: readers take the same rows of both.
    """
    lengths = {
        spec.name: size.shapes[:, 0]
        for spec in source.fields
        if (size := sizes[spec.name]).known and size.shapes is not None and spec.ragged_axes == (0,)
    }
    remarks = []
    kinds: dict[bytes, str] = {}  # the first field of each kind of lengths; most fields have those of another one
    for name in lengths:
        known = [other for other in kinds.values() if other != name][:_KINDS_OF_LENGTHS]
        if kinds.setdefault(lengths[name].tobytes(), name) != name:
            continue
        differing = {other: np.flatnonzero(lengths[name] != lengths[other]) for other in known}
        other = min(differing, key=lambda other: len(differing[other]), default=None)
        if other is None or not 0 < len(differing[other]) <= len(source) / 2:
            continue
        number = int(differing[other][0])
        remarks.append(
            f"{other} and {name} differ in length in {len(differing[other]):,} of {len(source):,} samples, such as "
            f"{sample_text(source, number)}: {lengths[other][number]:,} and {lengths[name][number]:,} rows"
        )
    return remarks


#: What reads faster than JPEG files that `auto` keeps, of images and of clips.
_FASTER = {
    "image": "photo+lz4 reads about 3 times as fast, from about 5 times",
    "array": "lz4 reads about 4 times as fast, from about 10 times",
}
#: Images that are encoded to say how much that changes them.
_CODED_IMAGES = 16


def remark_on_jpegs(
    specs: Sequence[FieldSpec],
    codec: str | Mapping[str, str],
    fields: Sequence[Field],
    get_examples: Callable[[], Examples],
) -> list[str]:
    """Return sentences on fields that are stored as JPEG files.

    On size and speed if `auto` keeps files; on how much values change if files are made; on pixels if there is no file.
    """
    codecs = codec_by_field(codec, {spec.name: "auto" for spec in specs if not isinstance(spec, Field)})
    kept = [field for field in fields if field.codec == NAMED[JPEG]]
    remarks = []
    for kind, faster in _FASTER.items():
        names = [field.name for field in kept if field.kind == kind and codecs.get(field.name) == "auto"]
        if names:
            remarks.append(f"JPEG files of {first_few(names)} stay as they are; --codec {names[0]}={faster} the bytes")
    for field in fields:
        if field.codec and field.codec[0]["id"] in (H264, JPEG) and codecs.get(field.name) != "auto":
            remarks += _remark_on_coding(field, get_examples().get(field.name, []))
    return remarks


#: What images become by the codecs that change them.
_IN_WORDS = {JPEG: "JPEG files of quality", H264: f"groups of {GROUP_STEPS} in H.264, of rate factor"}


def _remark_on_coding(field: Field, samples: Sequence[NDArray[Any]]) -> Iterator[str]:
    """Yield a sentence on how near the images of some samples come to what they were, in dB, once they are stored."""
    coder = FrameCodec(field.codec, field.np_dtype, image_axes=field.image_axes)
    images = [piece for sample in samples for piece in coder.pieces(sample)]
    new = [image for image in images if image.size and not coder.is_kept(image)]
    words = "frames" if len(field.shape) > field.image_axes else "images"
    if not new:
        return
    if coder.loss is None:
        yield (
            f"{len(new):,} of {len(images):,} {words} of {field.name} that were looked at are no JPEG files, and stay "
            f"pixels; --codec {field.name}=jpeg:90 makes files of them, which changes their values"
        )
        return
    new = new[:: -(-len(new) // _CODED_IMAGES)]
    differences = [np.square(coder.as_stored(image).astype(np.float64) - image).mean() for image in new]
    with np.errstate(divide="ignore"):
        nearness = 10 * np.log10(255**2 / np.array(differences))
    colours = "" if coder.image_shape(new[0].shape)[2] == 1 else ", with colours at half the height and width"
    yield (
        f"{words} of {field.name} become {_IN_WORDS[field.codec[0]['id']]} {coder.loss}{colours}: values change, PSNR "
        f"{nearness.min():.1f} to {nearness.max():.1f} dB in the {len(new)} that were looked at"
    )
