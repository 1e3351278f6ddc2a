"""Ragged batches: lists, padding, nesting, and their life as a tree of tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils import _pytree as pytree

from packer.format.schema import DTYPES
from readers import PackedDataset, Ragged


def _ragged(dtype: torch.dtype = torch.float32) -> Ragged:
    return Ragged(torch.arange(1, 13).view(6, 2).to(dtype), torch.tensor([0, 2, 2, 6]))


def test_to_list_gives_each_sample_as_a_view() -> None:
    """One tensor a sample, sharing the memory of the batch."""
    ragged = _ragged()
    parts = ragged.to_list()
    assert [part.shape[0] for part in parts] == [2, 0, 4]
    assert torch.equal(torch.cat(parts), ragged.values)
    parts[0][0, 0] = -1
    assert ragged.values[0, 0] == -1


@pytest.mark.parametrize("name", DTYPES)
def test_to_padded_fills_behind_the_shorter_samples(name: str) -> None:
    """Every dtype that can be stored can be padded, with the values where they were and `fill` elsewhere."""
    ragged = _ragged(getattr(torch, name))
    padded = ragged.to_padded(1)
    assert padded.dtype == ragged.values.dtype
    wanted = torch.ones(3, 4, 2, dtype=torch.complex128)
    wanted[0, :2] = ragged.values[:2].to(torch.complex128)
    wanted[2] = ragged.values[2:].to(torch.complex128)
    assert torch.equal(padded.to(torch.complex128), wanted)


def test_to_padded_of_nothing() -> None:
    """A batch of no samples, and one whose samples are all empty, can be padded."""
    assert Ragged(torch.zeros(0, 2), torch.tensor([0])).to_padded().shape == (0, 0, 2)
    assert Ragged(torch.zeros(0, 2), torch.tensor([0, 0, 0])).to_padded().shape == (2, 0, 2)


def test_to_nested_shares_the_values() -> None:
    """The nested tensor has the same samples and no copy of them."""
    ragged = _ragged()
    nested = ragged.to_nested()
    assert nested.is_nested
    assert nested.values().data_ptr() == ragged.values.data_ptr()
    assert [tuple(part.shape) for part in nested.unbind()] == [(2, 2), (0, 2), (4, 2)]


def test_a_ragged_is_a_nest_of_tensors() -> None:
    """torch's tree functions see its two tensors and give a Ragged back."""
    doubled = pytree.tree_map(lambda tensor: tensor * 2, {"xyz": _ragged()})["xyz"]
    assert isinstance(doubled, Ragged)
    assert doubled.values[0, 0] == 2
    assert doubled.offsets.tolist() == [0, 4, 4, 12]
    assert _ragged().lengths.tolist() == [2, 0, 4]


def test_a_read_batch_has_offsets_that_fit(packed: Path, samples: list[dict[str, object]]) -> None:
    """Sample i of a batch that was read lies at offsets[i] to offsets[i + 1]."""
    batch = PackedDataset(packed, fields=["xyz"])[[4, 0, 3, 4]]["xyz"]
    assert isinstance(batch, Ragged)
    assert batch.offsets.dtype == torch.int64
    assert batch.offsets.tolist() == [0, 4, 4, 7, 11]
    for number, part in zip([4, 0, 3, 4], batch.to_list(), strict=True):
        assert part.numpy().tobytes() == samples[number]["xyz"].tobytes()  # type: ignore[attr-defined]
