"""A manifest in a bucket is put in place of the one that was read alone, whoever else writes there."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from packer.append import append
from packer.convert import convert
from packer.errors import ChangedMeanwhileError, RemoteError, UsageError
from packer.packing import place_of
from packer.remote import RemoteFolder, store
from readers import PackedDataset


def _append(url, source, cache, both, answers):
    """Append, with a cache of its own; put the manifest for the first time when the other is about to, too."""
    os.environ["XDG_CACHE_HOME"] = cache
    original, puts = store._put_to_s3, []

    def together(fs, path, data, info):
        if path.endswith("manifest.json"):
            puts.append(path)
            if len(puts) == 1:
                both.wait(60)
        return original(fs, path, data, info)

    for kind in ("s3", "s3a"):
        store._CONDITIONAL_PUTS[kind] = together
    try:
        answers.put(append(url, source, workers=0).added)
    except ChangedMeanwhileError as error:
        answers.put(str(error))


def test_of_two_processes_one_puts_the_manifest(clouds, s3, tmp_path) -> None:
    """What was reported as success is there, and nothing else; the other is told, and goes on with its own shards."""
    url = f"{s3.url}/set"
    first, *others = sorted(clouds.folder.glob("*.ply"))[:3]
    convert(str(first), url, workers=0)
    context = multiprocessing.get_context("fork")
    both, answers = context.Barrier(2), context.Queue()
    children = [
        context.Process(target=_append, args=(url, str(other), str(tmp_path / other.stem), both, answers))
        for other in others
    ]
    for child in children:
        child.start()
    said = [answers.get(timeout=60) for _ in children]
    for child in children:
        child.join(60)
    added, refused = sorted(said, key=str)
    assert added == 1
    assert "was changed meanwhile, by another command" in refused
    names = list(PackedDataset(url).names)
    assert len(names) == 2
    (loser,) = (other for other in others if other.stem not in names)
    assert append(url, str(loser), workers=0).added == 1
    dataset = PackedDataset(url)
    assert sorted(dataset.names) == ["c0", "c1", "c2"]
    assert [len(dataset[name]["xyz"]) for name in dataset.names] == [
        len(clouds.xyz[int(name[1])]) for name in dataset.names
    ]


def test_an_answer_that_was_lost_is_no_other_writer(monkeypatch) -> None:
    """A put that was done, and whose answer never came, is found done by the next attempt."""
    puts = []

    def put(*arguments):
        puts.append(store._put_to_memory(*arguments))
        if len(puts) == 1:
            raise ConnectionResetError("cut")
        return puts[-1]

    monkeypatch.setattr("packer.remote.retries.PAUSE", 0.0)
    monkeypatch.setitem(store._CONDITIONAL_PUTS, "memory", put)
    folder = RemoteFolder("memory://lost-answer")
    assert folder.replace("a", b"1", lambda present: present is None)
    assert puts == [True]
    assert not folder.replace("a", b"1", lambda present: present is None)


def test_a_server_that_cannot_compare_is_not_written(rows, s3) -> None:
    """Neither other kinds of URLs, nor one that speaks S3 and passes over conditions: a sentence says what to do."""
    with pytest.raises(UsageError, match=r"http://127\.0\.0\.1:1/set: a dataset here is read, and not written"):
        convert(rows.sources, "http://127.0.0.1:1/set", workers=0)
    accept = lambda handler, *_: handler.pass_on(200, [("ETag", '"1"')], b"")  # noqa: E731
    s3.proxy.plan("set/.lock", accept, method="PUT")
    with pytest.raises(UsageError, match="pack to a folder, and copy it"):
        convert(rows.sources, f"{s3.url}/set", workers=0)
    s3.fs.invalidate_cache()
    assert not s3.fs.exists(f"{s3.url}/set")


def test_a_bucket_that_is_missing_is_named(s3) -> None:
    """It is no other version of the file, which would be asked for again."""
    folder = RemoteFolder("s3://missing-bucket/set", patience=0)
    with pytest.raises(RemoteError, match="missing-bucket/set: there is no such bucket or folder"):
        folder.replace("manifest.json", b"{}", lambda present: True)


def test_a_url_of_files_is_the_folder(tmp_path) -> None:
    """It has the lock and the rename of the folder."""
    assert place_of(f"file://{tmp_path}/set") == place_of(tmp_path / "set")
