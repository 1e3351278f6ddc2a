"""Polygons as triangles: a fan from the first corner of each face, in order.

A face of the corners a b c d e becomes the triangles a b c, a c d, a d e, in this order, faces in theirs. Everything
else that a face has (numbers, and other lists whole) is repeated for each of its triangles. A face of fewer than
3 corners is an error. A fan covers a convex polygon; of one that is not, some triangles lie outside of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from packer.sources.ply.binary import gather
from packer.sources.ply.fields import Rule
from packer.sources.ply.header import Element
from packer.sources.ply.table import ListColumn, Table, row_error

#: Lists repeated for every triangle of a large polygon may grow with the square of the file; here that ends.
MAX_ENTRIES = 2**28


def corners_of(rules: Mapping[str, Rule]) -> Rule | None:
    """The rule of the corner numbers of faces; None where a file has none."""
    return next((rule for rule in rules.values() if rule.is_face), None)


def triangle_counts(element: Element, prop: int, sizes: NDArray[np.int64], path: str) -> NDArray[np.int64]:
    """Triangles of every face, int64 (faces,), whose numbers of corners are `sizes`.

    Raises:
        SourceError: a face has fewer than 3 corners; names it.
    """
    if (sizes < 3).any():
        row = int(np.argmax(sizes < 3))
        reason = f"a face of {sizes[row]} corners has no triangle; mend the file, or pack it without --triangulate"
        raise row_error(path, element, row, reason, prop)
    return sizes - 2


def triangulated_sizes(
    element: Element, prop: int, sizes: Mapping[int, NDArray[np.int64]], path: str
) -> dict[int, NDArray[np.int64]]:
    """Lengths of the lists of every triangle, by property number, from those of every face."""
    counts = triangle_counts(element, prop, sizes[prop], path)
    made = {i: _repeated_sizes(element, i, counts, n, path) for i, n in sizes.items() if i != prop}
    return {i: made.get(i, np.full(int(counts.sum()), 3)) for i in sizes}


def triangulated(table: Table, prop: int, path: str) -> Table:
    """The triangles of a table of faces whose corners are the lists of property `prop`.

    Raises:
        SourceError: a face has fewer than 3 corners.
    """
    corners = table.lists[prop]
    counts = triangle_counts(table.element, prop, corners.sizes, path)
    faces = np.repeat(np.arange(len(counts)), counts)
    made = Table(table.element, rows=faces)
    made.numbers = {i: numbers[faces] for i, numbers in table.numbers.items()}
    for i, (values, sizes) in table.lists.items():
        if i == prop:
            made.lists[i] = ListColumn(fan(corners, counts).reshape(-1), np.full(len(faces), 3))
            continue
        longer = _repeated_sizes(table.element, i, counts, sizes, path)
        made.lists[i] = ListColumn(gather(values, (np.cumsum(sizes) - sizes)[faces], longer), longer)
    return made


def fan(corners: ListColumn, counts: NDArray[np.int64]) -> NDArray[np.generic]:
    """The corners of all triangles, (t, 3) in the dtype of the corners; `counts` triangles come from each face."""
    firsts = np.repeat(np.cumsum(corners.sizes) - corners.sizes, counts)
    within = np.arange(len(firsts)) - np.repeat(np.cumsum(counts) - counts, counts)
    made: NDArray[np.generic] = corners.values[np.stack([firsts, firsts + within + 1, firsts + within + 2], axis=1)]
    return made


def _repeated_sizes(
    element: Element, prop: int, counts: NDArray[np.int64], sizes: NDArray[np.int64], path: str
) -> NDArray[np.int64]:
    entries = float(counts.astype(np.float64) @ sizes.astype(np.float64))
    if entries > MAX_ENTRIES:
        row = int(np.argmax(counts.astype(np.float64) * sizes))
        reason = f"repeated for every triangle these lists come to {entries:.3g} entries; pack it without --triangulate"
        raise row_error(path, element, row, reason, prop)
    return np.repeat(sizes, counts)
