"""Chooses how each field is drawn, and prepares its data: images as PNG, points as int16, curves as float32."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packer.cli.text import count_text
from packer.format import FieldSpec

#: One sample, by field: images as (H, W, C), text as str.
Values = Mapping[str, Any]
Kind = Literal["image", "clip", "cloud", "curves", "grid", "text", "value"]

_POINTS = ("xyz", "points", "pos", "position", "positions", "coords", "vertices", "cloud")
_COLOURS = ("rgb", "rgba", "color", "colour", "colors", "colours")
#: A last axis up to this long is a few curves, if the axis before it is this many times as long; else an image.
_MOST_CURVES = 8
_LONGER = 4
#: Rows from which on (n, 3) of one shape is a cloud rather than a matrix.
_LEAST_POINTS = 64
#: Pixels of the longer side of an image, and of a frame of a clip: larger ones are made smaller.
_MOST_PIXELS, _MOST_CLIP_PIXELS = 1024, 160
#: At most this many frames of a clip and steps of a curve, evenly spread, and first letters of a text.
_MOST_FRAMES, _MOST_STEPS, _MOST_LETTERS = 48, 400, 20_000
#: Seconds that a clip takes to play, about, and frames a second at least and at most.
_CLIP_SECONDS, _SLOWEST, _FASTEST = 4, 2, 24
#: Points of a cloud: more take seconds and hide each other.
_MOST_POINTS = 20_000
#: Colours from low to high: viridis.
_LOW_TO_HIGH = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]) / 255


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


def choose_views(fields: Sequence[FieldSpec], samples: Sequence[Values]) -> list[View]:
    """Return the views of all fields, a cloud first and single values last."""
    fields_left = list(fields)
    all_views: list[View] = []
    cloud = next((field for field in fields if _is_cloud(field)), None)
    if cloud is not None:
        fields_left.remove(cloud)
        members = [field for field in fields_left if _has_value_for_each_point(field, cloud, samples)]
        fields_left = [field for field in fields_left if field not in members]
        colours = [f.name for f in members if f.name in _COLOURS and len(f.shape) == 2 and f.shape[1] in (3, 4)]
        scalars = [f.name for f in members if len(f.shape) == 1]
        all_views.append(View("cloud", cloud.name, next(iter([*colours, *scalars]), None)))
    all_views += [View(_choose_kind(field), field.name) for field in fields_left]
    return sorted(all_views, key=lambda view: view.kind == "value")


def _choose_kind(field: FieldSpec) -> Kind:
    axes = len(field.shape)
    if field.kind != "array":
        return "image" if field.kind == "image" else "text"
    last = field.shape[-1] if axes else None
    is_few = last is not None and last <= _MOST_CURVES
    if axes == 0 or (axes == 1 and is_few):
        return "value"
    if axes == 1 or (axes == 2 and is_few and (field.shape[0] is None or field.shape[0] >= _LONGER * (last or 1))):
        return "curves"
    if last in (1, 2, 3, 4):
        return "image" if axes == 3 and field.dtype == "uint8" else "clip" if axes == 4 else "grid"
    return "clip" if axes == 3 and not is_few else "grid"


def _is_cloud(field: FieldSpec) -> bool:
    if field.kind != "array" or len(field.shape) != 2 or (field.shape[1] or 0) < 3:
        return False
    has_many_rows = field.shape[0] is None or field.shape[0] >= _LEAST_POINTS
    return field.name in _POINTS or (has_many_rows and field.shape[1] == 3 and str(field.dtype).startswith("float"))


def _has_value_for_each_point(field: FieldSpec, cloud: FieldSpec, samples: Sequence[Values]) -> bool:
    """Return whether a field has a value for each point of a cloud."""
    if field.kind != "array" or not 1 <= len(field.shape) <= 2 or field.shape[0] != cloud.shape[0]:
        return False
    return all(len(sample[field.name]) == len(sample[cloud.name]) for sample in samples)


def to_pixels(image: NDArray[Any]) -> NDArray[np.uint8]:
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
    return (np.nan_to_num(stretch(image)) * 255).round().astype(np.uint8)


def real(values: NDArray[Any]) -> NDArray[Any]:
    """Return complex numbers as their absolute values; others as they are."""
    return np.abs(values) if values.dtype.kind == "c" else values


def stretch(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return shares from 0 to 1 between the least and the largest finite value; NaN for what is not finite."""
    wide = real(values).astype(np.float64)
    wide[~np.isfinite(wide)] = np.nan
    if np.isnan(wide).all():
        return wide
    low, high = np.nanmin(wide), np.nanmax(wide)
    # Halved, since the difference of two float64 may overflow.
    shares: NDArray[np.float64] = (wide / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)
    return shares


def value_text(values: Any) -> str:
    """Return a number, or a few of them."""
    flat = np.asarray(values).reshape(-1)
    numbers = ", ".join(f"{v:.6g}" if flat.dtype.kind in "fc" else str(v) for v in flat)
    return numbers if np.ndim(values) == 0 else f"({numbers})"


def first_matrix(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array's first matrix, (H, W); an empty one if the array has fewer than two axes."""
    matrix = real(values)
    while matrix.ndim > 2 and len(matrix):
        matrix = matrix[0]
    return matrix if matrix.ndim == 2 else np.zeros((0, 0))


def draw_cell(view: View, sample: Values) -> str | dict[str, Any]:
    """Return what the page draws of one view of a sample: a text for a value, else its data and a `text` of its size.

    `text` alone says that there is nothing to draw.
    """
    values = sample[view.field]
    if view.kind == "value":
        return value_text(values)
    size = " x ".join(map(str, np.shape(values)))
    if view.kind == "text":
        drawing, size = {"letters": values[:_MOST_LETTERS]}, count_text(len(values), "letter")
    elif view.kind == "cloud":
        drawing, size = _cloud(view, sample), count_text(len(values), "point")
    elif view.kind == "grid":
        drawing = _image(first_matrix(values)[:, :, None])
    else:
        drawing = {"curves": _curves, "clip": _clip, "image": _image}[view.kind](values)
    return {"text": size, **drawing}


def _image(values: NDArray[Any]) -> dict[str, Any]:
    if not values.size:
        return {}
    height, width, channels = values.shape
    image = Image.fromarray(to_pixels(values))
    image.thumbnail((_MOST_PIXELS, _MOST_PIXELS))
    is_whole = image.size == (width, height)
    return {
        "png": _png(image),
        "size": [height, width],
        "channels": 3 if channels > 2 else 1,
        "exact": is_whole and values.dtype == np.uint8,
        "note": "" if is_whole else f"shown as {image.height} x {image.width}",
    }


def _clip(values: NDArray[Any]) -> dict[str, Any]:
    """Draw frames (T, H, W, C), or slices (T, H, W), below each other in one image, with one brightness for all."""
    if not values.size:
        return {}
    frames = values if values.ndim == 4 else values[..., None]
    steps, height, width, channels = frames.shape
    numbers = np.linspace(0, steps - 1, min(steps, _MOST_FRAMES)).round().astype(np.int64)
    # Rows are thinned out first: a volume may be larger than everything else in the page.
    stride = max(1, max(height, width) // (2 * _MOST_CLIP_PIXELS))
    thinned = frames[numbers][:, ::stride, ::stride]
    strip = Image.fromarray(to_pixels(thinned.reshape(-1, thinned.shape[2], channels)))
    share = min(1.0, _MOST_CLIP_PIXELS / max(thinned.shape[1:3]))
    if share < 1:
        tall, wide = (max(1, round(n * share)) for n in thinned.shape[1:3])
        strip = strip.resize((wide, tall * len(numbers)), Image.Resampling.BOX)
    is_whole = len(numbers) == steps and stride == 1 and share == 1
    return {
        "png": _png(strip),
        "frames": len(numbers),
        "speed": min(_FASTEST, max(_SLOWEST, len(numbers) / _CLIP_SECONDS)),
        "note": "" if is_whole else f"shown as {len(numbers)} frames of {strip.height // len(numbers)} x {strip.width}",
    }


def _cloud(view: View, sample: Values) -> dict[str, Any]:
    """Draw evenly spread points, the same ones whenever the page is made; points that are not finite are skipped."""
    points = real(sample[view.field])[:, :3].astype(np.float64)
    numbers = np.flatnonzero(np.isfinite(points).all(axis=1))
    if not len(numbers):
        return {}
    numbers = numbers[np.linspace(0, len(numbers) - 1, min(len(numbers), _MOST_POINTS)).astype(np.int64)]
    is_whole, points, colour = len(numbers) == len(points), points[numbers], view.colour
    if colour is not None and len(sample[colour]) != len(sample[view.field]):
        colour = None  # not a value for each point of this one
    colours = _colours(points[:, 2] if colour is None else real(sample[colour])[numbers])
    middle = (points.min(axis=0) + points.max(axis=0)) / 2
    radius = float(np.linalg.norm(points - middle, axis=1).max()) or 1.0
    scaled_points = ((points - middle) / radius * 32767).round().astype("<i2")
    colour_text = f"coloured by {colour or 'height'}"
    return {
        "points": _base64(scaled_points.tobytes()),
        "colours": _base64((colours * 255).round().astype(np.uint8).tobytes()),
        "note": colour_text if is_whole else f"{len(points):,} of them shown, {colour_text}",
    }


def _colours(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return colours within 0 to 1, (n, 3): of `values`, (n, 3) or (n, 4), themselves; of (n,), from low to high."""
    if values.ndim == 2:
        wide = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)[:, :3]
        most = np.iinfo(values.dtype).max if values.dtype.kind in "ui" else max(1.0, float(wide.max(initial=0)))
        return np.asarray((wide / most).clip(0, 1))
    shares, steps = np.nan_to_num(stretch(values)), np.linspace(0, 1, len(_LOW_TO_HIGH))
    return np.stack([np.interp(shares, steps, tone) for tone in _LOW_TO_HIGH.T], axis=1)


def _curves(values: NDArray[Any]) -> dict[str, Any]:
    """Return shares from 0 to 1 between the least and the largest finite value, one curve for each column."""
    if not values.size:
        return {}
    columns = real(values).reshape(len(values), -1)
    finite = columns[np.isfinite(columns)]
    if not finite.size:
        return {}
    steps = np.unique(np.linspace(0, len(columns) - 1, min(len(columns), _MOST_STEPS)).astype(np.int64))
    return {
        "values": _base64(stretch(columns)[steps].astype("<f4").tobytes()),
        "columns": columns.shape[1],
        "low": f"{float(finite.min()):.6g}",
        "high": f"{float(finite.max()):.6g}",
    }


def _png(image: Any) -> str:
    file = io.BytesIO()
    image.save(file, "png", compress_level=4)
    return _base64(file.getvalue())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
