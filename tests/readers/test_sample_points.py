"""Subsets of points: so many of every cloud, the same of every field, chosen anew at every visit."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.codecs import NAMED
from packer.errors import UsageError
from packer.format import Field, FrameRule
from readers import Crop, Loader, PackedDataset, PointSample, VoxelSample
from readers.source import source_of

LENGTHS = [50, 7, 1, 300, 16, 17, 33]


def _cloud(points: int, sample: int) -> dict[str, Any]:
    """Points that hold their sample and their own number, in every field."""
    number = np.arange(points)
    xyz = np.stack([np.full(points, sample), number, number % 7], axis=1).astype(np.float32)
    return {
        "rgb": np.stack([number % 256, number // 256, np.full(points, sample)], axis=1).astype(np.uint8),
        "xyz": xyz,
        "weight": number.astype(np.int64),
        "faces": np.zeros((sample, 3), np.int32),
        "label": np.int64(sample),
    }


def _packed(
    pack: Any, folder: Path, lengths: Sequence[int] = LENGTHS, codec: str = "none", rule: FrameRule | None = None
) -> Path:
    frame = {"codec": NAMED[codec], "frame": rule or FrameRule(samples=1)}
    fields = [
        Field(name="rgb", dtype="uint8", shape=(None, 3), **frame),
        Field(name="xyz", dtype="float32", shape=(None, 3), **frame),
        Field(name="weight", dtype="int64", shape=(None,), **frame),
        Field(name="faces", dtype="int32", shape=(None, 3)),
        Field(name="label", dtype="int64"),
    ]
    samples = [_cloud(length, i) for i, length in enumerate(lengths)]
    half = len(samples) // 2
    path: Path = pack(folder / "p", fields, [samples[:half], samples[half:]])
    return path


@settings(max_examples=30)
@given(
    codec=st.sampled_from(["none", "lz4", "bitshuffle", "zstd"]),
    rule=st.sampled_from([FrameRule(samples=1), FrameRule(samples=4), FrameRule(rows=5), FrameRule(rows=1)]),
    count=st.integers(1, 40),
    asked=st.lists(st.integers(0, len(LENGTHS) - 1), max_size=9),
)
def test_all_fields_give_the_same_points(pack: Any, codec: str, rule: FrameRule, count: int, asked: list[int]) -> None:
    """Points of the sample asked for, none twice unless there are too few, and then each as often as any other."""
    with tempfile.TemporaryDirectory() as folder:
        ds = PackedDataset(_packed(pack, Path(folder), LENGTHS, codec, rule), points=count)
        batch = ds[asked]
        xyz, rgb, weight = batch["xyz"], batch["rgb"], batch["weight"]
        assert (xyz.shape, rgb.shape, weight.shape) == ((len(asked), count, 3),) * 2 + ((len(asked), count),)
        assert (xyz.dtype, rgb.dtype, weight.dtype) == (torch.float32, torch.uint8, torch.int64)
        assert torch.equal(xyz[..., 1].long(), weight)
        assert torch.equal(rgb[..., 0] + 256 * rgb[..., 1].long(), weight)
        assert torch.equal(xyz[..., 2].long(), weight % 7)
        for i, number in enumerate(asked):
            assert (xyz[i, :, 0] == number).all()
            times = weight[i].unique(return_counts=True)[1]
            assert weight[i].max() < LENGTHS[number]
            assert len(times) == min(count, LENGTHS[number])
            assert times.max() - times.min() <= 1


def test_every_visit_has_points_of_its_own(pack: Any, tmp_path: Path) -> None:
    """A sample that is read twice gives two subsets; torch's seed brings the same again, whatever fields are read."""
    path = _packed(pack, tmp_path)
    ds = PackedDataset(path, points=PointSample(12, seed=1))
    torch.manual_seed(5)
    batch, one = ds[[3] * 20]["xyz"], ds[3]["xyz"]
    assert len(batch.unique(dim=0)) == 20
    torch.manual_seed(5)
    assert torch.equal(ds[[3] * 20]["xyz"], batch)
    assert torch.equal(ds[3]["xyz"], one)
    torch.manual_seed(5)
    assert torch.equal(PackedDataset(path, fields="xyz", points=PointSample(12, seed=1))[[3] * 20]["xyz"], batch)
    torch.manual_seed(5)
    assert not torch.equal(PackedDataset(path, points=12)[[3] * 20]["xyz"], batch)


def test_loaders_points_follow_from_seed_epoch_and_position(pack: Any, tmp_path: Path) -> None:
    """Inline and by threads, in batches of any size; a number that comes again gives other points."""
    path = _packed(pack, tmp_path, LENGTHS, "zstd", FrameRule(rows=5))

    def epoch(number: int, batch_size: int, threads: int) -> torch.Tensor:
        loader = Loader(PackedDataset(path, points=9), batch_size, sampler=[3, 0, 3, 6], threads=threads)
        loader.set_epoch(number)
        return torch.cat([batch["weight"] for batch in loader])

    wanted = epoch(1, 4, 0)
    assert torch.equal(epoch(1, 3, 2), wanted)
    assert not torch.equal(epoch(0, 4, 0), wanted)
    assert not torch.equal(wanted[0], wanted[2])


def test_every_point_is_as_likely(pack: Any, tmp_path: Path) -> None:
    """Over many visits each point of a cloud is chosen about equally often."""
    ds = PackedDataset(_packed(pack, tmp_path, [0, 40]), fields="weight", points=10)
    torch.manual_seed(0)
    counts = np.bincount(ds[[1] * 800]["weight"].numpy().ravel(), minlength=40)
    assert np.abs(counts - 200).max() < 6 * (200 * 0.75) ** 0.5


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_the_first_points(pack: Any, tmp_path: Path, codec: str) -> None:
    """In their order, in every field and at every visit; after the last the first follows again. None are drawn."""
    ds = PackedDataset(_packed(pack, tmp_path, codec=codec), points=PointSample(16, choose="first"))
    state = torch.get_rng_state()
    for batch in (ds[:], next(iter(Loader(ds, len(LENGTHS), seed=5)))):
        wanted = np.arange(16)[None] % np.array(LENGTHS)[:, None]
        assert np.array_equal(batch["weight"].numpy(), wanted)
        assert np.array_equal(batch["xyz"][..., 1].numpy(), wanted)
        assert batch["xyz"][:, 0, 0].tolist() == list(range(len(LENGTHS)))
    assert torch.equal(torch.get_rng_state(), state)
    assert not source_of(ds).draws


def test_only_frames_with_chosen_points_are_decoded(pack: Any, tmp_path: Path, decoded: list[int]) -> None:
    """Of a cloud in bands of rows, those without a chosen point are left alone, and none is decoded twice."""
    path = _packed(pack, tmp_path, [10, 2000], "zstd", FrameRule(rows=10))
    ds = PackedDataset(path, fields="weight", points=30)
    bands = len((ds[1]["weight"] // 10).unique())
    assert decoded == [80] * bands
    assert bands <= 30


def test_clouds_that_cannot_be_sampled_are_named(pack: Any, tmp_path: Path) -> None:
    """An empty cloud, and fields named together that have not one row a point."""
    path = _packed(pack, tmp_path, [5, 0, 6, 3])
    ds = PackedDataset(path, fields=["xyz", "rgb"], points=4)
    assert ds[[0, 2]]["xyz"].shape == (2, 4, 3)
    with pytest.raises(UsageError, match="sample 1: field 'xyz' has no points to choose 4 from"):
        _ = ds[[2, 1]]
    ds = PackedDataset(path, points=PointSample(4, fields=["xyz", "faces"]))
    with pytest.raises(UsageError, match="sample 2: field 'faces' has 2 rows and 'xyz' 6"):
        _ = ds[[3, 2]]


@pytest.mark.parametrize("points", [PointSample(4), VoxelSample(1)])
def test_a_field_of_the_cloud_with_one_sample_of_another_length_is_refused(
    pack: Any, tmp_path: Path, points: PointSample | VoxelSample
) -> None:
    """It would come whole in all samples; faces, whose lengths are of their own, do."""
    shapes = {"xyz": (None, 3), "label": (None,), "faces": (None, 3)}
    fields = [Field(name=name, dtype="float32", shape=shape) for name, shape in shapes.items()]
    lengths = [(5, 5, 2), (7, 7, 7), (9, 8, 4)]
    samples = [
        {"xyz": np.eye(own, 3, dtype="f4"), "label": np.ones(other, "f4"), "faces": np.ones((faces, 3), "f4")}
        for own, other, faces in lengths
    ]
    path = pack(tmp_path / "p", fields, [samples[:2], samples[2:]])
    ds = PackedDataset(path, points=points)
    for ask in (lambda: ds[0], lambda: next(iter(Loader(ds, 2)))):
        with pytest.raises(UsageError, match="sample 2: field 'label' has 8 rows and 'xyz' 9, and in most samples as"):
            ask()
    whole = PackedDataset(path, ["xyz", "faces"], points=points)[:]
    assert [len(faces) for faces in whole["faces"].to_list()] == [2, 7, 4]


def test_fixed_clouds_are_sampled_where_they_are_named(packed: Path, samples: list[dict[str, Any]]) -> None:
    """A field of fixed shape has points only if the user says so."""
    ds = PackedDataset(packed, fields=["x"], points=PointSample(3, fields=["x"]))
    found = ds[[4, 5]]["x"]
    assert found.shape == (2, 3)
    assert np.isin(found[0], samples[4]["x"]).all()
    with pytest.raises(UsageError, match="no field that is read is ragged in its first axis alone"):
        PackedDataset(packed, fields=["x"], points=3)


def test_a_number_of_numpy_and_one_name(pack: Any, tmp_path: Path) -> None:
    """A count is as good whatever it is of, also if the bytes of so many points do not fit into it; so is one name."""
    path = pack(
        tmp_path / "p", [Field(name="xyz", dtype="float32", shape=(None, 3))], [[{"xyz": np.eye(3, dtype="f4")}]]
    )
    for points in (np.uint8(200), PointSample(np.uint8(200), fields="xyz")):  # type: ignore[arg-type]
        found = PackedDataset(path, points=points)[0]["xyz"]  # type: ignore[arg-type]
        assert found.shape == (200, 3)
        assert (found.sum(1) == 1).all()


def test_what_cannot_be_sampled_is_refused_at_once(packed: Path) -> None:
    """Wrong counts, seeds and fields, and a field that would be cropped too."""
    for count in (0, -1, True):
        with pytest.raises(UsageError, match="a whole number from 1 on"):
            PackedDataset(packed, points=count)
    with pytest.raises(UsageError, match="a number of points or"):
        PackedDataset(packed, points=10.5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="seed -1"):
        PointSample(3, seed=-1)
    with pytest.raises(UsageError, match="points: choose 'last': 'random' or 'first'"):
        PointSample(3, choose="last")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no field 'abc' is read"):
        PackedDataset(packed, points=PointSample(3, fields=["abc"]))
    for name in ("caption", "picture", "label"):
        with pytest.raises(UsageError, match=f"'{name}' does not hold a row of fixed shape for each point"):
            PackedDataset(packed, points=PointSample(3, fields=[name]))


def test_crops_and_points_of_one_dataset(pack: Any, tmp_path: Path) -> None:
    """Each for fields of their own; together for one field they are refused."""
    fields = [Field(name="xyz", dtype="float32", shape=(None, 3)), Field(name="map", dtype="uint8", shape=(None, None))]
    samples = [{"xyz": np.ones((5 + i, 3), np.float32), "map": np.ones((4, 5 + i), np.uint8)} for i in range(3)]
    path = pack(tmp_path / "p", fields, [samples])
    batch = PackedDataset(path, crop=Crop(size=4, of="map"), points=7)[:]
    assert batch["xyz"].shape == (3, 7, 3)
    assert batch["map"].shape == (3, 4, 4)
    with pytest.raises(UsageError, match="do not go together for a field"):
        _ = PackedDataset(path, crop=Crop(size=2, of="xyz"), points=7)[0]
