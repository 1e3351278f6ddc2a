"""Fields that come later, and fields that go: whose value is whose, what is copied, and what is refused."""

from __future__ import annotations

import shutil
import sys

import fsspec
import h5py
import msgspec
import numpy as np
import pytest
from made_datasets import put_manifest

from packer import stats
from packer.append import append
from packer.convert import convert
from packer.drop import drop
from packer.errors import DamagedError, DatasetError, SourceError, UsageError
from packer.format import Shard, find_meanings
from packer.format import manifest as manifests
from packer.join import join
from packer.packing import run_tasks
from packer.repack import repack
from packer.repair import repair
from packer.sources import SampleSource, SourceOptions
from packer.split import split
from packer.verify import verify
from packer.writer import DatasetWriter
from readers import PackedDataset


@pytest.fixture
def packed(tmp_path, pairs):
    """Twelve pairs in several shards."""
    convert(pairs.sources, tmp_path / "d", workers=0, shard_size=4096, codec="lz4")
    assert len(manifests.read(tmp_path / "d").shards) == 2
    return tmp_path / "d"


def texts(folder, names, ending=".txt"):
    folder.mkdir()
    for name in names:
        (folder / f"{name}{ending}").write_text(f"text of {name}")
    return folder


def test_values_go_to_the_samples_of_their_names(tmp_path, packed, pairs):
    """Text and array files are matched by name, whatever the order of the samples; all else is as it was."""
    repack(packed, tmp_path / "shuffled", seed=3, workers=0)
    (tmp_path / "emb").mkdir()
    for number, name in enumerate(pairs.names):
        np.save(tmp_path / "emb" / f"{name}.npy", np.full(4, number, "f4"))
    texts(tmp_path / "cap", pairs.names)
    before = PackedDataset(tmp_path / "shuffled")
    names = list(before.names)
    assert before[0]["lr"].shape == (3, 6, 5)
    join(tmp_path / "shuffled", f"caption={tmp_path}/cap", workers=0)
    report = join(tmp_path / "shuffled", {"embedding": tmp_path / "emb"}, workers=0, codec="zstd")
    assert [field.name for field in report.fields] == ["embedding"]
    assert report.by_name
    assert not verify(tmp_path / "shuffled").damages
    after = PackedDataset(tmp_path / "shuffled")
    assert list(after.names) == names != pairs.names
    for name in pairs.names:
        assert after[name]["caption"] == f"text of {name}"
        assert after[name]["embedding"].tolist() == [pairs.names.index(name)] * 4
        assert after[name]["hr"].equal(before[name]["hr"])


def test_another_dataset_is_joined(tmp_path, packed, pairs):
    """By name, whatever the order of its samples."""
    with DatasetWriter(tmp_path / "e") as writer:
        for number, name in reversed(list(enumerate(pairs.names))):
            writer.add({"embedding": np.full(4, number)}, name=name)
    join(packed, tmp_path / "e", workers=0)
    assert PackedDataset(packed)[[9, 2]]["embedding"][:, 0].tolist() == [9, 2]


def test_rows_go_by_number(tmp_path, packed, pairs):
    """Rows of files, and samples in memory, have no names: as many are expected as there are samples."""
    with h5py.File(tmp_path / "more.h5", "w") as file:
        file["score"], file["kind"] = np.arange(12.0), np.arange(12)
    np.save(tmp_path / "rows.npy", np.arange(24).reshape(12, 2))
    assert not join(packed, tmp_path / "more.h5", workers=0).by_name
    join(packed, f"embedding={tmp_path}/rows.npy", workers=0)
    join(packed, [{"text": str(number)} for number in range(12)])
    dataset = PackedDataset(packed)
    assert dataset[list(range(12))]["score"].tolist() == list(range(12))
    assert (dataset[5]["embedding"].tolist(), dataset[5]["text"], dataset[5]["kind"]) == ([10, 11], "5", 5)
    with pytest.raises(UsageError, match=r"the source has 11 samples without names, .* 12 are expected"):
        join(packed, [{"z": 1}] * 11)


def test_what_is_stored_is_copied(packed, pairs):
    """Frames of other fields keep their bytes, and shards their samples; a damaged shard is refused."""
    old = manifests.read(packed)
    frames = [bytes(shard_value(packed / entry.file)) for entry in old.shards]
    join(packed, [{"z": 1}] * 12)
    new = manifests.read(packed)
    assert [entry.samples for entry in new.shards] == [entry.samples for entry in old.shards]
    assert [bytes(shard_value(packed / entry.file)) for entry in new.shards] == frames
    assert {name: new.columns[name] for name in ("lr", "hr")} == old.columns
    assert new.names == old.names
    path = packed / new.shards[1].file
    data = bytearray(path.read_bytes())
    data[-5000] ^= 1
    path.write_bytes(data)
    for change in (lambda: join(packed, [{"y": 1}] * 12), lambda: drop(packed, ["z"], workers=0)):
        with pytest.raises(DamagedError, match=r"digest is wrong.*packer verify"):
            change()
    assert manifests.read(packed) == new


def shard_value(path):
    """Return the first chunk of a shard."""
    with Shard(path) as shard:
        ((offset, size),) = shard.chunks(np.zeros(1, np.int64)).tolist()
        return path.read_bytes()[offset : offset + size]


def test_a_sample_without_a_value_is_an_error(tmp_path, packed, pairs):
    """A missing name is always refused, one too many unless it is skipped with a warning; names of both are shown."""
    cap = texts(tmp_path / "cap", [*pairs.names[1:], "stranger"])
    before = manifests.read(packed)
    for on_error in ("stop", "skip"):
        with pytest.raises(UsageError, match=rf"1 of 12 samples have no value in the source: {pairs.names[0]};"):
            join(packed, f"caption={cap}", workers=0, on_error=on_error)
    (cap / f"{pairs.names[0]}.txt").write_text("x")
    with pytest.raises(
        UsageError, match=r"1 samples of the source are not in the dataset: stranger; .*--on-error skip"
    ):
        join(packed, f"caption={cap}", workers=0)
    assert manifests.read(packed) == before
    join(packed, f"caption={cap}", workers=0, on_error="skip")
    assert PackedDataset(packed)[pairs.names[0]]["caption"] == "x"


def test_names_are_compared_as_convert_pairs_them(tmp_path, packed, pairs):
    """What most names of the new field share at an end comes off."""
    texts(tmp_path / "cap", [f"{name}_text" for name in pairs.names])
    join(packed, f"caption={tmp_path}/cap", workers=0)
    assert PackedDataset(packed)[pairs.names[7]]["caption"] == f"text of {pairs.names[7]}_text"


def test_what_does_not_fit_is_refused(tmp_path, packed, rows):
    """A field that is there, names for samples that have none, constants, a bad file; nothing is changed."""
    convert(rows.path, tmp_path / "rows", workers=0)
    np.save(tmp_path / "bad.npy", np.zeros(12))
    (tmp_path / "bad.npy").write_bytes((tmp_path / "bad.npy").read_bytes()[:-40])
    with h5py.File(tmp_path / "once.h5", "w") as file:
        file["z"], file["grid"] = np.arange(12.0), np.arange(5)
    cap = texts(tmp_path / "cap", ["a", "b"])
    cases = [
        (packed, [{"lr": 1}] * 12, {}, UsageError, r"has the field lr already; `packer drop .* lr` removes it first"),
        (tmp_path / "rows", f"caption={cap}", {}, UsageError, "samples of the dataset have no names"),
        (packed, tmp_path / "once.h5", {"source": SourceOptions(once=("grid",))}, UsageError, "leave out --once"),
        (packed, f"z={tmp_path}/bad.npy", {}, SourceError, "bad.npy"),
        (packed, f"z={tmp_path}/bad.npy", {"on_error": "skip"}, SourceError, "bad.npy"),
        (packed, [{"z": 1}] * 12, {"shard_size": 4096}, UsageError, "join takes no overwrite, shard_size"),
        (tmp_path / "none", [{"z": 1}] * 12, {}, DatasetError, "does not exist"),
    ]
    before = [manifests.read(folder) for folder in (packed, tmp_path / "rows")]
    for folder, sources, options, error, words in cases:
        with pytest.raises(error, match=words):
            join(folder, sources, **{"workers": 0, **options})
    assert [manifests.read(folder) for folder in (packed, tmp_path / "rows")] == before


def test_fields_are_dropped(packed, caplog):
    """Splits and names stay, of statistics those of what is gone go, without a warning; the last field stays."""
    split(packed, {"train": 0.5})
    stats.save(packed, stats.statistics(packed))
    before = PackedDataset(packed)
    old, lr = manifests.read(packed), before[3]["lr"]
    new = drop(packed, ["hr"], workers=0)
    assert ([field.name for field in new.fields], new.splits, list(new.stats)) == (["lr"], old.splits, ["lr"])
    assert "statistics" not in caplog.text
    assert sum(entry.bytes for entry in new.shards) < sum(entry.bytes for entry in old.shards)
    assert not verify(packed).damages
    assert PackedDataset(packed)[3]["lr"].equal(lr)
    assert before[0]["hr"].shape == (3, 12, 10)
    for fields, words in ((["hr"], "the dataset has no field 'hr'"), (["lr"], "would have no field left")):
        with pytest.raises(UsageError, match=words):
            drop(packed, fields, workers=0)


def test_classes_go_with_their_label(tmp_path):
    """New classes come with `--label folder`; dropped, they stay away, whatever is done with the dataset later."""
    for number, name in enumerate(("cats", "dogs")):
        (tmp_path / "x" / name).mkdir(parents=True)
        np.save(tmp_path / "x" / name / "a.npy", np.full(3, number))
    source = SourceOptions(samples="files", label="folder")
    convert(f"x={tmp_path}/x", tmp_path / "d", workers=0, source=source)
    assert manifests.read(tmp_path / "d").classes == ("cats", "dogs")
    assert drop(tmp_path / "d", ["label"], workers=0).classes == ()
    join(tmp_path / "d", [{"label": 7}] * 2)
    repack(tmp_path / "d", tmp_path / "e", workers=0)
    assert manifests.read(tmp_path / "e").classes == ()
    drop(tmp_path / "d", ["label", "x"][:1], workers=0)
    with pytest.raises(UsageError, match="has the field x already"):
        join(tmp_path / "d", f"x={tmp_path}/x", workers=0, source=source)
    shutil.copytree(tmp_path / "x", tmp_path / "y")
    assert join(tmp_path / "d", f"y={tmp_path}/y", workers=0, source=source).manifest.classes == ("cats", "dogs")


def test_meanings_go_with_the_last_field_that_has_them(tmp_path):
    """Names of classes stay while `label` or `labels` is there; a new field under an old name means nothing old."""
    source = [{"image": np.zeros((4, 4, 1), np.uint8), "label": 0, "labels": np.array([0]), "day": 3}]
    convert(source, tmp_path / "d", workers=0)
    manifest = manifests.read(tmp_path / "d")
    origin = {**manifest.origin, "classes": ["cat"], "times": {"day": "date32[day]"}, "beside": {"labels": {}}}
    put_manifest(tmp_path / "d", msgspec.structs.replace(manifest, origin=origin, classes=("cat",)))
    assert drop(tmp_path / "d", ["label", "day"], workers=0).classes == ("cat",)
    again = join(tmp_path / "d", [{"day": 1}], workers=0).manifest
    assert not any(find_meanings(again.origin, [field.spec for field in again.fields]).values())
    dropped = drop(tmp_path / "d", ["labels"], workers=0)
    assert (dropped.classes, dropped.origin["beside"]) == ((), {})


def test_the_same_values_go_on_where_others_begin_anew(tmp_path, packed, monkeypatch):
    """A join of samples in memory that was stopped keeps its shards if it is made with the same values."""
    calls = []

    def stopped(tasks, *more):
        calls.append(len(tasks))
        reports = run_tasks(tasks, *more)
        yield next(reports)
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["packer.packing.rewrite"], "run_tasks", stopped)
    shards = len(manifests.read(packed).shards)
    for value in (1, 1, 2):
        with pytest.raises(KeyboardInterrupt):
            join(packed, [{"z": value}] * 12)
    assert calls == [shards, shards - 1, shards]


def test_shards_of_changed_fields_are_not_repaired(tmp_path):
    """They cannot be made again byte for byte, and `repair` says so."""
    convert([{"x": n} for n in range(3)], tmp_path / "d")
    join(tmp_path / "d", [{"y": n} for n in range(3)])
    (tmp_path / "d" / manifests.read(tmp_path / "d").shards[0].file).write_bytes(b"")
    with pytest.raises(DatasetError, match="cannot be made again, since fields were joined or dropped"):
        repair(tmp_path / "d", SampleSource([{"x": n, "y": n} for n in range(3)]))


def test_more_samples_come_to_joined_fields(tmp_path):
    """Appending goes on with all fields; a dataset of several parts keeps them."""
    convert([{"x": float(n)} for n in range(3)], tmp_path / "d")
    append(tmp_path / "d", [{"x": 3.0}])
    join(tmp_path / "d", [{"y": n} for n in range(4)])
    append(tmp_path / "d", [{"x": 4.0, "y": 4}])
    dataset = PackedDataset(tmp_path / "d")
    assert dataset[list(range(5))]["y"].tolist() == list(range(5))
    parts = manifests.read(tmp_path / "d").origin["parts"]
    assert ["joined" in part["origin"] for part in parts] == [True, True, False]


def test_fields_of_a_dataset_at_a_url(tmp_path, packed, monkeypatch):
    """Shards are fetched, and put back with the new fields."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    for path in (path for path in packed.rglob("*") if path.is_file()):
        memory.pipe_file(f"/join/{path.relative_to(packed)}", path.read_bytes())
    join("memory://join", [{"z": n} for n in range(12)])
    drop("memory://join", ["lr"], workers=0)
    assert PackedDataset("memory://join", cache=tmp_path / "c")[7]["z"] == 7
    assert len(memory.ls("/join/shards")) == len(manifests.read(packed).shards)
    assert not list((tmp_path / "cache").rglob("*.lmdb"))
