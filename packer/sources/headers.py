"""The headers of many files: read in threads where the disk is slow, and compared with each other.

A source keeps what headers say in columns (numpy arrays), and each layout, all that many headers have in common, once.
So a million files take some bytes each.
"""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from packer.errors import NothingLeftError, SourceError
from packer.threads import in_threads
from packer.watcher import HEADERS, Watcher
from packer.workers import Limits, call_guarded

Item = TypeVar("Item")
Header = TypeVar("Header")
Layout = TypeVar("Layout", bound=Hashable)

#: Files that have to be read whole are read one at a time if they have more bytes: many of them fill the memory.
_LARGE_BYTES = 2**22
_large_file = threading.Lock()
#: Processes that read headers, but each must have so many files to be worth its start.
PROCESSES, ITEMS_A_PROCESS = 8, 64


def read_headers(
    read: Callable[[Item], Header],
    items: Sequence[Item],
    watcher: Watcher,
    headers_in: str = "threads",
    limits: Limits | None = None,
) -> Iterator[Header | SourceError]:
    """Yield what `read` returns of every item, in order, or the SourceError that it raises.

    Several threads read where the disk is slow.

    Args:
        read: with `limits` a function of a module, or a partial of one.
        watcher: its `step` is called.
        headers_in: as in `Kind`.
        limits: of one item in a process of its own; None reads in this one.

    Raises:
        Any other error of `read`.
    """
    if headers_in != "threads":
        limits = limits if headers_in == "processes" else None
        workers = min(PROCESSES, -(-len(items) // ITEMS_A_PROCESS))
        yield from watcher.watch(call_guarded(read, items, limits, workers), HEADERS, len(items))
        return
    with contextlib.closing(in_threads(partial(_read, read), items)) as results:
        yield from watcher.watch(results, HEADERS, len(items))


def _read(read: Callable[[Item], Header], item: Item) -> Header | SourceError:
    try:
        return read(item)
    except SourceError as error:
        return error


def wait_if_large(nbytes: int) -> contextlib.AbstractContextManager[Any]:
    """Let no other thread be in such a block if a file of `nbytes` that is read whole in it is a large one."""
    return _large_file if nbytes > _LARGE_BYTES else contextlib.nullcontext()


class Columns(dict[str, "array[int]"]):
    """Columns of integers by name, filled row by row; rows in which a column has no number have 0."""

    def put(self, row: int, numbers: Mapping[str, int]) -> None:
        """Put a number into each column named; rows ascend."""
        for name, number in numbers.items():
            column = self.get(name)
            (column if column is not None and len(column) == row else self._filled(name, row)).append(number)

    def arrays(self, rows: int) -> dict[str, NDArray[Any]]:
        """Return the columns, (rows,) each, in the smallest type that holds its numbers."""
        return {name: narrowed(np.array(self._filled(name, rows), np.int64)) for name in self}

    def _filled(self, name: str, rows: int) -> array[int]:
        column = self.setdefault(name, array("q"))
        if len(column) < rows:
            column.extend([0] * (rows - len(column)))
        return column


def narrowed(column: NDArray[Any]) -> NDArray[Any]:
    """Return integers in the smallest type that holds them all."""
    ends = (column.min(), column.max()) if len(column) else (0, 0)
    return column.astype(np.result_type(*map(np.min_scalar_type, ends)))


def usual(kinds: Iterable[Layout]) -> Layout:
    """Return the most frequent kind, the first one if several are; there must be at least one.

    It is the kind of the dataset. A file of another kind is bad, even if it is the first file.
    """
    ((kind, _),) = Counter(kinds).most_common(1)
    return kind


def count_layouts(layouts: NDArray[np.integer[Any]]) -> dict[int, int]:
    """Return how many samples have each layout, by the numbers of layouts, in the order of their first samples.

    Args:
        layouts: (n,) of every sample the number of its layout.
    """
    numbers, firsts, counts = np.unique(layouts, return_index=True, return_counts=True)
    order = np.argsort(firsts)
    return dict(zip(numbers[order].tolist(), counts[order].tolist(), strict=True))


def difference(expected: Mapping[str, str], actual: Mapping[str, str]) -> str:
    """Return how fields, described by name, differ from those expected; empty if they do not.

    As in `field x is one int16, not one float32; field y (one int64) is missing; field z (one int64) is not in the
    others`.
    """

    def words(name: str) -> str:
        if name not in actual:
            return f"field {name} ({expected[name]}) is missing"
        if name not in expected:
            return f"field {name} ({actual[name]}) is not in the others"
        return f"field {name} is {actual[name]}, not {expected[name]}"

    return "; ".join(words(name) for name in {**expected, **actual} if actual.get(name) != expected.get(name))


def misfits(in_words: Sequence[Mapping[str, str]], counts: Mapping[int, int]) -> tuple[int, dict[int, str]]:
    """Return the number of the layout that most samples have, and by number how all others differ from it.

    Args:
        in_words: of every layout, its fields in words; they may be equal.
        counts: as `count_layouts` returns them.

    Raises:
        SourceError: there is no sample.
    """
    if not counts:
        raise NothingLeftError("no sample is left: each has a bad file, or lacks a partner; fix the files first")
    frequent: Counter[frozenset[tuple[str, str]]] = Counter()
    for layout, count in counts.items():
        frequent[frozenset(in_words[layout].items())] += count
    ((most, times),) = frequent.most_common(1)
    model = next(layout for layout in counts if in_words[layout].items() == most)
    apart = {layout: how for layout in counts if (how := difference(in_words[model], in_words[layout]))}
    for layout in apart:
        if frequent[frozenset(in_words[layout].items())] == times:
            apart[layout] += f" (a tie, {times:,} of either kind, of which the first is taken)"
    return model, apart
