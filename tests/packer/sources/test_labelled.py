"""Folders as classes: `--label folder`, from the files to the classes of the dataset that is read."""

from __future__ import annotations

import pickle
import shutil

import numpy as np
import pytest
from opened_sources import source_of
from picture_files import picture, save

from packer.append import append
from packer.convert import convert
from packer.errors import SourceError, UsageError
from packer.format import FieldSpec
from packer.merge import merge
from packer.sources import SourceOptions
from readers import PackedDataset
from tests.helpers.kinds import write_hdf5

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
    part = pickle.loads(pickle.dumps(source.slice(1, 4)))
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


def test_all_kinds_of_files_have_classes(tmp_path, animals):
    """Pairs, squares cut from pictures, PLY, npy and HDF5 files are labelled; so is what a pattern finds."""
    save(animals.parent / "masks" / "cat" / "9.png", picture(channels=1))
    paired = [f"image={animals}/cat*/9.*", f"mask={animals.parent / 'masks'}"]
    assert labels_of(source_of(paired, source=BY_FOLDER)) == {"cat/9": 0}
    squares = source_of([f"{animals}/[Dc]*/*"], source=SourceOptions(label="folder", patch=4))
    assert set(labels_of(squares).items()) == {("Dog/a_0_0", 0), ("cat/9_0_0", 1), ("cat/10_0_0", 1)}
    for name in ("cat", "ant"):
        for kind in ("ply", "npy", "hdf5"):
            (tmp_path / kind / name).mkdir(parents=True)
        (tmp_path / "ply" / name / "1.ply").write_text(PLY)
        np.save(tmp_path / "npy" / name / "1.npy", np.zeros(3))
        write_hdf5(tmp_path / "hdf5" / name / "1.h5", {"x": np.zeros(3)})
    for kind in ("ply", "npy", "hdf5"):
        options = SourceOptions(label="folder", samples="files")
        assert labels_of(source_of([str(tmp_path / kind)], source=options)) == {"ant/1": 0, "cat/1": 1}


def test_a_class_without_a_good_picture_keeps_its_number(tmp_path, animals):
    """What is skipped as bad, and a folder that is empty, change no number; the plan names the class."""
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
    write_hdf5(tmp_path / "x.h5", {"x": np.zeros((3, 2))})
    for rows in ("x.npy", "x.h5"):
        with pytest.raises(UsageError, match="these are rows; see --samples"):
            source_of([str(tmp_path / rows)], source=BY_FOLDER)
    with pytest.raises(UsageError, match="--label names: folder is expected"):
        source_of([str(animals)], source=SourceOptions(label="names"))


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


def test_folders_of_splits_are_no_classes(animals, tmp_path):
    """Above train and val, classes are the folders below; these two are splits, unless other rules are given."""
    shutil.copytree(animals / "cat", tmp_path / "set" / "val" / "cat")
    shutil.copytree(animals, tmp_path / "set" / "train")
    (tmp_path / "set" / "val" / "none").mkdir()
    source = source_of([str(tmp_path / "set")], source=BY_FOLDER)
    assert source.origin["classes"] == ["Dog", "ant", "cat", "none"]
    assert labels_of(source)["val/cat/9"] == labels_of(source)["train/cat/9"] == 2
    assert "train, val: these folders are no classes; without --split they are the splits" in source.remarks
    for splits, expected in ((None, {"train", "val"}), ({"some": "*/cat/*"}, {"some"})):
        convert(str(tmp_path / "set"), tmp_path / "d", workers=0, source=BY_FOLDER, splits=splits, overwrite=True)
        manifest = PackedDataset(tmp_path / "d").manifest
        assert set(manifest.splits) == expected
        assert all(len(manifest.split(name)) for name in expected)
