"""Packed pairs in the shape of BasicSR's PairedImageDataset."""

from __future__ import annotations

import importlib
import sys
import types

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import readers.basicsr
from packer.errors import UsageError
from packer.format import FieldSpec
from packer.writer import DatasetWriter
from readers.basicsr import PackedPairedImageDataset

SCALE = 4
NAMES = [f"{n:04d}" for n in range(6)]


def picture(name, shape, dtype="uint8"):
    seed = int(name)
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def enlarged(small):
    """Every pixel as a square of SCALE x SCALE, so that a crop's place can be read off its values."""
    return small.repeat(SCALE, 0).repeat(SCALE, 1)


def write(path, fields, channels=3, dtype="uint8", names=NAMES, extra=0):
    """Pairs of pictures of different sizes; `extra` rows more than `gt` should have."""
    specs = [FieldSpec(name=name, dtype=dtype, kind="image", shape=(None, None, channels)) for name in fields]
    with DatasetWriter(path, fields=specs) as writer:
        for at, name in enumerate(names):
            small = picture(name, (9 + at, 12, channels), dtype)
            large = np.pad(enlarged(small), ((0, extra), (0, 0), (0, 0)))
            writer.add({field: small if field in ("lq", "lr", "small") else large for field in fields}, name=name)
    return path


@pytest.fixture
def roots(tmp_path):
    """The same pairs as one dataset, and as one dataset a side."""
    one = write(tmp_path / "pairs.packed", ["lr", "hr"])
    return {
        "one": {"dataroot": str(one)},
        "twice": {"dataroot_lq": str(one), "dataroot_gt": str(one)},
        "two": {
            "dataroot_lq": str(write(tmp_path / "lq.packed", ["lq"])),
            "dataroot_gt": str(write(tmp_path / "gt.packed", ["gt"])),
        },
    }


TRAIN = {
    "phase": "train",
    "scale": SCALE,
    "gt_size": 16,
    "use_hflip": True,
    "use_rot": True,
    "io_backend": {"type": "x"},
}


@pytest.mark.parametrize("which", ["one", "twice", "two"])
def test_crops_of_both_sides_lie_at_the_same_place(roots, which):
    """In training each lq is gt's place, flipped and turned alike, whether the sides lie in one dataset or in two."""
    dataset = PackedPairedImageDataset({**TRAIN, **roots[which]})
    seen = set()
    for batch in DataLoader(dataset, batch_size=3, shuffle=True):
        assert batch["lq"].shape == (3, 3, 4, 4)
        assert batch["gt"].shape == (3, 3, 16, 16)
        assert batch["lq"].dtype == batch["gt"].dtype == torch.float32
        assert batch["gt"].is_contiguous()
        assert torch.equal(batch["gt"][:, :, ::SCALE, ::SCALE], batch["lq"])
        assert batch["lq_path"] == batch["gt_path"]
        seen.update(batch["gt_path"])
    assert seen == set(NAMES)


def test_each_visit_has_a_crop_of_its_own(roots):
    """One sample read many times gives different crops, and torch's seed repeats them."""
    dataset = PackedPairedImageDataset({**TRAIN, **roots["two"]})
    torch.manual_seed(3)
    first = [dataset[0]["lq"] for _ in range(8)]
    torch.manual_seed(3)
    assert not [a for a in first if not torch.equal(a, dataset[0]["lq"])]
    assert len({tuple(crop.flatten().tolist()) for crop in first}) > 4


@pytest.mark.parametrize("which", ["one", "two"])
def test_whole_pictures_are_rgb_from_0_to_1(roots, which):
    """In validation a sample is float32 as BasicSR computes it, (3, H, W), and bears its name."""
    dataset = PackedPairedImageDataset({"phase": "val", "scale": SCALE, **roots[which]})
    assert len(dataset) == 6
    sample = dataset[2]
    small = picture("0002", (11, 12, 3))
    assert np.array_equal(sample["lq"].numpy(), (small.astype(np.float32) / 255.0).transpose(2, 0, 1))
    assert np.array_equal(sample["gt"].numpy(), (enlarged(small).astype(np.float32) / 255.0).transpose(2, 0, 1))
    assert sample["gt_path"] == "0002"
    (batch,) = [b for b in DataLoader(dataset, batch_size=1) if b["lq_path"] == ["0003"]]
    assert batch["lq"].shape == (1, 3, 12, 12)


def test_in_validation_gt_is_cut_to_the_size_of_lq(tmp_path):
    """A gt that is a little too large is cut in validation, and refused in training, where it names the sample."""
    root = str(write(tmp_path / "d", ["lq", "gt"], extra=3))
    sample = PackedPairedImageDataset({"phase": "val", "scale": SCALE, "dataroot": root})[0]
    assert sample["gt"].shape == (3, 36, 48)
    with pytest.raises(UsageError, match=r"sample '0000': gt is 39 x 48 pixels and lq 9 x 12"):
        PackedPairedImageDataset({**TRAIN, "dataroot": root})


@pytest.mark.parametrize("channels", [1, 4])
def test_gray_becomes_rgb_and_alpha_goes(tmp_path, channels):
    """As BasicSR's imfrombytes: gray three times, colours without alpha; 16 bits reach from 0 to 1 as well."""
    root = str(write(tmp_path / "d", ["lq", "gt"], channels=channels, dtype="uint16"))
    found = PackedPairedImageDataset({"phase": "val", "scale": SCALE, "dataroot": root})[1]["lq"].numpy()
    small = picture("0001", (10, 12, channels), "uint16").astype(np.float32) / 65535
    wanted = small.repeat(3, 2) if channels == 1 else small[:, :, :3]
    assert np.array_equal(found, wanted.transpose(2, 0, 1))


def test_gray_floats_are_the_callers_own(tmp_path):
    """They need no other dtype, and yet have three channels of their own, which can be changed."""
    field = FieldSpec(name="image", dtype="float32", kind="image", shape=(2, 2, 1))
    with DatasetWriter(tmp_path / "d", fields=[field]) as writer:
        writer.add({"image": np.full((2, 2, 1), 0.5, np.float32)})
    dataset = PackedPairedImageDataset({"dataroot": str(tmp_path / "d"), "mean": [0.5, 0.25, 0]})
    assert dataset[0]["gt"][:, 0, 0].tolist() == [0, 0.25, 0.5]


def test_mean_and_std_of_channels(roots):
    """Values are less the mean, and divided by the standard deviation, each channel by its own."""
    plain = PackedPairedImageDataset({"scale": SCALE, **roots["one"]})[0]["gt"]
    options = {"scale": SCALE, "mean": [0.5, 0.4, 0.3], "std": [0.1, 0.2, 0.5], **roots["one"]}
    found = PackedPairedImageDataset(options)[0]["gt"]
    mean, std = (torch.tensor(options[name]).view(3, 1, 1) for name in ("mean", "std"))
    assert torch.equal(found, (plain - mean) / std)


def test_a_list_of_basicsr_selects_and_orders(roots, tmp_path):
    """meta_info_file reads the samples that it lists, in its order."""
    listed = tmp_path / "meta_info.txt"
    listed.write_text("0004.png (52,48,3) 1\n0001.png (40,48,3) 1\n")
    dataset = PackedPairedImageDataset({"scale": SCALE, "meta_info_file": str(listed), **roots["two"]})
    assert [dataset[n]["gt_path"] for n in range(len(dataset))] == ["0004", "0001"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gt_size": None}, "phase train needs gt_size"),
        ({"gt_size": 18}, "gt_size 18 is not a multiple of scale 4"),
        ({"color": "y"}, "color 'y'"),
        ({"scale": 2}, "which is not 2 times smaller"),
        ({"dataroot": None}, "dataroot, or dataroot_lq, is missing"),
        ({"meta_info_file": "nowhere.txt"}, "nowhere.txt"),
    ],
)
def test_what_cannot_be_is_refused(roots, changes, message):
    """A wrong or missing option is named, with what is expected."""
    with pytest.raises(UsageError, match=message):
        PackedPairedImageDataset({**TRAIN, **roots["one"], **changes})


def test_sides_of_other_samples_are_refused(tmp_path):
    """Two datasets whose samples have other names are no pairs."""
    lq = write(tmp_path / "lq", ["lq"])
    gt = write(tmp_path / "gt", ["gt"], names=[*NAMES[:-1], "0009"])
    with pytest.raises(UsageError, match="have different samples"):
        PackedPairedImageDataset({"dataroot_lq": str(lq), "dataroot_gt": str(gt), "scale": SCALE})


def test_fields_that_cannot_be_guessed_are_asked_for(tmp_path):
    """With fields of other names, the message lists them and the option that names one."""
    root = str(write(tmp_path / "d", ["small", "big"]))
    with pytest.raises(UsageError, match="has the fields small, big: name that of lq with the option lq_field"):
        PackedPairedImageDataset({"dataroot": root, "scale": SCALE})
    named = {"lq_field": "small", "gt_field": "big"}
    assert PackedPairedImageDataset({"dataroot": root, "scale": SCALE, **named})[0]["lq"].shape == (3, 9, 12)


@pytest.mark.parametrize("package", ["basicsr", "neosr", "traiNNer"])
def test_each_registry_finds_the_class_by_name(monkeypatch, package):
    """Where one of these packages can be imported, its registry gets the class once, under the name of the class."""
    registry = types.ModuleType(f"{package}.utils.registry")
    registry.DATASET_REGISTRY = Registry()
    monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    monkeypatch.setitem(sys.modules, f"{package}.utils", types.ModuleType(f"{package}.utils"))
    monkeypatch.setitem(sys.modules, f"{package}.utils.registry", registry)
    importlib.reload(readers.basicsr)
    importlib.reload(readers.basicsr)
    assert list(registry.DATASET_REGISTRY.held) == ["PackedPairedImageDataset"]


def test_a_basicsr_without_a_registry_is_named(monkeypatch, tmp_path, caplog):
    """NAFNet and Restormer look for classes in files of one folder: the remark says which file to add."""
    (tmp_path / "basicsr" / "utils").mkdir(parents=True)
    (tmp_path / "basicsr" / "__init__.py").touch()
    (tmp_path / "basicsr" / "utils" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.reload(readers.basicsr)
    for name in [name for name in sys.modules if name.split(".")[0] == "basicsr"]:
        del sys.modules[name]
    (record,) = caplog.records
    assert "basicsr/data/packed_dataset.py" in record.getMessage()
    assert record.getMessage().endswith("from readers.basicsr import PackedPairedImageDataset")


@pytest.mark.parametrize(
    ("options", "flips", "turns"),
    [
        ({"use_hflip": True}, True, False),
        ({"use_flip": True, "use_rot": False}, True, False),
        ({"geometric_augs": True}, True, True),
        ({"use_flip": False, "use_rot": True}, False, True),
        ({"geometric_augs": False}, False, False),
    ],
)
def test_each_name_of_flips_and_turns_is_understood(roots, options, flips, turns):
    """BasicSR, NAFNet and Restormer call them differently; without any a crop is neither mirrored nor turned."""
    fixed = {"phase": "train", "scale": SCALE, "patch_size": 9, **roots["one"]}
    dataset = PackedPairedImageDataset({**fixed, **options})
    torch.manual_seed(0)
    # Crops of 9 of 9 rows: the first row of the picture lies above, below or at a side.
    whole = torch.from_numpy(picture("0000", (9, 12, 3)).astype("f4") / 255).permute(2, 0, 1)
    crops = [dataset[0]["lq"] for _ in range(40)]
    strips = {whole[:, :, at : at + 9].numpy().tobytes() for at in range(4)}
    flipped = {whole[:, :, at : at + 9].flip(-1).numpy().tobytes() for at in range(4)}
    seen = {crop.contiguous().numpy().tobytes() for crop in crops}
    assert seen & strips
    assert bool(seen & flipped) == flips
    assert bool(seen - strips - flipped) == turns


def test_options_of_other_programs(roots):
    """An unknown option is refused; an object with options, and folders in lists, are those of traiNNer."""
    with pytest.raises(UsageError, match="does not know the option use_blur; leave it out"):
        PackedPairedImageDataset({**TRAIN, **roots["one"], "use_blur": True})
    lists = {name: [root] for name, root in roots["two"].items()}
    options = types.SimpleNamespace(**TRAIN, **lists, blur_kernel_size=12, meta_info=None)
    assert len(PackedPairedImageDataset(options)) == len(NAMES)


class Registry:
    """The part of BasicSR's Registry that is used: a second registration under one name is an error there."""

    def __init__(self):
        self.held = {}

    def __contains__(self, name):
        return name in self.held

    def register(self, held):
        assert held.__name__ not in self.held
        self.held[held.__name__] = held
