"""Sources in a bucket: fetched into the cache, whole, and packed as if they had always been there."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from packer.convert import convert
from packer.errors import SourceError
from packer.remote import local_input, store
from packer.remote.sources import fetch_source


@pytest.fixture
def tree(new_pairs, s3, tmp_path):
    """Five pairs in the bucket; `inputs` are those of a command line."""
    pairs = new_pairs(tmp_path / "pairs", 5, 6, 5)
    s3.fs.put(str(pairs.folder) + "/", f"{s3.url}/pairs", recursive=True)
    s3.proxy.clear()
    pairs.inputs = [f"{field}={s3.url}/pairs/{field}" for field in ("lr", "hr")]
    return pairs


def test_pairs_are_packed_as_from_a_folder(tree, s3, tmp_path, files_of) -> None:
    """The same bytes, and no file is fetched twice by a second run."""
    convert(tree.sources, tmp_path / "here", workers=0)
    convert(tree.inputs, tmp_path / "there", workers=0)
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")
    assert s3.proxy.gets(".png") == 10
    convert(tree.inputs, tmp_path / "again", workers=0)
    assert s3.proxy.gets(".png") == 10


def test_what_changed_is_fetched_anew(tree, s3) -> None:
    """A file with another tag is fetched again, one that is gone goes here too, and no other is touched."""
    url = f"{s3.url}/pairs/lr"
    fetch_source(url)
    key = url.removeprefix("s3://")
    s3.fs.pipe_file(f"{key}/003.png", s3.fs.cat_file(f"{key}/004.png"))
    s3.fs.rm_file(f"{key}/002.png")
    s3.proxy.clear()
    folder = Path(fetch_source(url))
    assert s3.proxy.gets(".png") == 1
    assert (folder / "003.png").read_bytes() == (folder / "004.png").read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == [f"{n:03}.png" for n in range(5) if n != 2]


def test_an_interrupted_run_goes_on(tree, s3) -> None:
    """What had come before it failed is not fetched again."""
    url = f"{s3.url}/pairs/hr"
    s3.proxy.plan("hr/004.png", *[s3.faults.cut] * 3)
    with pytest.raises(SourceError, match=r"hr/004\.png: it failed 3 times"):
        fetch_source(url)
    before = s3.proxy.gets(".png")
    fetch_source(url)
    assert s3.proxy.gets(".png") - before == 1


def test_a_file_and_a_pattern(rows, clouds, s3, tmp_path, files_of, monkeypatch) -> None:
    """One large file comes in blocks; of a pattern the files that fit it come."""
    monkeypatch.setattr(store, "BLOCK_BYTES", 1000)
    s3.fs.put(str(rows.path), f"{s3.url}/rows.h5")
    s3.fs.put(str(clouds.folder) + "/", f"{s3.url}/clouds", recursive=True)
    s3.fs.pipe_file(f"{s3.url}/clouds/notes.txt", b"not a cloud")
    for name, there, here in [
        ("rows", f"{s3.url}/rows.h5", str(rows.path)),
        ("clouds", f"{s3.url}/clouds/*.ply", f"{clouds.folder}/*.ply"),
    ]:
        convert([there], tmp_path / f"{name}.there", workers=0)
        convert([here], tmp_path / f"{name}.here", workers=0)
        assert files_of(tmp_path / f"{name}.there") == files_of(tmp_path / f"{name}.here")
    assert s3.proxy.gets("notes.txt") == 0
    assert s3.proxy.gets("rows.h5") == -(-rows.path.stat().st_size // 1000)


def test_a_file_that_changes_in_between_is_refused(rows, s3, monkeypatch) -> None:
    """Blocks of two versions are never put together."""
    monkeypatch.setattr(store, "BLOCK_BYTES", 4000)
    monkeypatch.setattr("packer.remote.sources.BLOCK_BYTES", 4000)
    s3.fs.put(str(rows.path), f"{s3.url}/rows.h5")
    other = rows.path.read_bytes()[::-1]

    def change(handler, *answer):
        type(handler).pass_on(handler, *answer)
        s3.fs.pipe_file(f"{s3.url}/rows.h5", other)

    s3.proxy.plan("rows.h5", change)
    with pytest.raises(SourceError, match="changed while it was fetched"):
        fetch_source(f"{s3.url}/rows.h5")


def test_they_are_on_the_disk_before_they_are_noted(rows, tmp_path, monkeypatch, disk_calls) -> None:
    """What is noted is taken for whole by the next run, so its bytes and its name reach the disk first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    fsspec.filesystem("memory").pipe_file("/noted/rows.h5", rows.path.read_bytes())
    disk_calls.check_published(Path(fetch_source("memory://noted")) / "rows.h5")


def test_what_cannot_be_fetched_is_named(s3) -> None:
    """Nothing there, no bucket, and a name that would leave the folder."""
    with pytest.raises(SourceError, match=r"/none: there is no such file or folder"):
        fetch_source(f"{s3.url}/none")
    with pytest.raises(SourceError, match="s3://no-such-bucket/none: there is no such"):
        fetch_source("s3://no-such-bucket/none")
    s3.fs.pipe_file(f"{s3.url}/bad/../x.png", b"1")
    with pytest.raises(SourceError, match="no file here can have this name"):
        fetch_source(f"{s3.url}/bad")


def test_other_inputs_stay_as_they_are() -> None:
    """Paths and fields of paths are no URLs."""
    for text in ("scans", "lr=DIV2K/LR", "c:/x", "c://x", "lr=a=b", "*.png"):
        assert local_input(text) == text
