"""A dataset made for a URL: packed in the cache, then uploaded, its manifest last.

Shards stay in the cache, in an unfinished folder, until all of them are uploaded: the same command goes on with packing
or with uploading, wherever it was stopped, and another one begins anew. A dataset that is replaced is gone from its URL
while the new one is uploaded: its manifest is removed first.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from packer.errors import RemoteError, UsageError, WriteError
from packer.format import CONSTANTS_FILE, MANIFEST, REJECTED_FILE, SHARD_FOLDER, Manifest, make_folder
from packer.format import manifest as manifests
from packer.packing.output import locked
from packer.remote import Found, Moved, RemoteFolder, Transfer, default_cache, label, note, noted

_log = logging.getLogger(__name__)

#: One line for each file uploaded: its path, digest, and what the server said of it.
_UPLOADED = "uploaded.jsonl"
_OURS = re.compile(rf"{MANIFEST}|{REJECTED_FILE}|{CONSTANTS_FILE}|names(-\d+)?\.lmdb|{SHARD_FOLDER}/[^/]+\.lmdb")
STREAMS = 4


@contextlib.contextmanager
def remote_output(url: str, overwrite: bool = False) -> Iterator[RemoteOutput]:
    """Hold the lock of the folder where a dataset for a URL is packed.

    Args:
        overwrite: whether a dataset that is there may be replaced.

    Raises:
        UsageError: a dataset or something else is at the URL, or another conversion into it is running.
        WriteError: the URL cannot be reached, or the cache cannot be written to.
    """
    home = default_cache() / "outputs" / label(url)
    make_folder(home)
    with locked(home, f"another conversion into {url} is running; wait for it or choose another URL"):
        try:
            output = RemoteOutput(url.rstrip("/"), home, overwrite)
        except RemoteError as error:
            raise WriteError(str(error)) from None
        yield output


class RemoteOutput:
    """The folder where a dataset for a URL is packed, and the way to its URL.

    Attributes:
        folder: where to pack it.
    """

    def __init__(self, url: str, home: Path, overwrite: bool) -> None:
        self.url, self.folder = url, home / url.rpartition("/")[2]
        self._home = home
        self._remote = RemoteFolder(url)
        there = self._remote.files()
        if foreign := sorted(name for name in there if not _OURS.fullmatch(name)):
            raise UsageError(f"{url} is not empty: it holds {foreign[0] or 'a file'}; name another place")
        if MANIFEST in there and not overwrite:
            raise UsageError(f"{url} is a packed dataset already; use --overwrite to replace it")

    def upload(self, manifest: Manifest, moved: Moved | None = None) -> None:
        """Put the packed dataset at the URL, and remove it here.

        Args:
            manifest: the manifest of the dataset, which is in no file yet.
            moved: called with the bytes uploaded so far, and with all of them.

        Raises:
            WriteError: a file cannot be uploaded; the message names it.
        """
        try:
            self._upload(manifest, moved)
        except RemoteError as error:
            raise WriteError(f"{error}; the same command goes on with the upload") from None
        shutil.rmtree(self.folder)
        for name in (_UPLOADED, MANIFEST):
            (self._home / name).unlink(missing_ok=True)

    def _upload(self, manifest: Manifest, moved: Moved | None) -> None:
        """Upload the files that an earlier run has not, the manifest last, and remove all others that are there."""
        manifests.write(self._home, manifest)
        entries = [*manifest.shards, *manifest.tables, *([manifest.left_out] if manifest.left_out else [])]
        digests = {entry.file: entry.digest for entry in entries}
        there = self._remote.files()
        if MANIFEST in there:
            self._remote.remove(MANIFEST)
        done = noted(self._home / _UPLOADED)
        todo = [name for name in digests if name not in there or done.get(name) != (digests[name], *there[name])]
        _log.info("uploading the dataset to %s: %s of its files are not there yet", self.url, f"{len(todo):,}")
        transfer = Transfer(sum((self.folder / name).stat().st_size for name in todo), moved)

        def put(name: str) -> Found:
            found = self._remote.put(name, self.folder / name)
            transfer.add(found.size)
            return found

        with (self._home / _UPLOADED).open("ab") as lines:
            for name, found in zip(todo, transfer.each(put, todo, STREAMS), strict=True):
                note(lines, name, digests[name], *found)
        self._remote.put(MANIFEST, self._home / MANIFEST)
        for name in there.keys() - digests.keys() - {MANIFEST}:
            self._remote.remove(name)
