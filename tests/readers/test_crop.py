"""Crops: where they lie, what they hold, that partners agree, and that only the bands they touch are decoded."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import put_manifest
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from packer.codecs import NAMED
from packer.errors import DamagedError, UsageError
from packer.format import Field, FieldSpec, FrameRule
from packer.format import manifest as manifests
from packer.split import split
from packer.writer import DatasetWriter
from readers import Crop, Loader, PackedDataset, ResizedCrop
from readers.draws import Asked, draw_visits
from readers.source import source_of
from readers.turning import orient
from readers.valid import remark

CODECS = ("none", "lz4", "bitshuffle", "zstd", "photo+zstd", "photo+lz4")


def _grid(height: int, width: int, sample: int) -> NDArray[np.uint16]:
    """A picture whose pixels hold their own row and column, and the number of the sample."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows, columns, np.full_like(rows, sample)], axis=2).astype(np.uint16)


def _field(name: str, codec: str, shape: tuple[int | None, ...], rule: FrameRule) -> Field:
    return Field(name=name, dtype="uint16", kind="image", shape=shape, codec=NAMED[codec], frame=rule)


def _pairs(
    pack: Any,
    folder: Path,
    sizes: Sequence[tuple[int, int]],
    codec: str = "none",
    rule: FrameRule = FrameRule(rows=3),  # noqa: B008  # frozen
    named: bool = False,
) -> Path:
    """Pairs: `lr` of `sizes`, `hr` of 4 times that, and a label; of fixed shape where all sizes agree."""
    shape = sizes[0] if len(set(sizes)) == 1 else (None, None)
    double = (shape[0] and 4 * shape[0], shape[1] and 4 * shape[1])
    fields = [
        _field("lr", codec, (*shape, 3), rule),
        _field("hr", codec, (*double, 3), rule),
        Field(name="label", dtype="int64"),
    ]
    samples = [
        {"lr": _grid(h, w, i), "hr": _grid(4 * h, 4 * w, i), "label": np.int64(i)} for i, (h, w) in enumerate(sizes)
    ]
    names = [f"p/{i}" for i in range(len(sizes))] if named else None
    half = len(sizes) // 2
    path: Path = pack(folder / "p", fields, [samples[:half], samples[half:]], names)
    return path


SIZES = [(9, 7), (4, 4), (6, 20), (13, 5), (4, 9), (30, 31), (8, 8)]


def _crop(**changes: Any) -> Crop:
    return Crop(**{"size": 16, "of": "hr", "aligned": {"lr": 4}, **changes})


def _hwc(batch: torch.Tensor) -> NDArray[np.uint16]:
    return batch.permute(0, 2, 3, 1).numpy()


def _corners(batch: torch.Tensor) -> NDArray[np.uint16]:
    """Least row and column of each crop of `_grid`."""
    return _hwc(batch)[..., :2].min(axis=(1, 2))


@settings(max_examples=40)
@given(
    codec=st.sampled_from(CODECS),
    rule=st.sampled_from([FrameRule(rows=1), FrameRule(rows=5), FrameRule(samples=1), FrameRule(samples=3)]),
    fixed=st.booleans(),
    asked=st.lists(st.integers(0, len(SIZES) - 1), max_size=9),
    seed=st.integers(0, 99),
    turns=st.booleans(),
)
def test_pairs_are_cropped_at_one_place(
    pack: Any, codec: str, rule: FrameRule, fixed: bool, asked: list[int], seed: int, turns: bool
) -> None:
    """A crop is a piece of its sample as it lies there, and `lr` is the same piece of a picture a fourth as large."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = [(8, 9)] * len(SIZES) if fixed else SIZES
        path = _pairs(pack, Path(folder), sizes, codec, rule)
        ds = PackedDataset(path, crop=_crop(seed=seed, turns=turns, flips=turns))
        batch = ds[asked]
        hr, lr = _hwc(batch["hr"]), _hwc(batch["lr"])
        assert hr.shape == (len(asked), 16, 16, 3)
        assert lr.shape == (len(asked), 4, 4, 3)
        assert batch["label"].tolist() == asked
        # Whatever way they are turned: each pixel of lr names the block of hr that lies where it does.
        assert np.array_equal(hr[:, ::4, ::4, :2] // 4, lr[..., :2])
        for crop, number in zip(hr, asked, strict=True):
            top, left = crop[..., :2].min(axis=(0, 1)).tolist()
            assert top % 4 == left % 4 == 0
            wanted = _grid(4 * sizes[number][0], 4 * sizes[number][1], number)[top : top + 16, left : left + 16]
            if turns:
                assert np.array_equal(np.unique(crop.reshape(-1, 3), axis=0), wanted.reshape(-1, 3))
            else:
                assert np.array_equal(crop, wanted)


def test_every_visit_has_a_crop_of_its_own(pack: Any, tmp_path: Path) -> None:
    """A sample that is read twice is cropped twice, in one batch or two; torch's seed brings the same crops again."""
    path = _pairs(pack, tmp_path, [(30, 31), (8, 8)], named=True)
    ds = PackedDataset(path, crop=_crop(flips=True, turns=True))
    torch.manual_seed(3)
    batch, one, another = ds[[0] * 64], ds["p/0"], ds[0]
    assert len(batch["hr"].unique(dim=0)) > 55
    assert np.array_equal(_hwc(batch["hr"])[:, ::4, ::4, :2] // 4, _hwc(batch["lr"])[..., :2])
    assert not torch.equal(one["hr"], another["hr"])
    torch.manual_seed(3)
    same = pickle.loads(pickle.dumps(ds))
    assert torch.equal(same[[0] * 64]["hr"], batch["hr"])
    assert torch.equal(same[0]["hr"], one["hr"])
    torch.manual_seed(3)
    other = PackedDataset(path, crop=_crop(seed=6, flips=True, turns=True))
    assert not torch.equal(other[[0] * 64]["hr"], batch["hr"])


def test_torch_is_asked_for_no_number_where_nothing_is_random(pack: Any, tmp_path: Path) -> None:
    """Whole samples and crops at given places leave torch's generator as it is; flips do not."""
    path = _pairs(pack, tmp_path, SIZES)
    before = torch.get_rng_state()
    for crop in (None, _crop(at="center"), _crop(at=(0, 0))):
        ds = PackedDataset(path, crop=crop)
        assert not [(a, b) for a, b in zip(ds[[0, 0]]["hr"], ds[[0, 0]]["hr"], strict=True) if not torch.equal(a, b)]
        assert torch.equal(torch.get_rng_state(), before)
    PackedDataset(path, crop=_crop(at="center", flips=True))[0]
    assert not torch.equal(torch.get_rng_state(), before)


def test_every_place_and_orientation_is_as_likely(pack: Any, tmp_path: Path) -> None:
    """All places on whole pixels of `lr`, the last ones among them, and all eight ways to lay a square."""
    path = _pairs(pack, tmp_path, [(6, 5)])
    ds = PackedDataset(path, crop=_crop(flips=True, turns=True))
    found: dict[tuple[int, ...], int] = {}
    torch.manual_seed(0)
    for crop in _hwc(ds[[0] * (6 * 8 * 60)]["lr"])[..., :2].astype(int):
        step = (crop[0, 1] - crop[0, 0], crop[1, 0] - crop[0, 0])
        key = (*crop.min(axis=(0, 1)).tolist(), *step[0].tolist(), *step[1].tolist())
        found[key] = found.get(key, 0) + 1
    assert len(found) == 3 * 2 * 8
    assert max(abs(count - 60) for count in found.values()) < 6 * 60**0.5


def test_flips_alone_and_turns_alone() -> None:
    """Quarter turns go against the clock; from 4 on the turned square is mirrored left to right."""
    square = np.array([[1, 2], [3, 4]])
    crops = np.repeat(square[None, None], 8, axis=0)
    orient(crops, np.arange(8))
    turned = [[[1, 2], [3, 4]], [[2, 4], [1, 3]], [[4, 3], [2, 1]], [[3, 1], [4, 2]]]
    assert crops[:, 0].tolist() == turned + [[row[::-1] for row in square] for square in turned]


def test_flips_are_left_to_right(pack: Any, tmp_path: Path) -> None:
    """Without turns, rows stay in order, columns run either way, and crops need not be square."""
    ds = PackedDataset(_pairs(pack, tmp_path, SIZES), crop=_crop(size=(8, 16), flips=True))
    ways = set()
    for _ in range(9):
        crops = _hwc(ds[:]["hr"]).astype(int)
        assert crops.shape[1:3] == (8, 16)
        assert (np.diff(crops[..., 0], axis=1) == 1).all()
        ways |= set(np.diff(crops[..., 1], axis=2).ravel().tolist())
    assert ways == {-1, 1}


def test_given_places(pack: Any, tmp_path: Path) -> None:
    """The middle, one place for all, or one place a sample."""
    path = _pairs(pack, tmp_path, SIZES)
    middle = [(4 * ((4 * h - 16) // 2 // 4), 4 * ((4 * w - 16) // 2 // 4)) for h, w in SIZES]
    assert _corners(PackedDataset(path, crop=_crop(at="center"))[:]["hr"]).tolist() == [list(p) for p in middle]
    assert (_corners(PackedDataset(path, crop=_crop(at=(0, 0)))[:]["hr"]) == 0).all()
    last = [[4 * h - 16, 4 * w - 16] for h, w in SIZES]
    ds = PackedDataset(path, crop=_crop(at=last))
    assert _corners(ds[[5, 0]]["hr"]).tolist() == [last[5], last[0]]
    ds.set_epoch(1)
    assert _corners(ds[[5, 0]]["hr"]).tolist() == [last[5], last[0]]


def _crops(path: Path, batch_size: int = 3, threads: int = 0, epoch: int = 0, **options: Any) -> torch.Tensor:
    """What `Loader` reads of an epoch, in one tensor."""
    loader = Loader(PackedDataset(path, crop=_crop()), batch_size, threads=threads, **options)
    loader.set_epoch(epoch)
    return torch.cat([batch["hr"] for batch in loader])


@pytest.mark.parametrize("codec", ["none", "photo+lz4"])
def test_a_loaders_crops_follow_from_seed_epoch_and_position(pack: Any, tmp_path: Path, codec: str) -> None:
    """Threads, batch size, ranks and resuming change nothing; a number that comes again is cropped anew."""
    path = _pairs(pack, tmp_path, SIZES, codec)
    order = [5, 0, 5, 5, 2, 5, 6, 5]
    wanted = _crops(path, sampler=order)
    assert len(wanted[[0, 2, 3, 5, 7]].unique(dim=0)) == 5
    assert torch.equal(_crops(path, 1, threads=2, sampler=order), wanted)
    ranks = [_crops(path, 2, sampler=order, rank=rank, world_size=2) for rank in (0, 1)]
    assert torch.equal(
        torch.stack(ranks).view(2, 2, 2, *wanted.shape[1:]).transpose(0, 1).reshape(wanted.shape), wanted
    )
    resumed = Loader(PackedDataset(path, crop=_crop()), 5, sampler=order)
    resumed.load_state_dict({"epoch": 0, "done": 3, "samples": len(order)})
    assert torch.equal(next(iter(resumed))["hr"], wanted[3:])
    assert not torch.equal(_crops(path, sampler=order, epoch=1), wanted)
    assert not torch.equal(_crops(path, sampler=order, seed=1), wanted)


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loaders_epochs_differ_and_can_be_repeated(pack: Any, tmp_path: Path, workers: int) -> None:
    """Also without `set_epoch`, in workers that stay too; the same seed of torch gives the same epochs."""
    path = _pairs(pack, tmp_path, SIZES, "zstd")
    runs = []
    for _ in range(2):
        torch.manual_seed(11)
        stays = {"persistent_workers": True, "multiprocessing_context": "fork"} if workers else {}
        loader = DataLoader(PackedDataset(path, crop=_crop()), batch_size=3, num_workers=workers, **stays)  # type: ignore[arg-type]
        try:
            runs.append([torch.cat([batch["hr"] for batch in loader]) for _ in range(2)])
        finally:
            if workers:
                loader._iterator._shutdown_workers()  # type: ignore[union-attr]
    assert not torch.equal(runs[0][0], runs[0][1])
    assert not [(a, b) for a, b in zip(*runs, strict=True) if not torch.equal(a, b)]


def test_only_the_bands_of_crops_are_decoded(pack: Any, tmp_path: Path, decoded: list[int]) -> None:
    """16 rows at row 4 lie in the bands of rows 0 to 19: four of five rows each for `hr`, and rows 1 to 4 of `lr`."""
    path = _pairs(pack, tmp_path, [(40, 9), (40, 8)], "photo+zstd", FrameRule(rows=5))
    ds = PackedDataset(path, crop=_crop(at=(4, 8)))
    assert _corners(ds[[1, 0]]["hr"]).tolist() == [[4, 8], [4, 8]]
    row = {"hr": (36 + 32) * 6, "lr": (9 + 8) * 6}
    assert sum(decoded) == 4 * 5 * row["hr"] + 5 * row["lr"]
    assert len(decoded) == 2 * 4 + 2
    located = source_of(ds).readers["hr"].locate(Asked(np.array([0, 1]), draw_visits(2)))
    whole = source_of(ds).opened.readers["hr"]
    assert (
        source_of(ds).readers["hr"].spans(located)[:, 1] < whole.spans(whole.locate(Asked(np.array([0, 1]))))[:, 1]
    ).all()


def test_a_frame_that_samples_share_is_decoded_once_a_batch(pack: Any, tmp_path: Path, decoded: list[int]) -> None:
    """Small pictures lie several in a frame: crops of three of them, one twice, take one decoding a field."""
    ds = PackedDataset(_pairs(pack, tmp_path, SIZES, "zstd", FrameRule(samples=3)), crop=_crop())
    assert ds[[2, 0, 1, 0]]["hr"][:, 2, 0, 0].tolist() == [2, 0, 1, 0]
    assert len(decoded) == 2


def test_an_array_of_two_axes_is_cropped_too(pack: Any, tmp_path: Path) -> None:
    """Masks and grids stay in the order of their axes; a field aligned at scale 1 has the same place."""
    fields = [
        Field(name="hr", dtype="uint16", kind="image", shape=(None, None, 3)),
        Field(name="mask", dtype="float64", shape=(None, None), codec=NAMED["zstd"], frame=FrameRule(rows=2)),
    ]
    samples = [{"hr": _grid(h, w, 0), "mask": _grid(h, w, 0)[..., 1] / 3} for h, w in SIZES]
    ds = PackedDataset(
        pack(tmp_path / "p", fields, [samples]), crop=Crop(size=3, of="hr", aligned={"mask": 1}, turns=True)
    )
    batch = ds[:]
    assert batch["mask"].shape == (len(SIZES), 3, 3)
    assert torch.equal(batch["mask"], batch["hr"][:, 1].double() / 3)


def test_a_sample_that_does_not_fit_is_named(pack: Any, tmp_path: Path) -> None:
    """Too small for a crop, or not of a whole ratio: the error says which sample, which sizes, and what is expected."""
    path = _pairs(pack, tmp_path, SIZES, named=True)
    ds = PackedDataset(path, crop=_crop(size=20))
    assert ds[[0, 2]]["hr"].shape == (2, 3, 20, 20)
    with pytest.raises(UsageError, match=r"sample 4 \('p/4'\): field 'hr' has 16 x 36 pixels, less than .* 20 x 20"):
        _ = ds[[0, 4, 1]]
    with pytest.raises(UsageError, match=r"sample 1 \('p/1'\)"):
        list(Loader(ds, 2))
    field = [_field(name, "none", (None, None, 3), FrameRule(samples=1)) for name in ("lr", "hr")]
    odd = [{"lr": _grid(9, 9, 0), "hr": _grid(36, 36, 0)}, {"lr": _grid(9, 9, 0), "hr": _grid(36, 37, 0)}]
    path = pack(tmp_path / "odd", field, [odd])
    split(path, {"good": [0]})
    with pytest.raises(
        UsageError,
        match=r"sample 1: field 'lr' has 9 x 9 pixels and 'hr' 36 x 37; exactly 4 times as many are expected of 'hr'",
    ):
        _ = PackedDataset(path, crop=_crop())[0]  # before anything is read, not when it is its turn
    for size in (16, np.uint8(16)):
        assert PackedDataset(path, crop=_crop(size=size), split="good")[0]["lr"].shape == (3, 4, 4)


def test_samples_that_the_manifest_says_are_alike_are_not_compared_first(pack: Any, tmp_path: Path) -> None:
    """The first batch looks at its own shard alone; without the note in the manifest all shards are looked at."""
    path = _pairs(pack, tmp_path, SIZES)
    manifest = manifests.read(path)
    assert manifest.columns["hr"].scale == ("lr", 4, 1)
    shard = path / manifest.shards[1].file
    shard.write_bytes(bytes(shard.stat().st_size))
    assert PackedDataset(path, crop=_crop())[[0, 2]]["lr"].shape == (2, 3, 4, 4)
    unknown = {name: msgspec.structs.replace(column, scale=None) for name, column in manifest.columns.items()}
    put_manifest(path, msgspec.structs.replace(manifest, columns=unknown))
    with pytest.raises(DamagedError, match=shard.name):
        _ = PackedDataset(path, crop=_crop())[0]


@pytest.mark.parametrize("at", [(-4, 0), (4, 100), (2, 0), (0, 21)])
def test_a_place_outside_or_between_is_refused(pack: Any, tmp_path: Path, at: tuple[int, int]) -> None:
    """A crop begins within its sample, on whole pixels of every field."""
    ds = PackedDataset(_pairs(pack, tmp_path, SIZES), crop=_crop(at=at))
    with pytest.raises(UsageError, match=r"sample 0: no crop can begin at .* rows 0 to 20 .* multiples of 4"):
        _ = ds[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 18}, "18 x 18 pixels cannot be divided by 4"),
        ({"size": 0}, "size 0: a number of pixels"),
        ({"size": 64.0}, r"size 64\.0: a number of pixels"),
        ({"size": True}, "size True: a number of pixels"),
        ({"axes": []}, r"axes \(\): the axis of rows"),
        ({"axes": 1}, "axes 1: the axis of rows"),
        ({"size": (8,)}, "of 1 or more"),
        ({"size": (8, 16), "turns": True}, "turns need squares"),
        ({"aligned": {"lr": 0}}, "scale of 'lr' 0"),
        ({"aligned": {"lr": 0.5}}, r"scale of 'lr' 0\.5"),
        ({"aligned": {"hr": 1}}, "leave it out of aligned"),
        ({"seed": -1}, "seed -1"),
        ({"flips": "no"}, "crop: flips 'no': True or False"),
        ({"turns": 1}, "turns 1: True or False"),
        ({"outside": None}, "outside None: True or False"),
        ({"at": "middle"}, "at 'middle'"),
        ({"at": (0.5, 1)}, "of int"),
        ({"at": [1, 2, 3]}, "of int"),
    ],
)
def test_crops_that_cannot_be_are_refused_at_once(changes: dict[str, Any], message: str) -> None:
    """Before any dataset is looked at."""
    with pytest.raises(UsageError, match=message):
        _crop(**changes)


def test_fields_that_cannot_be_cropped_are_refused_at_once(packed: Path) -> None:
    """When the dataset is made, not when the first batch is read."""
    for crop, message in (
        (Crop(size=2, of="hr"), "no field 'hr' is read; there are x"),
        (Crop(size=2, of="lr", aligned={"caption": 1}), "'caption' is text"),
        (Crop(size=2, of="x"), r"'x' is array of shape \[5\]"),
        (Crop(size=2, of="lr", axes=(1, 2)), r"stored as \(H, W, C\): rows and columns are axes 0 and 1"),
        (Crop(size=2, of="lr", at=[[0, 0]]), "1 places for 60 samples"),
    ):
        with pytest.raises(UsageError, match=message):
            PackedDataset(packed, crop=crop)
    with pytest.raises(UsageError, match=r"crop 64: a readers\.Crop or ResizedCrop is expected"):
        PackedDataset(packed, crop=64)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no field 'lr' is read; there are x"):
        PackedDataset(packed, fields=["x"], crop=Crop(size=2, of="lr"))


@pytest.mark.parametrize("kind", [Crop, ResizedCrop])
def test_the_only_image_is_cropped_where_none_is_named(packed: Path, kind: Any) -> None:
    """Of those that are read and not aligned with it; if there are several or none, a sentence says so."""
    ds = PackedDataset(packed, ["x", "lr"], crop=kind(2))
    assert ds[0]["lr"].shape == (3, 2, 2)
    assert ds.crop.of == "lr"
    with pytest.raises(UsageError, match=r"Crop: the images lr, depth are read; name .*of=FIELD"):
        PackedDataset(packed, ["lr", "depth", "x"], crop=kind(2))
    with pytest.raises(UsageError, match=r"Crop: no image is read"):
        PackedDataset(packed, ["x"], crop=kind(2))


def test_the_image_that_others_are_aligned_with_need_not_be_named(pack: Any, tmp_path: Path) -> None:
    """Neither where a fill is given for each field."""
    path = _pairs(pack, tmp_path, SIZES)
    crop = Crop(8, aligned={"lr": 4}, pad={"lr": 1, "hr": "edge"})
    assert PackedDataset(path, ["lr", "hr"], crop=crop)[0]["lr"].shape == (3, 2, 2)


def test_an_epoch_is_a_number_from_0_on(packed: Path) -> None:
    """With or without crops; without, it changes nothing."""
    ds = PackedDataset(packed)
    ds.set_epoch(3)
    with pytest.raises(UsageError, match="epoch -1"):
        ds.set_epoch(-1)


def test_crops_larger_than_frames_of_several_samples_may_be(packed):
    """Such a crop is refused for the picture that is smaller, or as larger than a sample may be."""
    with pytest.raises(UsageError, match="pixels, less than a crop of 3000 x 3000"):
        PackedDataset(packed, "picture", crop=Crop(3000, of="picture"))[3]
    with pytest.raises(UsageError, match="too large"):
        PackedDataset(packed, "picture", crop=Crop(2**30, of="picture"))[3]


def test_places_are_multiples(tmp_path: Path) -> None:
    """Of `multiple`, so that a mosaic keeps its pattern, and of all scales: crops of every field begin at one place."""
    with DatasetWriter(
        tmp_path / "d", fields=[FieldSpec(name="x", dtype="uint8", kind="image", shape=(9, 11, 1))]
    ) as w:
        w.add({"x": np.arange(99, dtype=np.uint8).reshape(9, 11, 1)})
    places = set()
    dataset = PackedDataset(tmp_path / "d", crop=Crop(4, "x", multiple=3))
    for _ in range(200):
        places.add(divmod(int(dataset[0]["x"][0, 0, 0]), 11))
    assert places == {(row, column) for row in (0, 3) for column in (0, 3, 6)}
    assert int(PackedDataset(tmp_path / "d", crop=Crop(4, "x", multiple=3, at="center"))[0]["x"][0, 0, 0]) == 3
    with DatasetWriter(tmp_path / "scales") as writer:
        writer.add({f"x{scale}": np.arange(0, 36, scale)[:, None] + np.zeros(36 // scale, int) for scale in (1, 2, 3)})
    dataset = PackedDataset(tmp_path / "scales", crop=Crop(12, "x1", aligned={"x2": 2, "x3": 3}))
    for sample in (dataset[0] for _ in range(20)):
        assert len({int(sample[name][0, 0]) for name in ("x1", "x2", "x3")}) == 1
    with pytest.raises(UsageError, match="multiple 0"):
        Crop(4, "x", multiple=0)


def test_fields_that_a_crop_leaves_behind_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Boxes beside a crop stay where they were, and flow that is flipped keeps its signs: a remark says which, once."""
    remark.cache_clear()
    with DatasetWriter(tmp_path / "d") as writer:
        writer.add({"image": np.zeros((9, 9, 3)), "flow": np.zeros((9, 9, 2)), "gt_boxes": np.zeros((2, 4))})
    for crop in (Crop(4, "image", {"flow": 1}), Crop(4, "image", {"flow": 1}, flips=True), Crop(4, "image")):
        PackedDataset(tmp_path / "d", crop=crop)
    assert [record.message.partition(" with")[0].partition(" beside")[0] for record in caplog.records] == [
        "field 'gt_boxes' stays as it is",
        "field 'flow' is flipped or turned",
        "field 'flow' stays as it is",
    ]
