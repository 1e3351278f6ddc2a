"""What a schema may say, and what it refuses."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import UsageError
from packer.format import DTYPES, Field, FieldSpec, FrameRule, spec_of
from packer.format.schema import MAX_AXES, MAX_NAME_BYTES

IMAGE: dict[str, Any] = {
    "name": "hr",
    "dtype": "uint8",
    "kind": "image",
    "shape": [None, None, 3],
    "codec": [{"id": "photo"}, {"id": "zstd", "level": 1}],
    "frame": {"rows": 16},
}


def parse(**changes: Any) -> Field:
    return msgspec.convert({**IMAGE, **changes}, Field)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_the_list_is_numpys(dtype: str) -> None:
    """Each name is a numpy dtype, little-endian on disk, whose spec is taken from an array of it."""
    spec = FieldSpec(name="x", dtype=dtype)
    assert spec.np_dtype == np.dtype(dtype).newbyteorder("<")
    assert spec.itemsize == np.dtype(dtype).itemsize == spec.fixed_bytes
    assert spec_of("x", np.zeros((2, 3), dtype)) == FieldSpec(name="x", dtype=dtype, shape=(2, 3))


def test_the_byte_order_of_an_array_is_not_part_of_its_spec() -> None:
    """A big-endian array has the spec of the native one."""
    assert spec_of("x", np.zeros(3, ">f4")) == spec_of("x", np.zeros(3, "<f4"))


@pytest.mark.parametrize("dtype", ["U4", "S4", "O", "M8[s]", "m8[s]", "f4,i4"])
def test_dtypes_that_cannot_be_stored_are_named(dtype: str) -> None:
    """Strings, objects, dates and records are usage errors that name the field."""
    with pytest.raises(UsageError, match="'label'"):
        spec_of("label", np.zeros(3, dtype))


@given(shape=st.lists(st.one_of(st.none(), st.integers(0, 100)), max_size=6))
def test_ragged_axes_are_those_without_a_length(shape: list[int | None]) -> None:
    """Axes of unknown length are ragged and count once in the fixed bytes."""
    spec = FieldSpec(name="x", dtype="int32", shape=tuple(shape))
    assert spec.ragged_axes == tuple(i for i, n in enumerate(shape) if n is None)
    assert spec.is_ragged == bool(spec.ragged_axes)
    assert spec.fixed_bytes == 4 * int(np.prod([1 if n is None else n for n in shape], dtype=np.int64))


def test_a_field_survives_json() -> None:
    """A field reads back equal from its JSON, in which defaults of the frame rule are left out."""
    field = parse()
    assert msgspec.json.decode(msgspec.json.encode(field), type=Field) == field
    assert msgspec.json.decode(msgspec.json.encode(field)) == IMAGE


@pytest.mark.parametrize(
    "name", ["", " a", "a ", "a=b", "a/b", "a\\b", "a\nb", "a\0", "\u202e", "x" * (MAX_NAME_BYTES + 1), "é" * 128]
)
def test_names_that_would_confuse_are_refused(name: str) -> None:
    """A field name is printable, without separators, and short."""
    with pytest.raises(ValueError, match="field name"):
        FieldSpec(name=name, dtype="uint8")


@pytest.mark.parametrize("name", ["hr", "a b", "größe", "a.b", "x" * MAX_NAME_BYTES, "図"])
def test_other_names_are_taken(name: str) -> None:
    """Any script, dots and inner spaces are fine."""
    assert FieldSpec(name=name, dtype="uint8").name == name


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "float128"},
        {"dtype": 8},
        {"kind": "video"},
        {"shape": [3]},
        {"shape": [None, None, -1]},
        {"shape": [None, None, 2**48 + 1]},
        {"shape": [2**20, 2**20, 2**20]},
        {"shape": [0, 2**40, 2**40]},
        {"shape": [None, None, 1.5]},
        {"shape": "abc"},
        {"kind": "array", "codec": [], "shape": [1] * (MAX_AXES + 1)},
        {"kind": "text", "codec": [], "shape": [None, None]},
        {"kind": "text", "codec": [], "shape": [None], "dtype": "uint16"},
        {"codec": [{}]},
        {"codec": [{"id": 3}]},
        {"codec": [{"level": 3}]},
        {"codec": {"id": "zstd"}},
        {"codec": [{"id": "zlib"}] * 9},
        {"codec": [{"id": "zstd"}, {"id": "photo"}]},
        {"dtype": "float32"},
        {"kind": "array"},
        {"frame": {}},
        {"frame": {"rows": 1, "samples": 1}},
        {"frame": {"rows": 0}},
        {"frame": {"samples": -1}},
        {"frame": {"samples": 2**33}},
        {"shape": [64, 64, 3], "frame": {"samples": 2**12}},
        {"frame": {"columns": 1}},
        {"kind": "array", "codec": [], "shape": []},
        {"extra": 1},
    ],
)
def test_a_wrong_field_is_refused(changes: dict[str, Any]) -> None:
    """Each member is checked: a wrong one is a validation error, never a schema."""
    parse()
    with pytest.raises(msgspec.ValidationError):
        parse(**changes)


def test_what_is_built_in_python_is_checked_too() -> None:
    """Rules that msgspec only checks while parsing hold for fields built in code."""
    with pytest.raises(ValueError, match="dtype"):
        FieldSpec(name="x", dtype="float128")
    with pytest.raises(ValueError, match="axes"):
        FieldSpec(name="x", dtype="uint8", shape=(1,) * 17)
    with pytest.raises(ValueError, match="either samples or rows"):
        FrameRule()


def test_the_spec_of_a_field_is_what_it_is_without_how_it_is_stored() -> None:
    """Fields that differ in codec and frames alone have one spec."""
    assert parse().spec == parse(codec=[], frame={"samples": 3}).spec
