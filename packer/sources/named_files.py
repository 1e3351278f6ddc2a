"""Files that a column of a table names, each as a field of its row.

faces.csv --files image_name           the rows of faces.csv, each with the image that its column image_name names
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from posixpath import normpath
from typing import Any

import numpy as np

from packer.errors import NothingLeftError, SourceError, UsageError, first_few
from packer.sources.base import Source
from packer.sources.files import FileSet, join
from packer.sources.keyed import texts_of
from packer.sources.pairing import stem
from packer.sources.source import TableSource
from packer.sources.views import BesideSource
from packer.watcher import Watcher


@dataclass(eq=False)
class NamedFilesSource(BesideSource):
    """The contents of files, beside them the other columns of the rows that name the files.

    Attributes:
        rows_kind: the kind of the table.
        rows_origin: what the origin says of the table; slices need none.
    """

    rows_kind: str
    rows_origin: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kind, self.origin = self.rows_kind, {**self.origin, **self.rows_origin}

    def slice(self, start: int, stop: int) -> NamedFilesSource:
        return replace(super().slice(start, stop), rows_origin={})


def with_files(
    table: TableSource,
    columns: Sequence[str],
    root: str | None,
    open_files: Callable[[str, FileSet], TableSource],
    watcher: Watcher,
) -> Source:
    """Return the rows of a table, each with the contents of the files that some columns name, in place of these.

    Args:
        root: the folder that names count from; None for that of the table.
        open_files: opens the files of a column, each as a sample.
        watcher: its `bad` is called with each row whose file is missing or bad.

    Raises:
        UsageError: there is no such column of text.
        SourceError: what `watcher.bad` raises; no row is left.
    """
    known = [spec.name for spec in table.fields if spec.kind == "text"]
    if unknown := [column for column in columns if column not in known]:
        raise UsageError(f"--files {unknown[0]}: there is no such column of text; there are {first_few(known)}")
    texts = texts_of(table, columns)
    folders = {root} if root is not None else {_folder(path) for path in table.files()}
    if len(folders) > 1:
        raise UsageError(
            f"tables lie in several folders ({first_few(sorted(folders))}); name that of the files by --root"
        )
    (folder,) = folders
    opened: dict[str, tuple[TableSource, list[int]]] = {}
    keep = np.ones(len(table), bool)
    for column in columns:
        opened[column] = _opened(table, column, texts[column], folder, open_files, watcher)
        keep &= np.array(opened[column][1]) >= 0
    rows = np.flatnonzero(keep).tolist()
    if not rows:
        raise NothingLeftError(f"no row is left: the files of {first_few(list(columns))} are missing or bad")
    names = [stem(normpath(texts[columns[0]][row].strip())) for row in rows]
    sides = [source.in_order([numbers[row] for row in rows]) for source, numbers in opened.values()]
    if more := [spec.name for spec in table.fields if spec.name not in columns]:
        sides.append(table.only(more).in_order(rows))
    first = sides[0].named(names if len(set(names)) == len(names) else None)
    origin = {**table.origin, "named_files": list(columns)}
    joined = NamedFilesSource(first, list[Source](sides[1:]), table.kind, origin)
    joined.remarks = list(dict.fromkeys([*table.remarks, *joined.remarks]))
    return joined


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _opened(
    table: TableSource,
    column: str,
    texts: Sequence[str],
    folder: str,
    open_files: Callable[[str, FileSet], TableSource],
    watcher: Watcher,
) -> tuple[TableSource, list[int]]:
    """Return the files that a column names, and the number of that of each row; -1 if it is missing or bad."""

    def path_of(name: str) -> str:
        return name if name.startswith("/") else join(folder, name)

    names = dict.fromkeys(text.strip() for text in texts)
    missing = {name for name in names if not name or not Path(path_of(name)).is_file()}
    path, count = table.table.row(0).path, sum(text.strip() in missing for text in texts)
    more = f" (one of {count:,} such rows)" if count > 1 else ""
    for row, text in enumerate(texts):
        if text.strip() in missing:
            if more and len(missing) == len(names) and (file := _with_suffix(path_of(text.strip()))):
                more += f", but {file}: image={folder or '.'} label={path} goes by names without suffix"
            reason = (
                f"row {row:,}: {column} names {text!r}, but there is no such file in {folder or 'this folder'}{more}"
            )
            watcher.bad(SourceError(f"{reason}; --root names another folder, --on-error skip leaves out the row", path))
            more = ""
    files = [name for name in names if name not in missing]
    if not files:
        raise NothingLeftError(f"no row is left: no file that {column} names is there; see --root", path)
    file_set = FileSet(folder, files, text=f"the files of {column}")
    if any(name.startswith("/") for name in files):
        file_set = file_set._replace(folder="", files=list(map(path_of, files)))
    source = open_files(column, file_set)
    numbers = {path: number for number, path in enumerate(source.files())}
    if len(numbers) != len(source):
        raise UsageError(f"--files {column}: each file must be one sample")
    return source, [numbers.get(path_of(text.strip()), -1) for text in texts]


def _with_suffix(path: str) -> str:
    """Return the name of a file that is called so, but for its suffix; empty if there is none."""
    return next((file.name for file in Path(path).parent.glob(f"{glob.escape(Path(path).name)}.*")), "")
