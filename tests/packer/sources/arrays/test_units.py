"""One group is one sample: names from the groups, ragged where shapes differ."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hdf5_files import flip, write_hdf5
from opened_sources import open_hdf5

from packer.errors import SourceError, UsageError


def write(path: Path, count: int, base: str = "") -> str:
    """`count` groups: `xyz` of differing length, `label`, `pose` (2, 2), `name`, `tags` of variable length."""
    with h5py.File(path, "w") as file:
        for i in range(count):
            group = file.create_group(f"{base}/s{i}")
            group["deep/xyz"] = np.full((i + 1, 3), i, ">f4")
            group["label"] = i
            group["pose"] = np.eye(2) * i
            group["name"] = f"n{i}"
            group.attrs["source"] = i
    return str(path)


def test_groups_are_samples_in_natural_order(tmp_path: Path) -> None:
    """Fixed, ragged, scalar and text fields; s2 comes before s10; shapes are known before reading."""
    source = open_hdf5(write(tmp_path / "a.h5", 12), samples="groups")
    assert len(source) == 12
    assert source.names == [f"s{i}" for i in range(12)]
    assert {f.name: (f.dtype, f.kind, f.shape) for f in source.fields} == {
        "deep.xyz": ("float32", "array", (None, 3)),
        "label": ("int64", "array", ()),
        "name": ("uint8", "text", (None,)),
        "pose": ("float64", "array", (2, 2)),
    }
    shapes = source.shapes("deep.xyz")
    assert shapes is not None
    assert shapes.tolist() == [[i + 1, 3] for i in range(12)]
    assert source.shapes("name") is None
    assert source.origin["attributes"]["s3"] == {"source": 3}
    (block,) = source.read()
    values: Any = block
    assert values["label"].tolist() == list(range(12))
    assert values["name"] == [f"n{i}" for i in range(12)]
    assert values["pose"].shape == (12, 2, 2)
    for i, xyz in enumerate(values["deep.xyz"]):
        assert xyz.dtype == np.float32
        assert np.array_equal(xyz, np.full((i + 1, 3), i))


def test_parts_pickle_and_read_late(tmp_path: Path) -> None:
    """A part holds its own samples, names and shapes."""
    write(tmp_path / "a.h5", 3, "data")
    write(tmp_path / "b.h5", 3, "data")
    source = open_hdf5(str(tmp_path / "*.h5"), samples="groups:/data", pick={"y": "label", "p": "/deep/xyz"})
    assert source.names == [f"{file}/data/s{n}" for file in "ab" for n in range(3)]
    part = pickle.loads(pickle.dumps(source.slice(2, 5)))
    assert part.names == ["a/data/s2", "b/data/s0", "b/data/s1"]
    assert part.shapes("p").tolist() == [[3, 3], [1, 3], [2, 3]]
    assert [label for block in part.read() for label in block["y"].tolist()] == [2, 0, 1]


def test_samples_that_differ_are_told_to_on_bad(tmp_path: Path) -> None:
    """A missing field or another dtype names the group; where `bad` returns, it is skipped."""
    path = write(tmp_path / "a.h5", 4)
    with h5py.File(path, "r+") as file:
        del file["s1/label"]
        del file["s2/pose"]
        file["s2/pose"] = np.eye(2, dtype="f4")
    with pytest.raises(
        SourceError, match=r"group /s1 does not fit most, such as group /s0 of a\.h5: field label \(.*\) is missing"
    ):
        open_hdf5(path, samples="groups")
    bad: list[SourceError] = []
    assert open_hdf5(path, samples="groups", bad=bad.append).names == ["s0", "s3"]
    assert len(bad) == 2
    path = write_hdf5(tmp_path / "b.h5", {"v0": np.zeros((2, 3)), "v1": np.zeros((2, 3), "f4")})
    with pytest.raises(SourceError, match=r"values is array float32 \[any, any\], not array float64 .*; pick"):
        open_hdf5(path, samples="datasets")


def test_a_damaged_sample_is_numbered(tmp_path: Path) -> None:
    """Samples before it are yielded, reading goes on behind it."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for i in range(5):
            file.create_dataset(f"g{i}/x", data=np.full(100, i, "u1"), chunks=(100,), fletcher32=True)
        where = file["g2/x"].id.get_chunk_info(0).byte_offset
    flip(path, where)
    source = open_hdf5(str(path), samples="groups")
    blocks = []
    with pytest.raises(SourceError, match="group /g2: reading failed") as caught:
        blocks.extend(source.read())
    assert caught.value.sample == 2
    assert sum(len(block["x"]) for block in blocks) == 2
    assert sum(len(block["x"]) for block in source.slice(3, 5).read()) == 2


def test_wrong_requests_are_usage_errors(tmp_path: Path) -> None:
    """Another word for samples, an axis beside groups, a base that is no group."""
    path = write(tmp_path / "a.h5", 2)
    with pytest.raises(UsageError, match=r"take rows or files or datasets or groups\[:PATTERN\]"):
        open_hdf5(path, samples="group")
    with pytest.raises(UsageError, match="--axis is for rows"):
        open_hdf5(path, samples="groups", axis=1)
    with pytest.raises(SourceError, match="holds no groups that fit /nope: it holds /s0, /s1"):
        open_hdf5(path, samples="groups:/nope")
    with pytest.raises(SourceError, match="holds no groups"):
        open_hdf5(path, samples="groups:/s0/deep")


def test_what_belongs_to_no_sample_is_named(tmp_path: Path) -> None:
    """A dataset next to the groups of samples is skipped only where --skip names it, or a group above it."""
    path = str(tmp_path / "episode.h5")
    with h5py.File(path, "w") as file:
        file["action"] = np.zeros((4, 2))
        file["mask/train"] = np.arange(2)
        file["type"] = np.dtype("f4")
        for name in ("demo_0", "demo_1"):
            file[f"data/{name}/qpos"] = np.zeros((4, 3))
        file["data/note of mine"] = 1
    named = r"episode\.h5: /action, /mask, /data/note of mine belong to no sample.*Leave it out with (--skip .*)"
    with pytest.raises(SourceError, match=named) as caught:
        open_hdf5(path, samples="groups:/data")
    assert "with --skip /action --skip /mask --skip '/data/note of mine', or" in str(caught.value)
    source = open_hdf5(path, samples="groups:/data", skip=["/action", "mask", "/data/note of mine"])
    assert source.names == ["data/demo_0", "data/demo_1"]
    with pytest.raises(SourceError, match=r"/action belongs to no sample"):
        open_hdf5(path, samples="groups:/data", skip=["mask", "/data/note of mine"])


def test_files_that_differ_in_their_suffix_are_samples_of_two_names(tmp_path: Path) -> None:
    """The names of run.1 and run.2 keep what comes after the dot, which tells them apart."""
    for number in (1, 2):
        write_hdf5(tmp_path / f"run.{number}", {"x": np.arange(number)})
    assert open_hdf5(str(tmp_path), samples="files").names == ["run.1", "run.2"]
