"""A source seen through a dataset's schema: what fits, and what each difference is called."""

from __future__ import annotations

import numpy as np
import pytest

from packer.errors import UsageError
from packer.format import FieldSpec
from packer.sources import FittedSource, SampleSource
from packer.sources.derived import check_fits

WANTED = FieldSpec(name="x", dtype="uint8", kind="image", shape=(None, 5, 3))


def spec(**changes):
    """The wanted field, with some of it changed."""
    return FieldSpec(**{"name": "x", "dtype": "uint8", "kind": "image", "shape": (None, 5, 3), **changes})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([spec(kind="array")], r"x is array uint8 \[any, 5, 3\], not image uint8 \[any, 5, 3\]"),
        ([spec(dtype="uint16")], r"x is image uint16 \[any, 5, 3\], not image uint8 \[any, 5, 3\]"),
        ([spec(shape=(6, 4, 3))], r"x is image uint8 \[6, 4, 3\], not image uint8 \[any, 5, 3\]"),
        ([spec(shape=(6, None, 3))], r"x is image uint8 \[6, any, 3\], not image uint8 \[any, 5, 3\]"),
        ([spec(kind="array", shape=(6, 5))], r"x is array uint8 \[6, 5\], not image uint8 \[any, 5, 3\]"),
        ([spec(name="y")], r"field x \(image uint8 .*\) is missing; field y \(image uint8 .*\) is not in the others"),
        ([spec(), spec(name="y")], r"dataset: field y \(image uint8 .*\) is not in the others"),
    ],
)
def test_each_difference_is_named(given, words):
    """Kind, dtype, lengths of axes, their number, and the names of fields."""
    with pytest.raises(UsageError, match=words):
        check_fits(given, [WANTED])


@pytest.mark.parametrize("shape", [(None, 5, 3), (6, 5, 3)])
def test_what_fits(shape):
    """The field itself, and one whose every sample has a length that the dataset leaves open."""
    check_fits([spec(shape=shape)], [WANTED])


def test_shapes_and_blocks_are_those_of_a_ragged_field():
    """Where the dataset's field is ragged, every sample has a shape of its own and is an array of its own."""
    samples = SampleSource([{"x": np.full((2, 3), n)} for n in range(4)])
    fitted = FittedSource(samples, [FieldSpec(name="x", dtype="int64", shape=(None, 3))])
    assert fitted.shapes("x").tolist() == [[2, 3]] * 4
    blocks = [block["x"] for block in fitted.slice(1, 3).read()]
    assert not [block for block in blocks if not isinstance(block, list)]
    assert [array.tolist() for block in blocks for array in block] == [[[n] * 3] * 2 for n in (1, 2)]
