"""Do the pictures of a sample fit each other? Findings as sentences for the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

#: Samples that a sentence names; the rest is counted.
NAMED = 3


def check_sizes(names: Sequence[str], sizes: Mapping[str, NDArray[np.integer]]) -> list[str]:
    """Whether every two fields keep one whole ratio of size; `sizes` by field: (n, 2), height and width."""
    sentences = []
    for first, second in combinations(sizes, 2):
        small, large = sorted((first, second), key=lambda field: int(sizes[field].sum(dtype=np.int64)))
        sentences.append(_ratio(names, sizes, small, large))
    return sentences


def _ratio(names: Sequence[str], sizes: Mapping[str, NDArray[np.integer]], small: str, large: str) -> str:
    low, high = sizes[small], sizes[large]
    whole = ((high % low == 0).all(1)) & (high[:, 0] // low[:, 0] == high[:, 1] // low[:, 1])
    if not whole.any():
        return f"{large} is no whole multiple of {small} in size in any sample"
    ratios = high[:, 0] // low[:, 0]
    values, counts = np.unique(ratios[whole], return_counts=True)
    usual = int(values[counts.argmax()])
    phrase = "has the size of" if usual == 1 else f"is {usual} times as large as"
    odd = np.flatnonzero(~whole | (ratios != usual))
    if not len(odd):
        return f"{large} {phrase} {small} in every sample"
    some = ", ".join(
        f"{names[i]} ({small} {low[i, 0]} x {low[i, 1]}, {large} {high[i, 0]} x {high[i, 1]})" for i in odd[:NAMED]
    )
    more = f" and {len(odd) - NAMED} more" if len(odd) > NAMED else ""
    return f"{large} {phrase} {small}, but not in {len(odd)} of {len(names)} samples: {some}{more}; check these"


def check_dtypes(dtypes: Mapping[str, str]) -> list[str]:
    """Says so where fields differ in bit depth, which is allowed."""
    if len(set(dtypes.values())) < 2:
        return []
    return ["bit depths differ: " + ", ".join(f"{field} is {dtype}" for field, dtype in dtypes.items())]
