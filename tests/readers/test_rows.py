"""Regions of one sample: what `ds.read` gives is what slicing the whole sample gives, and no more is decoded."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer.codecs import NAMED
from packer.errors import DamagedError, MissingNameError, SampleIndexError, UsageError
from packer.format import DTYPES, Field, FieldSpec, FrameRule, Tree, column_key
from packer.writer import DatasetWriter
from readers import Crop, PackedDataset

CODECS = ("none", "lz4", "bitshuffle", "zstd")


@dataclass(frozen=True)
class Case:
    """A field, its samples by shard, and the region asked for."""

    field: Field
    shards: list[list[NDArray[Any]]]
    chunk_bytes: int
    number: int
    rows: slice | None
    columns: slice | None

    @property
    def values(self) -> list[NDArray[Any]]:
        return [value for shard in self.shards for value in shard]


_SLICES = st.none() | st.builds(slice, *[st.none() | st.integers(-9, 9)] * 2, st.none() | st.integers(1, 3))


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    image = draw(st.booleans())
    dtype = draw(st.sampled_from(("uint8", "uint16") if image else DTYPES))
    shape = tuple(draw(st.lists(st.sampled_from([None, 0, 1, 2, 3, 7]), min_size=3 if image else 1, max_size=3)))
    codec = NAMED[draw(st.sampled_from((*CODECS, "photo+lz4", "photo+zstd") if image else CODECS))]
    by_rows = draw(st.booleans())
    rule = FrameRule(rows=draw(st.integers(1, 4))) if by_rows else FrameRule(samples=draw(st.sampled_from([1, 2, 5])))
    field = Field(name="x", dtype=dtype, kind="image" if image else "array", shape=shape, codec=codec, frame=rule)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    most, longest = draw(st.sampled_from([2, 256])), draw(st.sampled_from([1, 9]))
    counts = draw(st.lists(st.integers(0, 7), min_size=1, max_size=3).filter(any))
    shards = [[_value(rng, field, most, longest) for _ in range(count)] for count in counts]
    number = draw(st.integers(0, sum(counts) - 1))
    columns = draw(_SLICES) if len(shape) > 1 else None
    return Case(field, shards, draw(st.sampled_from([8, 100, None])), number, draw(_SLICES), columns)


def _value(rng: np.random.Generator, field: Field, most: int, longest: int) -> NDArray[Any]:
    shape = [int(rng.integers(0, longest + 1)) if n is None else n for n in field.shape]
    if field.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    data = rng.integers(0, most, int(np.prod(shape)) * field.itemsize).astype(np.uint8)
    return data.view(field.np_dtype).reshape(shape)


def _cut(value: NDArray[Any], rows: slice | None, columns: slice | None) -> NDArray[Any]:
    return value[(rows or slice(None), columns or slice(None))[: value.ndim]]


def _stored(field: FieldSpec, region: torch.Tensor) -> NDArray[Any]:
    """A region in the order of its axes on disk."""
    return (region.permute(1, 2, 0) if field.kind == "image" else region).numpy()


@settings(max_examples=100)
@given(case=_cases())
def test_a_region_is_a_slice_of_the_sample(pack: Any, case: Case) -> None:
    """Any rows and columns of any sample, whatever its dtype, axes, codec, frame rule and place in chunks."""
    with tempfile.TemporaryDirectory() as folder:
        shards = [[{"x": value} for value in shard] for shard in case.shards]
        ds = PackedDataset(pack(Path(folder) / "p", [case.field], shards, chunk_bytes=case.chunk_bytes))
        found = _stored(case.field, ds.read(case.number, "x", case.rows, case.columns))
        wanted = _cut(case.values[case.number], case.rows, case.columns)
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        assert found.tobytes() == wanted.tobytes()


HEIGHT, WIDTH = 701, 550
BAND = 65536 // (WIDTH * 3)


@pytest.fixture(scope="module")
def picture() -> NDArray[np.uint8]:
    """A picture of more than 1 MiB, smooth enough for every codec to shrink it."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    noise = np.random.default_rng(0).integers(0, 3, (HEIGHT, WIDTH // 10, 3)).repeat(10, axis=1)
    return ((rows[..., None] // 3 + columns[..., None] // 2 + noise) % 256).astype(np.uint8)


def _packed(folder: Path, picture: NDArray[np.uint8], codec: str, ragged: bool) -> Path:
    shape = (None, None, 3) if ragged else picture.shape
    fields = [FieldSpec(name="x", dtype="uint8", kind="image", shape=shape)]
    with DatasetWriter(folder / "p", fields, codec=codec) as writer:
        for name in ("first", "second"):
            writer.add({"x": picture if name == "first" else picture[::-1]}, name=name)
    return folder / "p"


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("codec", ["lz4", "bitshuffle", "zstd", "photo+zstd"])
def test_only_the_bands_of_a_region_are_decoded(
    tmp_path: Path, picture: NDArray[np.uint8], decoded: list[int], codec: str, ragged: bool
) -> None:
    """Pictures over 1 MiB lie in bands of rows: of some 18, a region of 64 rows takes two or three, each once."""
    ds = PackedDataset(_packed(tmp_path, picture, codec, ragged))
    assert ds.fields["x"].frame == FrameRule(rows=BAND)
    for top, left, bands in ((0, 0, 2), (BAND - 1, 300, 3), (2 * BAND, 486, 2), (HEIGHT - 64, 17, 2)):
        decoded.clear()
        region = ds.read("first", "x", slice(top, top + 64), slice(left, left + 64))
        assert np.array_equal(region.permute(1, 2, 0), picture[top : top + 64, left : left + 64])
        assert len(decoded) == bands
        assert max(decoded) == BAND * WIDTH * 3
    decoded.clear()
    assert np.array_equal(ds.read(1, "x", slice(-1, None)).permute(1, 2, 0), picture[:1])
    assert decoded == [(HEIGHT - 1) % BAND * WIDTH * 3 + WIDTH * 3]


def test_nothing_is_decoded_of_an_uncompressed_picture(
    tmp_path: Path, picture: NDArray[np.uint8], decoded: list[int]
) -> None:
    """Uncompressed rows are copied from where they lie."""
    ds = PackedDataset(_packed(tmp_path, picture, "none", ragged=True))
    assert np.array_equal(ds.read(0, "x", slice(5, 9), slice(3, 500)).permute(1, 2, 0), picture[5:9, 3:500])
    assert decoded == []


@pytest.mark.parametrize("ragged", [False, True])
def test_a_region_of_more_bands_than_are_decoded_at_once(
    tmp_path: Path, picture: NDArray[np.uint8], decoded: list[int], ragged: bool
) -> None:
    """Bands are decoded some at a time, each once, and rows come in the order asked whichever band holds them."""
    ds = PackedDataset(_packed(tmp_path, picture, "zstd", ragged))
    region = ds.read("first", "x", columns=slice(400, 450, 3))
    assert np.array_equal(region.permute(1, 2, 0), picture[:, 400:450:3])
    assert len(decoded) == -(-HEIGHT // BAND)


def test_a_region_is_the_callers_own(tmp_path: Path, picture: NDArray[np.uint8]) -> None:
    """Writing to a region changes nothing that is read later."""
    for codec in ("none", "zstd"):
        (tmp_path / codec).mkdir()
        ds = PackedDataset(_packed(tmp_path / codec, picture, codec, ragged=False))
        ds.read(0, "x", slice(0, 10)).fill_(0)
        assert np.array_equal(ds.read(0, "x", slice(0, 10)).permute(1, 2, 0), picture[:10])


def test_a_run_of_points(packed: Path, samples: list[dict[str, Any]]) -> None:
    """Points of a cloud are its rows; an empty cloud has none of them."""
    ds = PackedDataset(packed)
    for number in range(10):
        found = ds.read(f"a/{number}", "xyz", rows=slice(1, 3))
        assert np.array_equal(found, samples[number]["xyz"][1:3])


def test_the_whole_sample_and_other_crops(packed: Path, samples: list[dict[str, Any]]) -> None:
    """Without rows and columns all of the sample comes, scalars and text too, whatever the dataset crops."""
    ds = PackedDataset(packed, crop=Crop(size=2, of="lr"))
    assert np.array_equal(ds.read(3, "lr").permute(1, 2, 0), samples[3]["lr"])
    assert np.array_equal(ds.read(3, "lr", columns=slice(1, 4)).permute(1, 2, 0), samples[3]["lr"][:, 1:4])
    assert ds.read(-1, "label") == samples[-1]["label"]
    assert ds.read(4, "caption") == samples[4]["caption"]


def test_what_cannot_be_read_is_said(packed: Path) -> None:
    """No such field, sample, name or axis; text; no slice; steps backwards."""
    ds = PackedDataset(packed)
    with pytest.raises(UsageError, match="no field 'hr' is read; there are x, label"):
        ds.read(0, "hr")
    with pytest.raises(SampleIndexError, match="sample 60 of 60"):
        ds.read(60, "lr", slice(0, 1))
    with pytest.raises(MissingNameError, match="b/1"):
        ds.read("b/1", "lr", slice(0, 1))
    with pytest.raises(UsageError, match="'label' has 0 axes, so no rows"):
        ds.read(0, "label", slice(0, 1))
    with pytest.raises(UsageError, match="'x' has 1 axes, so no columns"):
        ds.read(0, "x", columns=slice(0, 1))
    with pytest.raises(UsageError, match="'caption' is text"):
        ds.read(0, "caption", slice(0, 1))
    with pytest.raises(UsageError, match="rows 3: a slice is expected"):
        ds.read(0, "lr", 3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a step of 1 or more"):
        ds.read(0, "lr", rows=slice(0, 3, 0))
    with pytest.raises(UsageError, match="a step of 1 or more"):
        ds.read(0, "lr", slice(None, None, -1))


def test_ends_of_bands_that_are_damaged_are_an_error(pack: Any, tmp_path: Path) -> None:
    """A wrong end of a band between the first and the last is found when the shard is opened, and by no crash."""
    field = Field(
        name="x", dtype="uint8", kind="image", shape=(None, 6, 3), codec=NAMED["zstd"], frame=FrameRule(rows=2)
    )
    folder = pack(tmp_path / "p", [field], [[{"x": np.full((9, 6, 3), i, np.uint8)} for i in range(3)]])
    shard = next((folder / "shards").iterdir())
    data = bytearray(shard.read_bytes())
    ends = {value.key: value for value in Tree(memoryview(bytes(data)), str(shard)).values()}[
        column_key(0, "frame_offsets")
    ]
    at = ends.offset + 8
    # Twice a single end, then both ends of the band: there lies a band of another sample, whole and sound.
    other = bytes(data[at + 8 * 4 : at + 8 * 6])
    for place, wrong in ((at + 8, bytes(8)), (at, (2**40).to_bytes(8, "little")), (at, other)):
        changed = data.copy()
        changed[place : place + len(wrong)] = wrong
        shard.write_bytes(changed)
        with pytest.raises(DamagedError, match="index"):
            PackedDataset(folder).read(0, "x", slice(2, 4))
