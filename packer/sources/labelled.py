"""A source whose samples lie in folders, one a class, and their numbers as a field: as torchvision's ImageFolder does.

train/cat/1.png, train/cat/2.png, train/dog/1.png    label 0, 0, 1    classes cat, dog
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError, first_few
from packer.format.schema import FieldSpec
from packer.sources.base import Block, DerivedSource, Source, count

#: Name of the field that is made.
FIELD = "label"


class LabelledSource(DerivedSource):
    """The samples of a source, and for each the number of its class, int64.

    The class is the first folder of the sample's name. Classes are numbered in the plain order of their names. A
    folder without a sample is a class too, so that what is left out as bad changes no number.

    Args:
        roots: what the source was opened from.

    Raises:
        UsageError: the samples have no names, or the source has a field `label`.
        SourceError: a sample lies in no folder.
    """

    def __init__(self, source: Source, roots: Sequence[str]) -> None:
        if source.names is None:
            raise UsageError(
                "--label folder is for samples that are files or folders, and these are rows; see --samples"
            )
        if any(spec.name == FIELD for spec in source.fields):
            raise UsageError(
                f"--label folder makes a field {FIELD!r}, and there is one; leave it out, or name that otherwise"
            )
        folders = [name.partition("/")[0] for name in source.names]
        bare = [name for name in source.names if "/" not in name]
        if bare:
            more = f" (one of {len(bare):,} such samples)" if len(bare) > 1 else ""
            reason = f"sample {bare[0]!r} of {' and '.join(roots)} lies in no folder, so that it has no class{more}"
            raise SourceError(f"{reason}; move it into the folder of its class, or leave out --label folder")
        held = set(folders)
        self.classes = sorted(held | set.intersection(*map(_subfolders, roots)))
        self._empty = [name for name in self.classes if name not in held]
        numbers = {name: number for number, name in enumerate(self.classes)}
        self._labels: NDArray[np.int64] = np.array([numbers[folder] for folder in folders], np.int64)
        super().__init__(source)
        self.fields = (*source.fields, FieldSpec(name=FIELD, dtype="int64"))

    def shapes(self, field: str) -> NDArray[np.int64] | None:
        return None if field == FIELD else super().shapes(field)

    def part(self, start: int, stop: int) -> Self:
        part = super().part(start, stop)
        part._labels = self._labels[start:stop].copy()
        return part

    def read(self) -> Iterator[Block]:
        at = 0
        for block in self._source.read():
            end = at + count(block)
            yield {**block, FIELD: self._labels[at:end]}
            at = end

    def provenance(self) -> dict[str, Any]:
        return {**super().provenance(), "classes": self.classes}

    def notes(self) -> list[str]:
        empty = [f"no sample is of class {first_few(self._empty)}; its folder counts"]
        classes = f"{len(self.classes):,} classes: {first_few(self.classes)}"
        made = f"field {FIELD} is the number of the folder, from 0, of {classes}"
        return [*super().notes(), made, *(empty if self._empty else [])]


def _subfolders(root: str) -> set[str]:
    """Return the names of the folders in a folder, but for hidden ones; none of anything else."""
    place = Path(root)
    return {p.name for p in place.iterdir() if p.is_dir() and p.name[0] != "."} if place.is_dir() else set()
