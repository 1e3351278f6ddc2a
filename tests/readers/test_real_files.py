"""Real files, packed and read back, equal what Pillow, plyfile and h5py give."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from plyfile import PlyData, PlyListProperty
from real_files import real_files, real_folder
from torch.utils.data import DataLoader

from packer.convert import convert
from packer.errors import SourceError
from packer.format import Field
from readers import PackedDataset, Ragged

Arrays = dict[str, NDArray[Any]]

GROUPS = {
    "xyz": ("x", "y", "z"),
    "normal": ("nx", "ny", "nz"),
    "rgba": ("red", "green", "blue", "alpha"),
    "rgb": ("red", "green", "blue"),
}


def _equal(found: Any, wanted: NDArray[Any]) -> None:
    array = found.numpy()
    assert array.dtype == wanted.dtype
    assert array.shape == wanted.shape
    assert array.tobytes() == np.ascontiguousarray(wanted).tobytes()


# Pictures.


def _pixels(path: Path) -> NDArray[Any]:
    with Image.open(path) as image:
        pixels = np.asarray(image)
    return pixels.reshape(*pixels.shape[:2], -1)


def _check_pairs(folders: dict[str, Path], out: Path, markers: dict[str, str]) -> None:
    """Packs pairs, then compares every picture, by number and by name, in a batch and through a DataLoader."""
    convert([f"{field}={folder}" for field, folder in folders.items()], out, workers=0)
    ds = PackedDataset(out)
    names = sorted(path.stem for path in folders["hr"].glob("*.png"))
    assert sorted(ds.names or ()) == names
    batch = next(iter(DataLoader(ds, batch_size=len(ds))))
    for number, name in enumerate(ds.names or ()):
        for field, folder in folders.items():
            wanted = _pixels(folder / f"{name}{markers.get(field, '')}.png")
            _equal(ds[name][field].permute(1, 2, 0), wanted)
            _equal(batch[field][number].permute(1, 2, 0), wanted)


@pytest.mark.parametrize("scale", ["X2", "X3", "X4", "X8"])
def test_a_super_resolution_set(tmp_path: Path, scale: str) -> None:
    """Pairs of different sizes whose partners' names differ by a marker."""
    folder = real_folder("png_pairs/JingyunLiang+SwinIR/testsets/Set5")
    folders = {"lr": folder / "LR_bicubic" / scale, "hr": folder / "HR"}
    _check_pairs(folders, tmp_path / "p", {"lr": scale.lower()})


def test_pairs_of_one_name(tmp_path: Path) -> None:
    """Pairs whose partners have one name in two folders."""
    folder = real_folder("png_pairs/xinntao+Real-ESRGAN/tests/data")
    _check_pairs({"lr": folder / "lq", "hr": folder / "gt"}, tmp_path / "p", {})


# Point clouds and meshes.


def _layout(path: Path) -> str:
    """What must agree for files to be packed together: elements, properties and types."""
    elements = sorted(PlyData.read(path).elements, key=lambda element: element.name)
    return ", ".join(f"{element.name} {[str(p) for p in element.properties]}" for element in elements)


def _by_layout() -> list[list[Path]]:
    sets = defaultdict(list)
    for path in real_files("ply_points/**/*.ply", "ply_mesh/**/*.ply"):
        sets[_layout(path)].append(path)
    return list(sets.values())


def _expected(ply: PlyData, field: Field) -> NDArray[Any]:
    """The values of a packed field, as plyfile reads them."""
    vertex = ply["vertex"]
    if field.name in GROUPS:
        return np.stack([vertex[name] for name in GROUPS[field.name]], axis=1)
    if not field.name.startswith("face"):
        return np.asarray(vertex[field.name])
    face = ply["face"]
    lists = next(p.name for p in face.properties if p.name in ("vertex_indices", "vertex_index"))
    if field.name == "face_size":
        return np.array([len(corners) for corners in face[lists]], np.int32)
    name = lists if field.name == "face" else field.name.removeprefix("face_")
    if not isinstance(face.ply_property(name), PlyListProperty):
        return np.asarray(face[name])
    dtype = np.int32 if field.name == "face" else face.ply_property(name).val_dtype
    rows = list(face[name])
    if len(field.shape) == 2:
        return np.array(rows, dtype).reshape(-1, field.shape[1])
    return np.concatenate(rows).astype(dtype)


def test_clouds_and_meshes_in_sets_of_one_layout(tmp_path: Path) -> None:
    """Text and binary, little and big endian, clouds and meshes: every field of every file, in one batch a set."""
    seen = 0
    for number, files in enumerate(_by_layout()):
        folder = tmp_path / f"set{number}"
        folder.mkdir()
        plys = {}
        for path in files:
            copied = folder / f"{len(plys)}_{path.name}"
            shutil.copy(path, copied)
            plys[copied.stem] = PlyData.read(copied)
        convert(str(folder), tmp_path / f"out{number}", workers=0)
        _check_set(PackedDataset(tmp_path / f"out{number}"), plys)
        seen += len(files)
    assert seen == len(real_files("ply_points/**/*.ply", "ply_mesh/**/*.ply"))


def _check_set(ds: PackedDataset, plys: dict[str, PlyData]) -> None:
    assert sorted(ds.names or ()) == sorted(plys)
    batch = ds[list(plys)]
    for field in ds.fields.values():
        assert isinstance(batch[field.name], Ragged) == field.is_ragged
        for number, (name, ply) in enumerate(plys.items()):
            wanted = _expected(ply, field)
            values = batch[field.name]
            _equal(values.to_list()[number] if isinstance(values, Ragged) else values[number], wanted)
            _equal(ds[name][field.name], wanted)
    held = {p.name for ply in plys.values() for element in ply.elements for p in element.properties}
    packed = {name for field in ds.fields for name in GROUPS.get(field, (field.removeprefix("face_"),))}
    assert held - {"vertex_indices", "vertex_index"} <= packed
    assert ("face" in ds.fields) == any("face" in ply for ply in plys.values())


# HDF5.


def test_training_files_of_hdf5(tmp_path: Path) -> None:
    """Every dataset of every file, plain and compressed, row by row and in batches."""
    files = real_files("h5_ml/**/*.h5")
    for number, path in enumerate(files):
        convert(str(path), tmp_path / str(number), workers=0)
        ds = PackedDataset(tmp_path / str(number))
        with h5py.File(path) as file:
            wanted: Arrays = {name: dataset[()] for name, dataset in file.items()}
        assert set(ds.fields) == set(wanted)
        order = torch.randperm(len(ds), generator=torch.Generator().manual_seed(number))
        batch = ds[order]
        for name, values in wanted.items():
            _equal(batch[name], values[order.numpy()])
            _equal(ds[-1][name], values[-1])


def test_weights_of_a_network_are_refused(tmp_path: Path) -> None:
    """A file without samples is refused with the reason and a way out, and leaves nothing behind."""
    (path,) = real_files("h5_ml/**/*.hdf5")
    with pytest.raises(SourceError, match=r"no common sample axis.*--field"):
        convert(str(path), tmp_path / "p", workers=0)
    assert not (tmp_path / "p").exists()
