"""Classes from a field of text: `packer convert --classes FIELD`."""

from __future__ import annotations

import h5py
import pytest
from PIL import Image

from packer.append import append
from packer.checking import compare
from packer.convert import convert
from packer.errors import UsageError
from packer.format import manifest as manifests
from packer.sources import SourceOptions, open_sources
from readers import PackedDataset

NAMES = ("dog", "cat", "dog", "ox")


def of_pictures(folder, names=NAMES):
    """Pictures, and a text beside each."""
    for number, name in enumerate(names):
        for place in ("image", "kind"):
            (folder / place).mkdir(parents=True, exist_ok=True)
        Image.new("L", (3, 2), number).save(folder / "image" / f"{number}.png")
        (folder / "kind" / f"{number}.txt").write_text(name)
    return [f"image={folder / 'image'}", f"kind={folder / 'kind'}"]


def of_hdf5(folder, names=NAMES):
    """Rows of numbers with a text."""
    folder.mkdir()
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"], file["kind"] = range(len(names)), list(names)
    return [str(folder / "a.h5")]


@pytest.mark.parametrize("made", [of_pictures, of_hdf5])
@pytest.mark.parametrize("workers", [0, 2])
def test_texts_become_classes(tmp_path, made, workers):
    """Their numbers are field `label`, in the order of the texts; the text itself is gone."""
    out = convert(made(tmp_path / "in"), tmp_path / "d", source=SourceOptions(classes="kind"), workers=workers).path
    dataset = PackedDataset(out)
    assert (dataset.classes, dataset.targets) == (["cat", "dog", "ox"], [1, 0, 1, 2])
    assert "kind" not in dataset.fields


def test_later_samples_have_the_numbers_of_the_dataset(tmp_path):
    """`append` and `verify --against` number as the dataset does, whose classes need not all come again."""
    options = SourceOptions(classes="kind")
    convert(of_hdf5(tmp_path / "a"), tmp_path / "d", source=options)
    append(tmp_path / "d", of_hdf5(tmp_path / "b", ("ox", "dog")), source=options)
    assert PackedDataset(tmp_path / "d").targets == [1, 0, 1, 2, 2, 1]
    assert manifests.read(tmp_path / "d").classes == ("cat", "dog", "ox")
    assert not compare(tmp_path / "d", open_sources([str(tmp_path / "b" / "a.h5")], options)).damages


@pytest.mark.parametrize("name", ["x", "nothing"])
def test_what_is_no_text_is_refused(tmp_path, name):
    """The fields of text that there are are named."""
    with pytest.raises(UsageError, match=rf"--classes {name}: there is no such field of text; there are kind"):
        convert(of_hdf5(tmp_path / "in"), tmp_path / "d", source=SourceOptions(classes=name))
