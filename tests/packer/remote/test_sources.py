"""Sources in a bucket: fetched into the cache, whole, and packed as if they had always been there."""

from __future__ import annotations

import gc
import glob
import io
import os
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import fsspec
import numpy as np
import pytest

from packer.convert import ConvertOptions, convert, convert_part
from packer.errors import SourceError, UsageError
from packer.packing import open_source
from packer.remote import RemoteFolder, local_inputs, store
from packer.remote.cache import remove_unused
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


def test_parts_on_several_machines_are_of_one_conversion(new_pairs, s3, tmp_path, monkeypatch) -> None:
    """Each machine fetches the sources into a cache of its own, at another time, and goes on where others stopped."""
    s3.fs.put(str(new_pairs(tmp_path / "pairs", 2, 16, 16).folder) + "/", f"{s3.url}/pairs", recursive=True)
    inputs = [f"{field}={s3.url}/pairs/{field}" for field in ("lr", "hr")]
    options = ConvertOptions(codec="none", shard_size=4096, workers=0)
    monkeypatch.setattr("packer.packing.claims.SETTLED_REMOTELY", 0.1)
    out = f"{s3.url}/parts"
    for number in range(2):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"machine {number}"))
        report = convert_part(inputs, out, f"{number}/2", options)
        assert report.missing == (0 if number else report.of - report.shards)
        assert report.of > 1
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    assert convert(inputs, out, options).kept_shards == report.of


def put_pairs(s3, folder, new_pairs):
    new_pairs(folder, 4, 16, 16)
    return [f"{field}={folder}/{field}" for field in ("lr", "hr")]


def put_zarr(s3, folder, new_pairs):
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    for number in range(3):
        zarr.save_group(str(folder / f"{number}.zarr"), x=np.full((2, 600), number))
    return [f"{folder}"]


@pytest.mark.parametrize("put", [put_pairs, put_zarr])
def test_a_part_fetches_its_own_files(new_pairs, s3, tmp_path, files_of, monkeypatch, put) -> None:
    """The first part fetches all and makes the plan; other machines, whose caches have the same path, their share.

    So does the call that publishes, which packs what is missing, but for zarr, whose files only a folder tells.
    """
    sources, out, cache = put(s3, tmp_path / "some", new_pairs), tmp_path / "out", tmp_path / "cache"
    s3.fs.put(str(tmp_path / "some") + "/", f"{s3.url}/some", recursive=True)
    inputs = [text.replace(f"{tmp_path}/some", f"{s3.url}/some") for text in sources]
    options = ConvertOptions(codec="none", shard_size=4096, workers=0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    fetched = []
    for pack in (partial(convert_part, part="1/3"), partial(convert_part, part="2/3"), convert):
        report = pack(inputs, out, options=options)
        fetched.append(len([*cache.rglob("*.png"), *cache.rglob("*.zarr")]))
        shutil.rmtree(cache)
    assert max(fetched[1 : 2 if put is put_zarr else 3]) < fetched[0]
    assert report.source_bytes == convert(sources, tmp_path / "expected", options).source_bytes
    assert files_of(out) == files_of(tmp_path / "expected")


def test_a_part_sees_that_a_file_of_its_own_has_changed(new_pairs, s3, tmp_path) -> None:
    """Also one that is gone; a part that has nothing to do with it is packed."""
    options, out = ConvertOptions(codec="none", shard_size=4096, workers=0), tmp_path / "out"
    s3.fs.put(str(new_pairs(tmp_path / "pairs", 3, 16, 16).folder) + "/", f"{s3.url}/pairs", recursive=True)
    inputs = [f"{field}={s3.url}/pairs/{field}" for field in ("lr", "hr")]
    shards = convert_part(inputs, out, "1/9", options).of
    last = f"{s3.url}/pairs/lr/002.png"
    s3.fs.pipe_file(last, s3.fs.cat_file(f"{s3.url}/pairs/lr/001.png"))
    with pytest.raises(UsageError, match="a source file has changed"):
        convert_part(inputs, out, f"{shards}/{shards}", options)
    s3.fs.rm_file(last)
    with pytest.raises(SourceError, match=r"/pairs/lr/002\.png: it is gone"):
        convert_part(inputs, out, f"{shards}/{shards}", options)
    assert convert_part(inputs, out, f"2/{shards}", options).shards == 1


def test_what_changed_is_fetched_anew(tree, s3) -> None:
    """A file with another tag is fetched again, one that is gone goes here too, and no other is touched."""
    url = f"{s3.url}/pairs/lr"
    fetch_source(url)
    key = url.removeprefix("s3://")
    s3.fs.pipe_file(f"{key}/003.png", s3.fs.cat_file(f"{key}/004.png"))
    s3.fs.rm_file(f"{key}/002.png")
    s3.proxy.clear()
    folder = Path(fetch_source(url)[0])
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
    (tmp_path / "tables").mkdir()
    for number in range(2):
        (tmp_path / "tables" / f"{number}.csv").write_text(f"a,b\n{number},text\n")
    s3.fs.put(f"{tmp_path}/tables/", f"{s3.url}/tables", recursive=True)
    for name, there, here in [
        ("rows", f"{s3.url}/rows.h5", str(rows.path)),
        ("clouds", f"{s3.url}/clouds/*.ply", f"{clouds.folder}/*.ply"),
        ("tables", f"{s3.url}/tables/*.csv", f"{tmp_path}/tables"),
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
        s3.fs.pipe_file(f"{s3.url}/rows.h5", other)
        type(handler).pass_on(handler, *answer)  # a block of the old version

    s3.proxy.plan("rows.h5", change)
    with pytest.raises(SourceError, match="changed while it was fetched"):
        fetch_source(f"{s3.url}/rows.h5")


@pytest.mark.parametrize("size", [0, 3, 8, 10])
def test_a_file_that_grows_in_between_is_refused(size, monkeypatch, tmp_path) -> None:
    """It is not cut to the length that was listed, whether that is a whole number of blocks or not."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(store, "BLOCK_BYTES", 4)
    monkeypatch.setattr("packer.remote.sources.BLOCK_BYTES", 100)
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/growing/a.txt", bytes(size))
    files = RemoteFolder.files

    def list_and_grow(folder, pattern):
        listed = files(folder, pattern)
        fs.pipe_file("/growing/a.txt", bytes(size + 1))
        return listed

    monkeypatch.setattr(RemoteFolder, "files", list_and_grow)
    with pytest.raises(SourceError, match="changed while it was fetched"):
        fetch_source("memory://growing")


def test_a_file_without_a_version_is_fetched_once_a_command(monkeypatch, tmp_path) -> None:
    """A server that names neither ETag nor time may have other bytes of the same size; these count as changed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(store, "_TAGS", ())
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/untagged/a.txt", b"hello")
    path, lease = fetch_source("memory://untagged")
    file, fetched = Path(path) / "a.txt", []
    first = file.stat().st_mtime
    original = RemoteFolder.fetch
    monkeypatch.setattr(RemoteFolder, "fetch", lambda *args: fetched.append(args[1]) or original(*args))
    fs.pipe_file("/untagged/a.txt", b"world")
    fetch_source("memory://untagged")  # of the same command, which holds its lease
    assert (fetched, file.read_bytes()) == ([], b"hello")
    del lease
    _, lease = fetch_source("memory://untagged")
    assert (fetched, file.read_bytes()) == (["a.txt"], b"world")
    assert file.stat().st_mtime != first
    del lease
    fs.pipe_file("/untagged/a.txt", b"hello")
    fetch_source("memory://untagged")
    assert (fetched, file.stat().st_mtime) == (["a.txt"] * 2, first)


def test_a_cache_that_is_removed_meanwhile_is_named(monkeypatch, tmp_path) -> None:
    """Whoever empties the cache by hand is told so, and not that the files at the URL changed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/emptied/a.txt", b"hello")

    def cat_file(self, path, start=None, end=None) -> bytes:
        shutil.rmtree(tmp_path)
        return b"hello"

    monkeypatch.setattr(type(fs), "cat_file", cat_file)
    with pytest.raises(SourceError, match=r"emptied-\w+ was removed while it was fetched into it; try again"):
        fetch_source("memory://emptied")


def test_they_are_on_the_disk_before_they_are_noted(rows, tmp_path, monkeypatch, disk_calls) -> None:
    """What is noted is taken for whole by the next run, so its bytes and its name reach the disk first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    fsspec.filesystem("memory").pipe_file("/noted/rows.h5", rows.path.read_bytes())
    disk_calls.check_published(Path(fetch_source("memory://noted")[0]) / "rows.h5")


def test_what_cannot_be_fetched_is_named(s3) -> None:
    """Nothing there, no bucket, and a name that would leave the folder."""
    with pytest.raises(SourceError, match=r"/none: there is no such file or folder"):
        fetch_source(f"{s3.url}/none")
    with pytest.raises(SourceError, match="s3://no-such-bucket/none: there is no such"):
        fetch_source("s3://no-such-bucket/none")
    s3.fs.pipe_file(f"{s3.url}/bad/../x.png", b"1")
    with pytest.raises(SourceError, match="no file here can have this name"):
        fetch_source(f"{s3.url}/bad")


def test_bad_files_are_named_by_their_url(tree, s3, tmp_path) -> None:
    """In the error, and in the list of what was skipped: the copy in the cache is not what the user can repair."""
    bad = f"{s3.url}/pairs/lr/003.png"
    s3.fs.pipe_file(bad, s3.fs.cat_file(bad)[:-20])
    with pytest.raises(SourceError, match=rf"^{bad}: damaged PNG"):
        convert(tree.inputs, tmp_path / "out", workers=1)
    for workers in (0, 1):
        report = convert(tree.inputs, tmp_path / f"out {workers}", workers=workers, on_error="skip")
        assert [skipped.file for skipped in report.rejected] == [bad]
    s3.fs.rm_file(bad)
    with pytest.raises(SourceError, match=rf"^{s3.url}/pairs/hr/003.png: .* has this file, but there is no partner"):
        convert(tree.inputs, tmp_path / "out", workers=0)


def test_other_inputs_stay_as_they_are() -> None:
    """Paths and fields of paths are no URLs."""
    inputs = ["scans", "lr=DIV2K/LR", "c:/x", "c://x", "lr=a=b", "*.png"]
    assert local_inputs(inputs) == (inputs, [])


class WebPages(SimpleHTTPRequestHandler):
    """A web server whose pages link as Apache's do: in another order, to the folder above, to other places."""

    def list_directory(self, path):
        names = "".join(f'<a href="{quote(p.name)}{"/" * p.is_dir()}">x</a>' for p in Path(path).iterdir())
        links = '<a href="?C=N;O=D">Name</a> <a href="/">up</a> <a href="http://127.0.0.1:9/x.png">x</a>'
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        return io.BytesIO((links + names).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def web(_settings, tmp_path):
    """The URL of a web server of `tmp_path`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(WebPages, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(params=["s3", "http", "file", "memory"])
def site(request, tmp_path, monkeypatch):
    """The URL of a folder with files of 0, 5 and 70,000 bytes; above it lies one that is not to be fetched."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    files = {"a/zero.txt": b"", "a/b c.txt": b"hello", "a/sub/large.bin": bytes(range(250)) * 280, "other.txt": b"no"}
    for name, data in files.items():
        place = tmp_path / "site" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    if request.param == "file":
        return f"file://{tmp_path}/site/a"
    if request.param == "http":
        return request.getfixturevalue("web") + "/site/a"
    url = request.getfixturevalue("s3").url if request.param == "s3" else f"memory://{tmp_path.name}"
    fs = fsspec.filesystem(request.param)
    for name, data in files.items():
        fs.pipe_file(f"{url}/site/{name}", data)
    return f"{url}/site/a"


def test_every_kind_of_url_lists_finds_and_fetches(site) -> None:
    """Names, sizes and bytes are those of the files: of a folder, a pattern and a single file."""
    (folder, *_), _ = local_inputs([site])
    held = {p.relative_to(folder).as_posix(): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}
    assert {name: len(data) for name, data in held.items()} == {"zero.txt": 0, "b c.txt": 5, "sub/large.bin": 70_000}
    assert held["b c.txt"] == b"hello"
    assert held["sub/large.bin"] == bytes(range(250)) * 280
    ((text,), _) = local_inputs([f"x={site}/*.txt"])
    assert sorted(Path(path).name for path in glob.glob(text.removeprefix("x="))) == ["b c.txt", "zero.txt"]
    ((one,), _) = local_inputs([f"{site}/b c.txt"])
    assert (Path(one).name, Path(one).read_bytes()) == ("b c.txt", b"hello")


def test_a_query_is_no_wildcard(web, rows, tmp_path, monkeypatch) -> None:
    """`?download=1` and signed URLs are files, named without the query."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    url = f"{web}/{rows.path.relative_to(tmp_path)}?X-Signature=a*b%2F"
    convert([url], tmp_path / "out", workers=0)
    ((path,), _) = local_inputs([url])
    assert Path(path).name == rows.path.name
    assert Path(path).read_bytes() == rows.path.read_bytes()


def test_a_size_that_is_not_known_is_refused(monkeypatch, tmp_path) -> None:
    """A file is never packed as empty because its server does not say how large it is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/unsized/a.txt", b"hello")
    monkeypatch.setattr(type(fs), "info", lambda self, path: {"name": path, "type": "file", "size": None})
    monkeypatch.setattr(type(fs), "find", lambda self, path, detail: {"/unsized/a.txt": {"type": "file"}})
    with pytest.raises(SourceError, match=r"a\.txt: its server does not say how large it is"):
        fetch_source("memory://unsized")


def test_sources_that_nobody_uses_leave_the_cache(monkeypatch, tmp_path) -> None:
    """After a month without use, when another is fetched; never while a source is open, and nothing else there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("old", "open", "new"):
        fsspec.filesystem("memory").pipe_file(f"/unused/{name}/a.txt", b"hello")
    old, lease = fetch_source("memory://unused/old")
    lease.close()
    held, lease = fetch_source("memory://unused/open")
    for place in (tmp_path / "lmdb-packer" / "sources").iterdir():
        os.utime(place / ".in-use", (1e9, 1e9))
    mine = tmp_path / "lmdb-packer" / "sources" / "mine"
    mine.mkdir()
    os.utime(mine, (1e9, 1e9))
    fetch_source("memory://unused/new")[1].close()
    assert mine.exists()
    assert not Path(old).parent.exists()
    assert (Path(held) / "a.txt").exists()
    lease.close()


def test_what_is_packed_holds_a_lease(rows, monkeypatch, tmp_path) -> None:
    """From fetching until the source is gone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fsspec.filesystem("memory").pipe_file("/leased/rows.h5", rows.path.read_bytes())
    source = open_source("memory://leased/rows.h5", ConvertOptions(workers=0), [])
    (path,) = source.files()
    remove_unused(tmp_path / "lmdb-packer" / "sources", -1e9)
    assert Path(path).exists()
    del source
    gc.collect()
    remove_unused(tmp_path / "lmdb-packer" / "sources", -1e9)
    assert not Path(path).exists()
