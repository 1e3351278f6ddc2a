"""Differences between rows, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from packer.codecs import FrameCodec
from packer.codecs.filters import accumulate, difference

images = hnp.arrays(
    st.sampled_from([np.uint8, np.uint16]), hnp.array_shapes(min_dims=2, max_dims=4, min_side=0, max_side=5)
)


@given(images=images)
def test_accumulating_differences_gives_the_images(images: NDArray[Any]) -> None:
    """The two steps are inverses for every shape, with the wrap-around of both dtypes."""
    there = difference(images)
    accumulate(there)
    assert there.dtype == images.dtype
    assert (there == images).all()


@given(images=images)
def test_the_caller_keeps_its_images(images: NDArray[Any]) -> None:
    """Differences are a new array."""
    before = images.copy()
    assert not np.shares_memory(difference(images), images)
    assert (images == before).all()


@pytest.mark.parametrize(("dtype", "wrapped"), [(np.uint8, 2**8 - 5), (np.uint16, 2**16 - 5)])
def test_each_row_is_less_the_row_above(dtype: Any, wrapped: int) -> None:
    """Literal values: the first row stays, others are differences modulo 2**bits, and images are apart."""
    rows = np.array([[[7, 8], [2, 9]], [[1, 1], [1, 2]]], dtype)
    assert difference(rows).tolist() == [[[7, 8], [wrapped, 1]], [[1, 1], [0, 1]]]


def test_images_need_not_lie_in_one_piece() -> None:
    """Views with gaps, such as crops, are accumulated in place."""
    whole = np.arange(200, dtype=np.uint8).reshape(2, 10, 10)
    crop = difference(whole)[:, :, 2:5]
    accumulate(crop)
    assert (crop == whole[:, :, 2:5]).all()


@given(
    height=st.integers(0, 9), band=st.one_of(st.none(), st.integers(1, 10)), dtype=st.sampled_from(["uint8", "uint16"])
)
def test_row_differences_are_undone_band_by_band(height: int, band: int | None, dtype: str) -> None:
    """Differences that begin anew with every band are summed within their band, modulo the dtype."""
    images = np.random.default_rng(1).integers(0, 2**16, (2, height, 3, 1)).astype(dtype)
    wanted = images.copy()
    for top in range(0, height, band or max(height, 1)):
        part = wanted[:, top : top + (band or height)]
        part[...] = np.cumsum(part, axis=1, dtype=dtype)
    FrameCodec([{"id": "rowdelta"}], np.dtype(dtype)).undo_filter(images, band)
    assert np.array_equal(images, wanted)
