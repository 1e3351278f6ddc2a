"""A dataset in a bucket, read through the cache, over a network that fails."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_datasets import make_plain
from torch.utils.data import DataLoader

from packer.convert import convert
from packer.errors import DamagedError, DatasetError, ManifestError, NoDatasetError, RemoteError, UsageError
from packer.format import manifest as manifests
from packer.remote import Mirror, fetch_tables, retries, store, whole
from packer.verify import verify
from packer.writer import DatasetWriter
from readers import Loader, PackedDataset

_OPEN = """
import sys
from packer.remote.mirror import Mirror
mirror, manifest, lease = Mirror.open(sys.argv[1], sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
mirror.fetch(manifest)
"""
_SHARD = "shards/00001.lmdb"


def whole_files(cache: Path) -> list[str]:
    """Names of the data files in the cache."""
    return sorted(path.name for path in (cache / "datasets").rglob("*.lmdb"))


def opener(dataset: str, cache: Path) -> subprocess.Popen[str]:
    """A process that opens the dataset, says so, and fetches all of it when it is sent a line."""
    return subprocess.Popen(
        [sys.executable, "-c", _OPEN, dataset, str(cache)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def assert_holds(ds: PackedDataset, samples: list[dict[str, Any]]) -> None:
    assert np.array_equal(ds[:]["x"], np.stack([sample["x"] for sample in samples]))


def test_what_is_read_is_what_was_packed(dataset, s3, samples, tmp_path) -> None:
    """Nothing but the manifest is fetched before it is needed, and no file twice."""
    ds = PackedDataset(dataset, cache=tmp_path / "cache")
    assert s3.proxy.gets(".lmdb") == 0
    assert ds.names is not None
    assert ds.names[3] == "n03"
    assert (s3.proxy.gets("names.lmdb"), s3.proxy.gets(_SHARD)) == (1, 0)
    assert_holds(ds, samples)
    again = PackedDataset(dataset + "/", cache=tmp_path / "cache")
    assert again["n07"]["label"] == 7
    assert repr(again).startswith(f"PackedDataset('{dataset}")
    assert [s3.proxy.gets(f"shards/{n:05}.lmdb") for n in range(4)] == [1, 1, 1, 1]
    assert s3.proxy.gets("names.lmdb") == 1


def test_only_the_shards_that_are_asked_for_are_fetched(dataset, s3, samples, tmp_path) -> None:
    """A sample, a batch and a region fetch the shards that hold them, and a loader those of the next batches."""

    def fetched() -> list[int]:
        return [number for number in range(4) if s3.proxy.gets(f"shards/{number:05}.lmdb")]

    ds = PackedDataset(dataset, cache=tmp_path / "cache")
    ends = np.cumsum([shard.samples for shard in ds.manifest.shards])
    assert ds[int(ends[1])]["label"] == ends[1]
    assert fetched() == [2]
    assert np.array_equal(ds.read(int(ends[2]), "x"), samples[ends[2]]["x"])
    assert fetched() == [2, 3]
    batch = [int(ends[2]) - 1, 0, int(ends[2]), 1]
    assert ds[batch]["label"].tolist() == batch
    assert fetched() == [0, 2, 3]
    assert_holds(pickle.loads(pickle.dumps(ds)), samples)
    assert fetched() == [0, 1, 2, 3]
    assert next(iter(Loader(ds, len(samples))))["label"].tolist() == list(range(len(samples)))


@pytest.mark.parametrize(
    ("server", "fault"), [("s3", "cut"), ("s3", "busy"), ("s3", "slow"), ("s3", "corrupt"), ("http", "cut")]
)
def test_a_failure_that_passes_is_not_seen(dataset, s3, samples, tmp_path, monkeypatch, fault, server) -> None:
    """A cut connection, a 503, a slow answer and a flipped bit cost another request, and no value."""
    if fault == "slow":
        monkeypatch.setattr(store, "SECONDS", 1.0)
        monkeypatch.setattr(retries, "ATTEMPTS", 1000)  # on a busy machine other answers are late, too
    if server == "http":
        s3.fs.chmod(dataset, "public-read", recursive=True)
        dataset = dataset.replace("s3://", f"http://127.0.0.1:{s3.proxy.server_port}/")
    s3.proxy.plan(_SHARD, getattr(s3.faults, fault))
    s3.proxy.plan("manifest.json", s3.faults.busy)
    assert_holds(PackedDataset(dataset, cache=tmp_path / "cache"), samples)
    assert s3.proxy.gets(_SHARD) == 2 or (fault == "slow" and s3.proxy.gets(_SHARD) > 2)


def test_a_cut_costs_no_more_than_a_block(dataset, s3, samples, tmp_path, monkeypatch) -> None:
    """A file comes in blocks, and only the one that failed is asked for again."""
    monkeypatch.setattr(store, "BLOCK_BYTES", 10_000)
    s3.proxy.plan(_SHARD, None, s3.faults.cut)
    ds = PackedDataset(dataset, cache=tmp_path / "cache")
    assert_holds(ds, samples)
    assert s3.proxy.gets(_SHARD) == -(-ds.manifest.shards[1].bytes // 10_000) + 1


def test_another_kind_of_server(dataset, s3, samples, tmp_path) -> None:
    """A dataset on a web server is read likewise; no access, no server and no parts of files are told of."""
    url = dataset.replace("s3://", f"http://127.0.0.1:{s3.proxy.server_port}/")
    with pytest.raises(RemoteError, match=r"403.*check the address and your credentials"):
        PackedDataset(url, cache=tmp_path / "cache")
    assert s3.proxy.gets("manifest.json") == 1
    s3.fs.chmod(dataset, "public-read", recursive=True)
    assert_holds(PackedDataset(url, cache=tmp_path / "cache"), samples)

    def more(handler, status, headers, data):
        handler.pass_on(status, headers, data + data)

    s3.proxy.plan(_SHARD, more)
    with pytest.raises(RemoteError, match="its server does not send parts of a file"):
        PackedDataset(url, cache=tmp_path / "other")[:]
    with pytest.raises(RemoteError, match="it failed 3 times"):
        PackedDataset("http://127.0.0.1:9/set", cache=tmp_path / "cache")


@pytest.mark.parametrize("fault", ["cut", "busy"])
def test_a_failure_that_lasts_is_an_error(dataset, s3, samples, tmp_path, fault) -> None:
    """After a bounded number of attempts the error names the file; nothing of it is kept, and later all goes well."""
    ds = PackedDataset(dataset, cache=tmp_path / "cache")
    s3.proxy.plan(_SHARD, *[getattr(s3.faults, fault)] * 3)
    with pytest.raises(RemoteError, match=f"{dataset}/{_SHARD}: it failed 3 times"):
        ds[:]
    assert s3.proxy.gets(_SHARD) == 3
    assert "00001.lmdb" not in whole_files(tmp_path / "cache")
    assert_holds(ds, samples)


def test_a_wrong_byte_is_found_by_the_digest(dataset, s3, tmp_path) -> None:
    """A file that comes wrong twice is damaged behind its URL; nothing of it is kept."""
    s3.proxy.plan(_SHARD, s3.faults.corrupt, s3.faults.corrupt)
    with pytest.raises(DamagedError, match=f"{dataset}/{_SHARD}: its bytes do not have the digest"):
        PackedDataset(dataset, cache=tmp_path / "cache")[:]
    assert "00001.lmdb" not in whole_files(tmp_path / "cache")


def test_a_wrong_byte_of_the_manifest_is_found_by_its_digest(dataset, s3, samples, tmp_path) -> None:
    """One that comes wrong once is read again; it never makes a damaged shard a replaced dataset."""
    wrong = s3.faults.corrupt
    s3.proxy.plan("manifest.json", wrong)
    ds = PackedDataset(dataset, cache=tmp_path / "cache")
    s3.proxy.plan("manifest.json", wrong)
    s3.proxy.plan(_SHARD, wrong, wrong)
    with pytest.raises(DamagedError, match=f"{dataset}/{_SHARD}: its bytes do not have the digest"):
        ds[:]
    assert_holds(ds, samples)
    s3.proxy.plan("manifest.json", wrong, wrong)
    with pytest.raises(ManifestError, match=f"{dataset}/manifest.json"):
        PackedDataset(dataset, cache=tmp_path / "cache")


def test_a_wrong_byte_in_the_cache_goes_with_its_file(dataset, s3, tmp_path) -> None:
    """The error names the file in the cache; once that is deleted, it is fetched again."""
    cache = tmp_path / "cache"
    PackedDataset(dataset, cache=cache)[:]
    path = next(cache.rglob("00001.lmdb"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    ds = PackedDataset(dataset, cache=cache, verify=True)
    with pytest.raises(DamagedError, match=f"{path}: field .*; of a dataset at a URL delete this file"):
        ds[:]
    path.unlink()
    assert len(PackedDataset(dataset, cache=cache, verify=True)[:]["label"]) == 64


def test_what_is_not_there(dataset, s3, tmp_path) -> None:
    """No manifest is no dataset; a shard that is gone or cut short is damage, found without reading on for ever."""
    with pytest.raises(NoDatasetError, match=r"is not a packed dataset: it has no manifest\.json"):
        PackedDataset(f"{dataset}/shards", cache=tmp_path / "cache")
    with pytest.raises(NoDatasetError, match=r"bucket does not exist\); check the address"):
        PackedDataset("s3://nowhere/set", cache=tmp_path / "cache")
    ds = PackedDataset(dataset, cache=tmp_path / "cache")
    path = dataset.removeprefix("s3://") + f"/{_SHARD}"
    data = s3.fs.cat_file(path)
    s3.fs.pipe_file(path, data[:-1])
    with pytest.raises(RemoteError, match=r"bytes came, but [\d,]+ are expected"):
        ds[:]
    s3.fs.rm_file(path)
    with pytest.raises(DamagedError, match=f"{dataset}/{_SHARD}: the file is missing"):
        ds[:]


def test_processes_fetch_a_file_once_for_all(dataset, s3, samples, tmp_path) -> None:
    """Two processes that need the dataset at one time ask for each of its files once."""
    s3.proxy.plan(_SHARD, s3.faults.late)  # so that the other gets there while it is fetched
    processes = [opener(dataset, tmp_path / "cache") for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.communicate("go\n", timeout=100)
        assert process.returncode == 0
    assert [s3.proxy.gets(f"shards/{n:05}.lmdb") for n in range(4)] == [1, 1, 1, 1]
    assert_holds(PackedDataset(dataset, cache=tmp_path / "cache"), samples)


def test_killed_while_it_fetches(dataset, s3, samples, tmp_path) -> None:
    """What a kill leaves does not look whole, holds nobody up, and is fetched again."""
    s3.proxy.plan(_SHARD, s3.faults.stall)
    process = opener(dataset, tmp_path / "cache")
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert s3.proxy.halfway.wait(100)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert "00001.lmdb" not in whole_files(tmp_path / "cache")
    assert_holds(PackedDataset(dataset, cache=tmp_path / "cache"), samples)


def test_a_dataset_that_was_replaced_gets_another_folder(dataset, s3, samples, tmp_path) -> None:
    """Files of two versions never meet: whoever opened the old one keeps it, or is told."""
    cache = tmp_path / "cache"
    old, late = PackedDataset(dataset, cache=cache), PackedDataset(dataset, cache=tmp_path / "other")
    assert_holds(old, samples)
    turned = samples[::-1]
    with DatasetWriter(tmp_path / "new", codec="none", shard_size=16 * 2056) as writer:
        for sample in turned:
            writer.add(sample)
    make_plain(tmp_path / "new")
    s3.fs.put(str(tmp_path / "new") + "/", dataset, recursive=True)
    new = PackedDataset(dataset, cache=cache)
    assert new.path != old.path
    assert_holds(new, turned)
    assert_holds(pickle.loads(pickle.dumps(old)), samples)
    with pytest.raises(DatasetError, match="the dataset was replaced since it was opened"):
        late[0]
    (late.path / "manifest.json").unlink()
    with pytest.raises(DatasetError, match="the dataset was replaced since it was opened"):
        pickle.loads(pickle.dumps(late))


def test_workers_fetch_for_themselves(dataset, s3, samples, tmp_path) -> None:
    """A worker process, forked by a parent that has fetched nothing but the manifest, fetches what it reads."""
    ds = PackedDataset(dataset, cache=tmp_path / "cache")
    batches = iter(DataLoader(ds, batch_size=16, num_workers=2, multiprocessing_context="fork"))
    found = np.concatenate([batch["label"] for batch in batches])
    batches._shutdown_workers()  # type: ignore[attr-defined]
    assert found.tolist() == list(range(64))
    assert s3.proxy.gets(_SHARD) == 1


def test_the_least_recently_used_files_go(dataset, s3, packed, samples, tmp_path) -> None:
    """Where the limit is reached, files that no dataset has open are removed, the ones used longest ago first."""
    urls = [dataset, f"{s3.url}/second", f"{s3.url}/third"]
    for url in urls[1:]:
        s3.fs.put(str(packed) + "/", url, recursive=True)
    size = sum(shard.bytes for shard in manifests.read(packed).shards)
    cache, limit = tmp_path / "cache", int(2.5 * size)
    for url in [*urls[:2], urls[0], urls[2]]:
        assert_holds(PackedDataset(url, cache=cache, cache_bytes=limit), samples)
        assert sum(path.stat().st_size for path in (cache / "datasets").rglob("*.lmdb")) <= limit
    left = {url: len(list(cache.glob(f"datasets/{url.rpartition('/')[2]}-*/shards/0*.lmdb"))) for url in urls}
    assert (left[dataset], left[urls[2]]) == (4, 4)
    assert 0 < left[urls[1]] < 4


def test_what_is_open_is_not_removed(dataset, s3, packed, samples, tmp_path) -> None:
    """Where open datasets take the room, another is refused; when they are gone, it is not."""
    s3.fs.put(str(packed) + "/", f"{s3.url}/second", recursive=True)
    room = {"cache": tmp_path / "cache", "cache_bytes": int(1.5 * manifests.read(packed).file_bytes)}
    first, second = PackedDataset(dataset, **room), PackedDataset(f"{s3.url}/second", **room)
    assert_holds(first, samples)
    with pytest.raises(DatasetError, match="what others have open leaves too little"):
        second[0]
    assert (first.path / _SHARD).exists()
    shards = first.path / "shards"
    del first
    assert_holds(second, samples)
    assert len(list(shards.glob("0*.lmdb"))) < 4


def test_a_shard_larger_than_the_cache_is_refused(dataset, s3, tmp_path) -> None:
    """It is known before anything is fetched; a limit below 0 is none."""
    for limit in (-1, "1GB"):
        with pytest.raises(UsageError, match=f"cache_bytes is {limit!r}; a number of bytes"):
            PackedDataset(dataset, cache=tmp_path / "cache", cache_bytes=limit)
    ds = PackedDataset(dataset, cache=tmp_path / "cache", cache_bytes=1000)
    with pytest.raises(UsageError, match="cache_bytes is 1,000, and the shard"):
        ds[0]
    assert s3.proxy.gets(".lmdb") == 0


def test_without_the_package_for_a_url(tmp_path, monkeypatch) -> None:
    """The error says what to install; a kind of URL that there is not is named."""
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[fsspec\]'"):
        Mirror.open("abfs://bucket/set", tmp_path)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[s3\]'"):
        Mirror.open("s3://bucket/set", tmp_path)
    monkeypatch.undo()
    with pytest.raises(UsageError, match="nonsense"):
        Mirror.open("nonsense://bucket/set", tmp_path)


def test_a_dataset_with_samples_left_out_is_verified(new_pairs, tmp_path, monkeypatch) -> None:
    """The list of what was skipped is fetched with all other files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    pairs = new_pairs(tmp_path / "pairs", 4, 4, 4)
    (pairs.folder / "lr" / "002.png").write_bytes(b"no image")
    convert(pairs.sources, tmp_path / "set", workers=0, on_error="skip")
    with whole(f"file://{tmp_path}/set") as folder:
        assert verify(folder).damages == ()


def test_a_dataset_is_fetched_by_one_client(dataset, tmp_path, monkeypatch) -> None:
    """A manifest and shards that are asked for one after another need one client, and a pickled copy one of its own."""
    made = []
    monkeypatch.setattr(
        "packer.remote.mirror.RemoteFolder", lambda url, *more: made.append(url) or store.RemoteFolder(url)
    )
    mirror, manifest, lease = Mirror.open(dataset, tmp_path / "cache")
    for shard in manifest.shards:
        mirror.fetch_shards(manifest, [shard]).close()
    assert len(made) == 1
    copy = pickle.loads(pickle.dumps(mirror))
    for table in fetch_tables(copy, manifest):
        table.close()
    assert len(made) == 2
    lease.close()
