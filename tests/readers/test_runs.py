"""Runs of batches: how many are read by one call, and that they are the batches that were packed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import plain

from packer.codecs import NAMED, FrameCodec
from packer.format import Field, FrameRule
from readers import Loader, PackedDataset, Ragged

COUNT = 107
OWN, SHARED, BANDS = FrameRule(samples=1), FrameRule(samples=8), FrameRule(rows=3)


def field(name: str, codec: str, shape: tuple[int | None, ...], rule: FrameRule = OWN, **more: Any) -> Field:
    more = {"dtype": "uint8", "kind": "array"} | more
    return Field(name=name, shape=shape, codec=NAMED[codec], frame=rule, **more)


#: Fields of any kind, by a name that says how they are stored.
FIELDS = {
    "raw": field("raw", "none", (30,)),
    "raw cloud": field("raw cloud", "none", (None, 3)),
    "own": field("own", "lz4", (600,)),
    "images": field("images", "photo+zstd", (8, 5, 3), BANDS, kind="image", dtype="uint16"),
    "whole": field("whole", "photo+zstd", (8, 5, 3), OWN, kind="image"),
    "shared": field("shared", "zstd", (200,), SHARED),
    "cloud": field("cloud", "bitshuffle", (None, 3), dtype="float32"),
    "pictures": field("pictures", "photo+zstd", (None, None, 3), OWN, kind="image"),
    "strips": field("strips", "photo+zstd", (None, 6, 3), BANDS, kind="image"),
    "caption": field("caption", "zstd", (None,), OWN, kind="text"),
    "shared captions": field("shared captions", "lz4", (None,), SHARED, kind="text"),
    "slow": Field(name="slow", dtype="uint8", shape=(300,), codec=({"id": "zlib"},)),
}


def value(one: Field, number: int) -> Any:
    """A sample of a field, which holds its number."""
    if one.kind == "text":
        return f"sample {number} " * (number % 9)
    shape = [1 + (number + axis) % 7 if n is None else n for axis, n in enumerate(one.shape)]
    return (np.arange(np.prod(shape)) // 9 + number).astype(one.dtype).reshape(shape)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory, pack: Any) -> Callable[..., PackedDataset]:
    """Gives the dataset of the fields of these names, `COUNT` samples in two shards."""
    made: dict[tuple[str, ...], Path] = {}

    def dataset(*names: str, **options: Any) -> PackedDataset:
        if names not in made:
            samples = [{name: value(FIELDS[name], number) for name in names} for number in range(COUNT)]
            folder = tmp_path_factory.mktemp("runs") / "packed"
            made[names] = pack(folder, [FIELDS[name] for name in names], [samples[:60], samples[60:]])
        return PackedDataset(made[names], **options)

    return dataset


def test_runs_are_cut_by_what_samples_have(pack: Any, tmp_path: Path) -> None:
    """Not by the mean: large samples behind many small ones would come by hundreds."""
    lengths = [2] * 300 + [200_000] * 30
    clouds = [{"raw cloud": np.full((n, 3), i % 256, np.uint8)} for i, n in enumerate(lengths)]
    dataset = PackedDataset(pack(tmp_path / "p", [FIELDS["raw cloud"]], [clouds[:250], clouds[250:]]))
    runs, behind = [0], None  # batches of a run lie one after another
    for number, batch in enumerate(Loader(dataset, 2, threads=0)):
        values = batch["raw cloud"].values
        assert values[:, 0].unique().tolist() == [2 * number % 256, 2 * number % 256 + 1]
        runs += [0] if values.data_ptr() != behind else []
        runs[-1] += values.nbytes
        behind = values.data_ptr() + values.nbytes
    assert max(runs) <= 2**23
    assert 2 < len(runs) < 20


def batch_of(names: Sequence[str], numbers: Sequence[int]) -> dict[str, Any]:
    """The batch of these samples, made without any reader."""
    batch: dict[str, Any] = {}
    for name in names:
        one, values = FIELDS[name], [value(FIELDS[name], number) for number in numbers]
        if one.kind == "text":
            batch[name] = values
            continue
        tensors = [torch.from_numpy(array) for array in values]
        if one.kind == "image":
            tensors = [tensor.permute(2, 0, 1) for tensor in tensors]
        if not one.is_ragged:
            batch[name] = torch.stack(tensors)
        elif one.kind == "image":
            batch[name] = tensors
        else:
            offsets = [0, *np.cumsum([len(tensor) for tensor in tensors]).tolist()]
            batch[name] = Ragged(torch.cat(tensors), torch.tensor(offsets))
    return batch


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize(
    "names",
    [
        ["cloud", "caption", "raw"],
        ["pictures"],
        ["own", "images"],
        ["whole"],
        ["own", "shared", "caption"],
        ["strips", "shared captions"],
    ],
    ids=" ".join,
)
def test_batches_of_runs_are_those_that_were_packed(
    datasets: Callable[..., PackedDataset], names: list[str], threads: int
) -> None:
    """As those read alone: in order, of any kind, the last one short, with threads and without."""
    dataset = datasets(*names)
    order = np.random.default_rng(0).permutation(COUNT).tolist()
    wanted = [plain(batch_of(names, order[at : at + 5])) for at in range(0, COUNT, 5)]
    assert [plain(dataset[order[at : at + 5]]) for at in range(0, COUNT, 5)] == wanted
    loader = Loader(datasets(*names), 5, sampler=order, threads=threads)
    assert [plain(batch) for batch in loader] == wanted


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize(("name", "each"), [("own", 1), ("images", 3), ("cloud", 1), ("pictures", 1), ("caption", 1)])
def test_a_run_is_decoded_by_one_call(
    datasets: Callable[..., PackedDataset],
    by_machine: None,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    each: int,
    threads: int,
) -> None:
    """Of all its batches, and bands."""
    dataset = datasets(name)
    frames: list[int] = []
    decode = FrameCodec.decode_frames

    def counted(self: FrameCodec, *arguments: Any) -> bool:
        frames.append(len(arguments[1].sizes))
        return decode(self, *arguments)

    monkeypatch.setattr(FrameCodec, "decode_frames", counted)
    batches = list(Loader(dataset, 2, threads=threads))
    assert len(batches) == 54
    # Samples are located 2 and then the rest at once, and a run is within one of these groups.
    assert sorted(frames) == [2 * each, 105 * each]


def test_batches_of_a_run_are_written_to_alone(datasets: Callable[..., PackedDataset], by_machine: None) -> None:
    """One may be changed in place while the backward pass of another is still to come; its offsets, too."""
    _, first, second, *_ = (batch["cloud"] for batch in Loader(datasets("cloud"), 5, threads=0))
    assert first.values.data_ptr() + first.values.nbytes == second.values.data_ptr()
    weight = torch.ones(3, requires_grad=True)
    loss = (second.values * weight).sum()
    first.values.zero_()
    loss.backward()
    assert torch.equal(weight.grad, second.values.sum(0))  # type: ignore[arg-type]
    offsets = second.offsets.tolist()
    first.offsets.fill_(9)
    assert second.offsets.tolist() == offsets


@pytest.mark.usefixtures("way")
def test_pictures_of_a_run_are_written_to_alone(datasets: Callable[..., PackedDataset]) -> None:
    """Each picture of a list, too, whether of one batch or of two."""
    _, first, second, *_ = (batch["pictures"] for batch in Loader(datasets("pictures"), 5, threads=0))
    kept, version = second[0].clone(), second[0]._version
    for changed in (first[0], second[1]):
        changed.mul_(2)
        assert torch.equal(second[0], kept)
        assert second[0]._version == version  # by which autograd tells whether a tensor was written to
