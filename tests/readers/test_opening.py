"""Opening a dataset: many shards under a small limit of open files, and files that are not those of the manifest."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from made_datasets import make_plain, put_manifest

from packer.append import append
from packer.errors import DamagedError, DatasetError, UsageError
from packer.format import BTree, column_key
from packer.format import manifest as manifests
from packer.writer import DatasetWriter
from readers import Loader, PackedDataset

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no limits of open files to set")


#: Opens a dataset under limits of open files, reads a sample of every shard, and prints what came of it.
READ = """
import resource, sys
import numpy as np
from packer.errors import DatasetError
from readers import PackedDataset
for hard in (1000, 100):
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    dataset = PackedDataset(sys.argv[1])
    try:
        print(dataset[np.arange(len(dataset))]["x"].tolist() == list(range(len(dataset))), dataset["7"]["x"].item())
    except DatasetError as error:
        print(error)
    del dataset
"""


def pack(out: Path, values: Any, **options: Any) -> Path:
    """A dataset of one number a sample, named by its place."""
    with DatasetWriter(out, **options) as writer:
        for number, value in enumerate(values):
            writer.add({"x": value}, name=str(number))
    return make_plain(out)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 120 shards of one sample each."""
    return pack(tmp_path_factory.mktemp("many") / "d", np.arange(120), codec="none", shard_size=1)


def test_more_shards_are_opened_than_the_limit_of_open_files_allows(many: Path) -> None:
    """The process's limit is raised as far as it may be; the error beyond it names file, cause and remedy."""
    done = subprocess.run([sys.executable, "-c", READ, str(many)], check=True, capture_output=True, text=True)
    read, refused = done.stdout.splitlines()
    assert read == "True 7"
    if sys.version_info >= (3, 13):  # a map keeps no descriptor
        assert refused == "True 7"
        return
    for said in ("shards/000", "as many files open as it may", "ulimit -n", "--shard-size"):
        assert said in refused


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="nothing tells the open files here")
def test_an_open_shard_takes_one_descriptor_at_most(many: Path) -> None:
    """A map keeps one, from Python 3.13 on none."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    dataset = PackedDataset(many)
    assert dataset[7]["x"] == 7
    taken = len(list(Path("/proc/self/fd").iterdir())) - before
    assert taken == (0 if sys.version_info >= (3, 13) else len(dataset.manifest.shards))


def test_a_limit_on_addresses_is_an_error_that_says_so(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system only says that it cannot allocate memory."""

    def refuse(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", refuse)
    with pytest.raises(DatasetError, match=r"00000\.lmdb: cannot be mapped: .*max_map_count.*ulimit -v.*--shard-size"):
        PackedDataset(many)[0]


def replace(old: Path, new: Path) -> None:
    """Puts a dataset in the place of another, which goes."""
    shutil.rmtree(old)
    new.rename(old)


@pytest.mark.parametrize("verify", [False, True])
def test_a_dataset_replaced_by_one_of_the_same_size_is_not_read(tmp_path: Path, verify: bool) -> None:
    """Its shards are not those of the manifest that was read when it was opened."""
    old, new = (pack(tmp_path / name, np.arange(8) + add, codec="none") for name, add in (("old", 0), ("new", 50)))
    assert (old / "shards/00000.lmdb").stat().st_size == (new / "shards/00000.lmdb").stat().st_size
    dataset = PackedDataset(old, verify=verify)
    replace(old, new)
    with pytest.raises(DatasetError, match="was replaced since it was opened"):
        dataset[3]
    assert PackedDataset(old)[3]["x"].item() == 53


def test_a_dataset_replaced_by_another_is_not_called_damaged(tmp_path: Path) -> None:
    """Whatever of it is opened first, and also where its files are no longer as large as the manifest said."""
    old, new = (pack(tmp_path / name, np.arange(8 if name == "old" else 4000)) for name in ("old", "new"))
    dataset = PackedDataset(old)
    replace(old, new)
    for asked in (3, "3"):
        with pytest.raises(DatasetError, match="was changed since it was opened"):
            dataset[asked]


def test_names_of_a_dataset_that_replaced_another_are_not_read(tmp_path: Path) -> None:
    """They would lead to other samples of the old shards, which are mapped."""
    old, new = pack(tmp_path / "old", range(8)), tmp_path / "new"
    with DatasetWriter(new) as writer:
        for number in range(8):
            writer.add({"x": number}, name=str(7 - number))
    make_plain(new)
    dataset = PackedDataset(old)
    assert dataset[3]["x"].item() == 3
    replace(old, new)
    for _ in range(2):
        with pytest.raises(DatasetError, match="was replaced since it was opened"):
            dataset["3"]


def test_a_dataset_that_is_mapped_stays_what_it_was(tmp_path: Path) -> None:
    """What is replaced after the first sample was read changes nothing: the old files are mapped."""
    old, new = (pack(tmp_path / name, np.arange(8) + add) for name, add in (("old", 0), ("new", 50)))
    dataset = PackedDataset(old)
    assert dataset[3]["x"].item() == 3
    replace(old, new)
    assert dataset[4]["x"].item() == 4


def test_samples_appended_after_the_manifest_was_read_change_nothing(tmp_path: Path) -> None:
    """The manifest is another one, and the shards that it knew are as they were."""
    old, more = (pack(tmp_path / name, range(4)) for name in ("old", "more"))
    shutil.rmtree(more)
    with DatasetWriter(more) as writer:
        writer.add({"x": 9}, name="nine")
    dataset = PackedDataset(old)
    append(old, [str(more)])
    assert dataset[:]["x"].tolist() == [0, 1, 2, 3]
    assert len(PackedDataset(old)) == 5


def test_a_table_of_names_that_is_gone_is_not_called_missing(tmp_path: Path) -> None:
    """What as many were appended to, twice, has another one; who opens it again finds it."""
    old = pack(tmp_path / "old", range(4))
    dataset = PackedDataset(old)
    for name in ("one", "two"):
        with DatasetWriter(tmp_path / name) as writer:
            for number in range(8):
                writer.add({"x": 9}, name=f"{name} {number}")
        append(old, [str(tmp_path / name)])
    with pytest.raises(DatasetError, match="was changed since it was opened; open it again"):
        dataset["3"]
    assert dataset[3]["x"].item() == PackedDataset(old)["3"]["x"].item() == 3


def test_a_shard_of_other_fields_is_refused(tmp_path: Path) -> None:
    """A file of the same size and index whose header tells of another field, under the old manifest."""
    old = pack(tmp_path / "old", np.zeros(8, dtype=np.int64), codec="none")
    with DatasetWriter(tmp_path / "new", codec="none") as writer:
        for number in range(8):
            writer.add({"x": np.float64(0)}, name=str(number))
    make_plain(tmp_path / "new")
    shard = Path("shards/00000.lmdb")
    assert (old / shard).stat().st_size == (tmp_path / "new" / shard).stat().st_size
    (tmp_path / "new" / shard).replace(old / shard)
    with pytest.raises(DamagedError, match=r"00000\.lmdb: its header has"):
        PackedDataset(old)[0]


def of_an_older_writer(folder: Path) -> Path:
    """The dataset as before manifests had digests of indexes."""
    held = manifests.read(folder)
    shards = tuple(msgspec.structs.replace(entry, index=None) for entry in held.shards)
    put_manifest(folder, msgspec.structs.replace(held, shards=shards))
    return folder


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_shard_swapped_for_another_of_its_size_is_refused(tmp_path: Path, codec: str, verify: bool) -> None:
    """All of its frames have the checksums of its index; that index is not the one that the manifest knows."""
    folder = tmp_path / "d"
    with DatasetWriter(folder, codec=codec, shard_size=64_000) as writer:
        for number in range(16):
            writer.add({"x": np.roll(np.arange(1000), number)})
    first, second = (folder / entry.file for entry in manifests.read(folder).shards[:2])
    assert first.stat().st_size == second.stat().st_size
    shutil.copy(second, first)
    with pytest.raises(DamagedError, match=r"00000\.lmdb: its index is not that of the manifest"):
        PackedDataset(folder, verify=verify)[0]


def test_sizes_that_an_index_makes_up_are_refused(tmp_path: Path) -> None:
    """By the shape of the sample, also where a block shuffle makes room by the mean size of samples."""
    with DatasetWriter(tmp_path / "d", codec="zstd") as writer:
        for number in range(40):
            writer.add({"x": np.full(number % 5, number)})
    shard = make_plain(tmp_path / "d") / "shards/00000.lmdb"
    data = bytearray(shard.read_bytes())
    sizes = {value.key: value for value in BTree(memoryview(bytes(data)), "").values()}[column_key(0, "sample_offsets")]
    end = sizes.offset + sizes.size
    data[end - 8 : end] = (2**61).to_bytes(8, "little")
    shard.write_bytes(data)
    dataset = PackedDataset(of_an_older_writer(tmp_path / "d"))
    assert (dataset.fields["x"].frame.samples or 1) > 1
    with pytest.raises(DamagedError, match="an index of its column is damaged"):
        next(iter(Loader(dataset, 4, shuffle="block")))


def test_arguments_that_cannot_be(tmp_path: Path) -> None:
    """No field at all, a list, a URL as a Path, and a cache for what is no URL, are refused at once."""
    path = pack(tmp_path / "d", range(2))
    with pytest.raises(UsageError, match=r"no field is named; .*d has x"):
        PackedDataset(path, fields=[])
    with pytest.raises(UsageError, match=r"\[.*\]: the folder or URL of one dataset"):
        PackedDataset([path])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="s3:/bucket/d: give a URL as text"):
        PackedDataset(Path("s3://bucket/d"), cache=tmp_path / "c")
    for options in ({"cache": tmp_path / "c"}, {"cache_bytes": 9}):
        with pytest.raises(UsageError, match="is a folder: cache, cache_bytes and patience are for datasets at a URL"):
            PackedDataset(path, **options)  # type: ignore[arg-type]
