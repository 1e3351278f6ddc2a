"""A table or list beside files, joined by names.

image=train label=train.csv            train/a.png, and the row of train.csv in whose column of names `a` stands
image=train boxes=instances.json       train/a.png, and the objects of the image that the json lists as a.png
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from packer.errors import NothingLeftError, SourceError, UsageError, first_few
from packer.sources.base import Source
from packer.sources.pairing import stem
from packer.sources.source import TableSource
from packer.sources.views import BesideSource, PickedSource, in_order
from packer.watcher import Watcher

# ---------------------------------------------------------------- a table beside files


def beside_table(source: Source, field: str, table: TableSource, key: str | None, watcher: Watcher) -> Source:
    """Return the samples of a source, each with the columns of its row.

    Args:
        field: what a single column besides that of names is called; empty for its own name.
        key: the column of names; None for the one whose values are names of samples.
        watcher: its `bad` is called with every row without a sample, and every sample without a row.

    Raises:
        UsageError: samples have no names, or no column has names of them, or several have.
        SourceError: what `watcher.bad` raises.
    """
    if source.names is None:
        raise UsageError(f"{field}= is a table, which goes by names of samples, but these have none")
    column = _find_names(table, source.names, key)
    row_of = _rows_by_name(table, column, source.names, watcher, ("row", "rows"))
    joined = _beside_rows(source, row_of, _without(table, column.name), column.name, field)
    joined.remarks = [*joined.remarks, f"rows of the table go to samples by its column {column.name}"]
    return joined


def beside_listed(source: Source, listed: TableSource, key: str, watcher: Watcher) -> Source:
    """Return the samples of a source, each with the fields of the one that a file lists under its name.

    Args:
        key: what the file calls the names.
        watcher: as for `beside_table`.

    Raises:
        UsageError: samples have no names.
        SourceError: what `watcher.bad` raises.
    """
    if source.names is None or listed.names is None:
        raise UsageError(f"a {listed.kind} file lists samples by their names, but these have none")
    column = _NameColumn(key, listed.names, _names_of(listed.names, source.names))
    entry_of = _rows_by_name(listed, column, source.names, watcher, ("entry", "entries"))
    return _beside_rows(source, entry_of, listed, key)


def _beside_rows(
    source: Source, row_of: Mapping[str, int], rows: TableSource, column: str, field: str = ""
) -> BesideSource:
    """Return the samples of a source that have a row, each with the fields of it; `field` is the name of a single one.

    Raises:
        NothingLeftError: none has a row.
    """
    names = source.names or []
    keep = [number for number, name in enumerate(names) if name in row_of]
    if not keep:
        raise NothingLeftError(f"no sample is left: no value of {column} is the name of one")
    side: Source = rows.in_order([row_of[names[number]] for number in keep])
    if field and len(rows.fields) == 1:
        side = PickedSource(side, {field: rows.fields[0].name})
    return BesideSource(source if len(keep) == len(source) else in_order(source, keep), [side])


def named_by_table(table: TableSource, names: Sequence[str], key: str | None) -> Source:
    """Return the rows of a table, of which each has the name of its sample.

    Args:
        names: of the samples.
        key: as for `beside_table`.

    Raises:
        UsageError: as `beside_table`; or two rows have one name.
    """
    column = _find_names(table, names, key)
    row_of: dict[str, int] = {}
    for row, (text, sample) in enumerate(zip(column.texts, column.samples, strict=True)):
        name = sample or text
        if (first := row_of.setdefault(name, row)) != row:
            raise UsageError(f"rows {first:,} and {row:,} of the table both are {name!r} in the column {column.name}")
    return _without(table, column.name).named(list(row_of))


class _NameColumn(NamedTuple):
    """The column of names of a table: its name, its values, and the sample of each row, None for a row without one."""

    name: str
    texts: Sequence[str]
    samples: Sequence[str | None]


def _find_names(table: TableSource, names: Sequence[str], key: str | None) -> _NameColumn:
    """Return the column of names of a table.

    A value is the name of a sample as it is, without suffix, or without folders.
    """
    known = [
        spec.name for spec in table.fields if spec.kind == "text" or (not spec.shape and spec.np_dtype.kind in "iu")
    ]
    if key is not None and key not in known:
        raise UsageError(f"--key {key}: there is no such column of text or whole numbers; there are {first_few(known)}")
    if len(table.fields) < 2:
        raise UsageError(f"the table has one column, {table.fields[0].name}, but names and a field are expected")
    columns = _complete(table, known) if key is None else texts_of(table, [key])
    samples = {column: _names_of(texts, names) for column, texts in columns.items()}
    hits = {column: sum(name is not None for name in of_rows) for column, of_rows in samples.items()}
    column = key or max(hits, key=lambda column: hits[column], default="")
    if not hits.get(column):
        short = {name.rpartition("/")[2].lstrip("0") for name in names}
        zeros = next((name for name, texts in columns.items() if not short.isdisjoint(texts)), "")
        advice = f"; those in {zeros} have no zeros in front: write them, as in the names of files" if zeros else ""
        raise UsageError(
            f"no column of the table has names of samples, such as {names[0]!r}; columns are {first_few(known)}{advice}"
        )
    if others := [other for other in hits if other != column and 2 * hits[other] > hits[column]]:
        raise UsageError(f"columns {column} and {others[0]} both have names of samples; say which by --key {column}")
    return _NameColumn(column, columns[column], samples[column])


def _rows_by_name(
    table: TableSource, column: _NameColumn, names: Sequence[str], watcher: Watcher, words: tuple[str, str]
) -> dict[str, int]:
    """Return the row of each sample that has one; `watcher.bad` is called with all rows and samples that are alone.

    Args:
        names: of all samples.
        words: what messages call a row, and several.
    """
    word, many = words
    advice = "; --files makes rows samples" if word == "row" else ""
    row_of: dict[str, int] = {}
    alone = dict[int, str]()
    for row, (text, name) in enumerate(zip(column.texts, column.samples, strict=True)):
        if name is None:
            alone[row] = f"{column.name} is {text!r}, which is no sample"
        elif row_of.setdefault(name, row) != row:
            alone[row] = f"{column.name} names sample {name!r}, as {word} {row_of[name]:,} does{advice}"
    bare = [name for name in names if name not in row_of]
    counts = f"; {len(alone):,} of {len(table):,} {many} have no sample of their own"
    counts += f", {len(bare):,} of {len(names):,} samples no {word}"
    reasons = [f"{word} {row:,}: {reason}" for row, reason in alone.items()]
    reasons += [f"sample {name!r} has no {word} of its {column.name}" for name in bare]
    for reason in reasons:
        watcher.bad(SourceError(f"{reason}{counts}; --on-error skip leaves both out", table.table.row(0).path))
        counts = ""
    return row_of


def _without(table: TableSource, column: str) -> TableSource:
    return table.only([spec.name for spec in table.fields if spec.name != column])


def _complete(table: TableSource, columns: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of the columns that have one in each row, as text: a column of names has."""
    try:
        return texts_of(table, columns)
    except SourceError as error:
        if error.sample is None or len(columns) == 1:
            raise
    texts: dict[str, list[str]] = {}
    for column in columns:
        with suppress(SourceError):
            texts |= texts_of(table, [column])
    return texts


def texts_of(table: TableSource, columns: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of some columns of all rows, as text; empty where text is missing, which is no name."""
    texts: dict[str, list[str]] = {column: [] for column in columns}
    empty = {spec.name: "" for spec in table.fields if spec.kind == "text"}
    table = replace(table, options=replace(table.options, fill={**empty, **table.options.fill}))
    for block in table.only(columns).read() if columns else ():
        for column in columns:
            texts[column] += map(str, values.tolist() if hasattr(values := block[column], "tolist") else values)
    return texts


def _names_of(texts: Sequence[str], names: Sequence[str]) -> list[str | None]:
    """Return the sample that each text names; None if it names none."""
    last: dict[str, str | None] = {}
    for name in names:
        end = name.rpartition("/")[2]
        last[end] = None if end in last else name
    whole: dict[str, str | None] = {name: name for name in names}
    texts = [text.strip() for text in texts]
    exact = whole.keys() & set(texts)  # which no other text names: v1 is v1, where v1.0 may be a version of it
    samples = [text if text in exact else whole.get(stem(text)) if stem(text) not in exact else None for text in texts]
    if any(samples):
        return samples
    ends = [text.rpartition("/")[2] for text in texts]
    return [last.get(end) or last.get(stem(end)) for end in ends]
