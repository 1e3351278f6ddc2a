"""Which files of a place nobody uses any more: neither the manifest that is there, nor a run under way."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import NamedTuple

from packer.format import SHARD_FOLDER, UNFINISHED
from packer.packing.note import NOTE_FILE
from packer.packing.places import DATASET_FILE, PARTIAL, RUN

#: The run in the name of a file.
_RUN_IN_NAME = re.compile(rf"(?:names-|constants-|left-out-|{SHARD_FOLDER}/|{UNFINISHED}/)({RUN})[-.]")
#: Files that another command may be writing, whose names do not say which.
_NAMELESS = re.compile(rf"^[^/]*\.json\.{RUN}\.partial$")


class Kept(NamedTuple):
    """What stays when files are removed.

    Attributes:
        files: that stay, whatever their names say.
        run: that removes.
        resumes: whether finished files of this run stay.
        runs: others whose files stay.
        notes: runs whose notes stay.
        nameless: whether drafts stay whose names do not say who writes them.
    """

    files: Container[str]
    run: str
    resumes: bool
    runs: Container[str]
    notes: Container[str]
    nameless: bool

    def keeps(self, name: str) -> bool:
        """Return whether a file stays."""
        if name in self.files or not DATASET_FILE.fullmatch(name) or (self.nameless and _NAMELESS.search(name)):
            return True
        match = _RUN_IN_NAME.search(name)
        run = match[1] if match else None
        if (note := NOTE_FILE.fullmatch(name)) and note[1] in self.notes:
            return True
        if run is not None and run == self.run:
            return self.resumes and not name.endswith(PARTIAL)
        return run in self.runs

    def left(self, files: Iterable[str]) -> tuple[list[str], list[str], list[str]]:
        """Return the files that go, in this order: those of datasets, reports and plans of runs, and notes.

        As long as a note is there, the next command knows that there is more to remove.
        """
        left = [name for name in files if not self.keeps(name)]
        of_runs = [name for name in left if name.startswith(UNFINISHED)]
        notes = [name for name in of_runs if NOTE_FILE.fullmatch(name)]
        return (
            [name for name in left if not name.startswith(UNFINISHED)],
            [name for name in of_runs if not NOTE_FILE.fullmatch(name)],
            notes,
        )
