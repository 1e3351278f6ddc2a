"""The golden dataset of every codec and kind, read as training code reads it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from batches import listed, plain

from readers import PackedDataset

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


@pytest.mark.parametrize("verify", [False, True])
def test_every_codec_and_kind(expected: dict[str, list[Any]], verify: bool) -> None:
    """A batch across both shards, in any order and with a sample twice, and a sample by its name, are as packed."""
    dataset = PackedDataset(GOLDEN / "kinds", verify=verify)

    def check(field: str, found: Any, number: int) -> None:
        is_image = dataset.fields[field].kind == "image"
        assert plain(found.permute(1, 2, 0) if is_image else found) == plain(expected[field][number]), (field, number)

    for numbers in ([0, 1, 2, 3, 4], [4, 2, 0, 2], [3]):
        batch = dataset[numbers]
        assert list(batch) == list(expected)
        for field, values in batch.items():
            for number, found in zip(numbers, listed(values), strict=True):
                check(field, found, number)
    for number in range(5):
        for field, found in dataset[f"sample {number}"].items():
            check(field, found, number)
