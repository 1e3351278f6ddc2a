"""PLY point clouds, text and binary, from the measured elevations that matplotlib ships.

A window of an elevation grid becomes a cloud: x east, y north and z up in metres, coloured by height.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

CLOUDS = 60
Format = Literal["ascii", "binary_little_endian", "binary_big_endian"]
FORMATS: tuple[Format, ...] = ("ascii", "binary_little_endian", "binary_big_endian")
METRES_PER_DEGREE = 111_320.0

_POINT = [("x", "f4"), ("y", "f4"), ("z", "f4"), ("red", "u1"), ("green", "u1"), ("blue", "u1")]
_NAMES = {"f4": "float", "u1": "uchar"}


def elevation_grids() -> list[NDArray[np.float32]]:
    """Return the grids as (rows, columns, 3) float32: x, y, z in metres from the first corner of the grid."""
    from matplotlib.cbook import get_sample_data

    fault = np.load(get_sample_data("jacksboro_fault_dem.npz", asfileobj=False))
    sea = np.load(get_sample_data("topobathy.npz", asfileobj=False))
    rows, columns = fault["elevation"].shape
    return [
        _grid(np.arange(columns) * fault["dx"], fault["ymin"] - np.arange(rows) * fault["dy"], fault["elevation"]),
        _grid(sea["longitude"], sea["latitude"], sea["topo"]),
    ]


def make_clouds(out: Path) -> None:
    """Write `out`/*.ply: float32 x y z, uint8 red green blue; no two of one size."""
    out.mkdir(parents=True)
    grids = [(grid, _colours(grid[..., 2])) for grid in elevation_grids()]
    rng = np.random.default_rng(2)
    for i in range(CLOUDS):
        grid, colours = grids[i % 4 == 3]
        # Rows and columns both grow, so that no two clouds have the same number of points.
        height, width = 30 + i, 40 + i
        top = int(rng.integers(0, grid.shape[0] - height + 1))
        left = int(rng.integers(0, grid.shape[1] - width + 1))
        window = np.s_[top : top + height, left : left + width]
        points = joined(grid[window], colours[window])
        write_ply(out / f"terrain_{i:02d}.ply", points, FORMATS[i % len(FORMATS)])


def write_ply(path: Path, points: NDArray[Any], format: Format) -> None:
    """Write `points`, a structured array (n,) of f4 and u1 members, in one of FORMATS."""
    properties = [f"property {_NAMES[kind]} {name}" for name, kind in _POINT]
    header = ["ply", f"format {format} 1.0", f"element vertex {len(points)}", *properties, "end_header", ""]
    with path.open("wb") as file:
        file.write("\n".join(header).encode("ascii"))
        if format == "ascii":
            # Nine significant digits give every float32 back exactly.
            np.savetxt(file, points, fmt="%.9g %.9g %.9g %d %d %d")
        else:
            order: Literal["<", ">"] = "<" if format == "binary_little_endian" else ">"
            file.write(points.astype(points.dtype.newbyteorder(order)).tobytes())


def _grid(longitude: NDArray[Any], latitude: NDArray[Any], elevation: NDArray[Any]) -> NDArray[np.float32]:
    x = (longitude - longitude[0]) * METRES_PER_DEGREE * np.cos(np.radians(latitude.mean()))
    y = (latitude - latitude[0]) * METRES_PER_DEGREE
    return np.stack([*np.meshgrid(x, y), elevation], axis=-1).astype(np.float32)


def _colours(z: NDArray[np.float32]) -> NDArray[np.uint8]:
    from matplotlib import colormaps

    colours: NDArray[np.uint8] = colormaps["terrain"]((z - z.min()) / np.ptp(z), bytes=True)[..., :3]
    return colours


def joined(xyz: NDArray[np.float32], rgb: NDArray[np.uint8]) -> NDArray[Any]:
    """Return points (n,) for `write_ply`, of coordinates and colours, both (..., 3)."""
    points = np.empty(xyz.size // 3, dtype=_POINT)
    for (name, _), values in zip(_POINT, [*xyz.reshape(-1, 3).T, *rgb.reshape(-1, 3).T], strict=True):
        points[name] = values
    return points
