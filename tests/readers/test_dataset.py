"""PackedDataset: samples and batches by number and by name, fields chosen, transforms, folders that are no dataset."""

from __future__ import annotations

import gc
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import listed, plain
from torch.utils import _pytree as pytree
from torch.utils.data import ConcatDataset, DataLoader, Subset

from packer.convert import ConvertOptions, convert
from packer.errors import (
    DamagedError,
    DatasetError,
    MissingNameError,
    SampleIndexError,
    UnfinishedError,
    UsageError,
)
from packer.format import Field, Shard
from packer.sources import SourceOptions
from packer.writer import DatasetWriter
from readers import Loader, Mix, PackedDataset, Windows
from readers.valid import remark

Sample = dict[str, Any]


def _check(found: Sample, wanted: Sample) -> None:
    """Holds a sample that was read against what was packed, images with their channels last."""
    assert found
    for name, value in found.items():
        held = value if isinstance(value, str) or name not in ("lr", "depth", "picture") else value.permute(1, 2, 0)
        assert plain(held) == plain(wanted[name])


def test_one_sample_by_number_and_by_name(packed: Path, samples: list[Sample]) -> None:
    """Every sample, counted from either end or named, is the one that was packed."""
    ds = PackedDataset(packed)
    assert len(ds) == len(samples)
    assert len(ds.manifest.shards) > 2
    for number, sample in enumerate(samples):
        _check(ds[number], sample)
        _check(ds[f"a/{number}"], sample)
        _check(ds[number - len(samples)], sample)


@pytest.mark.parametrize(
    ("index", "numbers"),
    [
        ([5, 3, 5, -1], [5, 3, 5, 59]),
        (slice(10, 20, 3), [10, 13, 16, 19]),
        (range(58, 2, -20), [58, 38, 18]),
        (["a/7", "a/3", "a/7"], [7, 3, 7]),
        (np.array([4, 40], np.uint8), [4, 40]),
        (torch.tensor([59, 0]), [59, 0]),
        (np.arange(60) % 20 == 1, [1, 21, 41]),
        ([], []),
        (slice(None), list(range(60))),
    ],
)
def test_a_batch_is_in_the_order_asked(packed: Path, samples: list[Sample], index: Any, numbers: list[int]) -> None:
    """A batch holds what was asked for, in that order, as often as it was asked for."""
    batch = {name: listed(value) for name, value in PackedDataset(packed)[index].items()}
    for at, number in enumerate(numbers):
        _check({name: values[at] for name, values in batch.items()}, samples[number])
    assert {len(values) for values in batch.values()} == {len(numbers)}


def test_names_and_numbers_that_are_not_there(packed: Path, rows: Path) -> None:
    """Are a KeyError and an IndexError, of one and of many; and names where there are none."""
    ds = PackedDataset(packed)
    for index, error, said in (
        (60, IndexError, "sample 60 of 60"),
        ([0, -61], SampleIndexError, "sample -61 of 60"),
        ("a/60", KeyError, "'a/60'"),
        (["a/1", "b"], MissingNameError, "'b'"),
        (1.0, TypeError, "float"),
    ):
        with pytest.raises(error, match=said):
            _ = ds[index]
    with pytest.raises(DatasetError, match="no names"):
        _ = PackedDataset(rows)["a"]


def test_shards_without_samples_are_passed_over(pack: Any, tmp_path: Path) -> None:
    """At the start, in the middle and at the end they leave the numbers of the others alone; iterating ends."""
    field = Field(name="y", dtype="int64")
    shards = [[{"y": np.array(number)} for number in numbers] for numbers in ([], [0, 1], [], [2, 3, 4], [])]
    ds = PackedDataset(pack(tmp_path / "p", [field], shards, names=[f"n{i}" for i in range(5)]))
    assert [int(sample["y"]) for sample in ds] == [int(ds[f"n{i}"]["y"]) for i in range(5)] == list(range(5))


def test_names_are_a_sequence(packed: Path, rows: Path, tmp_path: Path) -> None:
    """Names are found by number, in slices, and backwards; a dataset without names has None."""
    names, wanted = PackedDataset(packed).names, [f"a/{i}" for i in range(60)]
    assert names is not None
    assert list(names) == names == wanted
    assert (names[3], names[-1], names[57:], names[[2, 0]]) == ("a/3", "a/59", wanted[57:], ["a/2", "a/0"])
    assert ["a/5" in names, "b" in names, 5 in names] == [True, False, False]
    assert names.index("a/9") == 9
    with pytest.raises(ValueError, match="'zz'"):
        names.index("zz")
    with pytest.raises(IndexError):
        _ = names[60]
    assert repr(names) == "<60 names: 'a/0', 'a/1', 'a/2', ...>"
    assert pickle.loads(pickle.dumps(names))[3] == "a/3"
    assert PackedDataset(rows).names is None
    with DatasetWriter(tmp_path / "p") as writer:
        for name in "abc":
            writer.add({"x": np.int64(0)}, name=name)
    assert repr(PackedDataset(tmp_path / "p").names) == "<3 names: 'a', 'b', 'c'>"


def test_fields_and_repr_tell_what_there_is(packed: Path) -> None:
    """The schema by field, and a line for people."""
    ds = PackedDataset(packed)
    assert list(ds.fields) == ["x", "label", "lr", "depth", "xyz", "picture", "caption"]
    assert ds.fields["lr"].shape == (6, 5, 3)
    assert "60 samples of x, label" in repr(ds)


def test_chosen_fields_come_alone_and_in_the_order_chosen(packed: Path, samples: list[Sample]) -> None:
    """`fields` chooses and orders; the name of one field is enough."""
    ds = PackedDataset(packed, fields=["label", "x"])
    assert list(ds[3]) == list(ds[[1, 2]]) == list(ds.fields) == ["label", "x"]
    assert int(ds[3]["label"]) == samples[3]["label"]
    assert list(PackedDataset(packed, fields="label")[[1]]) == ["label"]


def test_an_unknown_field_is_a_usage_error(packed: Path) -> None:
    """The message names the field and lists those there are."""
    with pytest.raises(UsageError, match=r"no field 'hr'.*x, label, lr"):
        PackedDataset(packed, fields=["hr"])


def test_other_columns_are_not_read(packed: Path, tmp_path: Path) -> None:
    """With one field chosen, what another column holds makes no difference."""
    folder = shutil.copytree(packed, tmp_path / "copy")
    whole = PackedDataset(packed)
    for number, shard in enumerate(sorted((folder / "shards").iterdir())):
        data = bytearray(shard.read_bytes())
        with Shard(shard) as opened:
            index = opened.index(2, whole.fields["lr"], whole.manifest.shards[number].samples)
        for at, end in zip(index.chunk_at.tolist(), index.arrays["chunks"][:, 2].tolist(), strict=True):
            data[at : at + int(end)] = b"\xff" * int(end)
        shard.write_bytes(data)
    del index
    others = [name for name in whole.fields if name != "lr"]
    damaged = PackedDataset(folder, fields=others)[:]
    for name, value in whole[:].items():
        if isinstance(value, torch.Tensor) and name != "lr":
            assert torch.equal(damaged[name], value)
    with pytest.raises(DamagedError, match="'lr'"):
        _ = PackedDataset(folder, fields=["lr"])[:]


def test_images_are_channels_first_without_a_copy(packed: Path, samples: list[Sample]) -> None:
    """Batches are (B, C, H, W) and samples (C, H, W), contiguous in channels_last memory."""
    ds = PackedDataset(packed, fields=["lr", "depth", "picture"])
    batch = ds[[2, 1, 0]]
    assert batch["lr"].shape == (3, 3, 6, 5)
    assert batch["depth"].shape == (3, 1, 4, 7)
    assert batch["depth"].dtype == torch.uint16
    for name in ("lr", "depth"):
        assert batch[name].is_contiguous(memory_format=torch.channels_last)
        assert ds[0][name][None].is_contiguous(memory_format=torch.channels_last)
    assert isinstance(batch["picture"], list)
    for image, number in zip(batch["picture"], [2, 1, 0], strict=True):
        assert image.shape == samples[number]["picture"].transpose(2, 0, 1).shape
        assert image[None].is_contiguous(memory_format=torch.channels_last)
    assert ds[4]["picture"].shape == samples[4]["picture"].transpose(2, 0, 1).shape


@pytest.mark.parametrize("index", [3, "a/3", [3, 4], slice(None), list(range(60)) * 20])
def test_what_is_handed_out_is_the_callers_own(packed: Path, samples: list[Sample], index: Any) -> None:
    """Writing to what was read neither crashes nor changes what is read next, from this dataset or another."""
    ds = PackedDataset(packed)
    for _ in range(2):
        batch = ds[index]
        for tensor in pytree.tree_leaves(batch):
            if isinstance(tensor, torch.Tensor):
                tensor.zero_()
    _check(ds[3], samples[3])
    _check(PackedDataset(packed)[4], samples[4])


def test_a_transform_is_called_once_on_what_is_handed_out(packed: Path) -> None:
    """It always gets a batch, of one for one sample, however it is asked for."""
    seen: list[Any] = []

    def note(value: dict[str, Any]) -> dict[str, Any]:
        seen.append(value)
        return {"twice": value["x"] * 2}

    ds = PackedDataset(packed, fields=["x"], batch_transform=note)
    plain = PackedDataset(packed, fields=["x"])
    assert torch.equal(ds[4]["twice"], plain[4]["x"] * 2)
    assert len(seen) == 1
    assert seen[0]["x"].shape == (1, 5)
    assert torch.equal(ds[[4, 5]]["twice"], plain[[4, 5]]["x"] * 2)
    assert len(seen) == 2
    assert seen[1]["x"].shape == (2, 5)
    items = ds.__getitems__([4, 5])
    assert len(seen) == 3
    assert [torch.equal(item["twice"], plain[i]["x"] * 2) for item, i in zip(items, [4, 5], strict=True)] == [True] * 2
    assert len(seen) == 3


def test_a_pickle_is_small_and_reads_alike(packed: Path, samples: list[Sample]) -> None:
    """Under 10 kB, before and after reading; fields, transform and attributes of one's own go along."""
    ds = PackedDataset(packed, fields=["label", "x"], sample_transform=len)
    fresh = pickle.dumps(ds)
    _ = ds[3], ds["a/3"]
    ds.note = "mine"  # type: ignore[attr-defined]
    used = pickle.dumps(ds)
    assert max(len(fresh), len(used)) < 10_000
    again = pickle.loads(used)
    assert list(again.fields) == ["label", "x"]
    assert again.note == "mine"
    assert again[3] == 2
    again.sample_transform = None
    _check(again["a/9"], samples[9])


def test_a_field_is_no_index(packed: Path) -> None:
    """Who asks the dataset for a field is told to ask a sample or a batch for it; other names are just missing."""
    ds = PackedDataset(packed)
    for index in ("label", ["a/0", "label"]):
        with pytest.raises(MissingNameError, match=r"'label', but a field is: .*, as in ds\[3\]\['label'\]"):
            ds[index]
    with pytest.raises(MissingNameError, match=rf"^{packed}: no sample is named 'labels'; the first name is 'a/0'"):
        ds["labels"]
    with pytest.raises(MissingNameError, match=r"'a/1' is not among the chosen samples; the first name is 'a/7'"):
        ds.select([7, 3])["a/1"]
    with pytest.raises(SampleIndexError, match="there are no samples to index"):
        ds.select([])[0]
    with pytest.raises(TypeError, match="a Mix gives one sample by its number"):
        _ = Mix({ds: 1})[0:3]  # type: ignore[index]


def test_what_nothing_would_follow_cannot_be_set(packed: Path) -> None:
    """Attributes that decide what is read are set once; names of earlier versions are refused with the new ones."""
    ds = PackedDataset(packed)
    for name in ("fields", "crop", "points", "windows", "split", "extras", "verify"):
        with pytest.raises(UsageError, match=f"{name} of a PackedDataset cannot be changed"):
            setattr(ds, name, None)
    for name, new in (("transform", "batch_transform=f.* or sample_transform=f"), ("sample_points", "called points")):
        with pytest.raises(UsageError, match=new):
            setattr(ds, name, None)
        with pytest.raises(UsageError, match=f"takes no {name}: .*{new}"):
            PackedDataset(packed, **{name: len})
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        PackedDataset(packed, colour=1)
    with pytest.raises(TypeError, match="positional"):
        PackedDataset(packed, ["x"], len)  # type: ignore[misc]


class Halves(PackedDataset):
    """A dataset of one's own, made from other arguments."""

    def __init__(self, path: Path, factor: float) -> None:
        super().__init__(path, fields=["x"])
        self.factor = factor

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)["x"] * self.factor


def test_a_subclass_pickles_whole(packed: Path, samples: list[Sample]) -> None:
    """A subclass with arguments and attributes of its own survives the way to a worker."""
    again = pickle.loads(pickle.dumps(Halves(packed, 0.5)))
    assert np.array_equal(again[3].numpy(), samples[3]["x"] / 2)


def test_samples_that_a_subclass_makes_are_read_by_it(packed: Path, samples: list[Sample]) -> None:
    """By torch's DataLoader one by one; what reads whole batches would leave its `__getitem__` out, and refuses it."""
    halves = Halves(packed, 0.5)
    wanted = np.stack([sample["x"] / 2 for sample in samples])
    for dataset in (halves, Subset(halves, range(len(halves))), ConcatDataset([halves])):
        assert np.array_equal(next(iter(DataLoader(dataset, len(halves)))).numpy(), wanted)
    assert isinstance(halves + PackedDataset(packed), ConcatDataset)
    for make in (Loader, lambda dataset: Mix({dataset: 1})):
        with pytest.raises(UsageError, match=r"not a Halves; .* their own __getitem__"):
            make(halves)


def test_a_change_of_folder_does_no_harm(
    packed: Path, samples: list[Sample], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A relative path means what it meant when the dataset was made, though shards are opened later."""
    monkeypatch.chdir(packed.parent)
    ds = PackedDataset(packed.name)
    monkeypatch.chdir(tmp_path)
    _check(ds["a/2"], samples[2])


def test_nothing_is_opened_before_it_is_needed(packed: Path) -> None:
    """Making a dataset maps no shard; when the last user is gone, none is mapped."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no list of maps on this system")

    def is_mapped() -> bool:
        return str(packed) in maps.read_text()

    ds = PackedDataset(packed)
    assert not is_mapped()
    _ = ds[0], ds["a/1"]
    assert is_mapped()
    del ds
    gc.collect()
    assert not is_mapped()


# Folders that are no dataset, or not whole.


def test_a_folder_that_is_no_dataset_is_a_clear_error(tmp_path: Path) -> None:
    """Nothing there, a file, and a folder of something else are told apart."""
    with pytest.raises(DatasetError, match="does not exist"):
        PackedDataset(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DatasetError, match="is a file"):
        PackedDataset(tmp_path / "file")
    with pytest.raises(DatasetError, match="packer convert"):
        PackedDataset(tmp_path)


def test_an_unfinished_dataset_says_so(tmp_path: Path) -> None:
    """A writer that was left by an exception leaves a folder that says how far it got."""

    def stop() -> None:
        with DatasetWriter(tmp_path / "p", shard_size=1000) as writer:
            for number in range(200):
                writer.add({"x": np.full(100, number)})
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stop()
    with pytest.raises(UnfinishedError, match=r"unfinished: .* shards are done"):
        PackedDataset(tmp_path / "p")


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    """A copy of the dataset, to be damaged."""
    return shutil.copytree(packed, tmp_path / "copy")


def _first_shard(folder: Path) -> Path:
    return min((folder / "shards").iterdir())


def test_a_missing_shard_is_an_error_that_names_it(copy: Path) -> None:
    """Found when the shards are opened, before anything is handed out."""
    _first_shard(copy).unlink()
    with pytest.raises(DamagedError, match=r"00000\.lmdb: it is missing"):
        _ = PackedDataset(copy)[59]


def test_a_missing_or_damaged_table_of_names_is_an_error(copy: Path, samples: list[Sample]) -> None:
    """Numbers still work; names say what is wrong with their file."""
    path = copy / "names.lmdb"
    path.write_bytes(path.read_bytes()[:-1])
    ds = PackedDataset(copy)
    _check(ds[1], samples[1])
    with pytest.raises(DamagedError, match=r"names\.lmdb"):
        _ = ds["a/1"]
    path.unlink()
    with pytest.raises(DamagedError, match=r"names\.lmdb: it is missing"):
        _ = ds["a/1"]


def test_shapes_of_all_samples(packed: Path, samples: list[Sample]) -> None:
    """The shapes of a field are those of the arrays that were packed, and fields without shapes are refused."""
    ds = PackedDataset(packed)
    for name in ("x", "lr", "xyz", "picture"):
        assert ds.shapes(name).tolist() == [list(sample[name].shape) for sample in samples]
    for name in ("nothing", "caption"):
        with pytest.raises(UsageError, match=f"no field '{name}' with shapes"):
            ds.shapes(name)


@pytest.mark.parametrize("options", [{}, {"samples": [9, 3, 30]}, {"points": 2, "samples": [1, 2, 3]}])
def test_a_column_is_a_batch_of_all(packed: Path, options: dict[str, Any]) -> None:
    """`column` gives each field, and each extra, as a batch of all samples that are read has it, and draws nothing."""
    ds = PackedDataset(packed, extras=("name", "number"), **options)
    batch = next(iter(Loader(ds, len(ds))))
    state = torch.get_rng_state()
    columns = {name: ds.column(name) for name in batch}
    assert torch.equal(torch.get_rng_state(), state)
    assert plain(columns) == plain(batch)
    with pytest.raises(UsageError, match="no field 'labels' is read; there are x, label"):
        ds.column("labels")


def test_labels_by_the_words_of_torchvision(tmp_path: Path, packed: Path, rows: Path) -> None:
    """`targets` are the labels of all items, of a split and of windows too; `class_to_idx` the numbers of classes."""
    for number, kind in enumerate(["owl", "cat", "owl", "dog"]):
        folder = tmp_path / "files" / kind
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{number}.npy", np.arange(number + 2))
    source = SourceOptions(samples="files", label="folder")
    options = ConvertOptions(source=source, splits={"owls": "owl/*"}, workers=0)
    convert(tmp_path / "files", tmp_path / "d", options)
    ds = PackedDataset(tmp_path / "d")
    assert ds.class_to_idx == {"cat": 0, "dog": 1, "owl": 2}
    assert ds.targets == [int(sample["label"]) for sample in ds] == [0, 1, 2, 2]
    assert PackedDataset(tmp_path / "d", split="owls").targets == [2, 2]
    windows = PackedDataset(tmp_path / "d", windows=Windows(3))
    assert windows.targets == windows[:]["label"].tolist()
    again = pickle.loads(pickle.dumps(ds))
    assert "targets" not in vars(again)
    assert again.targets == ds.targets
    assert PackedDataset(packed).targets == [i * i - 50 for i in range(60)]
    assert PackedDataset(packed).class_to_idx is None
    assert PackedDataset(rows).targets is PackedDataset(packed, ["x"]).targets is None


def test_targets_of_labels_in_one_column_and_of_texts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Labels (n, 1) are taken as they are; labels that are text have no numbers, which is said."""
    remark.cache_clear()
    labels: dict[str, list[Any]] = {"column": [np.array([n]) for n in range(4)], "text": list("abca")}
    for name, values in labels.items():
        with DatasetWriter(tmp_path / name) as writer:
            for value in values:
                writer.add({"label": value})
    assert PackedDataset(tmp_path / "column").targets == [0, 1, 2, 3]
    assert not caplog.records
    assert PackedDataset(tmp_path / "text").targets is None
    assert "--classes label" in caplog.text
