"""`PackedPairedImageDataset`: a packed dataset in the shape of BasicSR's PairedImageDataset.

    import readers.basicsr          # in train.py: registers the class with BasicSR, neosr and traiNNer

    # options/train.yml, datasets: train:
    type: PackedPairedImageDataset
    dataroot: div2k.packed          # or dataroot_lq and dataroot_gt, a packed dataset each
    gt_size: 128
    use_hflip: true
    use_rot: true

NAFNet and Restormer have an older basicsr without a registry, which looks for classes in its files. Add one of one
line, `basicsr/data/packed_dataset.py`, with `from readers.basicsr import PackedPairedImageDataset`.

It is made from options alone, and needs none of these packages.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from packer.errors import UsageError
from packer.format import Numbers
from readers.crop import Crop
from readers.data_loader import Batch
from readers.dataset import PackedDataset
from readers.indexing import resolve_numbers
from readers.placing import size_text
from readers.samples import item_of
from readers.source import source_of

#: Names of options that mirror samples, and of those that turn them.
_FLIPS, _TURNS = ("use_hflip", "use_flip", "geometric_augs"), ("use_rot", "geometric_augs")
#: The other options that this class follows, and those that the training programs keep for themselves.
_FOLLOWED = (
    *("dataroot", "dataroot_lq", "dataroot_gt", "lq_field", "gt_field", "split", "meta_info_file", "meta_info"),
    *("phase", "scale", "gt_size", "patch_size", "mean", "std", "color"),
)
_THEIRS = (
    *("name", "type", "io_backend", "filename_tmpl", "batch_size", "batch_size_per_gpu", "num_worker_per_gpu"),
    *("use_shuffle", "dataset_enlarge_ratio", "prefetch_mode", "num_prefetch_queue", "pin_memory"),
    *("persistent_workers", "mini_batch_sizes", "iters", "gt_sizes", "accumulate"),
)

_log = logging.getLogger(__name__)

#: Divisors that bring the values of a dtype to the range 0 to 1.
_FULL = {torch.uint8: 255.0, torch.uint16: 65535.0}


class PackedPairedImageDataset(Dataset[dict[str, Any]]):
    """Pairs of images as BasicSR's PairedImageDataset gives them.

    A sample is a dict: `lq` and `gt` (3, H, W) float32, RGB from 0 to 1, and their names `lq_path` and `gt_path`. Gray
    images become three equal channels and alpha is left out, as BasicSR reads files. A batch of torch's DataLoader is
    gathered at once.

    Args:
        opt: options of BasicSR by name; those of files (`io_backend`, `filename_tmpl`) are not needed. Or the object
            with options that traiNNer gives.
            `dataroot`: a packed dataset with both fields. Or `dataroot_lq` and `dataroot_gt`: one each, with the same
            samples, or the same one twice.
            `lq_field`, `gt_field`: names of the fields; by default `lq` or `lr`, and `gt` or `hr`, or the only one.
            `split`: name of a split of the dataset.
            `meta_info_file`, `meta_info`: reads the samples that it lists, in its order.
            `phase`: `train` crops, flips and turns at random; otherwise images are whole, and the larger one is cut
            to `scale` times the smaller.
            `scale`: how many times as large `gt` is; 1 by default.
            `gt_size`: side of the crop of `gt` in pixels. `patch_size`, of neosr: that of `lq`.
            `use_hflip`, `use_flip`: mirrors half of the samples. `use_rot`: turns samples by 0 to 3 quarters.
            `geometric_augs`, of Restormer: both.
            `mean`, `std`: of each channel, (3,): `mean` is subtracted, then the result is divided by `std`.

    Raises:
        UsageError: an option is missing, or is one that this class does not know, or the pairs do not fit.
        DatasetError: there is no packed dataset.
    """

    def __init__(self, opt: Any) -> None:
        opt = self.opt = _check_options(opt)
        if opt.get("color") is not None:
            raise UsageError(
                f"color {opt['color']!r}: only RGB is possible; convert the batch, or leave the option out"
            )
        self._scale = int(opt.get("scale") or 1)
        self._train = opt.get("phase") == "train"
        self._mean, self._std = (_channel_tensor(opt.get(name)) for name in ("mean", "std"))
        self._lq, self._lq_field = self._open("lq", ("lq", "lr"), self._scale)
        self._gt, self._gt_field = self._open("gt", ("gt", "hr"), 1)
        self._check_pairs()
        listed = opt.get("meta_info_file") or opt.get("meta_info")
        self._numbers = None if listed is None else _read_list(self._gt, Path(listed))

    def _open(self, side: str, usual_names: tuple[str, str], smaller: int) -> tuple[PackedDataset, str]:
        """Return the dataset of one side of the pairs, which gives crops of it in training, and the field's name."""
        root = self.opt.get(f"dataroot_{side}") or self.opt.get("dataroot")
        if isinstance(root, list) and len(root) == 1:
            root = root[0]
        if not root:
            raise UsageError(f"dataroot, or dataroot_{side}, is missing; it names the packed dataset to read")
        names = list(PackedDataset(root).fields)
        chosen = self.opt.get(f"{side}_field") or next(
            (name for name in names if name in usual_names or len(names) == 1), None
        )
        if chosen is None:
            raise UsageError(
                f"{root} has the fields {', '.join(names)}: name that of {side} with the option {side}_field"
            )
        crop = None
        if self._train:
            size = self.opt.get("gt_size") or (self.opt.get("patch_size") or 0) * self._scale
            if not size:
                raise UsageError("phase train needs gt_size, the side of a crop of gt in pixels")
            if size % self._scale:
                raise UsageError(f"gt_size {size} is not a multiple of scale {self._scale}")
            flips, turns = (any(map(self.opt.get, names)) for names in (_FLIPS, _TURNS))
            # Both sides draw the same random words, and turn them into places in pixels of the smaller side.
            crop = Crop(size // smaller, chosen, flips=flips, turns=turns, multiple=self._scale // smaller)
        return PackedDataset(root, [chosen], crop=crop, split=self.opt.get("split")), chosen

    def __len__(self) -> int:
        return len(self._gt) if self._numbers is None else len(self._numbers)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample: dict[str, Any] = item_of(self._read_pairs([index]), 0, 1)
        return sample

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return a batch for DataLoader, which takes it as one."""
        return Batch(self._read_pairs(indices), len(indices))

    def _read_pairs(self, indices: Sequence[int]) -> dict[str, Any]:
        """Return a batch of pairs: tensors (n, 3, H, W), or lists of (3, H, W) if whole images differ in size."""
        numbers = resolve_numbers(indices, len(self), source_of(self._gt).sample_numbers)
        numbers = numbers if self._numbers is None else self._numbers[numbers]
        state = torch.get_rng_state()
        lq = self._lq[numbers][self._lq_field]
        if self._train:
            torch.set_rng_state(state)  # so that both sides of a pair are cropped, flipped and turned alike
        gt = self._gt[numbers][self._gt_field]
        if not self._train:
            sizes = [[self._scale * n for n in small.shape[-2:]] for small in lq]
            gt = [large[:, :height, :width] for large, (height, width) in zip(gt, sizes, strict=True)]
        names = [str(n) for n in numbers.tolist()] if self._gt.names is None else self._gt.names[numbers]
        return {"lq": self._to_float(lq), "gt": self._to_float(gt), "lq_path": names, "gt_path": list(names)}

    def _to_float(self, images: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
        if isinstance(images, list):
            floats = [self._to_float(image[None])[0] for image in images]
            return torch.stack(floats) if len({image.shape for image in floats}) == 1 else floats
        if images.shape[1] != 3:
            images = images[:, :3] if images.shape[1] == 4 else images[:, :1].expand(-1, 3, -1, -1)
        # Copied in any case: the three channels of gray floats are one piece of memory.
        values = images.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        if images.dtype in _FULL:
            values = values.div_(_FULL[images.dtype])
        if self._mean is not None:
            values = values.sub_(self._mean)
        return values if self._std is None else values.div_(self._std)

    def _check_pairs(self) -> None:
        """Raise UsageError if the two sides are not of the same samples, or not `scale` times as large.

        Whole images may be a little larger; training requires the exact scale, as BasicSR does.
        """
        if not _same_samples(self._lq, self._gt):
            raise UsageError(
                f"{self._lq.path} and {self._gt.path} have different samples; pack both from files of the same names"
            )
        if not self._train:
            return
        small, large = self._lq.shapes(self._lq_field)[:, :2], self._gt.shapes(self._gt_field)[:, :2]
        wrong = (small * self._scale != large).any(axis=1)
        if wrong.any():
            number = int(wrong.argmax())
            name = number if self._gt.names is None else repr(self._gt.names[number])
            raise UsageError(
                f"sample {name}: gt is {size_text(large[number])} pixels and lq {size_text(small[number])}, which is "
                f"not {self._scale} times smaller; see the option scale"
            )


def _same_samples(first: PackedDataset, second: PackedDataset) -> bool:
    """Return whether two datasets, or their splits, have the same names in order, or no names and as many samples."""
    same_table = first.manifest.name_tables == second.manifest.name_tables and first.split is None
    return len(first) == len(second) and (first.path == second.path or same_table or first.names == second.names)


def _channel_tensor(values: Sequence[float] | None) -> Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)


def _read_list(dataset: PackedDataset, path: Path) -> Numbers:
    """Return the numbers of the samples that a list of BasicSR names: the first word of each line, without its ending.

    Raises:
        UsageError: the list cannot be read.
        MissingNameError: the dataset has no sample of a name.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"meta_info_file {path}: {error}") from None
    words = [line.split()[0] for line in lines if line.strip()]
    return np.asarray(source_of(dataset).sample_numbers([str(Path(word).with_suffix("")) for word in words]), np.int64)


def _check_options(opt: Any) -> Mapping[str, Any]:
    """Return options by name, without those that are None.

    Raises:
        UsageError: one is unknown; traiNNer's object has those of all its datasets, and checks them itself.
    """
    known = _FOLLOWED + _FLIPS + _TURNS
    if not isinstance(opt, Mapping):
        return {name: getattr(opt, name) for name in known if getattr(opt, name, None) is not None}
    options = {name: value for name, value in opt.items() if value is not None}
    unknown = [name for name in options if name not in known + _THEIRS]
    if unknown:
        raise UsageError(f"PackedPairedImageDataset does not know the option {unknown[0]}; leave it out")
    return options


def _register() -> None:
    """Let BasicSR, neosr and traiNNer find the class by the name that options give, if they are installed."""
    for package in ("basicsr", "neosr", "traiNNer"):
        if package not in sys.modules and importlib.util.find_spec(package) is None:
            continue
        try:
            registry = importlib.import_module(f"{package}.utils.registry").DATASET_REGISTRY
        except ImportError as error:
            _log.warning(
                "PackedPairedImageDataset is not registered with %s (%s); if it has no registry, as in NAFNet and "
                "Restormer, add the file %s/data/packed_dataset.py with this line: "
                "from readers.basicsr import PackedPairedImageDataset",
                package,
                error,
                package,
            )
            continue
        if PackedPairedImageDataset.__name__ not in registry:
            registry.register(PackedPairedImageDataset)


_register()
