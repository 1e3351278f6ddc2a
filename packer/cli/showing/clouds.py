"""Which points of a cloud are drawn, and in which colours."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.cli.showing.pixels import real
from packer.cli.showing.samples import Sample
from packer.cli.showing.views import View

#: Points drawn of one cloud: more take seconds and hide each other.
_MOST_POINTS = 20_000
#: Colours from low to high, of matplotlib's viridis.
_LOW_TO_HIGH = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]) / 255


def drawn_points(view: View, sample: Sample) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Numbers (n,) of the points that are drawn, and the points (n, 3); those that are not finite are left out."""
    points = real(sample.values[view.field])[:, :3].astype(np.float64)
    kept = np.flatnonzero(np.isfinite(points).all(axis=1))
    if len(kept):
        # Evenly spread numbers: the same points whenever it is drawn.
        kept = kept[np.linspace(0, len(kept) - 1, min(len(kept), _MOST_POINTS)).astype(np.int64)]
    return kept, points[kept]


def cloud_colours(view: View, sample: Sample, kept: NDArray[Any], points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Colour of each point, (n, 3) within 0 to 1: its own, or that of its value, or that of its height."""
    values = points[:, 2] if view.colour is None else real(sample.values[view.colour])[kept]
    wide = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    if wide.ndim == 2:
        top = np.iinfo(values.dtype).max if values.dtype.kind in "ui" else max(1.0, float(wide.max(initial=0)))
        return np.asarray((wide[:, :3] / top).clip(0, 1))
    share = (wide - wide.min(initial=np.inf)) / ((np.ptp(wide) if len(wide) else 0.0) or 1.0)
    steps = np.linspace(0, 1, len(_LOW_TO_HIGH))
    return np.stack([np.interp(share, steps, channel) for channel in _LOW_TO_HIGH.T], axis=1)
