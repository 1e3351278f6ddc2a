"""Folders as classes: `--label folder`, from the files to the classes of the dataset that is read."""

from __future__ import annotations

import pickle
import shutil

import h5py
import msgspec
import numpy as np
import pytest
from opened_sources import source_of
from picture_files import picture, save

from packer.append import append
from packer.convert import convert
from packer.errors import SourceError, UsageError
from packer.format import FieldSpec
from packer.format import manifest as manifests
from packer.merge import merge
from packer.repack import repack
from packer.repair import repair
from packer.sources import SourceOptions
from readers import PackedDataset

BY_FOLDER = SourceOptions(label="folder")
PLY = (
    "ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float y\nproperty float z\nend_header\n0 0 1\n"
)


@pytest.fixture
def animals(tmp_path):
    """As torchvision's ImageFolder wants it: train/cat, train/Dog and train/ant, with pictures of three formats."""
    for number, file in enumerate(("cat/10.png", "cat/9.jpg", "Dog/a.webp", "ant/small/x.png", "ant/b.jpeg")):
        save(tmp_path / "train" / file, picture(seed=number))
    return tmp_path / "train"


def labels_of(source):
    """The label of each sample, by its name."""
    values = np.concatenate([block["label"] for block in source.read()])
    return dict(zip(source.names, values.tolist(), strict=True))


def test_folders_are_classes_as_in_torchvision(animals):
    """The class is the first folder below the source, numbered in the plain order of all folders, nested or not."""
    source = source_of([str(animals)], source=BY_FOLDER)
    assert source.fields[-1] == FieldSpec(name="label", dtype="int64")
    wanted = {"Dog/a": 0, "ant/b": 1, "ant/small/x": 1, "cat/9": 2, "cat/10": 2}
    assert labels_of(source) == wanted
    part = pickle.loads(pickle.dumps(source.part(1, 4)))
    assert labels_of(part) == {name: wanted[name] for name in source.names[1:4]}
    assert any("3 classes: Dog, ant, cat" in note for note in source.remarks)


def test_labels_and_classes_are_read(tmp_path, animals):
    """A batch has the labels, the dataset the names of the classes; one without has None."""
    convert(str(animals), tmp_path / "d", workers=0, source=BY_FOLDER)
    dataset = PackedDataset(tmp_path / "d")
    assert dataset.classes == ["Dog", "ant", "cat"]
    batch = dataset[["cat/9", "Dog/a"]]["label"]
    assert (batch.tolist(), str(batch.dtype)) == ([2, 0], "torch.int64")
    assert pickle.loads(pickle.dumps(dataset)).classes == dataset.classes
    convert(str(animals), tmp_path / "bare", workers=0)
    assert PackedDataset(tmp_path / "bare").classes is None


def test_pairs_squares_and_clouds_have_classes(tmp_path, animals):
    """Pairs, squares cut from pictures and PLY files are labelled as pictures are; so is what a pattern finds."""
    save(animals.parent / "masks" / "cat" / "9.png", picture(channels=1))
    paired = [f"image={animals}/cat*/9.*", f"mask={animals.parent / 'masks'}"]
    assert labels_of(source_of(paired, source=BY_FOLDER)) == {"cat/9": 0}
    squares = source_of([f"{animals}/[Dc]*/*"], source=SourceOptions(label="folder", patch=4))
    assert set(labels_of(squares).items()) == {("Dog/a_0_0", 0), ("cat/9_0_0", 1), ("cat/10_0_0", 1)}
    for name in ("b/1", "a/2"):
        (tmp_path / "clouds" / name).parent.mkdir(parents=True)
        (tmp_path / "clouds" / f"{name}.ply").write_text(PLY)
    assert labels_of(source_of([str(tmp_path / "clouds")], source=BY_FOLDER)) == {"a/2": 0, "b/1": 1}


def test_files_of_other_kinds_have_classes(tmp_path):
    """So do npy and HDF5 files that are samples."""
    for name in ("cat", "ant"):
        (tmp_path / "npy" / name).mkdir(parents=True)
        np.save(tmp_path / "npy" / name / "1.npy", np.zeros(3))
        (tmp_path / "hdf5" / name).mkdir(parents=True)
        with h5py.File(tmp_path / "hdf5" / name / "1.h5", "w") as file:
            file["x"] = np.zeros(3)
    options = SourceOptions(label="folder", samples="files")
    for kind in ("npy", "hdf5"):
        assert labels_of(source_of([str(tmp_path / kind)], source=options)) == {"ant/1": 0, "cat/1": 1}


def test_a_class_without_a_good_picture_keeps_its_number(tmp_path, animals):
    """What is left out as bad, and a folder that is empty, change no number; the plan names the class."""
    (animals / "Dog" / "a.webp").write_bytes(b"none")
    source = source_of([str(animals)], source=BY_FOLDER, on_error="skip")
    assert set(labels_of(source).values()) == {1, 2}
    assert any("no sample has class Dog" in note for note in source.remarks)


def test_what_cannot_be_labelled_is_refused(tmp_path, animals):
    """A picture in no folder is named, and so are samples without names and a second field `label`."""
    save(animals / "stray.png")
    with pytest.raises(SourceError, match=r"'stray' of .*train lies in no folder, so it has no class"):
        source_of([str(animals)], source=BY_FOLDER)
    with pytest.raises(UsageError, match="there is one"):
        source_of([f"label={animals}/cat"], source=BY_FOLDER)
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    with pytest.raises(UsageError, match="these are rows; see --samples"):
        source_of([str(tmp_path / "x.npy")], source=BY_FOLDER)
    (tmp_path / "files" / "b").mkdir(parents=True)
    with h5py.File(tmp_path / "files" / "b" / "1.h5", "w") as file:
        file["x"] = np.zeros((3, 2))
    with pytest.raises(UsageError, match="these are rows; see --samples"):
        source_of([str(tmp_path / "files")], source=BY_FOLDER)
    with pytest.raises(UsageError, match="--label names: folder is expected"):
        source_of([str(animals)], source=SourceOptions(label="names"))


def test_classes_stay_with_the_samples(tmp_path, animals):
    """Packed again, shuffled, joined, appended to, and with a lost manifest made again, a dataset keeps its classes."""
    convert(str(animals), tmp_path / "d", workers=0, source=BY_FOLDER)
    more = shutil.copytree(animals, tmp_path / "more")
    for path in [p for p in more.rglob("*.*") if p.is_file()]:
        path.rename(path.with_stem(f"new_{path.stem}"))
    held = manifests.read(tmp_path / "d").classes
    assert held == ("Dog", "ant", "cat")
    assert repack(tmp_path / "d", tmp_path / "e", seed=1, workers=0).manifest.classes == held
    assert append(tmp_path / "e", str(more), workers=0, source=BY_FOLDER).manifest.classes == held
    convert(str(more), tmp_path / "f", workers=0, source=BY_FOLDER, codec="none")
    repack(tmp_path / "d", tmp_path / "g", codec="none", workers=0)
    whole = merge([tmp_path / "g", tmp_path / "f"], tmp_path / "h")
    assert whole.classes == held
    (tmp_path / "h" / "manifest.json").unlink()
    repair(tmp_path / "h")
    assert manifests.read(tmp_path / "h") == msgspec.structs.replace(whole, planned_bytes=None)
    assert len(PackedDataset(tmp_path / "h")) == 10


def test_other_classes_are_refused(tmp_path, animals):
    """Appending and merging refuse samples whose numbers stand for other classes, and name both lists."""
    convert(str(animals), tmp_path / "d", workers=0, source=BY_FOLDER, codec="none")
    shutil.copytree(animals / "cat", tmp_path / "more" / "lynx")
    words = "has the classes lynx, but Dog, ant, cat are expected"
    with pytest.raises(UsageError, match=f"the source {words}"):
        append(tmp_path / "d", str(tmp_path / "more"), workers=0, source=BY_FOLDER)
    convert(str(tmp_path / "more"), tmp_path / "e", workers=0, source=BY_FOLDER, codec="none")
    with pytest.raises(UsageError, match=words):
        merge([tmp_path / "d", tmp_path / "e"], tmp_path / "f")
