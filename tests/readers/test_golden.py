"""The golden dataset of every codec and kind, read as training code reads it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from readers import PackedDataset, Ragged

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture(scope="module")
def expected() -> dict[str, list[Any]]:
    """All samples by field, as the script that made the golden files says."""
    spec = importlib.util.spec_from_file_location("golden_make", GOLDEN / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: list(values) for name, values in module.samples("kinds", 0, 5).items()}


def samples_of(values: Any) -> list[Any]:
    """The samples of a batch of one field: text, or arrays with channels last as they were packed."""
    if isinstance(values, Ragged):
        values = values.to_list()
    return [value if isinstance(value, str) else plain(value) for value in values]


def plain(value: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor as an array of bytes that compare."""
    return np.ascontiguousarray(value.numpy())


def same(field: str, ours: Any, theirs: Any) -> bool:
    """Whether a value that was read is the one that was packed: dtype, shape, every bit."""
    if isinstance(theirs, str):
        return bool(ours == theirs)
    if " image" in field:
        theirs = np.ascontiguousarray(theirs.transpose(2, 0, 1))
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("numbers", [[0, 1, 2, 3, 4], [4, 2, 0, 2], [3]])
def test_batches_of_every_codec_and_kind(expected: dict[str, list[Any]], numbers: list[int], verify: bool) -> None:
    """A batch across both shards, in any order and with a sample twice, holds what was packed."""
    batch = PackedDataset(GOLDEN / "kinds", verify=verify)[numbers]
    assert list(batch) == list(expected)
    for field, values in batch.items():
        for number, ours in zip(numbers, samples_of(values), strict=True):
            assert same(field, ours, expected[field][number]), (field, number)


def test_single_samples_of_every_codec_and_kind(expected: dict[str, list[Any]]) -> None:
    """A sample by its number and by its name is what was packed."""
    dataset = PackedDataset(GOLDEN / "kinds")
    for number in range(5):
        for sample in (dataset[number], dataset[f"sample {number}"]):
            for field, value in sample.items():
                ours = value if isinstance(value, str) else plain(value)
                assert same(field, ours, expected[field][number]), (field, number)
