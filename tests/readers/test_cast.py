"""Fields read in another dtype: the values that batches have, converted, whatever part of a sample is read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import readme
import torch

from packer.errors import UsageError
from packer.writer import DatasetWriter
from readers import Crop, Loader, Mix, PackedDataset, PointSample, Ragged, ResizedCrop, Windows

CAST = {"x": "float64", "label": "float32", "lr": "float32", "depth": "int64", "xyz": "float64", "picture": "int16"}


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, Ragged):
        return [value.values, value.offsets]
    if isinstance(value, dict):
        return [tensor for views in value.values() for tensor in tensors(views)]
    return value if isinstance(value, list) else [value]


def same_but_for_dtype(found: Any, expected: Any, dtype: str) -> bool:
    """Whether values are those of another batch, converted."""
    first, *_ = made = tensors(found)
    is_equal = [torch.equal(a, b.to(a.dtype)) for a, b in zip(made, tensors(expected), strict=True)]
    return type(found) is type(expected) and str(first.dtype) == f"torch.{dtype}" and all(is_equal)


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"points": PointSample(3, choose="first"), "samples": [i for i in range(60) if i % 5]},
        {"crop": ResizedCrop(4, of="picture", views={"a": (2, 4, (0.5, 1)), "b": (1, 2, (0.5, 1))}, flips=False)},
        {"crop": Crop((1, 2), of="picture", at="center")},
    ],
)
def test_batches_have_the_values_of_others(packed: Path, parts: dict[str, Any], verify: bool) -> None:
    """Of arrays, clouds and pictures of all sizes, whole or in part; `ds.fields` stay as they are stored."""
    cast = pickle.loads(pickle.dumps(PackedDataset(packed, cast=CAST, verify=verify, **parts)))
    plain = PackedDataset(packed, **parts)
    for index in ([3, 0, 59 % len(plain)], slice(10, 13)):
        torch.manual_seed(0)
        found = cast[index]
        torch.manual_seed(0)
        expected = plain[index]
        assert found.pop("caption") == expected.pop("caption")
        assert [name for name in expected if not same_but_for_dtype(found[name], expected[name], CAST[name])] == []
    assert same_but_for_dtype(cast.read(7, "picture", rows=slice(0, 1)), plain.read(7, "picture", slice(0, 1)), "int16")
    assert same_but_for_dtype(cast.column("label"), plain.column("label"), "float32")
    assert cast.fields == plain.fields


def test_tokens_are_long(tmp_path: Path) -> None:
    """Windows of uint16 at any place come as int64 from a Loader, also those that lie in several frames or outside."""
    tokens = np.random.default_rng(0).integers(0, 50257, 3000).astype(np.uint16)
    for codec in ("none", "zstd"):
        with DatasetWriter(tmp_path / codec, codec=codec) as writer:
            writer.add({"token": tokens})
            writer.add({"token": tokens[:70]})
        ds = PackedDataset(
            tmp_path / codec, windows=Windows(65), cast={"token": torch.int64}, samples=[0], extras=["step"]
        )
        for batch in Loader(ds, batch_size=64, shuffle=True):
            steps = batch["step"].numpy()[:, None] + np.arange(65)
            assert np.array_equal(batch["token"], tokens[steps].astype(np.int64))
        padded = PackedDataset(tmp_path / codec, windows=Windows(65, pad="edge"), cast={"token": np.int64})
        assert padded[[2999]]["token"].tolist() == [[tokens[-1]] * 65]


def test_documents_lie_in_rows_without_padding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of the page on tokens joins documents of any length as numpy does, and windows cut rows as it does."""
    monkeypatch.chdir(tmp_path)
    rng, steps = np.random.default_rng(0), 64
    documents = [rng.integers(0, 50_256, count, np.uint16) for count in (3, 900, 0, 64, 5000, *range(1, 60))]
    with DatasetWriter("documents.packed") as writer:
        for document in documents:
            writer.add({"input_ids": document})
    page = (Path(__file__).parents[2] / "docs/have/tokens.md").read_text()
    (code,) = (block["code"] for block in readme.BLOCK.finditer(page) if "def write_stream" in (block["code"] or ""))
    names = {"T": steps, "np": np, "Loader": Loader, "PackedDataset": PackedDataset, "Windows": Windows}
    exec(compile(code, "tokens.md", "exec"), names)
    joined = np.concatenate([np.append(document, np.uint16(50_256)) for document in documents]).astype(np.int64)
    ends = PackedDataset("stream.packed").shapes("token")[:, 0].cumsum()
    assert ends[-1] == len(joined)
    pieces = np.split(joined, ends[:-1])
    expected = [piece[at : at + steps + 1] for piece in pieces for at in range(0, len(piece) - steps, steps)]
    assert np.array_equal(names["rows"][:]["token"], expected)


@pytest.mark.parametrize(
    ("cast", "words"),
    [
        ({"label": "int32"}, r"values of field 'label' \(int64\) may not fit int32"),
        ({"x": "int64"}, r"values of field 'x' \(float32\) may not fit int64"),
        ({"label": "float16"}, r"values of field 'label' \(int64\) may not fit float16"),
        ({"x": "bfloat16"}, "x=bfloat16: one of .*float32.* is expected"),
        ({"caption": "int64"}, "'caption' is text"),
        ({"y": "int64"}, "no field 'y' is read"),
    ],
)
def test_what_may_not_fit_is_refused(packed: Path, cast: dict[str, str], words: str) -> None:
    """Names, dtypes and values are checked when the dataset is opened."""
    with pytest.raises(UsageError, match=words):
        PackedDataset(packed, cast=cast)


def test_a_mix_has_one_dtype(packed: Path) -> None:
    """Samples of two dtypes cannot be in one batch."""
    with pytest.raises(UsageError, match=r"and array float32 .* as float64 in"):
        Mix([PackedDataset(packed, ["x"]), PackedDataset(packed, ["x"], cast={"x": "float64"})], weights=[1, 1])
    mix = Mix([PackedDataset(packed, ["x"], cast={"x": "float64"}) for _ in range(2)], weights=[1, 1])
    assert next(iter(Loader(mix, batch_size=4)))["x"].dtype == torch.float64
