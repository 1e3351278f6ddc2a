"""Links, fifos, sockets, folders and files that NFS keeps, where a dataset has files and folders of its own."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import pytest

from packer.convert import convert
from packer.errors import DatasetError, ManifestError, UsageError, WriteError
from packer.export import export
from packer.format import manifest as manifests
from packer.sources import SourceOptions
from packer.verify import part_reports, verify, verify_part
from tests.helpers.verbs import VERBS, Dataset, State

#: Verbs that write; others of the same kind are left out.
WRITERS = ("append", "join", "drop", "split", "stats", "repack", "convert", "write", "merge", "repair")


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    dataset = Dataset(tmp_path, at_url=False)
    dataset.renew()
    return dataset


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["shards", "unfinished"])
def test_a_dataset_whose_folders_are_links_is_read_and_never_changed(dataset: Dataset, name: str) -> None:
    """Every verb that writes refuses it in a sentence; the dataset that the link leads to keeps all that it has."""
    folder, other = Path(dataset.path), dataset.folder / "other" / name
    (dataset.fresh / "unfinished").mkdir(exist_ok=True)
    (dataset.folder / "other" / "unfinished").mkdir(exist_ok=True)
    if name == "shards":
        for path in (folder / name).iterdir():
            path.rename(other / path.name)
        (folder / name).rmdir()
    (other / "0123abcd-00000.json").write_text("{}")
    (folder / name).symlink_to(other)
    before = contents(dataset.folder)
    for verb in WRITERS:
        with pytest.raises(UsageError, match=f"folder {name} is a link.*read, and never changed; copy it"):
            VERBS[verb].run(dataset)
    with pytest.raises(UsageError, match="read, and never changed"):
        verify_part(folder, "1/1")
    reports = part_reports(folder)
    verify(folder, reports=reports)
    reports.remove()
    assert contents(dataset.folder) == before
    if name == "unfinished":
        assert State.of(folder) == State()


def test_what_nfs_keeps_for_readers_is_passed_over(dataset: Dataset) -> None:
    """Files `.nfs...`, which are there while somebody reads what was removed, are no part of the dataset."""
    for folder in ("", "shards", "unfinished"):
        (Path(dataset.path) / folder).mkdir(exist_ok=True)
        (Path(dataset.path) / folder / ".nfs0000000000c4005100000001").write_bytes(b"old")
    for verb in ("append", "repack", "convert"):
        VERBS[verb].run(dataset)
        assert not verify(dataset.path).damages
    assert len(list(Path(dataset.path).rglob(".nfs*"))) == 3
    (dataset.folder / "files").mkdir()
    (dataset.folder / "files" / ".nfs0000000000c4005100000002").write_bytes(b"old")
    export(dataset.path, dataset.folder / "files", to="npy")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no fifos")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("manifest.copy.json", "fifo"),
        (".lock", "socket"),
        (".lock", "fifo"),
        ("shards/*.lmdb", "folder"),
        ("shards/*.lmdb", "socket"),
        ("unfinished/0123abcd.json", "fifo"),
        ("unfinished/verify-*-1-of-1.msgpack", "fifo"),
    ],
)
def test_what_is_no_file_is_refused_and_not_waited_for(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    """A fifo, a socket or a folder in place of any file is named at once by whoever would write or remove it."""
    folder = Path(dataset.path)
    if name.startswith("unfinished/verify"):
        verify_part(folder, "1/1")
    path = next(folder.glob(name), folder / name)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        monkeypatch.chdir(path.parent)  # the path of a socket is short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    for verb in ("append", "split", "convert"):
        with pytest.raises((WriteError, DatasetError), match=r"is (no file|not a file|a folder|damaged)"):
            VERBS[verb].run(dataset)
    assert manifests.read(folder).samples == 3


def test_reading_waits_for_no_fifo(tmp_path: Path) -> None:
    """A fifo in place of the list of skipped samples, or of the copy of the manifest, is a damage that is named."""
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", np.arange(3.0))
    (tmp_path / "in" / "b.npy").write_bytes(b"no array")
    folder = tmp_path / "out"
    convert(tmp_path / "in", folder, on_error="skip", source=SourceOptions(samples="files"))
    for pattern in ("left-out-*.jsonl", "manifest.copy.json"):
        path = next(folder.glob(pattern))
        path.unlink()
        os.mkfifo(path)
        assert path.name in [damage.file for damage in verify(folder).damages]
    with pytest.raises(ManifestError, match="it is no file"):
        manifests.read(folder, "manifest.copy.json")


def test_the_lock_is_not_opened_through_a_link(dataset: Dataset) -> None:
    """A `.lock` that is a link could lock another dataset, or make a file anywhere: it is refused."""
    (Path(dataset.path) / ".lock").unlink(missing_ok=True)
    (Path(dataset.path) / ".lock").symlink_to(dataset.folder / "elsewhere.lock")
    with pytest.raises(WriteError, match=r"\.lock is a link; remove it"):
        VERBS["append"].run(dataset)
    assert not (dataset.folder / "elsewhere.lock").exists()
