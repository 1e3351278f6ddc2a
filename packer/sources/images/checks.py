"""Do the pictures of a sample fit each other? Findings as sentences for the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import SourceError

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


def check_duplicates(names: Sequence[str], files: Mapping[str, Sequence[str]]) -> list[str]:
    """Files of one field with the same bytes. Reads only files that have the size of another.

    Raises:
        SourceError: a file has gone or cannot be read.
    """
    sentences = []
    for field, paths in files.items():
        groups = [[names[i] for i in group] for group in _same(paths)]
        some = "; ".join(" = ".join(group[:NAMED]) for group in groups[:NAMED])
        more = f" and {len(groups) - NAMED} more groups" if len(groups) > NAMED else ""
        if groups:
            count = sum(map(len, groups))
            sentences.append(f"field {field}: {count} files are copies of one another: {some}{more}; check these")
    return sentences


def _same(paths: Sequence[str]) -> list[list[int]]:
    """Numbers of the paths that hold the same bytes, in groups of two and more."""
    by_size: dict[int, list[int]] = {}
    by_content: dict[tuple[int, bytes], list[int]] = {}
    for number, path in enumerate(paths):
        by_size.setdefault(_size(path), []).append(number)
    for size, group in by_size.items():
        for number in group if len(group) > 1 else ():
            by_content.setdefault((size, _digest(paths[number])), []).append(number)
    return [group for group in by_content.values() if len(group) > 1]


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror or error}", path) from error


def _digest(path: str) -> bytes:
    try:
        return xxhash.xxh3_128_digest(Path(path).read_bytes())
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror or error}", path) from error
