"""How the sizes of images of several fields relate: in most samples one is so many times as large as another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.sources.table import SampleTable

#: Samples that a sentence names; the rest is counted.
NAMED = 3


class _Ratio(NamedTuple):
    """How many times as large the images of one field are as those of another.

    Attributes:
        small, large: the fields.
        low, high: height and width of every image of each, (n, 2).
        usual: how many times as large most are; None if no sample has a whole ratio.
        odd: the samples that are not.
    """

    small: str
    large: str
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    usual: int | None
    odd: NDArray[np.intp]

    def in_words(self, names: Sequence[str]) -> str:
        """Return a sentence for the plan."""
        small, large, low, high, usual, odd = self
        if usual is None:
            return f"{large} is in no sample a whole number of times as large as {small}; check these"
        phrase = "has the size of" if usual == 1 else f"is {usual} times as large as"
        if not len(odd):
            return f"{large} {phrase} {small} in every sample"
        examples = ", ".join(
            f"{names[i]} ({small} {low[i, 0]} x {low[i, 1]}, {large} {high[i, 0]} x {high[i, 1]})" for i in odd[:NAMED]
        )
        more = f" and {len(odd) - NAMED} more" if len(odd) > NAMED else ""
        advice = "; --on-error skip skips them" if 2 * len(odd) < len(low) else "; check these"
        return f"{large} {phrase} {small}, but not in {len(odd)} of {len(names)} samples: {examples}{more}{advice}"


def _ratios(table: SampleTable) -> Iterator[_Ratio]:
    """Yield the ratio of each two fields of images."""
    sizes: dict[str, NDArray[Any]] = {
        name: np.column_stack([table.numbers[f"{name}.{side}"] for side in ("height", "width")]).astype(np.int32)
        for name in table.inputs
        if f"{name}.height" in table.numbers
    }
    for fields in combinations(sizes, 2):
        small, large = sorted(fields, key=lambda field: int(sizes[field].sum(dtype=np.int64)))
        low, high = sizes[small], sizes[large]
        whole = ((high % low == 0).all(1)) & (high[:, 0] // low[:, 0] == high[:, 1] // low[:, 1])
        ratios = high[:, 0] // low[:, 0]
        values, counts = np.unique(ratios[whole], return_counts=True)
        usual = int(values[counts.argmax()]) if len(values) else None
        yield _Ratio(small, large, low, high, usual, np.flatnonzero(~whole | (ratios != usual)))


def compared(table: SampleTable) -> list[str]:
    """Return sentences on how the fields relate: whether they keep one ratio of size, and that bit depths differ."""
    sentences = [ratio.in_words(table.names or []) for ratio in _ratios(table)]
    images = [laid for laid in table.layouts[0] if laid.kind != "text"]
    if len({laid.dtype for laid in images}) > 1:
        sentences.append(f"bit depths differ: {', '.join(f'{laid.name} is {laid.dtype}' for laid in images)}")
    return sentences


def misfitting_sizes(table: SampleTable) -> dict[int, tuple[str, str]]:
    """Return the samples without the ratio of sizes of most: by number a field at fault, and what is wrong."""
    misfits: dict[int, tuple[str, str]] = {}
    for small, large, low, high, usual, odd in _ratios(table):
        if usual is None or 2 * len(odd) >= len(low):
            continue
        for number in odd.tolist():
            (height, width), (low_height, low_width) = high[number], low[number]
            in_words = f"{large} is {height} x {width} pixels and {small} {low_height} x {low_width}"
            misfits[number] = large, f"{in_words}, not {usual} times as large as in most samples; crop or resize it"
    return misfits
