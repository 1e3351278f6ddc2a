"""One point a voxel: of each voxel of every cloud, the same of every field, chosen anew at every visit."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer.codecs import NAMED
from packer.errors import UsageError
from packer.format import Field, FrameRule
from readers import PackedDataset, PointSample, Ragged, VoxelSample
from readers.compiled import loading

LENGTHS = [50, 7, 0, 300, 16]


def _cloud(points: int, sample: int) -> dict[str, Any]:
    """Points anywhere around the origin, with their numbers in two more fields."""
    xyz = np.random.default_rng(sample).normal(size=(points, 3)).astype(np.float32)
    number = np.arange(points)
    return {
        "rgb": np.stack([number % 256, number // 256, np.full(points, sample)], axis=1).astype(np.uint8),
        "xyz": xyz,
        "number": number,
        "faces": np.full((sample, 3), sample, np.int32),
        "label": np.int64(sample),
    }


def _packed(
    pack: Any,
    folder: Path,
    clouds: Sequence[dict[str, Any]],
    codec: str = "none",
    dtype: str = "float32",
    width: int = 3,
) -> Path:
    frame = {"codec": NAMED[codec], "frame": FrameRule(rows=20) if codec == "zstd" else FrameRule(samples=1)}
    fields = [
        Field(name="rgb", dtype="uint8", shape=(None, 3), **frame),
        Field(name="xyz", dtype=dtype, shape=(None, width), **frame),
        Field(name="number", dtype="int64", shape=(None,), **frame),
        Field(name="faces", dtype="int32", shape=(None, 3)),
        Field(name="label", dtype="int64"),
    ]
    half = len(clouds) // 2
    path: Path = pack(folder / "p", fields, [clouds[:half], clouds[half:]])
    return path


def _usual(pack: Any, folder: Path, codec: str = "none") -> Path:
    return _packed(pack, folder, [_cloud(length, i) for i, length in enumerate(LENGTHS)], codec)


def _voxels(xyz: NDArray[Any], size: float) -> list[tuple[int, ...]]:
    """The voxel of each point, by Python's exact arithmetic of integers."""
    return [tuple(map(int, row)) for row in np.floor(xyz[:, :3].astype(np.float64) / size).tolist()]


@settings(max_examples=30)
@given(
    codec=st.sampled_from(["none", "lz4", "zstd"]),
    choose=st.sampled_from(["random", "first"]),
    size=st.sampled_from([0.05, 0.3, 1, 100.0]),
    asked=st.lists(st.integers(0, len(LENGTHS) - 1), max_size=6),
)
def test_one_point_of_every_voxel(pack: Any, codec: str, choose: Any, size: float, asked: list[int]) -> None:
    """Every voxel that a cloud has points in gives one of them, in the order of the cloud; all fields give the same."""
    with tempfile.TemporaryDirectory() as folder:
        batch = PackedDataset(_usual(pack, Path(folder), codec), points=VoxelSample(size, choose))[asked]
        for name in ("rgb", "number"):
            assert torch.equal(batch[name].offsets, batch["xyz"].offsets)
        fields = [batch[name].to_list() for name in ("xyz", "rgb", "number")]
        for sample, xyz, rgb, number in zip(asked, *fields, strict=True):
            cloud = _cloud(LENGTHS[sample], sample)
            assert np.array_equal(xyz, cloud["xyz"][number])
            assert np.array_equal(rgb, cloud["rgb"][number])
            voxels = _voxels(cloud["xyz"], size)
            assert [voxels[i] for i in number.tolist()] == list(dict.fromkeys(voxels))
            if choose == "first":
                assert number.tolist() == sorted(voxels.index(voxel) for voxel in set(voxels))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [0.3, 1e-7])
@pytest.mark.parametrize("choose", ["random", "first"])
def test_machine_code_and_numpy_choose_the_same(
    pack: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, size: float, choose: Any
) -> None:
    """The points do not depend on whether the loop is compiled, for cells too many for one integer as well."""
    clouds = [_cloud(length, i) for i, length in enumerate(LENGTHS)]
    clouds = [{**cloud, "xyz": cloud["xyz"].astype(dtype)} for cloud in clouds]
    path = _packed(pack, tmp_path, clouds, dtype=dtype)
    read = []
    for loops in (lambda: None, loading.load):
        monkeypatch.setattr(loading, "loops", loops)
        torch.manual_seed(0)
        read.append(PackedDataset(path, points=VoxelSample(size, choose))[[0, 4, 2, 1, 4]]["number"])
    assert torch.equal(read[0].offsets, read[1].offsets)
    assert torch.equal(read[0].values, read[1].values)


def test_other_fields_stay_as_they_are(pack: Any, tmp_path: Path) -> None:
    """Labels, and lists of another length than the cloud, are whole; one sample is its points."""
    ds = PackedDataset(_usual(pack, tmp_path), points=VoxelSample(0.5))
    batch = ds[[3, 1]]
    assert batch["label"].tolist() == [3, 1]
    assert batch["faces"].values.tolist() == [[3] * 3] * 3 + [[1] * 3]
    one = ds[3]
    assert one["xyz"].shape == (len(one["number"]), 3)
    assert ds[2]["xyz"].shape == (0, 3)
    assert isinstance(ds[[]]["xyz"], Ragged)


def test_every_point_of_a_voxel_is_as_likely(pack: Any, tmp_path: Path) -> None:
    """Of a voxel of five points each is taken by about a fifth of the visits, whatever another voxel gives."""
    xyz = np.zeros((10, 3), np.float32)
    xyz[::2, 0] = 1
    clouds = [_cloud(1, 0), {**_cloud(10, 1), "xyz": xyz}]
    ds = PackedDataset(_packed(pack, tmp_path, clouds), fields=["xyz", "number"], points=VoxelSample(1))
    torch.manual_seed(0)
    found = ds[[1] * 2000]["number"].values.view(2000, 2)
    assert (found % 2 == torch.tensor([0, 1])).all()
    counts = torch.zeros(5, 5).index_put((found[:, 0] // 2, found[:, 1] // 2), torch.ones(2000), accumulate=True)
    assert (counts - 80).abs().max() < 5 * 80**0.5


def test_every_visit_draws_anew(pack: Any, tmp_path: Path) -> None:
    """A sample read twice gives other points; torch's seed brings them again; "first" gives the same ones for ever."""
    path = _usual(pack, tmp_path)
    ds = PackedDataset(path, points=VoxelSample(1))
    torch.manual_seed(5)
    one, other = ds[[3, 3]]["number"].to_list()
    assert not torch.equal(one, other)
    torch.manual_seed(5)
    assert torch.equal(PackedDataset(path, ["xyz", "number"], points=VoxelSample(1))[[3]]["number"].values, one)
    first = PackedDataset(path, points=VoxelSample(1, "first"))
    state = torch.get_rng_state()
    batch = first[[3, 3]]["number"]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(*batch.to_list())
    batch.values.zero_()
    batch.offsets.zero_()
    assert first[[3, 3]]["number"].values.any()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8"])
def test_coordinates_of_any_dtype(pack: Any, tmp_path: Path, dtype: str) -> None:
    """Real numbers of every dtype are coordinates, also with more columns after them."""
    xyz = np.random.default_rng(0).uniform(0, 9, (60, 4)).astype(dtype)
    cloud = {**_cloud(60, 0), "xyz": xyz}
    path = _packed(pack, tmp_path, [cloud, cloud], "none", dtype, width=4)
    found = PackedDataset(path, points=VoxelSample(3, "first"))[1]
    assert np.array_equal(found["xyz"].numpy(), xyz[found["number"]])
    assert [_voxels(xyz, 3)[i] for i in found["number"].tolist()] == list(dict.fromkeys(_voxels(xyz, 3)))


def test_large_and_negative_coordinates(pack: Any, tmp_path: Path) -> None:
    """Voxels on both sides of the origin are apart; those of coordinates of a map are as far apart as float64 is."""
    xyz = np.array([[-0.1, 0, 0], [0.1, 0, 0], [-0.9, 0, 0], [4.5e6, 0, 0.3], [4.5e6, 0, 1.2], [1e17, -1e17, 0]])
    cloud = {**_cloud(6, 0), "xyz": xyz}
    path = _packed(pack, tmp_path, [cloud, cloud], dtype="float64")
    assert PackedDataset(path, points=VoxelSample(1, "first"))[0]["number"].tolist() == [0, 1, 3, 4, 5]


@pytest.mark.parametrize(("value", "point"), [(np.nan, 3), (np.inf, 3), (-np.inf, 0), (3e38, 3)])
def test_points_without_a_voxel_are_named(pack: Any, tmp_path: Path, value: float, point: int) -> None:
    """NaN, infinite and immense coordinates are an error that says where they are."""
    xyz = np.zeros((5, 3), np.float32)
    xyz[point, 1] = value
    path = _packed(pack, tmp_path, [_cloud(4, 0), {**_cloud(5, 1), "xyz": xyz}])
    ds = PackedDataset(path, points=VoxelSample(0.1))
    with pytest.raises(UsageError, match=rf"sample 1: field 'xyz', point {point}: .* lies in no voxel of size 0.1"):
        _ = ds[[0, 1]]
    with pytest.raises(UsageError, match=rf"sample 1: field 'xyz', point {point}: "):
        _ = ds[1]
    assert len(ds[[0, 0]]["xyz"].to_list()) == 2


def test_what_cannot_be_chosen_is_refused_at_once(pack: Any, packed: Path, tmp_path: Path) -> None:
    """Wrong sizes and words, and fields that hold no coordinates."""
    assert VoxelSample(np.float32(0.5)).size == 0.5  # type: ignore[arg-type]
    for size in (0, -1, float("nan"), float("inf"), "1", True):
        with pytest.raises(UsageError, match="the edge of a voxel, a number above 0, is expected"):
            VoxelSample(size)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'random' or 'first' is expected"):
        VoxelSample(1, "last")  # type: ignore[arg-type]
    path = _usual(pack, tmp_path)
    with pytest.raises(UsageError, match=r"no field 'xyz' is read; there are rgb; .*VoxelSample\(\S+, of="):
        PackedDataset(path, ["rgb"], points=VoxelSample(1))
    for name in ("number", "label"):
        with pytest.raises(UsageError, match=f"field '{name}' is int64 of shape .*; points of 3 coordinates"):
            PackedDataset(path, points=VoxelSample(1, of=name))
    with pytest.raises(UsageError, match="PointSample or VoxelSample is expected"):
        PackedDataset(packed, points=1.5)  # type: ignore[arg-type]
    assert PackedDataset(path, points=PointSample(3))[3]["xyz"].shape == (3, 3)


@pytest.mark.parametrize("fields", [["xyz", "rgb"], ["rgb", "xyz"]])
def test_no_whole_cloud_stays_in_memory(pack: Any, tmp_path: Path, fields: list[str]) -> None:
    """Once their points were chosen, whichever field comes first, and where one field alone is read."""
    ds = PackedDataset(_usual(pack, tmp_path), fields, points=VoxelSample(0.5))
    for read in (lambda: ds[[0, 3]], lambda: ds.column("rgb")):
        read()
        gc.collect()
        clouds = [kept for kept in gc.get_objects() if type(kept) is Ragged and len(kept.values) >= 350]
        assert not clouds
