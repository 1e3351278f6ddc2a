"""`convert` from Python: what can be packed, by whom, and what is kept after a failure."""

from __future__ import annotations

import itertools
import os
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from broken import cut
from torch.utils.data import Dataset

from packer.convert import ConvertOptions, convert
from packer.errors import SourceError, UnfinishedError, UsageError, WriteError
from packer.format import FieldSpec
from packer.format import manifest as manifests
from packer.merge import merge
from packer.packing import finish_shard
from packer.sources import SourceOptions, open_packed
from packer.watcher import Watcher
from packer.writer import DatasetWriter
from readers import PackedDataset


class Squares(Dataset):
    """Samples as a torch Dataset gives them: tensors, numbers and text."""

    def __init__(self, count, bad=()):
        self.count, self.bad = count, bad

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if i in self.bad:
            return {"x": torch.zeros(5), "i": i, "text": ""}
        return {"x": torch.full((2, 2), float(i)), "i": i, "text": f"number {i}".ljust(280)}


class Breaks(Squares):
    """Fails in a way that no source ever should."""

    def __getitem__(self, i):
        if i in self.bad:
            raise ZeroDivisionError("a fault of the caller's")
        return super().__getitem__(i)


def check(out, count):
    ds = PackedDataset(out)
    assert len(ds) == count
    batch = ds[:]
    assert batch["i"].tolist() == list(range(count))
    assert batch["x"].shape == (count, 2, 2)
    assert batch["x"][:, 0, 0].tolist() == list(range(count))
    assert batch["text"] == [f"number {i}".ljust(280) for i in range(count)]


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_a_torch_dataset(tmp_path, workers):
    """A torch Dataset packs in this process or in others."""
    convert(Squares(200), tmp_path / "out", workers=workers, shard_size=4096)
    check(tmp_path / "out", 200)


@pytest.mark.parametrize(
    "executor",
    [lambda: ThreadPoolExecutor(3), lambda: ProcessPoolExecutor(2, get_context("fork"))],
    ids=["threads", "processes"],
)
def test_any_executor_makes_the_same_bytes(tmp_path, files_of, executor):
    """The executor that packs the shards changes no byte."""
    options = ConvertOptions(shard_size=4096, codec="zstd")
    convert(Squares(300), tmp_path / "plain", options, workers=0)
    with executor() as pool:
        convert(Squares(300), tmp_path / "pool", options, executor=pool)
    assert files_of(tmp_path / "pool") == files_of(tmp_path / "plain")
    check(tmp_path / "pool", 300)


def test_the_watcher_hears_of_all_that_is_packed(tmp_path):
    """Packing begins with no sample of all, and what is done adds up to all samples and bytes."""
    steps, done = [], []
    watcher = Watcher(step=lambda *step: steps.append(step), done=lambda *amount: done.append(amount))
    report = convert(Squares(300), tmp_path / "out", shard_size=4096, watcher=watcher)
    assert steps[-1] == ("packing", 0, 300)
    assert [sum(column) for column in zip(*done, strict=True)] == [300, report.raw_bytes]
    assert report.kept_shards == 0
    assert report.file_bytes == sum(path.stat().st_size for path in (tmp_path / "out").rglob("*.lmdb"))


class Photographs:
    """Pictures of nearly 2 MB in memory, each of another size, made when they are asked for."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return {"hr": np.full((600 + number, 1000, 3), number, np.uint8), "caption": "a photograph " * 100}


@pytest.mark.parametrize("as_list", [True, False])
def test_samples_in_memory_are_stored_by_their_real_sizes(as_list, tmp_path):
    """Large pictures in memory lie in bands, so that one is read alone, and shards hold the bytes asked for."""
    samples = Photographs(20)
    report = convert(
        [samples[n] for n in range(20)] if as_list else samples, tmp_path / "out", codec="none", shard_size=10 * 2**20
    )
    hr, caption = report.manifest.fields
    assert 60_000 <= hr.frame.rows * 3000 <= 70_000
    assert caption.frame.samples == 65_536 // 1300
    assert len(report.manifest.shards) == 4


@pytest.mark.parametrize(("source", "count"), [("pairs", 12), ("clouds", 5), ("rows", 1)])
def test_looking_at_sources_is_told(source, count, tmp_path, request):
    """Before packing begins, the watcher hears how many headers are read, and of how many."""
    steps = []
    watcher = Watcher(step=lambda *step: steps.append(step))
    report = convert(request.getfixturevalue(source).sources, tmp_path / "out.packed", watcher=watcher, workers=0)
    assert ("reading headers", count, count) in steps
    assert steps[-1] == ("packing", 0, report.manifest.samples)


def test_the_watcher_hears_of_files_that_are_skipped(pairs, tmp_path):
    """Of each file that is found bad before packing begins, once; where such files stop the conversion, of none."""
    (pairs.folder / "lr" / "003.png").write_bytes(b"no picture")
    errors = []
    with pytest.raises(SourceError, match=r"003\.png"):
        convert(pairs.sources, tmp_path / "out", workers=0, watcher=Watcher(bad=errors.append))
    assert not errors
    report = convert(pairs.sources, tmp_path / "out", workers=0, on_error="skip", watcher=Watcher(bad=errors.append))
    assert [(error.path, error.reason) for error in errors] == [(bad.file, bad.reason) for bad in report.rejected]
    assert len(errors) == 1
    assert convert(pairs.sources, tmp_path / "b", workers=0, on_error="skip").rejected == report.rejected


@pytest.mark.parametrize("workers", [0, 2])
def test_going_on_after_a_failure(tmp_path, monkeypatch, files_of, workers):
    """Shards finished before a failure are kept as they are; the rest is packed, and the result is the same."""
    count = itertools.count()

    def third_time(place, run, number, *rest):
        if number == 3 and next(count) == 0:
            raise WriteError("the disk is full")
        return finish_shard(place, run, number, *rest)

    options = ConvertOptions(shard_size=4096, workers=workers)
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("packer.packing.tasks.finish_shard", third_time)
        with pytest.raises(WriteError, match="disk is full"):
            convert(Squares(200), out, options)
    with pytest.raises(UnfinishedError, match="run the same"):
        manifests.read(out)
    kept = {path: path.stat().st_mtime_ns for path in (out / "shards").glob("*.lmdb")}
    assert len(kept) >= 1
    steps = []
    report = convert(Squares(200), out, options, watcher=Watcher(step=lambda *step: steps.append(step)))
    assert report.kept_shards == len(kept)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    held = {f"shards/{path.name}" for path in kept}  # two workers may have left out one before the last
    packed = sum(shard.samples for shard in report.manifest.shards if shard.file in held)
    assert steps[-1] == ("packing", packed, 200)
    check(out, 200)
    convert(Squares(200), tmp_path / "fresh", options)
    assert files_of(out) == files_of(tmp_path / "fresh")


def test_a_changed_source_is_refused(pairs, tmp_path):
    """A source file that was changed since the plan was made is noticed."""
    stopped_after(7, pairs.sources, tmp_path / "out", **OPTIONS)
    path = pairs.folder / "lr" / "007.png"
    path.write_bytes((pairs.folder / "lr" / "006.png").read_bytes())
    with pytest.raises(UsageError, match=r"a source file has changed: .*lr/007\.png, changed 20"):
        convert(pairs.sources, tmp_path / "out", **OPTIONS)
    convert(pairs.sources, tmp_path / "out", **OPTIONS, overwrite=True)
    ds = PackedDataset(tmp_path / "out")
    assert torch.equal(ds["007"]["lr"], ds["006"]["lr"])


OPTIONS = {"codec": "none", "shard_size": 4096, "workers": 0}
ROWS = {"workers": 0, "shard_size": 32768}


def stopped_after(count, sources, out, **options):
    """Converts, and is stopped when this many samples are packed: some shards are done."""
    done = []

    def stop(samples, nbytes):
        done.append(samples)
        if sum(done) >= count:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(sources, out, watcher=Watcher(done=stop), **options)


def test_shards_keep_their_order_by_number(tmp_path, monkeypatch):
    """Not by the names of their files: a number of six digits comes after one of five."""
    monkeypatch.setattr("packer.packing.tasks.shard_file", lambda run, number: f"shards/{run}-{number}.lmdb")
    report = convert(Squares(200), tmp_path / "d", workers=2, shard_size=4096)
    assert len(report.manifest.shards) > 10
    check(tmp_path / "d", 200)


def test_going_on_reads_no_finished_shard(pairs, tmp_path, monkeypatch):
    """Their reports are enough."""
    stopped_after(9, pairs.sources, tmp_path / "out", **OPTIONS)
    finished = {path.name for path in (tmp_path / "out" / "shards").iterdir()}
    assert finished
    opened, open_file = [], os.open
    monkeypatch.setattr(
        "os.open", lambda path, *rest, **more: opened.append(str(path)) or open_file(path, *rest, **more)
    )
    convert(pairs.sources, tmp_path / "out", **OPTIONS)
    assert not [path for path in opened if path.rpartition("/")[2] in finished]


def test_options_for_files_are_refused_where_a_source_is_given(pairs, tmp_path):
    """A source has been opened already, so they would change nothing."""
    convert(pairs.sources, tmp_path / "d", workers=0)
    with pytest.raises(UsageError, match="SourceOptions are for paths"):
        convert(open_packed(tmp_path / "d"), tmp_path / "e", source=SourceOptions(mode="gray"))


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples(tmp_path, workers):
    """A sample that does not fit stops the conversion, or is skipped and listed, in whichever process."""
    samples, schema = Squares(300, bad=(70, 299)), fields()
    with pytest.raises(SourceError, match="sample 70"):
        convert(samples, tmp_path / "a", workers=workers, shard_size=4096, fields=schema)
    report = convert(samples, tmp_path / "b", workers=workers, shard_size=4096, fields=schema, on_error="skip")
    assert [bad.reason[:10] for bad in report.rejected] == ["sample 70:", "sample 299"]
    assert report.samples == 298
    ds = PackedDataset(tmp_path / "b")
    assert ds[69]["i"] == 69
    assert ds[70]["i"] == 71


@pytest.mark.parametrize("how", ["workers", "executor"])
def test_a_fault_elsewhere_is_an_error_of_ours(tmp_path, how):
    """What a worker did not expect is told with the shard's number, and the conversion can go on later."""
    samples = Breaks(300, bad=(150,))
    with ThreadPoolExecutor(1) as pool:
        options = {"workers": 1} if how == "workers" else {"executor": pool}
        with pytest.raises(WriteError, match=r"shard \d+ was not packed: ZeroDivisionError"):
            convert(samples, tmp_path / "out", shard_size=4096, fields=fields(), **options)
    with pytest.raises(UnfinishedError):
        manifests.read(tmp_path / "out")


def fields():
    return (
        FieldSpec(name="x", dtype="float32", shape=(2, 2)),
        FieldSpec(name="i", dtype="int64"),
        FieldSpec(name="text", dtype="uint8", kind="text", shape=(None,)),
    )


def test_nothing_good_is_an_error(tmp_path):
    """A dataset without a sample is never made."""
    with pytest.raises(SourceError, match="no sample"):
        convert(Squares(3, bad=(0, 1, 2)), tmp_path / "out", fields=fields(), on_error="skip")
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("sources", "options", "words"),
    [
        (7, {}, "cannot pack an object of type int"),
        ([{"a": 1}], {"on_error": "ignore"}, "stop or skip"),
        ([{"a": 1}], {"workers": -1}, "0 or more"),
        ([{"a": 1}], {"codec": "squeeze"}, "no codec 'squeeze'"),
        ([{"a": 1}], {"codec": {"b": "lz4"}}, "no field 'b'"),
        ([], {}, "cannot pack|is empty"),
        ([{"a": 1}], {"source": SourceOptions(patch=8)}, "SourceOptions are for files"),
        ([{"a": 1}], {"map_limit": -5}, "a map of -5 bytes"),
        ({"x": np.zeros(3)}, {}, "cannot pack an object of type dict; paths or a sequence"),
        ("nowhere", {}, "no such file"),
    ],
)
def test_wrong_requests(tmp_path, sources, options, words):
    """What cannot be carried out is refused before anything is written."""
    with pytest.raises((UsageError, SourceError), match=words):
        convert(sources, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_paths_of_every_kind(clouds, tmp_path):
    """A path may be a Path or text, alone or in a list, and options reach the source."""
    for number, sources in enumerate(
        (clouds.folder, str(clouds.folder), [clouds.folder], [str(clouds.folder / "*.ply")])
    ):
        report = convert(sources, tmp_path / str(number), source=SourceOptions(fields="xyz"), workers=0)
        assert report.samples == 5
        assert [field.name for field in report.manifest.fields] == ["xyz"]
        assert report.source_bytes == sum(path.stat().st_size for path in clouds.folder.iterdir())


def test_what_a_lost_worker_left_is_tidied_up(tmp_path):
    """An executor that gives a shard to another worker leaves the first one's half-written file behind: it goes."""

    class Loses(ThreadPoolExecutor):
        def submit(self, function, tasks):
            tasks[0].place.draft(f"shards/{tasks[0].run}-00000.lmdb").write_bytes(b"half")
            return super().submit(function, tasks)

    with Loses(2) as pool:
        convert(Squares(200), tmp_path / "out", executor=pool, shard_size=4096)
    assert not list((tmp_path / "out").rglob("*.partial"))
    check(tmp_path / "out", 200)


@pytest.mark.parametrize("first", [0, 1000])
def test_samples_in_memory_go_on_with_themselves(tmp_path, caplog, first):
    """Finished shards are kept where they hold these samples; others are packed again, and a warning says so."""
    held, given = ([{"x": np.full(2048, n + start, "i4")} for n in range(16)] for start in (0, first))
    stopped_after(9, held, tmp_path / "d", **ROWS)
    report = convert(given, tmp_path / "d", **ROWS)
    assert report.kept_shards == (0 if first else 2)
    assert ("differs from the source; it is packed again" in caplog.text) == bool(first)
    assert PackedDataset(tmp_path / "d")[list(range(16))]["x"][:, 0].tolist() == list(range(first, first + 16))


class WaitingExecutor(Executor):
    """Fails the second task, and never comes to the others."""

    def __init__(self):
        self.futures = []

    def submit(self, function, /, *args, **kwargs):
        future = Future()
        self.futures.append(future)
        if len(self.futures) == 2:
            future.set_exception(OSError("lost"))
        return future


def test_shards_that_wait_are_cancelled(tmp_path):
    """After a failure an executor is not left with the shards that it has not come to."""
    waiting = WaitingExecutor()
    with pytest.raises(WriteError, match="shard 1 was not packed: OSError: lost"):
        convert(Squares(200), tmp_path / "out", executor=waiting, shard_size=4096)
    assert len(waiting.futures) > 2
    assert [future.cancelled() for future in waiting.futures] == [n != 1 for n in range(len(waiting.futures))]


def test_an_executor_that_was_shut_down(tmp_path):
    """It is named, and the folder can be gone on with."""
    with ThreadPoolExecutor(1) as pool:
        pass
    with pytest.raises(WriteError, match="the executor takes no shards: cannot schedule"):
        convert([{"x": 1}], tmp_path / "d", executor=pool)
    assert convert([{"x": 1}], tmp_path / "d").samples == 1


def _elsewhere(folder):
    os.chdir(folder)


def test_workers_of_an_executor_may_be_elsewhere(pairs, tmp_path, monkeypatch):
    """A relative output folder is that of the caller, wherever the shards are packed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with ProcessPoolExecutor(1, get_context("fork"), _elsewhere, (str(tmp_path / "other"),)) as pool:
        assert convert(pairs.sources, "d", executor=pool, workers=0).samples == 12
    assert len(PackedDataset("d")) == 12


def test_fields_and_paths_as_a_mapping(pairs, tmp_path):
    """`{"lr": folder, "hr": folder}` is what `["lr=folder", "hr=folder"]` is; files take no schema."""
    sources = dict(text.split("=", 1) for text in pairs.sources)
    assert convert(sources, tmp_path / "d", workers=0).manifest.samples == 12
    with pytest.raises(UsageError, match="fields is the schema of samples in memory"):
        convert(sources, tmp_path / "e", fields=fields())


def test_a_finished_shard_that_was_damaged_is_packed_again(tmp_path, caplog):
    """Going on after a kill, what cannot be read of the finished part is made once more."""
    samples = [{"x": np.full(2048, n, "i4")} for n in range(16)]
    stopped_after(9, samples, tmp_path / "d", **ROWS, codec="none")
    cut_short, damaged, *_ = sorted((tmp_path / "d" / "shards").iterdir())
    cut_short.write_bytes(cut_short.read_bytes()[:8192])
    damaged.write_bytes(damaged.read_bytes().replace(b"\x05\0\0\0" * 100, b"\x06\0\0\0" * 100))
    assert convert(samples, tmp_path / "d", **ROWS, codec="none").kept_shards == 0
    assert "it is packed again" in caplog.text
    assert PackedDataset(tmp_path / "d")[list(range(16))]["x"][:, 0].tolist() == list(range(16))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"codec": "lr=none,hr=lz4"}, "the codec of hr was none and is now lz4"),
        (
            {"codec": '[{"id": "zstd", "level": 5}]'},
            r'the codec of lr was none and is now \{"id": "zstd", "level": 5\}',
        ),
        ({"shard_size": 8192}, "--shard-size was 4096 and is now 8192"),
        ({"source": SourceOptions(mode="gray")}, r"the type of lr was .*\[6, 5, 3\] and is now .*\[6, 5, 1\]"),
    ],
)
def test_what_was_changed_is_named(pairs, tmp_path, changed, words):
    """Field by field, and as it was asked for, when an unfinished conversion cannot be gone on with."""
    cut(pairs.folder / "hr" / "011.png")
    with pytest.raises(SourceError):
        convert(pairs.sources, tmp_path / "d", **OPTIONS)
    with pytest.raises(UsageError, match=words):
        convert(pairs.sources, tmp_path / "d", **OPTIONS | changed)
    report = convert(pairs.sources, tmp_path / "d", **OPTIONS, on_error="skip")
    assert (report.kept_shards, len(report.rejected), report.samples) == (1, 1, 11)


def test_what_finished_shards_left_out_stays_listed(pairs, tmp_path):
    """A conversion that skipped a picture, was stopped and goes on with `on_error="stop"` still lists the picture."""
    cut(pairs.folder / "hr" / "000.png")
    stopped_after(9, pairs.sources, tmp_path / "d", **OPTIONS, on_error="skip")
    report = convert(pairs.sources, tmp_path / "d", **OPTIONS)
    assert report.kept_shards
    assert (len(report.rejected), report.samples) == (1, 11)


def test_more_fields_than_a_dataset_has(tmp_path):
    """A thousand are packed and read, one more is refused before anything is written."""
    sample = {f"f{n}": n for n in range(1000)}
    assert convert([sample] * 2, tmp_path / "d").samples == 2
    assert PackedDataset(tmp_path / "d")[1]["f999"] == 999
    with pytest.raises(UsageError, match="1,001 fields, but 1,000 is the most"):
        convert([sample | {"more": 1}] * 2, tmp_path / "e")
    writer = DatasetWriter(tmp_path / "f")
    writer.add(sample | {"more": 1})
    with pytest.raises(UsageError, match="1,001 fields"):
        writer.__exit__(None, None, None)


# ---------------------------------------------------------------- like another dataset


def scans(folder: Path, count: int, digits: int) -> Path:
    """Clouds whose coordinates have so many decimals; `auto` takes another codec, or other digits, for each number."""
    folder.mkdir()
    for number in range(count):
        points = np.random.default_rng(number + digits).normal(0, 20, size=(2000, 4)).round(digits)
        points.astype("<f4").tofile(folder / f"{digits}_{number}.bin")
    return folder


def test_halves_converted_apart_are_merged(tmp_path, contents) -> None:
    """With `like` they have the codecs, digits and frames of the first; without, they are refused, and told how."""
    first, second = scans(tmp_path / "a", 4, 3), scans(tmp_path / "b", 9, 1)
    source = SourceOptions(columns="x,y,z,intensity:float32")
    convert(str(first), tmp_path / "one", workers=0, source=source)
    convert(str(second), tmp_path / "apart", workers=0, source=source)
    with pytest.raises(UsageError, match=r"convert its sources again with --like .*one"):
        merge([tmp_path / "one", tmp_path / "apart"], tmp_path / "both")
    convert(str(second), tmp_path / "two", workers=0, source=source, like=tmp_path / "one")
    assert manifests.read(tmp_path / "two").fields == manifests.read(tmp_path / "one").fields
    assert contents(tmp_path / "two") == contents(tmp_path / "apart")
    assert merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both").samples == 13
    with pytest.raises(UsageError, match="codecs and fields are those of this dataset"):
        convert(str(second), tmp_path / "three", like=tmp_path / "one", codec="lz4")
    other = SourceOptions(columns="x,y,z,w:float32")
    with pytest.raises(UsageError, match=r"the source does not fit the dataset: field intensity \(.*\) is missing"):
        convert(str(second), tmp_path / "three", like=tmp_path / "one", workers=0, source=other)


def test_classes_of_the_other_dataset(tmp_path) -> None:
    """A label is the number of its class in the other dataset; a class that it lacks is refused."""
    for name in ("all/cat", "all/dog", "all/fox", "some/fox", "other/owl"):
        (tmp_path / name).mkdir(parents=True)
        np.zeros((5, 3), "f4").tofile(tmp_path / name / f"{name[0]}.bin")
    source = SourceOptions(columns="x,y,z:float32", label="folder")
    convert(str(tmp_path / "all"), tmp_path / "one", workers=0, source=source)
    report = convert(str(tmp_path / "some"), tmp_path / "two", workers=0, source=source, like=tmp_path / "one")
    assert report.manifest.classes == ("cat", "dog", "fox")
    assert PackedDataset(tmp_path / "two")[0]["label"] == 2
    assert merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both").samples == 4
    with pytest.raises(UsageError, match="has the classes owl, but cat, dog, fox are expected"):
        convert(str(tmp_path / "other"), tmp_path / "three", workers=0, source=source, like=tmp_path / "one")


def test_samples_in_memory_like_a_dataset(tmp_path) -> None:
    """They take its schema: one sample alone need not show that an axis is ragged."""
    convert([{"x": np.zeros(n, "f4")} for n in (3, 4)], tmp_path / "one")
    convert([{"x": np.ones(4, "f4")}], tmp_path / "two", like=tmp_path / "one")
    assert merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both").samples == 3
