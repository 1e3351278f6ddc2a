"""A dataset made for a bucket: packed in the cache, uploaded, its manifest last; what takes no URL refuses it."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from made_datasets import plain_names, without_commands

from packer import stats
from packer.append import append
from packer.cli import main
from packer.convert import convert, convert_part
from packer.drop import drop
from packer.errors import NoDatasetError, UsageError, WriteError
from packer.export import export
from packer.format import manifest as manifests
from packer.join import join
from packer.merge import merge
from packer.packing import place_of, read_manifest
from packer.remote import RemoteFolder
from packer.repack import repack
from packer.repair import repair
from packer.sources import open_packed
from packer.split import split
from packer.watcher import Watcher
from packer.writer import DatasetWriter
from readers import PackedDataset


@pytest.fixture
def held(s3, tmp_path):
    """A function that gives all files behind the URL of the test: path below it to bytes."""

    def files():
        s3.fs.invalidate_cache()
        root = s3.url.removeprefix("s3://") + "/set/"
        files = {path.removeprefix(root): s3.fs.cat_file(path) for path in s3.fs.find(root)}
        return without_commands(plain_names(files))

    return files


def test_the_bucket_gets_what_a_folder_gets(rows, s3, held, tmp_path, files_of) -> None:
    """The same bytes, whatever fails on the way and passes; the manifest comes last, nothing stays in the cache."""
    s3.proxy.plan("00000.lmdb", s3.faults.busy, s3.faults.cut, method="PUT")
    convert(rows.sources, tmp_path / "here", workers=0, shard_size=4096)
    report = convert(rows.sources, f"{s3.url}/set", workers=0, shard_size=4096)
    assert held() == files_of(tmp_path / "here")
    assert report.path == f"{s3.url}/set"
    assert [path for method, path in s3.proxy.asked if method == "PUT"][-1].endswith("set/manifest.json")
    assert not list((tmp_path / "user").rglob("*.lmdb"))
    assert np.array_equal(PackedDataset(f"{s3.url}/set")[:]["x"], rows.x)


def test_a_dataset_is_replaced_only_when_asked(rows, s3, held, tmp_path, files_of) -> None:
    """Another dataset there needs overwrite; it is there until the manifest changes, then nothing of it is left."""
    convert(rows.sources, f"{s3.url}/set", workers=0, shard_size=4096)
    before = held()
    with pytest.raises(UsageError, match="is a packed dataset already; use --overwrite"):
        convert(rows.sources, f"{s3.url}/set", workers=0)
    assert held() == before
    s3.proxy.clear()
    convert(rows.sources, f"{s3.url}/set", workers=0, overwrite=True)
    convert(rows.sources, tmp_path / "here", workers=0)
    assert held() == files_of(tmp_path / "here")
    written = [(method, path.rpartition("/")[2]) for method, path in s3.proxy.asked if method in ("PUT", "DELETE")]
    published = written.index(("PUT", "manifest.json"))
    assert {method for method, _ in written[:published]} == {"PUT"}
    assert {method for method, _ in written[published + 1 :]} == {"DELETE"}


def test_parts_share_a_plan_in_a_bucket(rows, s3, held, tmp_path, files_of, monkeypatch) -> None:
    """One makes it, the other reads it; the call that publishes leaves neither it nor a claim."""
    options = {"workers": 0, "shard_size": 4096}
    plans = []
    with monkeypatch.context() as patch:
        patch.setattr("packer.packing.job.log_plan", plans.append)
        for part in ("1/2", "2/2"):
            convert_part(rows.sources, f"{s3.url}/set", part, **options)
    assert len(plans) == 1
    convert(rows.sources, tmp_path / "here", **options)
    assert convert(rows.sources, f"{s3.url}/set", **options).kept_shards == len(list(tmp_path.glob("here/shards/*")))
    assert held() == files_of(tmp_path / "here")


def test_an_interrupted_upload_is_finished_by_the_same_command(rows, s3, held, tmp_path, files_of) -> None:
    """Until the manifest is there, there is no dataset; what is uploaded already is not sent again."""
    s3.proxy.plan("set/manifest.json", *[s3.faults.busy] * 3, method="PUT")
    with pytest.raises(WriteError, match=r"set/manifest\.json: it failed 3 times.*the same command goes on"):
        convert(rows.sources, f"{s3.url}/set", workers=0, shard_size=4096)
    assert "manifest.json" not in held()
    shards = s3.proxy.gets(".lmdb", "PUT")
    packed = []
    convert(
        rows.sources,
        f"{s3.url}/set",
        workers=0,
        shard_size=4096,
        watcher=Watcher(done=lambda *done: packed.append(done)),
    )
    convert(rows.sources, tmp_path / "here", workers=0, shard_size=4096)
    assert held() == files_of(tmp_path / "here")
    assert s3.proxy.gets(".lmdb", "PUT") == shards
    assert not packed


def test_another_command_begins_anew(rows, s3, held, tmp_path, files_of) -> None:
    """What another conversion left half uploaded is not mixed with this one, and does not stay."""
    s3.proxy.plan("00001.lmdb", *[s3.faults.busy] * 3, method="PUT")
    with pytest.raises(WriteError):
        convert(rows.sources, f"{s3.url}/set", workers=0, shard_size=4096)
    with pytest.raises(UsageError, match="an unfinished conversion that differs"):  # another machine may be at it
        convert(rows.sources, f"{s3.url}/set", workers=0, codec="zstd")
    convert(rows.sources, f"{s3.url}/set", workers=0, codec="zstd", overwrite=True)
    convert(rows.sources, tmp_path / "here", workers=0, codec="zstd")
    assert held() == files_of(tmp_path / "here")


def test_other_samples_in_memory_are_not_taken_for_the_same(s3, held, samples) -> None:
    """An upload that was interrupted goes on with the samples that are given now."""
    s3.proxy.plan("set/manifest.json", *[s3.faults.busy] * 3, method="PUT")
    with pytest.raises(WriteError):
        convert(samples, f"{s3.url}/set")
    convert(samples[::-1], f"{s3.url}/set")
    assert PackedDataset(f"{s3.url}/set")[0]["label"] == 63


def test_a_bucket_that_refuses_the_note_says_so(dataset, s3) -> None:
    """Nobody else was there, and the error does not say so."""
    s3.proxy.plan(".json", *[s3.faults.busy] * 3, method="PUT")
    with pytest.raises(WriteError, match=r"unfinished/.*\.json: it failed 3 times.*the same command goes on"):
        drop(dataset, ["label"])


def test_a_bucket_that_removes_nothing_has_the_new_dataset(dataset, s3) -> None:
    """The error says that it is published, and the same command removes what is left."""
    s3.proxy.plan("00000.lmdb", *[s3.faults.busy] * 3, method="DELETE")
    with pytest.raises(WriteError, match=r"set is published and whole, and only tidying up is left: .*00000\.lmdb: it"):
        drop(dataset, ["label"], workers=0)
    assert list(PackedDataset(dataset).fields) == ["x"]
    drop(dataset, ["label"], workers=0)
    assert not [name for name in place_of(dataset).files() if name.startswith(("unfinished", "shards/0"))]


def test_samples_are_appended_at_a_url(rows, clouds, s3, held, tmp_path, files_of) -> None:
    """As in a folder: the shards that are there are not read, and a reader that is open keeps what it has."""
    convert(clouds.sources, f"{s3.url}/set", workers=0, codec="none")
    convert(clouds.sources, tmp_path / "here", workers=0, codec="none")
    before = PackedDataset(f"{s3.url}/set")
    (tmp_path / "more").mkdir()
    shutil.copy(clouds.folder / "c3.ply", tmp_path / "more" / "new.ply")
    (tmp_path / "more" / "none.ply").write_text("nothing")
    s3.proxy.clear()
    for place in (f"{s3.url}/set", tmp_path / "here"):
        assert append(place, str(tmp_path / "more"), workers=0, on_error="skip").added == 1
    assert s3.proxy.gets("00000.lmdb", "GET") == 0
    assert held() == files_of(tmp_path / "here")
    after = PackedDataset(f"{s3.url}/set")
    assert list(after.names) == [*before.names, "new"]
    assert np.array_equal(after["new"]["xyz"], before["c3"]["xyz"])
    with pytest.raises(UsageError, match="has a sample named 'new'"):
        append(f"{s3.url}/set", str(tmp_path / "more"), workers=0, on_error="skip")


def test_workers_upload_their_shards(rows, s3, held, tmp_path, files_of) -> None:
    """By processes of our own, each shard as soon as it is finished; the cache holds the shards under way alone."""
    convert(rows.sources, f"{s3.url}/set", workers=2, shard_size=4096)
    convert(rows.sources, tmp_path / "here", workers=0, shard_size=4096)
    assert held() == files_of(tmp_path / "here")
    assert not [path for path in (tmp_path / "user").rglob("*") if path.is_file() and path.name != ".lock"]


@pytest.mark.parametrize("verb", ["convert", "append"])
def test_whoever_polls_sees_the_old_or_the_new(rows, s3, tmp_path, monkeypatch, verb) -> None:
    """Before and after each file that is put or removed, a reader with an empty cache reads one of the two, whole."""
    url, seen = f"{s3.url}/set", []
    convert(rows.sources, url, workers=0, codec="none", shard_size=4096)

    def polling(function):
        def call(*arguments):
            result = function(*arguments)
            poll()
            return result

        return call

    def poll():
        dataset = PackedDataset(url, cache=tmp_path / f"cache{len(seen)}")
        assert np.array_equal(dataset[: len(rows.x)]["x"], rows.x)
        seen.append((len(dataset), len(dataset.manifest.shards)))

    poll()
    with monkeypatch.context() as patch:
        for name in ("put", "remove"):
            patch.setattr(RemoteFolder, name, polling(getattr(RemoteFolder, name)))
        if verb == "append":
            append(url, rows.sources, workers=0)
        else:
            convert(rows.sources, url, workers=0, codec="none", overwrite=True)
    old, new = seen[0], seen[-1]
    assert old != new
    assert seen == [old] * seen.count(old) + [new] * seen.count(new)


def test_one_of_two_is_told(rows, s3, held, tmp_path, monkeypatch) -> None:
    """Where another command has published meanwhile, nothing of it is replaced."""
    convert(rows.sources, f"{s3.url}/set", workers=0, shard_size=4096)
    published = []

    def other(samples, nbytes):
        if not published:
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
            published.append(convert(rows.sources, f"{s3.url}/set", workers=0, codec="zstd", overwrite=True))

    with pytest.raises(UsageError, match="set was changed meanwhile, by another command"):
        convert(rows.sources, f"{s3.url}/set", workers=0, overwrite=True, watcher=Watcher(done=other))
    there = s3.fs.cat_file(s3.url.removeprefix("s3://") + "/set/manifest.json")
    assert manifests.decode(there, "").columns == published[0].manifest.columns
    assert np.array_equal(PackedDataset(f"{s3.url}/set")[:]["x"], rows.x)


def test_nothing_of_anybody_else_is_touched(rows, s3, held) -> None:
    """A place that holds other files is refused, as is a bucket that does not exist, before anything is packed."""
    s3.fs.pipe_file(f"{s3.url}/set/thesis.txt", b"years of work")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=r"is not empty: it holds thesis\.txt"):
            convert(rows.sources, f"{s3.url}/set", workers=0, overwrite=overwrite)
    assert held() == {"thesis.txt": b"years of work"}
    with pytest.raises(WriteError, match="no-such-bucket"):
        convert(rows.sources, "s3://no-such-bucket/set", workers=0)


def test_the_command_takes_urls(rows, s3, held) -> None:
    """`packer convert` reads from one URL and writes to another; a dry run writes nothing."""
    s3.fs.put(str(rows.path), f"{s3.url}/rows.h5")
    command = ["convert", f"{s3.url}/rows.h5", f"{s3.url}/set", "--workers", "0"]
    result = CliRunner().invoke(main, [*command, "--dry-run"], standalone_mode=False)
    assert (result.exception, held()) == (None, {})
    result = CliRunner().invoke(main, command, standalone_mode=False)
    assert result.exception is None
    assert f"{s3.url}/set: 400 samples in 1 shard" in result.output
    assert "manifest.json" in held()


def test_info_and_verify_take_urls(dataset, s3) -> None:
    """`packer info` fetches no shard; `packer verify` checks all that is behind the URL."""
    result = CliRunner().invoke(main, ["info", dataset], standalone_mode=False)
    assert (result.exception, s3.proxy.gets("00000.lmdb")) == (None, 0)
    assert dataset in result.output
    assert "n00" in result.output
    result = CliRunner().invoke(main, ["verify", dataset], standalone_mode=False)
    assert (result.exception, result.return_value, s3.proxy.gets("00000.lmdb")) == (None, 0, 1)
    path = dataset.removeprefix("s3://") + "/shards/00001.lmdb"
    s3.fs.rm_file(path)
    result = CliRunner().invoke(main, ["verify", dataset], standalone_mode=False)
    assert result.return_value == 0  # all of it is in the cache


@pytest.mark.parametrize("verb", ["verify", "stats"])
def test_parts_of_a_bucket_fetch_their_shards(dataset, s3, tmp_path, monkeypatch, verb) -> None:
    """Each machine fetches the shards of its parts; their reports lie in the bucket, where the call that joins is."""

    def run(machine, *arguments):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        s3.proxy.clear()
        result = CliRunner().invoke(main, [verb, dataset, *arguments, "--json"], standalone_mode=False)
        assert result.exception is None, result.output
        shards = [n for n in range(4) if s3.proxy.gets(f"{n:05}.lmdb")]
        return shards, json.loads(result.stdout)

    _, whole = run("first")
    assert run("second", "--part", "1/4")[0] == [0]
    assert run("third", "--part", "2/4")[0] == [1]
    reports = s3.fs.glob(dataset.removeprefix("s3://") + "/unfinished/*")
    assert len(reports) == 2
    shards, joined = run("fourth")
    assert shards == [2, 3]
    assert (joined["parts"]["parts"], joined["parts"]["shards"]) == (2, 2)
    assert {**joined, "parts": whole["parts"]} == whole
    s3.fs.invalidate_cache()
    assert not s3.fs.glob(dataset.removeprefix("s3://") + "/unfinished/*")
    if verb == "stats":
        run("fourth", "--save")
        assert json.loads(msgspec.json.encode(read_manifest(place_of(dataset)).stats)) == whole["fields"]


def test_the_same_kind_of_place_on_this_machine(rows, tmp_path, files_of, monkeypatch) -> None:
    """A URL of files needs no server: folders are made as they are needed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    convert([f"file://{rows.path}"], f"file://{tmp_path}/there/set", workers=0)
    convert(rows.sources, tmp_path / "here", workers=0)
    assert files_of(tmp_path / "there" / "set") == files_of(tmp_path / "here")
    assert len(PackedDataset(f"file://{tmp_path}/there/set")) == 400


def test_the_list_of_what_was_left_out_is_uploaded(clouds, s3, held, tmp_path, files_of) -> None:
    """It is a file of the dataset, which its manifest knows."""
    shutil.copytree(clouds.folder, tmp_path / "in")
    (tmp_path / "in" / "none.ply").write_text("nothing")
    for place in (tmp_path / "here", f"{s3.url}/set"):
        convert(str(tmp_path / "in"), place, workers=0, on_error="skip")
    assert "rejected.jsonl" in held()
    assert held() == files_of(tmp_path / "here")
    result = CliRunner().invoke(main, ["verify", f"{s3.url}/set"], standalone_mode=False)
    assert (result.exception, result.return_value) == (None, 0)  # the list is fetched, too


@pytest.mark.parametrize("verb", ["append", "drop", "join"])
def test_the_cache_holds_the_shards_under_way_alone(dataset, packed, s3, tmp_path, monkeypatch, verb) -> None:
    """One shard at a time is fetched, written and uploaded; killed, a command leaves no more, and the next nothing."""
    with DatasetWriter(tmp_path / "more", shard_size=16 * 2056, like=packed) as writer:
        for number, sample in enumerate(PackedDataset(packed)):
            writer.add(sample, name=f"m{number:02}")
    commands = {
        "append": lambda: append(dataset, str(tmp_path / "more"), workers=0, shard_size=16 * 2056),
        "drop": lambda: drop(dataset, ["label"], workers=0),
        "join": lambda: join(dataset, [{"more": np.float32(number)} for number in range(64)], workers=0),
    }
    largest = max(entry.bytes for entry in manifests.read(packed).shards)
    cached = []

    def count_bytes() -> int:
        files = [path for path in (tmp_path / "user").rglob("*") if path.is_file()]
        return sum(path.stat().st_size for path in files)

    def counted(function):
        def call(remote, name, *arguments):
            result = function(remote, name, *arguments)
            cached.append(count_bytes())
            return result

        return call

    def killed():
        put = RemoteFolder.put

        def put_or_die(remote, name, path):
            if name.endswith("00002.lmdb"):
                os.kill(os.getpid(), signal.SIGKILL)
            put(remote, name, path)

        RemoteFolder.put = put_or_die
        commands[verb]()

    child = multiprocessing.get_context("fork").Process(target=killed)
    child.start()
    child.join(100)
    assert child.exitcode == -signal.SIGKILL
    left = count_bytes()
    for name in ("fetch", "put"):
        monkeypatch.setattr(RemoteFolder, name, counted(getattr(RemoteFolder, name)))
    commands[verb]()
    assert max(left, *cached) <= 3 * largest
    assert count_bytes() == 0
    assert len(PackedDataset(dataset)) == (128 if verb == "append" else 64)


def test_samples_of_a_bucket_are_drawn(dataset, tmp_path) -> None:
    """`packer show` takes a URL."""
    command = ["show", dataset, "-o", str(tmp_path / "page.html")]
    result = CliRunner().invoke(main, command, standalone_mode=False)
    assert result.exception is None, result.output
    assert "n63" in (tmp_path / "page.html").read_text()


def test_a_dataset_is_packed_again_into_a_bucket(packed, s3, contents) -> None:
    """`packer repack` writes to a URL."""
    command = ["repack", str(packed), f"{s3.url}/again", "--codec", "zstd", "--workers", "0"]
    result = CliRunner().invoke(main, command, standalone_mode=False)
    assert result.exception is None, result.output
    assert contents(f"{s3.url}/again")[1] == contents(packed)[1]


def test_datasets_are_merged_into_a_bucket(packed, s3, held, tmp_path, files_of) -> None:
    """`packer merge` uploads the shards of folders; the files are those of a folder."""
    with DatasetWriter(tmp_path / "more", like=packed, shard_size=16 * 2056) as writer:
        for number, sample in enumerate(PackedDataset(packed)):
            writer.add(sample, name=f"m{number:02}")
    for out in (str(tmp_path / "here"), f"{s3.url}/set"):
        command = ["merge", str(packed), str(tmp_path / "more"), out]
        result = CliRunner().invoke(main, command, standalone_mode=False)
        assert result.exception is None, result.output
    assert held() == files_of(tmp_path / "here")
    assert not [path for path in (tmp_path / "user").rglob("*") if path.is_file() and path.name != ".lock"]


def test_a_dataset_in_a_bucket_is_split(dataset, packed, s3) -> None:
    """By fractions, lists and patterns of names no shard is fetched; a condition on values is refused."""
    for place in (dataset, str(packed)):
        result = CliRunner().invoke(main, ["split", place, "test=n0*", "train=1.0"], standalone_mode=False)
        assert result.exception is None, result.output
    assert read_manifest(place_of(dataset)).splits == manifests.read(packed).splits
    assert not s3.proxy.gets(".lmdb") - s3.proxy.gets("names.lmdb")
    with pytest.raises(UsageError, match=r"'label < 3': values are read of a dataset in a folder only; copy it"):
        split(dataset, {"small": "label < 3"})


def test_urls_are_refused_where_a_folder_is_written(tmp_path, monkeypatch) -> None:
    """Samples made in Python and exports go into folders; the message says so."""
    monkeypatch.chdir(tmp_path)
    with DatasetWriter("set.packed") as writer:
        writer.add({"x": np.zeros(3)})
    for write in (
        lambda: DatasetWriter("s3://bucket/set", overwrite=True).__enter__(),
        lambda: export("set.packed", "s3://bucket/set", to="hdf5"),
    ):
        with pytest.raises(UsageError, match=r"s3://bucket/set: this writes only into a folder"):
            write()
    assert [path.name for path in tmp_path.iterdir()] == ["set.packed"]


def test_urls_are_refused_where_a_folder_is_read() -> None:
    """The message says what takes a URL, not that a folder does not exist."""
    url = "s3://bucket/set"
    for read in (
        lambda: stats.statistics(url),
        lambda: open_packed(url),
        lambda: merge([url, url], "out"),
        lambda: repack(url, "out"),
    ):
        with pytest.raises(NoDatasetError, match=r"s3://bucket/set: this reads the dataset in a folder only"):
            read()
    with pytest.raises(UsageError, match=r"s3://bucket/set: a dataset is repaired in a folder only; copy it to one"):
        repair(url)
