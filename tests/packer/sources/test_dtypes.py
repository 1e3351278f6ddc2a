"""Dtypes that hold values of others: exactly, and as small as can be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.sources.dtypes import DoesNotFitError, common_dtype, convert

REAL = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)] + ["float16", "float32", "float64"]


def extremes(dtype: str) -> list[int]:
    """Return the integers at the ends of those that a dtype holds without a gap, as Python counts."""
    if dtype.startswith("float"):
        most = 2 ** (np.finfo(dtype).nmant + 1)
        return [-most, most - 1]
    return [np.iinfo(dtype).min, np.iinfo(dtype).max]


@given(st.sets(st.sampled_from(REAL), min_size=1))
def test_the_common_dtype_is_the_smallest_that_holds_all(dtypes: set[str]) -> None:
    """Every value of each comes back from it; no smaller dtype does that; None where none does."""
    wanted = [number for dtype in dtypes for number in extremes(dtype)]
    is_float = any(dtype.startswith("float") for dtype in dtypes)

    def holds_all(dtype: str) -> bool:
        low, high = extremes(dtype)
        is_wide = dtype.startswith("float") and all(np.can_cast(d, dtype) for d in dtypes if d.startswith("float"))
        return (is_wide if is_float else True) and low <= min(wanted) and max(wanted) <= high

    fitting = [np.dtype(dtype).itemsize for dtype in REAL if holds_all(dtype)]
    dtype = common_dtype(dtypes)
    assert (dtype is None) == (not fitting)
    if dtype is not None:
        assert holds_all(dtype)
        assert np.dtype(dtype).itemsize == min(fitting)


def test_complex_values_have_no_company() -> None:
    """One complex file among others makes no field complex."""
    assert common_dtype(["complex64", "complex64"]) == "complex64"
    assert common_dtype(["complex64", "float32"]) is None


@pytest.mark.parametrize(
    ("value", "dtype", "fits"),
    [
        (np.int32(2**24 + 1), "float32", False),
        (np.int64(2**53 + 1), "float64", False),
        (np.uint32(2**24), "float32", True),
        (np.float64(0.1), "float32", True),
        (np.float64(1e300), "float32", False),
        (np.float64(-1), "uint8", False),
        (np.float64("nan"), "int16", False),
        (np.uint64(2**63), "int64", False),
    ],
)
def test_conversion_rounds_floats_alone(value: np.generic, dtype: str, fits: bool) -> None:
    """An integer that a float would round, or a value outside of the range, is an error that has the value."""
    values = np.array([0, value], value.dtype)
    if fits:
        assert np.array_equal(convert(values, dtype), values.astype(dtype))
        return
    with pytest.raises(DoesNotFitError) as caught:
        convert(values, dtype)
    assert caught.value.index == (1,)
