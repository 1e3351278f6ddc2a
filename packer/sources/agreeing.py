"""Which samples are packed together, those that have the fields of most: the fourth step of opening a source."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from packer.errors import NothingLeftError, SourceError
from packer.sources.base import Source
from packer.sources.table import SampleTable
from packer.watcher import Watcher
from packer.workers import Limits, call_guarded

Item = TypeVar("Item", bound=Hashable)

#: Samples of one kind that are read at most, to find a good one.
MOST_TRIED = 64


def agree_on_most(
    table: SampleTable,
    watcher: Watcher,
    sentence: str = "differs from most files: {how}; fix it or move it away",
) -> SampleTable:
    """Return the samples that have the fields of most; `watcher.bad` is called for each other one.

    Args:
        sentence: what is said of these; `{how}` is how they differ.

    Raises:
        SourceError: what `watcher.bad` raises; no sample is left.
    """
    _, apart = misfits(table.in_words(), table.counts())
    return leave_out(table, apart, sentence, watcher)


def leave_out(table: SampleTable, apart: Mapping[int, str], sentence: str, watcher: Watcher) -> SampleTable:
    """Return the samples whose layouts are not `apart`: by number, how they differ from that of most.

    `watcher.bad` is called for each other one, with `sentence` as `agree_on_most` has it, and the path of the first
    field that is at fault.
    """
    if not apart or table.layout_of is None:
        return table
    is_apart = np.isin(table.layout_of, list(apart))
    last = ""
    for number in np.flatnonzero(is_apart).tolist():
        how, paths = apart[int(table.layout_of[number])], table.row(number).paths
        path = next((paths[name] for name in paths if f"field {name} " in how), next(iter(paths.values())))[0]
        if path != last or not table.has_rows:  # a file of rows may be there in pieces
            watcher.bad(SourceError(sentence.format(how=how), path))
        last = path
    return table.keep(~is_apart)


def leave_out_unreadable(
    table: SampleTable, open_as_source: Callable[[SampleTable], Source], watcher: Watcher, limits: Limits | None
) -> SampleTable:
    """Return the samples without those of a kind of most of which none can be read: it would leave out the good ones.

    Where samples differ in their fields, those of most are read until one is good. More than `MOST_TRIED` are believed.
    `watcher.bad` is called with the error of each that is left out.

    Args:
        open_as_source: returns the source of samples that are all of one kind.
        limits: as `call_guarded` has them.
    """
    while table.layout_of is not None and len(counts := table.counts()) > 1 and not table.has_rows:
        _, apart = misfits(table.in_words(), counts)
        of_most = ~np.isin(table.layout_of, list(apart))
        if not apart or of_most.sum() > MOST_TRIED:
            return table
        errors = list[SourceError]()
        with contextlib.suppress(SourceError):  # of agreeing: then nothing is known
            source = open_as_source(table.keep(of_most))
            for result in call_guarded(_read_all, [source.slice(n, n + 1) for n in range(len(source))], limits):
                if not isinstance(result, SourceError):
                    return table
                errors.append(result)
        if not errors:
            return table
        for error in errors:
            watcher.bad(SourceError(error.reason, error.path))  # without its sample, which is left out already
        table = table.keep(~of_most)
    return table


def _read_all(source: Source) -> None:
    for _ in source.read():
        pass


def usual(kinds: Iterable[Item]) -> Item:
    """Return the most frequent kind, the first one if several are; there must be at least one.

    It is the kind of the dataset. A file of another kind is bad, even if it is the first file.
    """
    ((kind, _),) = Counter(kinds).most_common(1)
    return kind


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
        counts: as `SampleTable.counts` returns them.

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
