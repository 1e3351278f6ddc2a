"""Crops of bytes that are mirrored and converted while they are copied: the same as those of other values."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packer.writer import DatasetWriter
from readers import Crop, PackedDataset, turning
from readers.compiled import loading

CHANNELS = 1, 3, 4


def _packed(path: Path, codec: str, dtype: str) -> Path:
    """Pack pictures of one, three and four channels, and volumes, as values of a dtype."""
    rng = np.random.default_rng(0)
    with DatasetWriter(path, codec=codec) as writer:
        for _ in range(3):
            pictures = {f"c{channels}": rng.integers(0, 9, (7, 6, channels)) for channels in CHANNELS}
            volume = rng.integers(0, 9, (6, 7, 6))
            writer.add({name: values.astype(dtype) for name, values in {**pictures, "zyx": volume}.items()})
    return path


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_bytes_are_cropped_as_other_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, is_compiled: bool
) -> None:
    """Whether a loop in machine code mirrors and converts them, numpy, or what does it for values of 16 bits."""
    monkeypatch.setattr(loading, "loops", loading.load if is_compiled else lambda: None)
    of_bytes, others = (_packed(tmp_path / dtype, codec, dtype) for dtype in ("uint8", "uint16"))
    aligned = {f"c{channels}": 1 for channels in CHANNELS[1:]}
    square = {"size": 5, "of": "c1", "aligned": aligned, "flips": True}
    crops: list[dict[str, Any]] = [square, {**square, "turns": True}, {"size": (3, 5, 4), "of": "zyx", "flips": True}]
    for crop in crops:
        for dtype, numbers in itertools.product(turning.COPIED, ([0, 1, 2, 1] * 6, [])):
            cast = dict.fromkeys(("zyx", "c1", "c3", "c4"), dtype)
            torch.manual_seed(0)
            batch = PackedDataset(of_bytes, crop=Crop(**crop), cast=cast, verify=True)[numbers]
            torch.manual_seed(0)
            expected = PackedDataset(others, crop=Crop(**crop))[numbers]
            for name, values in batch.items():
                assert str(values.dtype) == f"torch.{dtype}"
                assert np.array_equal(values.numpy(), expected[name].numpy()), (crop, dtype, name)
