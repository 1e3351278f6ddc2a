"""Layouts that people train on, packed with the unit that they have and read back; with the wrong one, what is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from opened_sources import open_hdf5

from packer.cli import main
from packer.convert import Report, convert
from packer.errors import SourceError, UsageError
from packer.export import export
from packer.sources import SourceOptions
from readers import PackedDataset

RNG = np.random.default_rng(0)
#: Steps, slices, points or columns of each sample.
LENGTHS = (5, 3, 8)

Sample = dict[str, Any]
Layout = Callable[[Path], dict[str, Sample]]


def floats(*shape: int) -> NDArray[np.float32]:
    return RNG.normal(size=shape).astype(np.float32)


def put(group: h5py.Group, sample: Sample) -> None:
    """Write a sample's fields as datasets, dots as groups."""
    for name, value in sample.items():
        group[name.replace(".", "/")] = value


def aloha(folder: Path) -> dict[str, Sample]:
    """ALOHA: a file an episode, `action` beside the observations."""
    samples = {}
    for n, steps in enumerate(LENGTHS):
        sample = {
            "action": floats(steps, 14),
            "observations.images.cam_high": RNG.integers(0, 255, (steps, 6, 8, 3), np.uint8),
            "observations.qpos": floats(steps, 14),
            "observations.qvel": floats(steps, 14),
        }
        with h5py.File(folder / f"episode_{n}.hdf5", "w") as file:
            file.attrs["sim"] = True
            put(file, sample)
        samples[f"episode_{n}"] = sample
    return samples


def fastmri(folder: Path) -> dict[str, Sample]:
    """FastMRI: complex volumes of several widths, with a header in XML."""
    samples = {}
    for n, slices in enumerate(LENGTHS):
        width = 10 + n
        sample = {
            "ismrmrd_header": f"<xml>{n}</xml>",
            "kspace": (floats(slices, 2, 12, width) + 1j * floats(slices, 2, 12, width)).astype(np.complex64),
            "reconstruction_rss": floats(slices, 6, 6),
        }
        with h5py.File(folder / f"file100000{n}.h5", "w") as file:
            put(file, sample)
            file.attrs["max"] = float(n) / 3
            file.attrs["patient_id"] = f"p{n}"
        samples[f"file100000{n}"] = sample
    return samples


def clam(folder: Path) -> dict[str, Sample]:
    """CLAM: a file a slide, of as many patches as it has."""
    samples = {}
    for n, patches in enumerate(LENGTHS):
        sample = {"coords": RNG.integers(0, 9999, (patches, 2)), "features": floats(patches, 16)}
        with h5py.File(folder / f"slide_{n}.h5", "w") as file:
            put(file, sample)
        samples[f"slide_{n}"] = sample
    return samples


def utterances(folder: Path) -> dict[str, Sample]:
    """Speech: a file an utterance, whose fields have axes of their own."""
    samples = {}
    for n, frames in enumerate(LENGTHS):
        sample = {"feats": floats(frames, 80), "wave": RNG.integers(-99, 99, frames * 160, np.int16)}
        with h5py.File(folder / f"utt{n}.h5", "w") as file:
            put(file, sample)
        samples[f"utt{n}"] = sample
    return samples


def features(folder: Path) -> dict[str, Sample]:
    """Speech: one file with a dataset an utterance, below its speaker."""
    samples = {f"spk{n % 2}/utt{n}": {"values": floats(frames, 4)} for n, frames in enumerate(LENGTHS)}
    with h5py.File(folder / "feats.h5", "w") as file:
        for name, sample in samples.items():
            file[name] = sample["values"]
    return dict(sorted(samples.items()))


def robomimic(folder: Path) -> dict[str, Sample]:
    """Robomimic and LIBERO: `data/demo_i`, with lists of names below `mask`."""
    samples = {}
    with h5py.File(folder / "demo.hdf5", "w") as file:
        for n, steps in enumerate(LENGTHS):
            sample = {
                "actions": floats(steps, 7),
                "dones": np.arange(steps) == steps - 1,
                "obs.agentview_image": RNG.integers(0, 255, (steps, 8, 8, 3), np.uint8),
                "obs.robot0_eef_pos": floats(steps, 3),
            }
            group = file.create_group(f"data/demo_{n}")
            put(group, sample)
            group.attrs["num_samples"] = steps
            samples[f"data/demo_{n}"] = sample
        file["mask/train"] = np.array([b"demo_0", b"demo_2"])
        file["mask/valid"] = np.array([b"demo_1"])
    return samples


def maniskill(folder: Path) -> dict[str, Sample]:
    """ManiSkill: `traj_i`, whose observations are one step longer than its actions."""
    samples = {}
    with h5py.File(folder / "trajectory.h5", "w") as file:
        for n, steps in enumerate(LENGTHS):
            sample = {
                "actions": floats(steps, 8),
                "obs.agent.qpos": floats(steps + 1, 9),
                "success": np.ones(steps, bool),
            }
            put(file.create_group(f"traj_{n}"), sample)
            samples[f"traj_{n}"] = sample
    return samples


def hloc(folder: Path) -> dict[str, Sample]:
    """Hloc: a group a picture, named as the picture's file."""
    samples = {}
    with h5py.File(folder / "feats-superpoint.h5", "w") as file:
        for n, points in enumerate(LENGTHS):
            sample = {"descriptors": floats(16, points).astype(np.float16), "keypoints": floats(points, 2)}
            put(file.create_group(f"db/im{n}.jpg"), sample)
            samples[f"db/im{n}.jpg"] = sample
    return samples


#: Each layout with its unit, and another with what is said of it.
LAYOUTS: list[tuple[Layout, str, str, str]] = [
    (aloha, "files", "groups", "/action belongs to no sample.*--skip /action.*--samples files"),
    (fastmri, "files", "rows", "--samples files"),
    (clam, "files", "groups", "no groups"),
    (utterances, "files", "rows", "no common sample axis.*--samples files"),
    (features, "datasets", "rows", "no common sample axis.*--samples"),
    (robomimic, "groups", "rows", "no common sample axis.*--samples groups"),
    (robomimic, "groups:/data/*", "groups:/data/*/obs", "belong to no sample"),
    (maniskill, "groups", "datasets", "does not fit"),
    (hloc, "groups", "datasets", "does not fit"),
    (hloc, "groups:/*/*", "rows", "no common sample axis"),
]


def packed(folder: Path, out: Path, **options: Any) -> Report:
    return convert(str(folder), out, workers=0, source=SourceOptions(**options))


def assert_holds(dataset: PackedDataset, expected: dict[str, Sample]) -> None:
    """Every sample, under its name and in this order, is what was written."""
    assert dataset.names is not None
    assert list(dataset.names) == list(expected)
    for name, sample in expected.items():
        found = dataset[name]
        assert set(found) == set(sample)
        for field, value in sample.items():
            if isinstance(value, str):
                assert found[field] == value
            else:
                assert found[field].numpy().dtype == value.dtype
                assert np.array_equal(found[field].numpy(), value)


@pytest.mark.parametrize(("layout", "unit", "wrong", "said"), LAYOUTS)
def test_every_layout(tmp_path: Path, layout: Layout, unit: str, wrong: str, said: str) -> None:
    """With its unit every sample comes back under the path of the unit; with another the error says what to do."""
    (tmp_path / "in").mkdir()
    expected = layout(tmp_path / "in")
    packed(tmp_path / "in", tmp_path / "out", samples=unit)
    assert_holds(PackedDataset(tmp_path / "out"), expected)
    with pytest.raises((SourceError, UsageError), match=f"(?s){said}"):
        packed(tmp_path / "in", tmp_path / "wrong", samples=wrong)


def test_rows_of_files_that_may_be_samples(tmp_path: Path) -> None:
    """Files of different lengths are rows if nobody says otherwise, and the plan says so."""
    aloha(tmp_path)
    (note,) = open_hdf5(str(tmp_path)).remarks
    assert note == "3 files of 3 to 8 rows: each row is a sample; --samples files makes each file one"
    assert not open_hdf5(str(tmp_path / "episode_0.hdf5")).remarks


def test_plan_says_what_it_took(tmp_path: Path) -> None:
    """`packer plan` shows the doubt; with the unit named there is none; a unit that HDF5 has not lists those it has."""
    clam(tmp_path)
    run = CliRunner().invoke(main, ["plan", str(tmp_path)])
    assert "each row is a sample; --samples files makes each file one" in " ".join(run.stdout.split())
    assert "note" not in CliRunner().invoke(main, ["plan", str(tmp_path), "--samples", "files"]).stdout
    run = CliRunner().invoke(main, ["plan", str(tmp_path), "--samples", "folders"])
    assert run.exit_code == 2
    assert "take rows or files or datasets or groups[:PATTERN]" in run.stderr


def test_groups_of_several_depths_are_samples(tmp_path: Path) -> None:
    """Pictures of folders within folders: each group that holds datasets is one, whatever lies above it."""
    names = ["db/a.jpg", "query/night/b.jpg", "query/night/c.jpg"]
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for n, name in enumerate(names):
            file[f"{name}/keypoints"] = floats(n, 2)
    assert open_hdf5(str(tmp_path / "f.h5"), samples="groups").names == names
    with pytest.raises(SourceError, match="/query belongs to no sample"):
        open_hdf5(str(tmp_path / "f.h5"), samples="groups:/*/*.jpg")


def test_rows_and_groups_that_are_equally_likely(tmp_path: Path) -> None:
    """Numbered groups of one length are rows or samples: the user is asked, with both commands."""
    expected = {}
    with h5py.File(tmp_path / "burgers.h5", "w") as file:
        for n in range(3):
            file[f"{n:04d}/data"] = floats(5, 4)
            expected[f"{n:04d}"] = {"data": file[f"{n:04d}/data"][()]}
    path = str(tmp_path / "burgers.h5")
    with pytest.raises(UsageError, match="say --samples rows, or --samples groups"):
        open_hdf5(path)
    assert not open_hdf5(path, samples="rows").remarks
    packed(tmp_path / "burgers.h5", tmp_path / "out", samples="groups")
    assert_holds(PackedDataset(tmp_path / "out"), expected)


def test_the_default_groups_are_said(tmp_path: Path) -> None:
    """Groups below others were found by a guess: the plan says which."""
    robomimic(tmp_path)
    (note,) = open_hdf5(str(tmp_path / "demo.hdf5"), samples="groups").remarks
    assert note == "a sample is a group such as /data/demo_0; --samples groups:PATTERN takes others"


def test_lists_of_names_are_splits(tmp_path: Path) -> None:
    """What robomimic lists below `mask` are splits; with anything else in it, it belongs to no sample."""
    robomimic(tmp_path)
    path = str(tmp_path / "demo.hdf5")
    source = open_hdf5(path, samples="groups")
    assert source.splits == {"train": ["data/demo_0", "data/demo_2"], "valid": ["data/demo_1"]}
    assert open_hdf5(path, samples="groups", skip=["mask"]).splits == {}
    assert open_hdf5(path, samples="groups", skip=["/data/demo_1"]).names == ["data/demo_0", "data/demo_2"]
    with h5py.File(path, "r+") as file:
        file["mask/other"] = np.arange(3)
    with pytest.raises(SourceError, match="/mask belongs to no sample"):
        open_hdf5(path, samples="groups")


def test_a_list_that_names_what_is_not_there_is_told(tmp_path: Path) -> None:
    """The plan names each list of `mask`, and the samples that the file does not hold; what is skipped is held."""
    robomimic(tmp_path)
    path = str(tmp_path / "demo.hdf5")
    with h5py.File(path, "r+") as file:
        file["mask/lost"] = np.array([b"demo_1", b"demo_7", b"demo_9"])
    source = open_hdf5(path, samples="groups:/data/*", skip=["/data/demo_1"])
    said = f"{path}: /mask/lost names 2 samples (demo_7, demo_9) that the file does not hold; check the list"
    assert [remark for remark in source.remarks if "mask" in remark] == [said]


@pytest.mark.parametrize(("layout", "unit"), [(aloha, "files"), (robomimic, "groups"), (features, "datasets")])
def test_a_skip_that_fits_nothing_is_refused(tmp_path: Path, layout: Layout, unit: str) -> None:
    """One that fits in some unit, or next to the units, is none; a field that is skipped is left out of all."""
    layout(tmp_path)
    with pytest.raises(UsageError, match=r"--skip nope: .* has no such dataset or group"):
        open_hdf5(str(tmp_path), samples=unit, skip=["nope"])
    if layout is robomimic:
        source = open_hdf5(str(tmp_path), samples=unit, skip=["mask", "obs", "/data/demo_2"])
        assert ([spec.name for spec in source.fields], len(source)) == (["actions", "dones"], 2)


def test_attributes_become_fields(tmp_path: Path) -> None:
    """Numbers and text of every unit; a unit without the attribute is named, rows have none."""
    (tmp_path / "in").mkdir()
    expected = fastmri(tmp_path / "in")
    packed(tmp_path / "in", tmp_path / "out", samples="files", attrs=("max", "patient_id"))
    for n, sample in enumerate(expected.values()):
        sample |= {"max": np.float64(n / 3), "patient_id": f"p{n}"}
    assert_holds(PackedDataset(tmp_path / "out"), expected)
    export(tmp_path / "out", tmp_path / "back")
    with h5py.File(tmp_path / "back/file1000002.h5") as file:
        assert dict(file.attrs) == {"max": 2 / 3, "patient_id": "p2"}
        assert set(file) == {"ismrmrd_header", "kspace", "reconstruction_rss"}
    robomimic(tmp_path)
    source = open_hdf5(str(tmp_path / "demo.hdf5"), samples="groups", attrs=("num_samples",))
    assert [n for block in source.read() for n in np.asarray(block["num_samples"]).tolist()] == list(LENGTHS)
    with h5py.File(tmp_path / "in/file1000001.h5", "r+") as file:
        del file.attrs["max"]
    with pytest.raises(SourceError, match=r"file1000001\.h5: has no attribute max for --attr; it has patient_id"):
        packed(tmp_path / "in", tmp_path / "again", samples="files", attrs=("max",))
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        file["a/x"] = np.zeros((2, 3))
        file["a"].attrs["x"] = 1
        file["a"].attrs["none"] = h5py.Empty("f4")
        file["a"].attrs["pair"] = np.zeros((), "i4,f4")
    for name, said in (
        ("x", "also has a dataset named x; leave that out with --skip x"),
        ("none", "attribute none, but it is empty"),
        ("pair", "attribute pair, but it is a compound; leave out --attr pair"),
    ):
        with pytest.raises(SourceError, match=said):
            packed(tmp_path / "odd.h5", tmp_path / "again", samples="groups", attrs=(name,))
    with pytest.raises(UsageError, match="--attr: rows have no attributes"):
        packed(tmp_path / "in", tmp_path / "again", attrs=("max",))


@pytest.mark.parametrize(
    ("layout", "unit"), [(aloha, "files"), (features, "datasets"), (robomimic, "groups"), (hloc, "groups")]
)
def test_units_are_exported_as_they_were(tmp_path: Path, layout: Layout, unit: str) -> None:
    """Files, datasets and groups are such again, under their paths, and packed again they are the same samples."""
    (tmp_path / "in").mkdir()
    expected = layout(tmp_path / "in")
    packed(tmp_path / "in", tmp_path / "out", samples=unit)
    export(tmp_path / "out", tmp_path / "back")
    packed(tmp_path / "back", tmp_path / "again", samples=unit)
    assert_holds(PackedDataset(tmp_path / "again"), expected)
