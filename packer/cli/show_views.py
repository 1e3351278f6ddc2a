"""Chooses and reads the samples that are drawn, says what each field is drawn as, and makes pixels, points, colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from packer.cli.text import counted
from packer.errors import UsageError
from packer.format.schema import FieldSpec

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
#: Points drawn of one cloud: more take seconds and hide each other.
_MOST_POINTS = 20_000
#: Colours from low to high, of matplotlib's viridis.
_LOW_TO_HIGH = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]) / 255


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

    @property
    def title(self) -> str:
        return str(self.number) if self.name is None else self.name


def chosen_numbers(dataset: PackedDataset, count: int, names: Sequence[str] = (), seed: int | None = None) -> list[int]:
    """Return the numbers of the samples of these names, or else of `count`, by chance (with a seed) or evenly spread.

    Raises:
        UsageError: names are asked for, and samples have none.
        MissingNameError: no sample has one of the names.
        DamagedError: the table of names cannot be read.
    """
    count = min(count, len(dataset))
    if names:
        if dataset.names is None:
            raise UsageError("the samples have no names, so that --names finds none; take --samples and --seed")
        numbers = dataset.numbers(names)
    elif seed is None:
        numbers = np.linspace(0, len(dataset) - 1, count).round().astype(np.int64)
    else:
        numbers = np.sort(np.random.default_rng(seed).choice(len(dataset), count, replace=False))
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
        dataset = self._dataset
        shapes = {name: tuple(shape[number].tolist()) for name, shape in self._shapes.items()}
        steps = self._steps(shapes)
        if steps:
            every = {name: slice(None, None, steps[shape[0]]) for name, shape in shapes.items() if shape[0] in steps}
            found = {name: dataset.read(number, name, rows=every.get(name)) for name in dataset.fields}
        else:
            shapes, found = {}, dataset[number]
        values = {name: _array(value, dataset.fields[name].kind) for name, value in found.items()}
        return Sample(number, None if dataset.names is None else dataset.names[number], values, shapes)

    def _steps(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[int, int]:
        """Return which of its rows to read, one in so many, by their number: what belongs to a row stays together."""
        steps: dict[int, int] = {}
        for name, shape in shapes.items():
            step = -(-self._dataset.fields[name].itemsize * math.prod(shape) // _WHOLE)
            if step > 1:
                steps[shape[0]] = max(step, steps.get(shape[0], 1))
        return steps


def _array(value: Any, kind: str) -> Any:
    """Return the numpy array of a value, images as (H, W, C); text as it is."""
    if kind == "text":
        return value
    return value.permute(1, 2, 0).numpy() if kind == "image" else value.numpy()


@dataclass(frozen=True)
class View:
    """One thing to draw of every sample.

    Attributes:
        field: the field that is drawn.
        colour: of a cloud: the field that colours it; None for its height.
        others: of a cloud: further fields that belong to its points, and are not drawn.
    """

    kind: Kind
    field: str
    colour: str | None = None
    others: tuple[str, ...] = ()


def views(fields: Sequence[FieldSpec], samples: Sequence[Sample]) -> list[View]:
    """Return the views of all fields, those of single values last."""
    cloud = next((field for field in fields if _is_cloud(field)), None)
    found: list[View] = []
    members: list[FieldSpec] = []
    if cloud is not None:
        members = [field for field in fields if field is not cloud and _belongs(field, cloud, samples)]
        found.append(_cloud(cloud, members))
    found += [View(_kind(field), field.name) for field in fields if field is not cloud and field not in members]
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


def _cloud(cloud: FieldSpec, members: Sequence[FieldSpec]) -> View:
    colours = [f.name for f in members if f.name in _COLOURS and len(f.shape) == 2 and f.shape[1] in (3, 4)]
    scalars = [f.name for f in members if len(f.shape) == 1]
    colour = next(iter([*colours, *scalars]), None)
    return View("cloud", cloud.name, colour, tuple(f.name for f in members if f.name != colour))


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
    return _stretched(image)


def real(values: NDArray[Any]) -> NDArray[Any]:
    """Return complex numbers as their absolute values; others as they are."""
    return np.abs(values) if values.dtype.kind == "c" else values


def _stretched(values: NDArray[Any]) -> NDArray[np.uint8]:
    wide = real(values).astype(np.float64)
    finite = np.isfinite(wide)
    if not finite.any():
        return np.zeros(values.shape, np.uint8)
    low, high = float(wide[finite].min()), float(wide[finite].max())
    # Halved: the distance of two numbers of float64 need not be one.
    scale = (high / 2 - low / 2) or 1.0
    share = (np.where(finite, wide, low) / 2 - low / 2) / scale
    return (share.clip(0, 1) * 255).round().astype(np.uint8)


def drawn_points(view: View, sample: Sample) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return numbers (n,) and places (n, 3) of the points that are drawn; those that are not finite are left out."""
    points = real(sample.values[view.field])[:, :3].astype(np.float64)
    kept = np.flatnonzero(np.isfinite(points).all(axis=1))
    if len(kept):
        # Evenly spread numbers: the same points whenever it is drawn.
        kept = kept[np.linspace(0, len(kept) - 1, min(len(kept), _MOST_POINTS)).astype(np.int64)]
    return kept, points[kept]


def colour_field(view: View, sample: Sample) -> str | None:
    """Return the field that colours this cloud; None if it has no value for each of its points."""
    if view.colour is None or len(sample.values[view.colour]) != len(sample.values[view.field]):
        return None
    return view.colour


def cloud_colours(view: View, sample: Sample, kept: NDArray[Any], points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return colour of each point, (n, 3) within 0 to 1: its own, or that of its value, or that of its height."""
    colour = colour_field(view, sample)
    values = points[:, 2] if colour is None else real(sample.values[colour])[kept]
    wide = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    if wide.ndim == 2:
        top = np.iinfo(values.dtype).max if values.dtype.kind in "ui" else max(1.0, float(wide.max(initial=0)))
        return np.asarray((wide[:, :3] / top).clip(0, 1))
    share = (wide - wide.min(initial=np.inf)) / ((np.ptp(wide) if len(wide) else 0.0) or 1.0)
    steps = np.linspace(0, 1, len(_LOW_TO_HIGH))
    return np.stack([np.interp(share, steps, channel) for channel in _LOW_TO_HIGH.T], axis=1)


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
