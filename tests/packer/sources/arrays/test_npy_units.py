"""Files and folders of arrays as samples: what is read, and what is refused or said of another unit."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
from opened_sources import read_each, source_of

from packer.convert import convert
from packer.errors import SourceError, UsageError
from packer.format import FieldSpec
from packer.sources import SourceOptions, base
from packer.sources.arrays import reading as npy
from readers import PackedDataset

FILES, FOLDERS = SourceOptions(samples="files"), SourceOptions(samples="folders")
LENGTHS = {"ep_2": 5, "ep_10": 3, "ep_11": 1}


def episode(length, seed=0):
    """An episode of so many steps: actions, pictures and one number."""
    rng = np.random.default_rng(seed)
    actions, pictures = rng.normal(size=(length, 2)), rng.integers(0, 9, (length, 4, 4, 3), dtype=np.uint8)
    return {"action": actions.astype(">f4"), "image": pictures, "reward": np.float64(length)}


@pytest.fixture
def episodes(tmp_path):
    """Episodes of several lengths as npz files, by name; one is compressed."""
    (tmp_path / "episodes").mkdir()
    made = {name: episode(length, length) for name, length in LENGTHS.items()}
    for name, arrays in made.items():
        saver = np.savez_compressed if name == "ep_10" else np.savez
        saver(tmp_path / "episodes" / f"{name}.npz", **arrays)
    return made


@pytest.fixture
def scenes(tmp_path):
    """As Pointcept: train/scene0000_00/{coord,color,normal,segment20}.npy; by name, a dict of arrays."""
    made = {}
    for number, points in enumerate((7, 4)):
        rng = np.random.default_rng(number)
        cloud = {
            "coord": rng.normal(size=(points, 3)).astype("f4"),
            "color": rng.integers(0, 9, (points, 3)).astype("u1"),
        }
        cloud |= {"normal": rng.normal(size=(points, 3)).astype("f4"), "segment20": np.arange(points, dtype="i2")}
        made[f"scene{number:04}_00"] = cloud
        for name, array in cloud.items():
            (tmp_path / "train" / f"scene{number:04}_00").mkdir(parents=True, exist_ok=True)
            np.save(tmp_path / "train" / f"scene{number:04}_00" / f"{name}.npy", array)
    return made


def test_a_file_is_a_sample(tmp_path, episodes, monkeypatch):
    """An npz's arrays are fields, ragged in the axes that differ; through parts, blocks of any size, and a dataset."""
    source = source_of([str(tmp_path / "episodes")], source=FILES)
    assert source.names == ["ep_2", "ep_10", "ep_11"]
    assert source.fields == (
        FieldSpec(name="action", dtype="float32", shape=(None, 2)),
        FieldSpec(name="image", dtype="uint8", shape=(None, 4, 4, 3)),
        FieldSpec(name="reward", dtype="float64"),
    )
    np.testing.assert_array_equal(source.shapes("action"), [(5, 2), (3, 2), (1, 2)])
    for nbytes in (npy.BLOCK_BYTES, 200, 10):
        monkeypatch.setattr(npy, "BLOCK_BYTES", nbytes)
        values = read_each(pickle.loads(pickle.dumps(source.slice(0, 3).slice(1, 3))))
        for number, name in enumerate(("ep_10", "ep_11")):
            for field, array in episodes[name].items():
                np.testing.assert_array_equal(values[field][number], array)


def test_a_folder_is_a_sample(tmp_path, scenes):
    """Pointcept scenes: the files of a folder are fields; a folder by itself is one sample; fields can be named."""
    source = source_of([str(tmp_path / "train")], source=FOLDERS)
    assert source.names == list(scenes)
    assert {spec.name: spec.shape for spec in source.fields} == {
        "color": (None, 3),
        "coord": (None, 3),
        "normal": (None, 3),
        "segment20": (None,),
    }
    values = read_each(source)
    for number, cloud in enumerate(scenes.values()):
        for field, array in cloud.items():
            np.testing.assert_array_equal(values[field][number], array)
    single = source_of([str(tmp_path / "train" / "scene0001_00")], source=FOLDERS)
    assert (single.names, single.fields[1].shape) == (["scene0001_00"], (4, 3))
    (tmp_path / "train" / "scene0000_00" / "segment20.npy").unlink()
    some = [f"xyz={tmp_path}/train/*/coord.npy", f"rgb={tmp_path}/train/*/color.npy"]
    named = source_of(some, source=FOLDERS)
    assert (named.names, [spec.name for spec in named.fields]) == (list(scenes), ["xyz", "rgb"])
    np.testing.assert_array_equal(read_each(named)["xyz"][1], scenes["scene0001_00"]["coord"])
    with pytest.raises(
        SourceError,
        match=r"does not fit most, such as scene0000_00: field segment20 \(array int16 .any. .*\) is not in the others",
    ):
        source_of([str(tmp_path / "train")], source=FOLDERS)


def test_what_is_taken_off_the_names_of_folders_is_said(tmp_path):
    """Folders are partners but for what all of a field end in, as files are, and the plan says so."""
    for name in ("a_L", "b_L", "a_R", "b_R"):
        (tmp_path / name[-1] / name).mkdir(parents=True)
        np.save(tmp_path / name[-1] / name / "v.npy", np.arange(3))
    source = source_of([f"left={tmp_path}/L/*/v.npy", f"right={tmp_path}/R/*/v.npy"], source=FOLDERS)
    assert source.names == ["a", "b"]
    assert any(
        "field left: most names have '_L' at the end; samples are named without it" in note for note in source.remarks
    )


def test_npy_files_are_samples_of_one_field(tmp_path):
    """Each .npy is a sample of the field x, or of the one named; files of several fields are partners."""
    rng = np.random.default_rng(0)
    feats = {f"a{n}": rng.normal(size=(n, 3)) for n in (0, 4, 12)}
    for name, array in feats.items():
        for folder in ("feats/b", "classes/b"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "feats" / "b" / f"{name}.npy", array)
        np.save(tmp_path / "classes" / "b" / f"{name}.npy", np.int64(len(array)))
    source = source_of([str(tmp_path / "feats")], source=SourceOptions(samples="files", label="folder"))
    assert [(spec.name, spec.shape) for spec in source.fields] == [("x", (None, 3)), ("label", ())]
    assert source.names == ["b/a0", "b/a4", "b/a12"]
    both = source_of([f"feat={tmp_path}/feats", f"n={tmp_path}/classes"], source=FILES)
    values = read_each(both)
    assert [int(n) for n in values["n"]] == [0, 4, 12]
    np.testing.assert_array_equal(values["feat"][2], feats["a12"])
    (tmp_path / "classes" / "b" / "a4.npy").unlink()
    with pytest.raises(
        SourceError, match=r"a4.npy: field 'feat' has this file, but there is no partner of that name in 'n'"
    ):
        source_of([f"feat={tmp_path}/feats", f"n={tmp_path}/classes"], source=FILES)


@pytest.mark.parametrize("codec", ["none", "shuffle+zstd"])
def test_large_arrays_are_what_small_ones_are(tmp_path, scenes, monkeypatch, codec):
    """Arrays that are read in pieces come out equal, ragged or not, of any byte order and container."""
    monkeypatch.setattr(npy, "LARGE_BYTES", 10)
    monkeypatch.setattr(base, "PIECE_BYTES", 40_000)
    folder = tmp_path / "train" / "scene0001_00"
    one = np.arange(150_000, dtype=">f8").reshape(-1, 3)
    np.savez(folder / "more.npz", one=one, two=np.asfortranarray(np.eye(400)))
    np.savez_compressed(folder / "less.npz", three=np.eye(390))
    report = convert(str(folder), tmp_path / "one", workers=0, source=FOLDERS, codec=codec)
    assert {"one", "two", "three"} <= {field.name for field in report.manifest.fields if field.frame.rows}
    sample = PackedDataset(tmp_path / "one")["scene0001_00"]
    np.testing.assert_array_equal(sample["one"], one.astype("f8"))
    np.testing.assert_array_equal(sample["two"], np.eye(400))
    np.testing.assert_array_equal(sample["three"], np.eye(390))
    for name in ("more.npz", "less.npz"):
        (folder / name).unlink()
    convert(str(tmp_path / "train"), tmp_path / "out", workers=0, source=FOLDERS, codec=codec)
    for name, cloud in scenes.items():
        for field, array in cloud.items():
            np.testing.assert_array_equal(PackedDataset(tmp_path / "out")[name][field], array)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is kept on Linux alone")
def test_an_array_that_is_larger_than_memory_is_packed(tmp_path):
    """A file of 300 MB, declared and never written, takes a third of that."""
    np.lib.format.open_memmap(tmp_path / "a.npy", "w+", "f4", (3000, 25_000))
    report = convert(str(tmp_path / "a.npy"), tmp_path / "out", workers=1, read_bytes=10**8, source=FILES)
    assert report.raw_bytes == 300_000_000


def test_a_bad_file_is_left_out(tmp_path, episodes):
    """One that is damaged, or has other fields than most, is an error that names it, and may be skipped."""
    np.savez(tmp_path / "episodes" / "ep_3.npz", **(episode(3) | {"image": np.zeros((3, 4, 4), "u1")}))
    with pytest.raises(
        SourceError, match=r"'ep_3' does not fit most, such as ep_2: field image is array uint8 .any, any, any. .*, not"
    ):
        source_of([str(tmp_path / "episodes")], source=FILES)
    (tmp_path / "episodes" / "ep_4.npz").write_bytes(b"PK")
    source = source_of([str(tmp_path / "episodes")], source=FILES, on_error="skip")
    assert source.names == list(LENGTHS)
    (tmp_path / "episodes" / "ep_10.npz").unlink()
    blocks = source.read()
    assert len(next(blocks)["action"]) == 1
    with pytest.raises(SourceError, match=r"ep_10\.npz: cannot be read") as caught:
        next(blocks)
    assert caught.value.sample == 1


def test_what_samples_share_is_kept_once(tmp_path, episodes):
    """--once keeps an array that is the same in all files; one that differs is an error that names both files."""
    for name, arrays in episodes.items():
        text = {"task": np.array(f"task of {name}"), "grid": np.arange(3)}
        np.savez(tmp_path / "episodes" / f"{name}.npz", **arrays, **text)
    folder = str(tmp_path / "episodes")
    options = SourceOptions(samples="files", once=("grid",), skip=("reward",))
    source = source_of([folder], source=options)
    assert [spec.name for spec in source.fields] == ["action", "image", "task"]
    assert source.constants["grid"].tolist() == [0, 1, 2]
    assert read_each(source)["task"] == [f"task of {name}" for name in source.names]
    with pytest.raises(SourceError, match=r"ep_10\.npz: reward differs between ep_2 and ep_10"):
        source_of([folder], source=SourceOptions(samples="files", once=("reward",)))


@pytest.mark.parametrize(
    ("folder", "unit", "error", "said"),
    [
        (
            "episodes",
            "rows",
            UsageError,
            r"both be field 'action'; if the files are the samples, say `--samples files`",
        ),
        ("train", "rows", UsageError, r"both be field 'color'; .* if the folders are, `--samples folders`"),
        ("train", "files", SourceError, r"does not fit .* for a folder a sample --samples folders"),
        (
            "episodes",
            "folders",
            SourceError,
            r"would both be field 'action'; if the files are the samples, say `--samples files`",
        ),
        ("stray", "folders", SourceError, r"about.npy: lies next to the folders that are the samples"),
        (
            "waves",
            "rows",
            SourceError,
            r"(?s)no common sample axis.*--samples files.*/anna: 3 samples.*/ben: 4 samples",
        ),
        ("waves", "groups", UsageError, "--samples groups: sources of npy take rows or files or folders"),
    ],
)
def test_the_wrong_unit_is_an_error(tmp_path, episodes, scenes, folder, unit, error, said):
    """Rows, files and folders asked of samples that are another unit: the message says which."""
    for name, length in (("waves/anna", 3), ("waves/ben", 4), ("stray/about", 3), ("stray/a/x", 3)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / f"{name}.npy", np.zeros(length, "f4"))
    with pytest.raises(error, match=said):
        source_of([str(tmp_path / folder)], source=SourceOptions(samples=unit))


def test_a_folder_of_fields_may_be_a_folder_of_samples(tmp_path, scenes):
    """The plan says so where rows of all files are the samples."""
    rows = source_of([str(tmp_path / "train" / "scene0000_00")])
    assert len(rows) == 7
    assert any("each of the 4 files is a field, and a sample is a row of all" in note for note in rows.remarks)
