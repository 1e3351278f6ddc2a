"""DatasetWriter: samples made in Python become a packed dataset, or an unfinished one that says so."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packer.errors import PackerError, SourceError, UnfinishedError, UsageError, WriteError
from packer.format import FieldSpec, ShardWriter
from packer.format import manifest as manifests
from packer.merge import merge
from packer.verify import verify
from packer.writer import HOLD_BYTES, HOLD_SAMPLES, DatasetWriter
from readers import PackedDataset, Ragged


def write(out: Path, samples: list[Any], **options: Any) -> None:
    """Writes samples, each a sample or a pair of sample and name; raises those that are exceptions."""
    with DatasetWriter(out, **options) as writer:
        for sample in samples:
            if isinstance(sample, Exception):
                raise sample
            writer.add(*sample) if isinstance(sample, tuple) else writer.add(sample)


def test_arrays_numbers_text_and_tensors_come_back(tmp_path: Path) -> None:
    """Each kind of value gets its field, and names find the samples."""
    rng = np.random.default_rng(0)
    clouds = [rng.random((n, 3)).astype("f4") for n in rng.integers(0, 9, 200)]
    with DatasetWriter(tmp_path / "d") as writer:
        for i, cloud in enumerate(clouds):
            sample = {"xyz": cloud, "label": i, "what": "é" * (i % 5), "t": torch.full((2, 2), i)}
            writer.add(sample, name=f"cloud {i}")
    dataset = PackedDataset(tmp_path / "d")
    batch = dataset[[f"cloud {i}" for i in range(200)]]
    assert isinstance(batch["xyz"], Ragged)
    assert not [(a, b) for a, b in zip(batch["xyz"].to_list(), clouds, strict=True) if not np.array_equal(a, b)]
    assert batch["label"].tolist() == list(range(200))
    assert batch["what"] == ["é" * (i % 5) for i in range(200)]
    assert batch["t"].dtype == torch.int64


def test_an_array_may_be_filled_again(tmp_path: Path) -> None:
    """What was added does not change with the caller's array, before and after the schema is settled."""
    buffer = np.zeros(5, np.int32)
    with DatasetWriter(tmp_path / "d", codec="zstd") as writer:
        for i in range(3 * HOLD_SAMPLES):
            buffer[:] = i
            writer.add({"x": buffer})
    assert PackedDataset(tmp_path / "d")[:]["x"][:, 0].tolist() == list(range(3 * HOLD_SAMPLES))


def test_threads_take_turns(tmp_path: Path) -> None:
    """Samples that threads add are all there, each whole and under its name, in any order."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with DatasetWriter(tmp_path / "d", shard_size=2000) as writer, ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda n: writer.add({"x": np.full(9, n), "text": f"{n}"}, name=f"{n}"), range(150)))
    finally:
        sys.setswitchinterval(usual)
    dataset = PackedDataset(tmp_path / "d")
    values = dataset[:]["x"][:, 0].tolist()
    assert sorted(values) == list(range(150))
    assert list(map(str, values)) == dataset[:]["text"] == list(dataset.names or ())


def test_shards_are_cut_by_size(tmp_path: Path) -> None:
    """A shard is closed when its raw bytes reach the size."""
    with DatasetWriter(tmp_path / "d", codec="none", shard_size=4000) as writer:
        for i in range(25):
            writer.add({"x": np.full(250, i, np.float32)})
    dataset = PackedDataset(tmp_path / "d")
    assert [shard.samples for shard in dataset.manifest.shards] == [4, 4, 4, 4, 4, 4, 1]
    assert dataset[:]["x"][:, 0].tolist() == list(range(25))


def test_parts_that_are_like_another_dataset_merge(tmp_path: Path) -> None:
    """Fields, codecs, digits and frames are those of the other one, whatever the samples would have chosen."""
    rng = np.random.default_rng(0)
    samples = [{"x": rng.integers(0, 99, (4, 3)).astype("f4") / 8, "y": i} for i in range(20)]
    write(tmp_path / "a", samples, codec={"x": "decimal+zstd", "y": "lz4"})
    noise = [{"x": rng.random((4, 3), np.float32), "y": i} for i in range(3)]
    write(tmp_path / "b", [{"x": np.round(sample["x"], 2), "y": sample["y"]} for sample in noise], like=tmp_path / "a")
    parts = [PackedDataset(tmp_path / name) for name in ("a", "b")]
    assert manifests.read(tmp_path / "a").fields == manifests.read(tmp_path / "b").fields
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    assert torch.equal(PackedDataset(tmp_path / "both")[:]["x"], torch.cat([part[:]["x"] for part in parts]))
    with pytest.raises(UsageError, match="give no others"):
        DatasetWriter(tmp_path / "c", codec="zstd", like=tmp_path / "a")
    assert not (tmp_path / "c").exists()


def test_a_schema_may_be_given(tmp_path: Path) -> None:
    """With `fields`, an axis may be ragged that the first samples would not show."""
    fields = [FieldSpec(name="x", dtype="uint8", shape=(None,))]
    with DatasetWriter(tmp_path / "d", fields=fields) as writer:
        for _ in range(HOLD_SAMPLES):
            writer.add({"x": np.zeros(3, np.uint8)})
        writer.add({"x": np.ones(7, np.uint8)})
    assert PackedDataset(tmp_path / "d")[-1]["x"].tolist() == [1] * 7


@pytest.mark.parametrize(
    ("late", "said"),
    [
        ({"x": np.zeros(4, np.float32)}, r"\(4,\).*\(3\) is expected"),
        ({"x": np.zeros(3, np.float64)}, "float64.*float32"),
        ({"y": np.zeros(3, np.float32)}, "fields y; x are expected"),
        ([1, 2], "a dict of field name to array"),
    ],
)
def test_a_sample_that_does_not_fit_is_named(tmp_path: Path, late: object, said: str) -> None:
    """The error says which sample, what it has and what was expected; the dataset stays unfinished."""
    with pytest.raises(SourceError, match=said):
        write(tmp_path / "d", [{"x": np.zeros(3, np.float32)}] * HOLD_SAMPLES + [late])
    with pytest.raises(UnfinishedError, match="overwrite=True"):
        PackedDataset(tmp_path / "d")


@pytest.mark.parametrize("dtype", ["O", "M8[s]", "bfloat16"])
def test_a_dtype_that_cannot_be_stored_is_refused(tmp_path: Path, dtype: str) -> None:
    """Objects, dates and bfloat16 are errors, not something else in their place."""
    value = torch.zeros(2, dtype=torch.bfloat16) if dtype == "bfloat16" else np.zeros(2, dtype)
    with pytest.raises(PackerError, match="field 'x'"), DatasetWriter(tmp_path / "d") as writer:
        writer.add({"x": value})


def test_names_are_given_to_all_or_to_none(tmp_path: Path) -> None:
    """A sample without a name among named ones is a mistake."""
    with pytest.raises(UsageError, match="unlike those before it; give all a name, or none"):
        write(tmp_path / "d", [({"x": 1}, "a"), {"x": 2}])


def test_left_by_an_exception_it_is_unfinished_and_can_be_written_anew(tmp_path: Path) -> None:
    """Nothing that looks finished stays; overwrite=True begins anew."""
    with pytest.raises(ZeroDivisionError):
        write(tmp_path / "d", [{"x": np.zeros(1000, np.uint8)}] * 100 + [ZeroDivisionError()], shard_size=4096)
    assert not list((tmp_path / "d" / "shards").glob("*.partial"))
    with pytest.raises(UsageError, match="unfinished"):
        DatasetWriter(tmp_path / "d")
    with DatasetWriter(tmp_path / "d", overwrite=True) as writer:
        writer.add({"x": 5})
    assert PackedDataset(tmp_path / "d")[0]["x"] == 5


LONE = "\ud800"
#: Each with what its error says: samples and names that are refused among {"x": np.full(3, i, "i4"), "t": "..."}.
REFUSED = [
    ({"x": np.zeros(3, np.int64), "t": ""}, "fresh", "field 'x'"),
    ({"x": np.zeros((3, 1), np.int32), "t": ""}, "fresh", "field 'x'"),
    ({"x": np.zeros(3, np.int32)}, "fresh", "x"),
    ({"x": np.zeros(3, np.int32), "t": f"ab{LONE}"}, "fresh", r"field 't' cannot be stored as UTF-8: its character 2"),
    ({"x": np.zeros(3, np.int32), "t": ""}, LONE, r"its name '\\ud800' cannot be stored as UTF-8"),
    ({"x": np.zeros(3, np.int32), "t": ""}, "n" * 511, "its name 'nnn.* has 511 bytes; 1 to 510 are allowed"),
    ({"x": np.zeros(3, np.int32), "t": ""}, "é" * 256, "512 bytes"),
    ({"x": np.zeros(3, np.int32), "t": ""}, "", "0 bytes"),
    ({"x": np.zeros(3, np.int32), "t": ""}, "a\0b", r"its name 'a\\x00b' has a NUL in it"),
    ({"x": np.zeros(3, np.int32), "t": ""}, "0", "one before it have the same name, '0'"),
]


def test_overwrite_is_true_or_false(tmp_path) -> None:
    """A text of a file of settings, such as "no", does not replace a dataset."""
    with DatasetWriter(tmp_path / "d") as writer:
        writer.add({"x": np.zeros(2, np.float32)})
    with pytest.raises(UsageError, match="overwrite 'no': True or False is expected"):
        DatasetWriter(tmp_path / "d", overwrite="no")  # type: ignore[arg-type]
    assert len(PackedDataset(tmp_path / "d")) == 1


@pytest.mark.parametrize(("sample", "name", "said"), REFUSED)
@pytest.mark.parametrize("bad_at", [1, HOLD_SAMPLES - 1, HOLD_SAMPLES + 9])
@pytest.mark.parametrize("given", [True, False])
def test_a_sample_that_is_refused_changes_nothing(
    tmp_path: Path, given: bool, bad_at: int, sample: dict[str, Any], name: str, said: str
) -> None:
    """Whoever handles the error has all other samples, before and after the schema is settled, with their names."""
    fields = [
        FieldSpec(name="x", dtype="int32", shape=(3,)),
        FieldSpec(name="t", dtype="uint8", kind="text", shape=(None,)),
    ]
    with DatasetWriter(tmp_path / "d", fields=fields if given else None, codec="none") as writer:
        for i in range(2 * HOLD_SAMPLES):
            if i == bad_at:
                with pytest.raises(SourceError, match=f"sample {i}.*{said}"):
                    writer.add(sample, name=name)
            writer.add({"x": np.full(3, i, np.int32), "t": f"text {i}"}, name=str(i))
    dataset = PackedDataset(tmp_path / "d")
    batch = dataset[[str(i) for i in range(2 * HOLD_SAMPLES)]]
    assert batch["x"][:, 0].tolist() == list(range(2 * HOLD_SAMPLES))
    assert batch["t"] == [f"text {i}" for i in range(2 * HOLD_SAMPLES)]
    assert not verify(tmp_path / "d").damages


def test_a_first_sample_that_is_refused_does_not_decide(tmp_path: Path) -> None:
    """Whether samples have names is told by the first that was taken; one without any field is none."""
    with DatasetWriter(tmp_path / "d") as writer:
        with pytest.raises(SourceError, match=r"sample 0.*cannot be stored"):
            writer.add({"x": np.zeros(2, "M8[s]")}, name="a")
        with pytest.raises(SourceError, match=r"sample 0.*no field"):
            writer.add({})
        writer.add({"x": 1})
    assert PackedDataset(tmp_path / "d").names is None


def test_a_codec_that_does_not_fit_loses_no_sample_in_silence(tmp_path: Path) -> None:
    """It is told when the schema is settled, and told again at the end: nothing is published without the samples."""

    def go_on() -> None:
        with DatasetWriter(tmp_path / "d", codec="y=lz4") as writer:
            for i in range(HOLD_SAMPLES - 1):
                writer.add({"x": i})
            with pytest.raises(UsageError, match="no field 'y'"):
                writer.add({"x": 5})

    with pytest.raises(UsageError, match="no field 'y'"):
        go_on()
    with pytest.raises(UnfinishedError):
        PackedDataset(tmp_path / "d")


def test_one_large_sample_keeps_its_name(tmp_path: Path) -> None:
    """The first sample may settle the schema by itself."""
    with DatasetWriter(tmp_path / "d", codec="none") as writer:
        writer.add({"x": np.ones(HOLD_BYTES, np.uint8)}, name="large")
    assert list(PackedDataset(tmp_path / "d").names or ()) == ["large"]


def test_a_writer_that_is_closed_takes_nothing(tmp_path: Path) -> None:
    """A sample added behind the block would be lost, and leave a file in the published folder."""
    with DatasetWriter(tmp_path / "d") as writer:
        writer.add({"x": 1})
    with pytest.raises(UsageError, match="d is closed"):
        writer.add({"x": 2})
    with pytest.raises(UsageError, match="d is closed"), writer:
        pass
    assert len(list((tmp_path / "d" / "shards").iterdir())) == 1


def test_what_could_not_be_written_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error of writing, columns may differ in length: handling it does not make a dataset of them."""

    def full(*args: Any) -> None:
        raise WriteError("disk full")

    def go_on() -> None:
        with DatasetWriter(tmp_path / "d", codec="none") as writer:
            for i in range(HOLD_SAMPLES):
                writer.add({"x": i})
            with monkeypatch.context() as patch:
                patch.setattr(ShardWriter, "add", full)
                with pytest.raises(WriteError, match="disk full"):
                    writer.add({"x": 5})
            with pytest.raises(WriteError, match="stays unfinished"):
                writer.add({"x": 6})

    with pytest.raises(WriteError, match="stays unfinished"):
        go_on()
    with pytest.raises(UnfinishedError):
        PackedDataset(tmp_path / "d")


def test_a_dataset_without_samples_is_an_error(tmp_path: Path) -> None:
    """An empty dataset is a mistake that training would meet much later."""
    with pytest.raises(SourceError, match="no sample"), DatasetWriter(tmp_path / "d"):
        pass


#: Writes so many named samples, and prints by how many bytes the memory of the process grew at most.
MEASURE = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from packer.writer import DatasetWriter

def most():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])

with DatasetWriter(sys.argv[1], codec="none") as writer:
    for number in range(int(sys.argv[2])):
        writer.add({"x": number}, name=f"a folder/of many names/{number * 7919 % 200_000:012}")
        if number == 1000:
            before = most()
print(most() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone tells the most memory a process had")
def test_names_take_little_memory(tmp_path: Path) -> None:
    """They go to the disk as they come, and are in memory once, as bytes, while their table is written."""
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "d"), "100000"]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown < 52 * 10**6
    dataset = PackedDataset(tmp_path / "d")
    numbers = [0, 1, 49_999, 99_999]
    names = [f"a folder/of many names/{number * 7919 % 200_000:012}" for number in numbers]
    assert dataset[names]["x"].tolist() == numbers
