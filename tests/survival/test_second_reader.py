"""A reader written from FORMAT.md alone reads all that packer writes as our own reader does, and refuses the same."""

from __future__ import annotations

import ast
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packer.convert import ConvertOptions, convert
from readers import PackedDataset
from tests.golden import reader
from tests.helpers.kinds import KINDS, make

GOLDEN = Path(reader.__file__).parent
BAD = json.loads((GOLDEN / "bad" / "bad.json").read_text("utf-8"))


def same_as_ours(folder: Path, lacking: tuple[str, ...] = ()) -> None:
    """Every sample of every field, the names and the constants equal those of our reader."""
    theirs, ours = reader.Dataset(folder, xxhash), PackedDataset(folder)
    assert (theirs.samples, list(theirs.fields)) == (len(ours), list(ours.fields))
    refused = set()
    for number in range(len(ours)):
        sample = ours[number]
        for name, value in sample.items():
            try:
                other = theirs.read(number, name)
            except NotImplementedError:
                refused.add(name)
                continue
            assert bits(other, theirs.fields[name].kind == "image") == bits(value), (name, number)
    assert refused == {name for name in ours.fields if name.startswith(lacking)}
    if ours.names is not None:
        names = [theirs.name(number) for number in range(len(ours))]
        assert names == list(ours.names)
        assert [theirs.number(name) for name in names] == list(range(len(ours)))
    constants = {name: (str(value.dtype), value.tolist()) for name, value in theirs.constants().items()}
    assert constants == {name: (str(v.numpy().dtype), v.tolist()) for name, v in ours.constants.items()}


def bits(value: Any, is_image: bool = False) -> Any:
    """Return a value in a form that `==` compares; our reader returns channels first."""
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    array = array.transpose(2, 0, 1) if is_image else array
    return array.dtype.name, array.shape, array.tobytes()


def test_it_is_small_and_alone() -> None:
    """It has 340 lines at most, and imports the standard library, numpy, LMDB and the codecs that every reader has."""
    text = Path(reader.__file__).read_text("utf-8")
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    assert imported - sys.stdlib_module_names == {"PIL", "av", "lmdb", "lz4", "numcodecs", "numpy", "zstandard"}
    assert len(text.splitlines()) <= 340


@pytest.mark.parametrize("name", sorted(path.parent.name for path in GOLDEN.glob("*/manifest.json")))
def test_golden_datasets(name: str) -> None:
    """Both readers read the same from golden datasets; if the second lacks a codec, only fields with it are skipped."""
    same_as_ours(GOLDEN / name, lacking=("shuffle+zlib",))


def test_the_values_in_json() -> None:
    """A reader in another language can compare its values with JSON: this reader finds the values listed there."""
    expected, dataset = json.loads((GOLDEN / "exact.json").read_text("utf-8")), reader.Dataset(GOLDEN / "exact", xxhash)
    assert list(expected["fields"]) == list(dataset.fields)
    for name, wanted in expected["fields"].items():
        assert [plain(dataset.read(number, name)) for number in range(dataset.samples)] == wanted
    assert [dataset.name(number) for number in range(dataset.samples)] == expected["names"]


def plain(value: Any) -> Any:
    """Return a sample in the form of `exact.json`."""
    if isinstance(value, str):
        return value
    return (np.stack([value.real, value.imag], axis=-1) if value.dtype.kind == "c" else value).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_fresh_datasets_of_every_kind(kind: str, tmp_path: Path) -> None:
    """Both readers read the same from a dataset of every kind of source."""
    same_as_ours(make(KINDS[kind], tmp_path).path)


CODECS = ("none", "lz4", "lz4hc", "zstd", "bitshuffle", "shuffle+lz4", "shuffle+zstd", "decimal+lz4", "auto")
#: A dtype, the axes of a sample after the first one, and the number of distinct values: few compress well.
ARRAYS = st.tuples(
    st.sampled_from(reader.DTYPES),
    st.none() | st.lists(st.integers(0, 5), max_size=2).map(tuple) | st.just((3000,)),
    st.integers(1, 200),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    described=st.dictionaries(st.sampled_from("abc"), ARRAYS, min_size=1),
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=6),
    codec=st.sampled_from(CODECS),
    shard_size=st.sampled_from([4096, 2**20]),
)
def test_fresh_datasets_of_any_arrays(
    described: Any, lengths: list[int], codec: str, shard_size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Arrays of any dtype and shape, ragged or not, by any codec and in shards of any size: the same for both."""
    rng = np.random.default_rng(len(lengths))
    samples = [
        {
            name: (rng.integers(0, count, () if axes is None else (length, *axes)) / 4).astype(dtype)
            for name, (dtype, axes, count) in described.items()
        }
        for length in lengths
    ]
    out = tmp_path_factory.mktemp("fresh") / "d"
    chosen = {
        name: codec if "decimal" not in codec or dtype in ("float32", "float64") else "zstd"
        for name, (dtype, _, _) in described.items()
    }
    convert(samples, out, ConvertOptions(codec=chosen, shard_size=shard_size, workers=0))
    same_as_ours(out)


@pytest.mark.parametrize("name", BAD)
def test_a_broken_rule_is_found(name: str) -> None:
    """A dataset that breaks one rule is refused where a reader must notice; else it is refused or read."""

    def read() -> None:
        dataset = reader.Dataset(GOLDEN / "bad" / name, xxhash)
        for field in dataset.fields:
            for number in range(dataset.samples):
                dataset.read(number, field)

    errors = (ValueError, reader.zstandard.ZstdError)
    with pytest.raises(errors) if BAD[name]["a reader must notice"] else contextlib.suppress(errors):
        read()
