"""What may stand in `ds[...]`, and what is refused with which error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from packer.errors import MissingNameError, SampleIndexError
from packer.format import Numbers
from readers.indexing import is_single, resolve_number, resolve_numbers

SAMPLES = 40
MASK = np.arange(SAMPLES) % 7 == 3
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def _look_up(names: Sequence[str]) -> Numbers:
    for name in names:
        if not name.startswith("n"):
            raise MissingNameError(f"no sample is named {name!r}")
    return np.array([int(name[1:]) for name in names], np.int64)


def _numbers(index: Any) -> list[int]:
    found = resolve_numbers(index, SAMPLES, _look_up)
    assert found.dtype == np.int64
    assert found.ndim == 1
    return found.tolist()


@pytest.mark.parametrize(
    ("index", "number"),
    [
        (3, 3),
        (-1, SAMPLES - 1),
        (-SAMPLES, 0),
        (np.int8(-2), SAMPLES - 2),
        (np.uint64(7), 7),
        (np.array(5), 5),
        (torch.tensor(6), 6),
        (torch.tensor(7, dtype=torch.uint8), 7),
        ("n9", 9),
        (np.str_("n9"), 9),
        (np.array("n9"), 9),
    ],
)
def test_one_sample(index: Any, number: int) -> None:
    """A number or a name, also as a scalar of numpy or torch, asks for one sample."""
    assert is_single(index)
    assert resolve_number(index, SAMPLES, _look_up) == number


@pytest.mark.parametrize(
    ("index", "numbers"),
    [
        (slice(10, 14), [10, 11, 12, 13]),
        (slice(-2, None), [SAMPLES - 2, SAMPLES - 1]),
        (slice(5, 0, -2), [5, 3, 1]),
        (slice(30, 900, 5), [30, 35]),
        (slice(50, 60), []),
        (range(3, 9, 3), [3, 6]),
        (range(1, -2, -1), [1, 0, SAMPLES - 1]),
        (range(5, 5), []),
        (range(10**30, 10**30), []),
        ([3, -1, 3], [3, SAMPLES - 1, 3]),
        ([np.int16(4), 5], [4, 5]),
        ([torch.tensor(4), torch.tensor(5)], [4, 5]),
        ((8, 2), [8, 2]),
        (["n4", "n2", "n4"], [4, 2, 4]),
        (("n1",), [1]),
        (np.array(["n1", "n30"]), [1, 30]),
        (np.array(["n1", "n30"], dtype=object), [1, 30]),
        (np.array([5, -5], dtype=object), [5, SAMPLES - 5]),
        (np.array([2, 1], dtype=">i4"), [2, 1]),
        (np.arange(10)[::-3], [9, 6, 3, 0]),
        (torch.arange(10)[::3], [0, 3, 6, 9]),
        ([], []),
        ((), []),
        (np.array([], dtype=np.int32), []),
        (np.array([], dtype=str), []),
        (np.array([], dtype=object), []),
        (torch.zeros(0, dtype=torch.int64), []),
        (MASK, np.flatnonzero(MASK).tolist()),
        (MASK.tolist(), np.flatnonzero(MASK).tolist()),
        (torch.from_numpy(MASK), np.flatnonzero(MASK).tolist()),
        (np.zeros(SAMPLES, bool), []),
    ],
)
def test_many_samples(index: Any, numbers: list[int]) -> None:
    """Everything else asks for many, in the order asked and as often as asked."""
    assert not is_single(index)
    assert _numbers(index) == numbers


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_of_every_dtype(dtype: str) -> None:
    """Arrays and tensors of every integer dtype are indices; small unsigned ones are no masks."""
    wanted = [0, 1, 1, 39] + ([] if dtype.startswith("u") else [-1, -40])
    array = np.array(wanted, dtype)
    assert _numbers(array) == [number % SAMPLES for number in wanted]
    assert _numbers(torch.from_numpy(array)) == [number % SAMPLES for number in wanted]


@pytest.mark.parametrize(
    ("index", "wrong"),
    [
        ([0, 40], "40"),
        ([0, -41], "-41"),
        (np.array([99, 0], np.uint8), "99"),
        (np.array([2**64 - 1], np.uint64), str(2**64 - 1)),
        (np.array([1, 2**63], np.uint64), str(2**63)),
        (torch.tensor([-(2**63)]), str(-(2**63))),
        ([2**63, 1], str(2**63)),
        ([1, -(2**70)], str(-(2**70))),
        (range(10**12), str(10**12 - 1)),
        (range(39, 42), "41"),
    ],
)
def test_a_number_outside_is_an_index_error_that_names_it(index: Any, wrong: str) -> None:
    """No number wraps around or is cut to 64 bits: the first one outside the dataset is named."""
    with pytest.raises(IndexError, match=f"sample {wrong} of 40") as error:
        resolve_numbers(index, SAMPLES, _look_up)
    assert isinstance(error.value, SampleIndexError)


@pytest.mark.parametrize("index", [40, -41, 2**70, np.uint64(2**64 - 1), torch.tensor(-41), np.array(400)])
def test_one_number_outside_is_an_index_error_that_names_it(index: Any) -> None:
    """One number is checked as many are."""
    with pytest.raises(SampleIndexError, match=f"sample {int(index)} of 40"):
        resolve_number(index, SAMPLES, _look_up)


@pytest.mark.parametrize("length", [0, 39, 41])
def test_a_mask_of_another_length_is_an_index_error(length: int) -> None:
    """A mask has one item for every sample."""
    with pytest.raises(SampleIndexError, match=f"mask of {length} values for 40"):
        resolve_numbers(np.zeros(length, bool), SAMPLES, _look_up)


def test_a_missing_name_is_a_key_error_that_names_it() -> None:
    """The name is in the message, for one name and for many."""
    with pytest.raises(KeyError, match="'x1'"):
        resolve_number("x1", SAMPLES, _look_up)
    with pytest.raises(KeyError, match="'x2'"):
        resolve_numbers(["n1", "x2"], SAMPLES, _look_up)


@pytest.mark.parametrize(
    "index",
    [
        *[1.5, None, {1, 2}, {"a": 1}, iter([1]), b"abc"],
        *[[1.0, 2.0], [None], [1, "n1"], ["n1", 1], [True, "n1"], [[1, 2], [3, 4]], [[1], [2, 3]], [["n1"], ["n2"]]],
        *[np.array([[1, 2]]), np.array([1.0]), np.array([1 + 0j]), np.array(["2020-01-01"], "M8[D]")],
        *[
            np.array([b"n1"]),
            np.ones((SAMPLES, 1), bool),
            torch.tensor([1.0]),
            torch.tensor([1.0], dtype=torch.bfloat16),
        ],
        torch.ones(2, 2, dtype=torch.int64),
    ],
)
def test_anything_else_is_a_type_error(index: Any) -> None:
    """Floats, mixtures, several axes and things that have no order are refused, never rounded or flattened."""
    with pytest.raises(TypeError):
        resolve_numbers(index, SAMPLES, _look_up)


@pytest.mark.parametrize("index", [True, np.bool_(True), np.float32(1), np.array(1.0), torch.tensor(1.0)])
def test_one_of_anything_else_is_a_type_error(index: Any) -> None:
    """A scalar that is no integer and no name is refused."""
    with pytest.raises(TypeError):
        resolve_number(index, SAMPLES, _look_up)
