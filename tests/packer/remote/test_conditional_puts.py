"""A manifest in a bucket is put in place of the one that was read alone, whoever else writes there."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from packer.append import append
from packer.convert import convert
from packer.drop import drop
from packer.errors import ChangedMeanwhileError, RemoteError, UsageError
from packer.packing import place_of
from packer.remote import RemoteFolder, store
from packer.split import split
from readers import PackedDataset

COMMANDS = {
    "append": lambda url, source: append(url, source, workers=0),
    "split": lambda url, source: split(url, {"all": 1.0}),
    "drop": lambda url, source: drop(url, ["rgb"], workers=0),
}


def _run(verb, url, source, cache, both, answers):
    """Run a command with a cache of its own; put the manifest for the first time when the other is about to, too."""
    os.environ["XDG_CACHE_HOME"] = cache
    original, puts = store._put_to_s3, []

    def together(fs, path, data, info):
        if path.endswith("manifest.json"):
            puts.append(path)
            if len(puts) == 1:
                both.wait(100)
        return original(fs, path, data, info)

    for kind in ("s3", "s3a"):
        store._CONDITIONAL_PUTS[kind] = together
    try:
        COMMANDS[verb](url, source)
        answers.put((source, ""))
    except ChangedMeanwhileError as error:
        answers.put((source, str(error)))


@pytest.mark.parametrize("verbs", [("append", "append"), ("split", "drop")], ids=" and ".join)
def test_of_two_processes_one_puts_the_manifest(clouds, s3, tmp_path, verbs) -> None:
    """What was reported as success is there, and nothing else; the other is told, and does it by the same command."""
    url = f"{s3.url}/set"
    first, *others = sorted(clouds.folder.glob("*.ply"))[:3]
    convert(str(first), url, workers=0)
    context = multiprocessing.get_context("fork")
    both, answers = context.Barrier(2), context.Queue()
    children = [
        context.Process(target=_run, args=(verb, url, str(other), str(tmp_path / other.stem), both, answers))
        for verb, other in zip(verbs, others, strict=True)
    ]
    for child in children:
        child.start()
    errors = dict(answers.get(timeout=100) for _ in children)
    for child in children:
        child.join(100)
    assert sorted(map(bool, errors.values())) == [False, True]
    tasks = {str(other): verb for verb, other in zip(verbs, others, strict=True)}

    def done(source):
        dataset = PackedDataset(url)
        verb = tasks[source]
        if verb == "append":
            return Path(source).stem in dataset.names
        return "all" in dataset.manifest.splits if verb == "split" else "rgb" not in dataset.fields

    for source, error in errors.items():
        assert done(source) == (not error)
    (late,) = (source for source, error in errors.items() if error)
    assert "was changed meanwhile, by another command" in errors[late]
    COMMANDS[tasks[late]](url, late)
    assert all(map(done, errors))
    dataset = PackedDataset(url)
    for name in dataset.names:
        assert np.array_equal(dataset[name]["xyz"], clouds.xyz[int(name[1])])


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
    with pytest.raises(RemoteError, match=r"missing-bucket/set: there is no such bucket or folder.*; check the add"):
        folder.replace("manifest.json", b"{}", lambda present: True)


def test_a_url_of_files_is_the_folder(tmp_path) -> None:
    """It has the lock and the rename of the folder."""
    assert place_of(f"file://{tmp_path}/set") == place_of(tmp_path / "set")
