"""Real files, packed and read back, equal what Pillow and h5py give. Exports of PLY files are held against these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from fields import same
from numpy.typing import NDArray
from PIL import Image
from real_files import real_files, real_folder
from torch.utils.data import DataLoader

from packer.convert import convert
from readers import PackedDataset


def _pixels(path: Path) -> NDArray[Any]:
    with Image.open(path) as image:
        pixels = np.asarray(image)
    return pixels.reshape(*pixels.shape[:2], -1)


@pytest.mark.parametrize(
    ("lr", "hr", "marker"),
    [
        ("JingyunLiang+SwinIR/testsets/Set5/LR_bicubic/X3", "JingyunLiang+SwinIR/testsets/Set5/HR", "x3"),
        ("xinntao+Real-ESRGAN/tests/data/lq", "xinntao+Real-ESRGAN/tests/data/gt", ""),
    ],
)
def test_pairs_of_pictures(tmp_path: Path, lr: str, hr: str, marker: str) -> None:
    """Every picture, by name, in a batch and through a DataLoader; names of partners may differ by a marker."""
    folders = {"lr": real_folder(f"png_pairs/{lr}"), "hr": real_folder(f"png_pairs/{hr}")}
    ds = PackedDataset(
        convert([f"{name}={folder}" for name, folder in folders.items()], tmp_path / "p", workers=0).path
    )
    assert sorted(ds.names or ()) == sorted(path.stem for path in folders["hr"].glob("*.png"))
    batch = next(iter(DataLoader(ds, batch_size=len(ds))))
    for number, name in enumerate(ds.names or ()):
        for field, file in (("lr", f"{name}{marker}.png"), ("hr", f"{name}.png")):
            for found in (ds[name][field], batch[field][number]):
                assert same(found.permute(1, 2, 0), _pixels(folders[field] / file))


def test_training_files_of_hdf5(tmp_path: Path) -> None:
    """Every dataset of every file, plain and compressed, row by row and in batches."""
    for number, path in enumerate(real_files("h5_ml/**/*.h5")):
        ds = PackedDataset(convert(str(path), tmp_path / str(number), workers=0).path)
        with h5py.File(path) as file:
            wanted = {name: dataset[()] for name, dataset in file.items()}
        assert set(ds.fields) == set(wanted)
        order = torch.randperm(len(ds), generator=torch.Generator().manual_seed(number))
        batch = ds[order]
        for name, values in wanted.items():
            assert same(batch[name], values[order.numpy()])
            assert same(ds[-1][name], values[-1])
