"""The output of every export: a folder, safe paths made from names, and files that are complete or absent."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from packer.errors import UsageError
from packer.format import LOCK, PARTIAL, find_meanings, list_folder, removed_if_stopped
from packer.packing import classes_of
from packer.sources import Block, PackedSource, block_bytes, count


class Writer:
    """Writes the samples of a dataset to files of one kind; checks first whether it can.

    Attributes:
        keeps_constants: whether these files hold what all samples share.
        kept_meanings: fields of which these files hold what `meanings_in` says.
        names_files: whether files are named after samples; a name that is not a plain path is then refused.
        notes: sentences on what the files hold in another form than the source; a sentence may be there several times.
    """

    keeps_constants = False
    kept_meanings: Collection[str] = ()
    names_files = True

    def __init__(self, source: PackedSource, files: Files) -> None:
        self.notes: list[str] = []
        self._source, self._files = source, files
        if source.names is None:  # numbers with as many digits as the dataset's last one needs
            digits = len(str(sum(entry.samples for entry in source.shards) - 1))
            self._names: Sequence[str] = [f"{number:0{digits}d}" for number in source.numbers.tolist()]
        else:
            self._names = list(map(check_name, source.names)) if self.names_files else source.names

    def write(self) -> Generator[Block]:
        """Write all samples, and yield each block once it is written; closed early, nothing half-written is left."""
        raise NotImplementedError

    def _blocks(self) -> Iterator[tuple[Block, Sequence[str]]]:
        """Yield all samples in blocks, with the names of each block."""
        start = 0
        for block in self._source.read():
            stop = start + count(block)
            yield block, self._names[start:stop]
            start = stop

    def _blocks_of_files(
        self, most_bytes: int, most_samples: float = math.inf
    ) -> Iterator[Iterator[tuple[Block, Sequence[str]]]]:
        """Yield the blocks of each file, with their names: a file is full once it has so many bytes or samples."""
        blocks = self._blocks()
        for first in blocks:
            yield _until_full(first, blocks, most_bytes, most_samples)


def _until_full(
    first: tuple[Block, Sequence[str]],
    further: Iterator[tuple[Block, Sequence[str]]],
    most_bytes: int,
    most_samples: float,
) -> Iterator[tuple[Block, Sequence[str]]]:
    block: tuple[Block, Sequence[str]] | None = first
    held, samples = 0, 0
    while block is not None:
        yield block
        held, samples = held + block_bytes(block[0]), samples + len(block[1])
        block = next(further, None) if held < most_bytes and samples < most_samples else None


class Files:
    """Files below `folder`.

    Attributes:
        count: how many were written.
        bytes: their size.

    Raises:
        UsageError: the folder is not empty and `overwrite` is not set, or it is a file.
    """

    def __init__(self, folder: Path, overwrite: bool) -> None:
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file; name a folder to export to")
        if not overwrite and folder.is_dir() and any(entry.name != LOCK for entry in list_folder(folder)):
            raise UsageError(f"{folder} is not empty; name another folder, or use --overwrite")
        self.folder = folder
        self.count = 0
        self.bytes = 0

    @contextmanager
    def partial(self, name: str, suffix: str) -> Iterator[Path]:
        """Yield a temporary path to write a file to. The end of the block renames it; an error removes it.

        Folders in the name are made.

        Raises:
            UsageError: the name would lead out of the folder.
        """
        path = self.folder / (check_name(name) + suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        # File systems take names of 255 bytes.
        partial = path.with_name(f"{os.fsdecode(os.fsencode(path.name)[:240])}{PARTIAL}")
        try:
            with removed_if_stopped(partial):
                yield partial
                partial.replace(path)
        except OSError as error:
            error.filename = error.filename or str(path)  # the error of a write names no file
            raise
        self.count += 1
        self.bytes += path.stat().st_size

    @contextmanager
    def create(self, name: str, suffix: str) -> Iterator[BinaryIO]:
        """Open a new file to write to. It has a temporary name until the end of the block."""
        with self.partial(name, suffix) as path, path.open("wb") as file:
            yield file


def meanings_in(source: PackedSource) -> dict[str, str | list[str]]:
    """Return what the numbers of fields stand for: names of classes or of categories, or the unit of times."""
    classes = list(classes_of(source.origin, source.base.samples if source.base else len(source)))
    found = dict[str, str | list[str]]()
    for name, by_key in find_meanings(source.origin, source.fields).items():
        of_numbers = by_key.get("categories") or by_key.get("times")
        if name in ("label", "labels") and classes:
            found[name] = classes
        elif of_numbers:
            found[name] = of_numbers[0]  # parts agree
    return found


def check_name(name: str) -> str:
    """Return `name` if it is a plain relative path.

    Raises:
        UsageError: it is none.
    """
    path = PurePosixPath(name)
    forbidden = set("\0\\:") if os.name == "nt" else {"\0"}
    if path.is_absolute() or ".." in path.parts or str(path) != name or not path.name or forbidden & set(name):
        raise UsageError(
            f"{name!r} cannot be the name of a file: it is empty, leads out of the folder, or is not a plain path; "
            "export to hdf5, which keeps names as text"
        )
    return name
