"""Records are copied out of overlapping windows, by numpy or by torch, to the same result."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from readers import window as windows
from readers.window import Window

UNITS = [torch.uint8, torch.bool, torch.float16, torch.int32, torch.float64, torch.complex128]


def way(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    """Leaves fewer bytes than `held` to numpy; more go to several of torch's threads."""
    monkeypatch.setattr(windows, "HELD_BYTES", held)
    monkeypatch.setattr(windows, "AWAKE_BYTES", held)
    monkeypatch.setattr(windows, "TORCH_GRAIN", held)
    monkeypatch.setattr(windows, "quicker", lambda nbytes, several, one: several())


@pytest.mark.parametrize(("held", "most"), [(0, windows.MOST_ITEM_BYTES), (2**18, windows.MOST_ITEM_BYTES), (2**18, 0)])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
@pytest.mark.parametrize("unit", UNITS)
def test_records_begin_at_every_element(
    monkeypatch: pytest.MonkeyPatch, unit: torch.dtype, shape: tuple[int, ...], held: int, most: int
) -> None:
    """Overlapping records come whole, in order and more than once, as copies; in new memory and in the caller's.

    So do those that are too large for numpy's items.
    """
    way(monkeypatch, held)
    monkeypatch.setattr(windows, "MOST_ITEM_BYTES", most)
    elements = torch.arange(400).to(unit)
    values = elements.numpy().copy()
    window = Window(elements, values.dtype, shape)
    size = int(np.prod(shape))
    records = np.array([7, 0, 400 - size, 7, 8])
    wanted = np.stack([values[at : at + size].reshape(shape) for at in records])
    assert np.array_equal(window.array(records), wanted)
    found = window.tensor(records)
    assert found.dtype == unit
    assert np.array_equal(found.numpy(), wanted)
    memory = torch.empty(wanted.nbytes, dtype=torch.uint8)
    given = window.tensor(records, memory)
    assert given.data_ptr() == memory.data_ptr()
    assert np.array_equal(given.numpy(), wanted)
    found.zero_()
    assert np.array_equal(elements.numpy(), values)


@pytest.mark.parametrize("held", [0, 2**18])
def test_records_may_be_made_of_other_elements(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    """Values of 8 bytes begin at odd bytes; unsigned ones of 2 are addressed as signed ones."""
    way(monkeypatch, held)
    memory = torch.arange(200, dtype=torch.uint8)
    found = Window(memory, np.float64, (2,)).tensor(np.array([3, 100]))
    assert found.numpy().tobytes() == memory[3:19].numpy().tobytes() + memory[100:116].numpy().tobytes()
    large = np.array([65_535, 1, 40_000], np.uint16)
    found = Window(torch.from_numpy(large.view(np.int16)), np.uint16, (2,)).tensor(np.array([0, 1]))
    assert found.dtype == torch.uint16
    assert found.tolist() == [[65_535, 1], [1, 40_000]]


@pytest.mark.parametrize("held", [0, 2**18])
def test_no_record_outside_is_copied(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    """The record behind the last one that fits is refused."""
    way(monkeypatch, held)
    window = Window(torch.zeros(10), np.float32, (3,))
    assert window.tensor(np.array([7])).shape == (1, 3)
    with pytest.raises(IndexError):
        window.tensor(np.array([8]))


@pytest.mark.parametrize("awake", [False, True])
def test_torch_copies_small_pictures_while_its_threads_are_awake(monkeypatch: pytest.MonkeyPatch, awake: bool) -> None:
    """Else numpy does, in the main thread; with the same values."""
    elements = torch.arange(2 * windows.AWAKE_BYTES // 4, dtype=torch.int32)
    window = Window(elements, np.int32, (len(elements) // 2,))
    done: list[str] = []

    def together(rows: torch.Tensor, records: NDArray[np.int64]) -> torch.Tensor:
        done.append("together")
        return rows[records]

    monkeypatch.setattr(windows, "team_is_awake", lambda: awake)
    monkeypatch.setattr(windows, "together", together)
    found = window.tensor(np.array([1, 0]))
    assert done == ["together"] * awake
    assert torch.equal(found, torch.stack([elements[1 : 1 + found.shape[1]], elements[: found.shape[1]]]))
