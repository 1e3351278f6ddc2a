"""Ragged batches: lists, padding, nesting, and their life as a tree of tensors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from packer.errors import UsageError
from packer.format import DTYPES
from readers import PackedDataset, Ragged


def _ragged(dtype: torch.dtype = torch.float32) -> Ragged:
    return Ragged(torch.arange(1, 13).view(6, 2).to(dtype), torch.tensor([0, 2, 2, 6]))


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


def test_len_and_index_count_samples() -> None:
    """As of a list: `ragged[i]` is sample i, a view; negative numbers count from the end, others are an IndexError."""
    ragged = _ragged()
    assert len(ragged) == 3
    assert [part.tolist() for part in ragged] == [part.tolist() for part in ragged.to_list()]
    assert ragged[-1].data_ptr() == ragged.values[2:].data_ptr()
    for wrong in (3, -4):
        with pytest.raises(IndexError):
            _ = ragged[wrong]
    assert Ragged(np.arange(3), np.array([0, 1, 3]))[1].tolist() == [1, 2]  # type: ignore[arg-type]


def test_a_slice_is_the_ragged_of_some_samples() -> None:
    """Its values are a view; it may be empty, and has no steps."""
    ragged = _ragged()
    for chosen in (slice(1, 3), slice(None, 2), slice(-1, None), slice(2, 1), slice(None)):
        part = ragged[chosen]
        assert [rows.tolist() for rows in part.to_list()] == [rows.tolist() for rows in ragged.to_list()[chosen]]
        assert int(part.offsets[0]) == 0
    assert ragged[2:].values.data_ptr() == ragged.values[2:].data_ptr()
    with pytest.raises(TypeError, match="not with a step of 2"):
        _ = ragged[::2]


def test_operators_are_those_of_the_values() -> None:
    """With numbers and arrays of numpy from either side, too; comparisons give Ragged of bool."""
    ragged, row = _ragged(), np.array([1, 5], np.float32)
    values = ragged.values
    for found, wanted in (
        (np.float32(2) * ragged, 2 * values),
        (row - ragged, torch.from_numpy(row) - values),
        (ragged - row, values - torch.from_numpy(row)),
        (1 / (ragged + 1), 1 / (values + 1)),
        (-ragged, -values),
        (abs(-ragged), abs(values)),
        (ragged**2, values**2),
        (2**ragged, 2**values),
        (ragged // 2, values // 2),
        (ragged % 2, values % 2),
        (ragged > 1, values > 1),
        (ragged <= 1, values <= 1),
        (ragged == 1, values == 1),
        (ragged != row, values != torch.from_numpy(row)),
    ):
        assert isinstance(found, Ragged)
        assert torch.equal(found.values, wanted)
        assert torch.equal(found.offsets, ragged.offsets)
    assert (ragged.dtype, ragged.device) == (values.dtype, values.device)
    assert len({ragged, _ragged()}) == 2


def test_arithmetic_changes_the_values() -> None:
    """With a number, or a tensor of one row, from either side; the offsets stay."""
    ragged, row = _ragged(), torch.tensor([1.0, 5.0])
    wanted = {
        ragged + 1: ragged.values + 1,
        2 + ragged: ragged.values + 2,
        ragged - row: ragged.values - row,
        1 - ragged: 1 - ragged.values,
        ragged * 3: ragged.values * 3,
        row * ragged: ragged.values * row,
        _ragged(torch.uint8).float() / 255: ragged.values / 255,
    }
    for found, values in wanted.items():
        assert found.values.dtype == torch.float32
        assert torch.equal(found.values, values)
        assert torch.equal(found.offsets, ragged.offsets)
    with pytest.raises(TypeError, match="combine their values"):
        _ = ragged + ragged  # type: ignore[operator]


def _grid_coord(coord: Any, size: float) -> Any:
    """What Pointcept's GridSample(grid_size=size, return_grid_coord=True) counts, pointcept/datasets/transform.py."""
    cells = np.floor(coord / np.array(size)).astype(int)
    return cells - cells.min(0)


def test_cells_are_those_of_each_cloud() -> None:
    """Counted from the lowest cell of each cloud, as Pointcept does it; a cloud without points has none."""
    rng = np.random.default_rng(0)
    clouds = [rng.normal(size=(n, 4)).astype(np.float32) * 9 - 5 for n in (50, 0, 1, 700)]
    ragged = Ragged(torch.from_numpy(np.concatenate(clouds)), torch.tensor([0, 50, 50, 51, 751]))
    found = ragged.cells(0.02)
    assert found.dtype == torch.int32
    assert found.tolist() == [row for cloud in clouds if len(cloud) for row in _grid_coord(cloud[:, :3], 0.02).tolist()]
    assert Ragged(torch.zeros(0, 3), torch.tensor([0])).cells(1).shape == (0, 3)


@pytest.mark.parametrize("point", [np.nan, np.inf, -1e12, 2.0**30])
def test_a_point_in_no_cell_is_an_error(point: float) -> None:
    """NaN, infinite, or so far away that the cells do not fit int32; the last one that does is fine."""
    with pytest.raises(UsageError, match="no cell of size"):
        Ragged(torch.tensor([[0.0, 0, 0], [0, point, 0]]), torch.tensor([0, 2])).cells(0.5)
    last = Ragged(torch.tensor([[0.0, 0, 0], [0, 2.0**30 - 64, 0]]), torch.tensor([0, 2]))
    assert last.cells(0.5)[1].tolist() == [0, 2**31 - 128, 0]


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


def test_a_ragged_moves_pickles_and_copies_as_a_whole() -> None:
    """A dtype changes the values alone, a device both; what is pickled or copied is equal."""
    halves = _ragged().to(torch.float16)
    assert (halves.values.dtype, halves.offsets.dtype) == (torch.float16, torch.int64)
    moved = _ragged().to("meta", non_blocking=True)
    assert moved.values.device.type == moved.offsets.device.type == "meta"
    for same in (pickle.loads(pickle.dumps(_ragged())), copy.deepcopy(_ragged())):
        assert torch.equal(same.values, _ragged().values)
        assert torch.equal(same.offsets, _ragged().offsets)


def test_nothing_takes_a_ragged_for_a_batch_of_its_values() -> None:
    """What looks for the size of a batch in all that can be iterated over finds that of another field."""
    assert not isinstance(_ragged(), Iterable)


def test_a_read_batch_has_offsets_that_fit(packed: Path, samples: list[dict[str, object]]) -> None:
    """Sample i of a batch that was read lies at offsets[i] to offsets[i + 1]."""
    batch = PackedDataset(packed, fields=["xyz"])[[4, 0, 3, 4]]["xyz"]
    assert isinstance(batch, Ragged)
    assert batch.offsets.dtype == torch.int64
    assert batch.offsets.tolist() == [0, 4, 4, 7, 11]
    for number, part in zip([4, 0, 3, 4], batch.to_list(), strict=True):
        assert part.numpy().tobytes() == samples[number]["xyz"].tobytes()  # type: ignore[attr-defined]


def test_ragged_speaks_the_words_of_frameworks() -> None:
    """Ends without the 0 (Pointcept), ends with it (PyG), the sample of each row, and how many samples there are."""
    ragged = _ragged()
    assert ragged.offset.tolist() == [2, 2, 6]
    assert ragged.ptr.tolist() == [0, 2, 2, 6]
    assert ragged.batch_index().tolist() == [0, 0, 2, 2, 2, 2]
    assert {tensor.dtype for tensor in (ragged.offset, ragged.ptr, ragged.batch_index())} == {torch.int64}
    assert ragged.batch_size == 3
    assert len(pytree.tree_leaves(ragged)) == 2
    empty = Ragged(torch.zeros(0, 2), torch.tensor([0]))
    assert (empty.batch_size, empty.offset.tolist(), empty.batch_index().tolist()) == (0, [], [])


def test_a_ragged_is_printed_by_its_shapes() -> None:
    """Lengths, shape and dtype, of any batch on one line; a nest of something else shows what it holds."""
    clouds = Ragged(torch.zeros(6, 3), torch.tensor([0, 0, 1, 3, 6]))
    assert repr(clouds) == "Ragged(batch_size=4, lengths=[0, 1, 2, 3], values=(6, 3), dtype=torch.float32)"
    many = Ragged(torch.zeros(100).to("meta"), torch.arange(101))
    assert repr(many).endswith("1, 1, ...], values=(100,), dtype=torch.float32, device='meta')")
    assert repr(pytree.tree_map(lambda _: "*", clouds)) == "Ragged(values='*', offsets='*')"


def test_a_ragged_is_not_none() -> None:
    """Whether something is a Ragged or None can be asked by == as well."""
    clouds = Ragged(torch.zeros(6, 3), torch.tensor([0, 0, 1, 3, 6]))
    for other in (None, "text"):
        assert (clouds == other) is False
        assert (clouds != other) is True
        with pytest.raises(TypeError):
            _ = clouds + other
    assert (clouds == 0).values.all()
