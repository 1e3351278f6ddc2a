"""One command at a time makes or changes the dataset at a place; one that comes too late says so, and tidies up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from packer.errors import ChangedMeanwhileError, DatasetError, PackerError, SourceError, WriteError
from packer.format import Manifest
from packer.packing.commit import Change
from packer.packing.manifest import read_manifest
from packer.packing.places import LocalPlace, Place


@contextlib.contextmanager
def changing(place: Place) -> Iterator[Change]:
    """Make or change the dataset at a place; whoever else wants to is refused, where there are locks.

    Raises:
        ChangedMeanwhileError: another command has changed it meanwhile.
        UsageError: another command is changing it.
        WriteError: the place cannot be written.
    """
    with place.lock() as has_lock:
        change = Change(place, has_lock)
        try:
            try:
                yield change
            except ChangedMeanwhileError:
                raise
            except (PackerError, OSError):
                if not has_lock:
                    # Another command may have removed what this one has written or reads.
                    with contextlib.suppress(WriteError, DatasetError):
                        change.check_unchanged()
                raise
        except ChangedMeanwhileError as error:
            is_read = error.place != place  # what was made of it is of no use
            raise ChangedMeanwhileError.at(error.place, change.leave(is_read)) from None
        finally:
            if has_lock or not isinstance(place, LocalPlace):
                place.remove_drafts(change.run)


@contextlib.contextmanager
def explain_changes(datasets: Iterable[tuple[Place, Manifest]]) -> Iterator[None]:
    """Raise ChangedMeanwhileError in place of errors that come from a change of a dataset that is read.

    Args:
        datasets: where each is, and its manifest when it was opened.
    """
    try:
        yield
    except (DatasetError, SourceError):
        for place, manifest in datasets:
            with contextlib.suppress(DatasetError, WriteError):
                if read_manifest(place) != manifest:
                    raise ChangedMeanwhileError.at(place) from None
        raise


@contextlib.contextmanager
def changing_dataset(place: Place) -> Iterator[tuple[Change, Manifest]]:
    """Change the dataset at a place, as `changing`; yield its manifest as well.

    Raises:
        DatasetError: there is no dataset; no lock is made then.
        UsageError, WriteError: as `changing`.
    """
    read_manifest(place)
    with changing(place) as change:
        yield change, change.dataset
