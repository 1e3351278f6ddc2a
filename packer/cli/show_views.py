"""Chooses and reads the samples that are drawn, says what each field is drawn as, and makes pixels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from packer.cli.text import counted
from packer.errors import UsageError
from packer.format import FieldSpec

if TYPE_CHECKING:
    from readers import PackedDataset

Kind = Literal["image", "clip", "cloud", "curves", "grid", "text", "value"]

_POINTS = ("xyz", "points", "pos", "position", "positions", "coords", "vertices", "cloud")
_COLOURS = ("rgb", "rgba", "color", "colour", "colors", "colours")
#: A last axis up to this long is a few curves, if the axis before it is this many times as long; else a picture.
_MOST_CURVES = 8
_LONGER = 4
#: Rows from which on (n, 3) of one shape is a cloud rather than a matrix.
_LEAST_POINTS = 64
#: Bytes of an array that is read whole.
_WHOLE = 2**26


@dataclass(frozen=True)
class Sample:
    """One sample: its number, its name or None, and its values by field: images as (H, W, C), text as str.

    Attributes:
        shapes: of the fields of which `values` may be some rows alone.
    """

    number: int
    name: str | None
    values: dict[str, Any]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def chosen_numbers(dataset: PackedDataset, count: int, names: Sequence[str] = ()) -> list[int]:
    """Return the numbers of the samples of these names, or else of `count`, evenly spread.

    Raises:
        UsageError: names are asked for, and samples have none.
        MissingNameError: no sample has one of the names.
        DamagedError: the table of names cannot be read.
    """
    if names and dataset.names is None:
        raise UsageError("the samples have no names, so --names finds none; take --samples")
    count = min(count, len(dataset))
    numbers = dataset.numbers(names) if names else np.linspace(0, len(dataset) - 1, count).round()
    return [int(number) for number in numbers]


class SampleReader:
    """Reads samples as they are drawn: of an array that is larger than `_WHOLE` some rows alone, evenly spread."""

    def __init__(self, dataset: PackedDataset) -> None:
        self._dataset = dataset
        arrays = [field for field in dataset.fields.values() if field.kind == "array" and field.shape]
        some_large = any(dataset.manifest.columns[field.name].raw > _WHOLE for field in arrays)
        self._shapes = {field.name: dataset.shapes(field.name) for field in arrays} if some_large else {}

    def __call__(self, number: int) -> Sample:
        """Return the sample of a number.

        Raises:
            DamagedError: a shard or the table of names cannot be read.
        """
        dataset, fields = self._dataset, self._dataset.fields
        shapes = {name: tuple(shape[number].tolist()) for name, shape in self._shapes.items()}
        steps: dict[int, int] = {}  # by number of rows, so that what belongs to a row stays together
        for name, shape in shapes.items():
            step = -(-fields[name].itemsize * math.prod(shape) // _WHOLE)
            if step > 1:
                steps[shape[0]] = max(step, steps.get(shape[0], 1))
        if steps:
            every = {name: slice(None, None, steps[shape[0]]) for name, shape in shapes.items() if shape[0] in steps}
            found = {name: dataset.read(number, name, rows=every.get(name)) for name in fields}
        else:
            shapes, found = {}, dataset[number]
        for name, value in found.items():
            if fields[name].kind != "text":
                found[name] = (value.permute(1, 2, 0) if fields[name].kind == "image" else value).numpy()
        return Sample(number, None if dataset.names is None else dataset.names[number], found, shapes)


@dataclass(frozen=True)
class View:
    """One thing to draw of every sample.

    Attributes:
        field: the field that is drawn.
        colour: of a cloud: the field that colours it; None for its height.
    """

    kind: Kind
    field: str
    colour: str | None = None


def views(fields: Sequence[FieldSpec], samples: Sequence[Sample]) -> list[View]:
    """Return the views of all fields, a cloud first and single values last."""
    left = list(fields)
    found: list[View] = []
    cloud = next((field for field in fields if _is_cloud(field)), None)
    if cloud is not None:
        left.remove(cloud)
        members = [field for field in left if _belongs(field, cloud, samples)]
        left = [field for field in left if field not in members]
        colours = [f.name for f in members if f.name in _COLOURS and len(f.shape) == 2 and f.shape[1] in (3, 4)]
        scalars = [f.name for f in members if len(f.shape) == 1]
        found.append(View("cloud", cloud.name, next(iter([*colours, *scalars]), None)))
    found += [View(_kind(field), field.name) for field in left]
    return sorted(found, key=lambda view: view.kind == "value")


def _kind(field: FieldSpec) -> Kind:
    axes = len(field.shape)
    if field.kind != "array":
        return "image" if field.kind == "image" else "text"
    last = field.shape[-1] if axes else None
    few = last is not None and last <= _MOST_CURVES
    if axes == 0 or (axes == 1 and few):
        return "value"
    if axes == 1 or (axes == 2 and few and (field.shape[0] is None or field.shape[0] >= _LONGER * (last or 1))):
        return "curves"
    if last in (1, 3, 4):
        return "image" if axes == 3 and field.dtype == "uint8" else "clip" if axes == 4 else "grid"
    return "clip" if axes == 3 and not few else "grid"


def _is_cloud(field: FieldSpec) -> bool:
    if field.kind != "array" or len(field.shape) != 2 or (field.shape[1] or 0) < 3:
        return False
    many = field.shape[0] is None or field.shape[0] >= _LEAST_POINTS
    return field.name in _POINTS or (many and field.shape[1] == 3 and str(field.dtype).startswith("float"))


def _belongs(field: FieldSpec, cloud: FieldSpec, samples: Sequence[Sample]) -> bool:
    """Return whether a field has a value for each point of a cloud."""
    if field.kind != "array" or not 1 <= len(field.shape) <= 2 or field.shape[0] != cloud.shape[0]:
        return False
    return all(len(sample.values[field.name]) == len(sample.values[cloud.name]) for sample in samples)


def pixels(image: NDArray[Any]) -> NDArray[np.uint8]:
    """Return (H, W, C) of any dtype as (H, W, 3) or (H, W, 4) uint8: one channel is gray, of many three are taken.

    uint8 stays as it is; bool becomes black and white; others are stretched from their least to their largest value,
    NaN becomes 0.
    """
    if image.shape[2] not in (3, 4):
        image = image[:, :, :3] if image.shape[2] > 4 else image[:, :, :1].repeat(3, axis=2)
    if image.dtype == np.uint8:
        return np.ascontiguousarray(image)
    if image.dtype == np.bool_:
        return image.astype(np.uint8) * np.uint8(255)
    return (np.nan_to_num(stretched(image)) * 255).round().astype(np.uint8)


def real(values: NDArray[Any]) -> NDArray[Any]:
    """Return complex numbers as their absolute values; others as they are."""
    return np.abs(values) if values.dtype.kind == "c" else values


def stretched(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return shares from 0 to 1 between the least and the largest finite value; NaN for what is not finite."""
    wide = real(values).astype(np.float64)
    wide[~np.isfinite(wide)] = np.nan
    if np.isnan(wide).all():
        return wide
    low, high = np.nanmin(wide), np.nanmax(wide)
    # Halved: the distance of two numbers of float64 need not be one.
    shares: NDArray[np.float64] = (wide / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)
    return shares


def size_of(view: View, sample: Sample) -> str:
    """Return how large what is drawn is in the dataset: `9 letters`, `1,200 points`, `30 x 40 x 3`."""
    values = sample.values[view.field]
    if view.kind == "text":
        return counted(len(values), "letter")
    shape = sample.shapes.get(view.field, values.shape)
    return counted(shape[0], "point") if view.kind == "cloud" else " x ".join(map(str, shape))


def value_text(values: Any) -> str:
    """Return a number, or a few of them."""
    flat = np.asarray(values).reshape(-1)
    shown = ", ".join(f"{v:.6g}" if flat.dtype.kind in "fc" else str(v) for v in flat)
    return shown if np.ndim(values) == 0 else f"({shown})"


def first_matrix(values: NDArray[Any]) -> NDArray[Any]:
    """Return a matrix, (H, W), of more axes the first one; no values if it has fewer."""
    matrix = real(values)
    while matrix.ndim > 2 and len(matrix):
        matrix = matrix[0]
    return matrix if matrix.ndim == 2 else np.zeros((0, 0))
