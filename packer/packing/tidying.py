"""What is removed once a dataset has been published, in which order, and what stays."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from packer.errors import WriteError
from packer.format import PARTIAL, UNFINISHED
from packer.packing.note import NOTE_FILE, Note, run_of_file
from packer.packing.places import DATASET_FILE, RUN, Place

#: Seconds after which a run that did not say that it goes on is given up, where there are no locks.
WEEK = 604_800
#: Drafts that another command may be writing, whose names do not say which.
_NAMELESS_DRAFT = re.compile(rf"[^/]*\.json\.{RUN}\.partial")


class Kept(NamedTuple):
    """What stays when files are removed.

    Attributes:
        files: that stay, whatever their names say.
        runs: whose finished files stay.
        notes: runs whose notes stay.
        drafts: whether drafts of these runs stay, and those whose names do not say who writes them.
    """

    files: Container[str]
    runs: Container[str | None]
    notes: Container[str]
    drafts: bool = False

    def keeps(self, name: str) -> bool:
        """Return whether a file stays."""
        if name in self.files or not DATASET_FILE.fullmatch(name):
            return True
        if (note := NOTE_FILE.fullmatch(name)) and note[1] in self.notes:
            return True
        if name.endswith(PARTIAL) and not self.drafts:
            return False
        return run_of_file(name) in self.runs or _NAMELESS_DRAFT.fullmatch(name) is not None


def remove_unneeded(
    place: Place, files: Iterable[str], kept: Kept, when_done: Callable[[], object] = lambda: None
) -> None:
    """Remove all of some files but those that are kept.

    Notes come last: as long as one is there, the next command knows that there is more to remove.

    Args:
        when_done: called before the notes are removed.
    """
    removed = [name for name in files if not kept.keeps(name)]
    unfinished = [name for name in removed if name.startswith(UNFINISHED)]
    place.remove(name for name in removed if not name.startswith(UNFINISHED))
    place.remove(name for name in unfinished if not NOTE_FILE.fullmatch(name))
    when_done()
    place.remove(filter(NOTE_FILE.fullmatch, unfinished))


def runs_at_work(notes: Mapping[str, Note | None], ended: Container[str]) -> set[str]:
    """Return the runs of other commands that may go on, where no lock says that they do not.

    Args:
        ended: runs that do not.
    """
    now = time.time()
    return {run for run, note in notes.items() if run not in ended and note and now - note.began < WEEK}


@contextlib.contextmanager
def published_errors(place: Place) -> Iterator[None]:
    """Let an error of what follows the rename of the manifest say that all is published."""
    try:
        yield
    except WriteError as error:
        raise WriteError(f"{place} is published and whole, and only tidying up is left: {error}") from None
