"""How large the samples of each field are: from headers, or as those that were looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.format import FieldSpec
from packer.packing.examples import Examples
from packer.packing.framing import Extent
from packer.sources import Source

#: Text of at most `SHORT_TEXT` bytes on average is planned with `TEXT_BYTES`, so that datasets of labels and captions
#: get frames of one size, and can be merged.
TEXT_BYTES, SHORT_TEXT = 256, 1024


@dataclass(frozen=True)
class FieldSizes:
    """Sizes of all samples of one field: shapes (n, axes) if ragged, bytes (n,), and whether they are known."""

    shapes: NDArray[np.int64] | None
    bytes: NDArray[np.int64]
    known: bool

    @classmethod
    def of(cls, spec: FieldSpec, shapes: NDArray[np.int64], known: bool = True) -> FieldSizes:
        """Return the sizes of samples of these shapes."""
        return cls(shapes, shapes.prod(axis=1, dtype=np.int64) * spec.itemsize, known)

    def extent(self, spec: FieldSpec) -> Extent:
        """Return the bytes of the mean sample, of the largest one, and of a typical row."""
        values = distinct(self.bytes)
        mean = float(values.mean()) if len(values) else 0.0
        largest = int(values.max()) if len(values) else 0
        if self.shapes is None or not len(self.shapes) or not spec.shape:
            row = float(math.prod(n or 1 for n in spec.shape[1:]) * spec.itemsize)
        else:
            # Weighted by size, since only large samples are cut by rows.
            rows = self.shapes[:, 1:].prod(axis=1) * spec.itemsize
            row = float(np.average(rows, weights=self.bytes)) if self.bytes.any() else 0.0
        return Extent(mean, largest, row)


def field_sizes(source: Source, get_examples: Callable[[], Examples]) -> dict[str, FieldSizes]:
    """Return the sizes of all samples of every field, from headers if they give them.

    Args:
        get_examples: returns the samples of `read_examples`; called only if sizes are unknown. The plan then assumes
            their sizes. If that is too little, the map of a shard grows while it is written.
    """
    sizes = {}
    for spec in source.fields:
        if not spec.is_ragged:
            sizes[spec.name] = FieldSizes(None, repeat(spec.fixed_bytes, len(source)), True)
            continue
        shapes = source.shapes(spec.name)
        known = shapes is not None
        if shapes is None:
            example_shapes = [sample.shape for sample in get_examples().get(spec.name, [])] or [
                tuple(n or 1 for n in spec.shape)
            ]
            if spec.kind == "text" and np.mean(example_shapes) <= SHORT_TEXT:
                example_shapes = [(TEXT_BYTES,)]
            shapes = np.resize(np.array(example_shapes, np.int64), (len(source), len(spec.shape)))
        sizes[spec.name] = FieldSizes.of(spec, shapes, known)
    return sizes


def sample_bytes(sizes: Mapping[str, FieldSizes]) -> NDArray[np.int64]:
    """Return the bytes of every sample, all fields together, (n,)."""
    field_bytes = [size.bytes for size in sizes.values()]
    total = repeat(sum(int(nbytes[0]) for nbytes in field_bytes if is_repeated(nbytes)), len(field_bytes[0]))
    for nbytes in field_bytes:
        total = total if is_repeated(nbytes) else total + nbytes
    return total


def repeat(value: int, count: int) -> NDArray[np.int64]:
    """Return one value `count` times, in the memory of one: there may be a hundred million rows."""
    return np.broadcast_to(np.int64(value), (count,))


def distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the values, or the only one of those that repeat it: numpy would copy them all."""
    return values[:1] if is_repeated(values) else values


def sum_of(values: NDArray[np.int64]) -> int:
    """Return the sum of values, from one of them if they repeat it."""
    return int(values[0]) * len(values) if len(values) and is_repeated(values) else int(values.sum())


def is_repeated(values: NDArray[np.int64]) -> bool:
    """Return whether these are values of `repeat`."""
    return values.strides == (0,)
