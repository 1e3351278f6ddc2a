"""Layouts that people train on, packed with the unit that they have and read back; with the wrong one, what is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from hdf5_files import write_hdf5
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


def frames(*shape: int) -> NDArray[np.uint8]:
    return RNG.integers(0, 255, shape, np.uint8)


def in_files(name: str, make: Callable[[int, int], Sample], attrs: Callable[[int], Sample] = lambda n: {}) -> Layout:
    """A file a sample, with attributes."""

    def layout(folder: Path) -> dict[str, Sample]:
        samples = {}
        for n, length in enumerate(LENGTHS):
            path = folder / name.format(n)
            samples[path.stem] = make(n, length)
            write_hdf5(path, {field.replace(".", "/"): v for field, v in samples[path.stem].items()}, **attrs(n))
        return samples

    return layout


def in_groups(file: str, name: str, make: Callable[[int, int], Sample], **others: Any) -> Layout:
    """A group a sample, which has `num_samples`, and other datasets of the file."""

    def layout(folder: Path) -> dict[str, Sample]:
        samples = {name.format(n): make(n, length) for n, length in enumerate(LENGTHS)}
        path = folder / file
        write_hdf5(
            path, {f"{group}/{field.replace('.', '/')}": v for group, s in samples.items() for field, v in s.items()}
        )
        write_hdf5(path, others, "r+")
        with h5py.File(path, "r+") as held:
            for group, length in zip(samples, LENGTHS, strict=True):
                held[group].attrs["num_samples"] = length
        return samples

    return layout


def features(folder: Path) -> dict[str, Sample]:
    """Speech: one file with a dataset an utterance, below its speaker."""
    samples = {f"spk{n % 2}/utt{n}": {"values": floats(frames, 4)} for n, frames in enumerate(LENGTHS)}
    write_hdf5(folder / "feats.h5", {name: sample["values"] for name, sample in samples.items()})
    return dict(sorted(samples.items()))


#: ALOHA: a file an episode, `action` beside the observations.
aloha = in_files(
    "episode_{}.hdf5",
    lambda n, steps: {
        "action": floats(steps, 14),
        "observations.images.cam_high": frames(steps, 6, 8, 3),
        "observations.qpos": floats(steps, 14),
        "observations.qvel": floats(steps, 14),
    },
    lambda n: {"sim": True},
)
#: FastMRI: complex volumes of several widths, with a header in XML.
fastmri = in_files(
    "file100000{}.h5",
    lambda n, slices: {
        "ismrmrd_header": f"<xml>{n}</xml>",
        "kspace": (floats(slices, 2, 12, 10 + n) + 1j * floats(slices, 2, 12, 10 + n)).astype(np.complex64),
        "reconstruction_rss": floats(slices, 6, 6),
    },
    lambda n: {"max": float(n) / 3, "patient_id": f"p{n}"},
)
#: CLAM: a file a slide, of as many patches as it has.
clam = in_files(
    "slide_{}.h5", lambda n, count: {"coords": np.arange(2 * count).reshape(-1, 2), "features": floats(count, 16)}
)
#: Speech: a file an utterance, whose fields have axes of their own.
utterances = in_files(
    "utt{}.h5", lambda n, count: {"feats": floats(count, 80), "wave": np.arange(count * 160, dtype="i2")}
)
#: Robomimic and LIBERO: `data/demo_i`, with lists of names below `mask`.
robomimic = in_groups(
    "demo.hdf5",
    "data/demo_{}",
    lambda n, steps: {
        "actions": floats(steps, 7),
        "dones": np.arange(steps) == steps - 1,
        "obs.agentview_image": frames(steps, 8, 8, 3),
        "obs.robot0_eef_pos": floats(steps, 3),
    },
    **{"mask/train": np.array([b"demo_0", b"demo_2"]), "mask/valid": np.array([b"demo_1"])},
)
#: ManiSkill: `traj_i`, whose observations are one step longer than its actions.
maniskill = in_groups(
    "trajectory.h5",
    "traj_{}",
    lambda n, steps: {
        "actions": floats(steps, 8),
        "obs.agent.qpos": floats(steps + 1, 9),
        "success": np.ones(steps, bool),
    },
)
#: Hloc: a group a picture, named as the picture's file.
hloc = in_groups(
    "feats-superpoint.h5",
    "db/im{}.jpg",
    lambda n, count: {"descriptors": floats(16, count).astype(np.float16), "keypoints": floats(count, 2)},
)
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


def test_plan_says_what_it_took(tmp_path: Path) -> None:
    """Files of different lengths are rows if nobody says otherwise, and the plan says so; one file raises no doubt."""
    clam(tmp_path)
    said = "3 files of 3 to 8 rows: each row is a sample; --samples files makes each file one"
    run = CliRunner().invoke(main, ["plan", str(tmp_path)])
    assert said in " ".join(run.stdout.split())
    assert open_hdf5(str(tmp_path)).remarks == [said]
    assert not open_hdf5(str(tmp_path), samples="files").remarks
    assert not open_hdf5(str(tmp_path / "slide_0.h5")).remarks


def test_groups_of_several_depths_are_samples(tmp_path: Path) -> None:
    """Pictures of folders within folders: each group that holds datasets is one, whatever lies above it."""
    names = ["db/a.jpg", "query/night/b.jpg", "query/night/c.jpg"]
    path = write_hdf5(tmp_path / "f.h5", {f"{name}/keypoints": floats(n, 2) for n, name in enumerate(names)})
    source = open_hdf5(path, samples="groups")
    assert source.names == names
    assert source.remarks == ["a sample is a group such as /db/a.jpg; --samples groups:PATTERN takes others"]
    with pytest.raises(SourceError, match="/query belongs to no sample"):
        open_hdf5(path, samples="groups:/*/*.jpg")


def test_rows_and_groups_that_are_equally_likely(tmp_path: Path) -> None:
    """Numbered groups of one length are rows or samples: the user is asked, with both commands."""
    path = write_hdf5(tmp_path / "burgers.h5", {f"{n:04d}/data": floats(5, 4) for n in range(3)})
    with pytest.raises(UsageError, match="say --samples rows, or --samples groups"):
        open_hdf5(path)
    assert (open_hdf5(path, samples="rows").remarks, len(open_hdf5(path, samples="groups"))) == ([], 3)
    named = write_hdf5(tmp_path / "named.h5", {"train/data": floats(5, 4), "train2/data": floats(5, 4), "x": floats(5)})
    assert len(open_hdf5(named)) == 5


def test_lists_of_names_are_splits(tmp_path: Path) -> None:
    """What robomimic lists below `mask` are splits; names that lead nowhere are said, and it is no list of all else."""
    robomimic(tmp_path)
    path = str(tmp_path / "demo.hdf5")
    source = open_hdf5(path, samples="groups")
    assert source.splits == {"train": ["data/demo_0", "data/demo_2"], "valid": ["data/demo_1"]}
    assert open_hdf5(path, samples="groups", skip=["mask"]).splits == {}
    write_hdf5(tmp_path / "demo.hdf5", {"mask/lost": np.array([b"demo_1", b"demo_7", b"demo_9"])}, "r+")
    source = open_hdf5(path, samples="groups:/data/*", skip=["/data/demo_1"])
    assert source.names == ["data/demo_0", "data/demo_2"]
    said = f"{path}: /mask/lost names 2 samples (demo_7, demo_9) that the file does not hold; check the list"
    assert source.remarks == [said]
    write_hdf5(tmp_path / "demo.hdf5", {"mask/other": np.arange(3)}, "r+")
    texts = write_hdf5(tmp_path / "texts.h5", {"0/x": floats(3), "mask/a": np.array([b"nobody"])})
    for other in (path, texts):
        with pytest.raises(SourceError, match="/mask belongs to no sample"):
            open_hdf5(other, samples="groups")


@pytest.mark.parametrize(("layout", "unit"), [(aloha, "files"), (robomimic, "groups"), (features, "datasets")])
def test_a_skip_that_fits_nothing_is_refused(tmp_path: Path, layout: Layout, unit: str) -> None:
    """One that fits in some unit, or next to the units, is none; a field that is skipped is in none."""
    layout(tmp_path)
    with pytest.raises(UsageError, match=r"--skip nope: .* has no such array or group"):
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
    with pytest.raises(
        SourceError, match=r"file1000001\.h5: has no attribute max of numbers or text for --attr; it has patient_id"
    ):
        packed(tmp_path / "in", tmp_path / "again", samples="files", attrs=("max",))
    write_hdf5(tmp_path / "odd.h5", {"a/x": np.zeros((2, 3))}, x=1, none=h5py.Empty("f4"), pair=np.zeros((), "i4,f4"))
    for name, said in (
        ("x", "also has an array named x; leave that out with --skip x"),
        ("none", "no attribute none of numbers or text"),
        ("pair", "no attribute pair of numbers or text for --attr; it has x"),
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
