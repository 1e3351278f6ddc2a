"""Train a small network on folders of photographs, a folder for each class, as torchvision's ImageFolder has them.

$ packer convert train train.packed --label folder --mode rgb --split train=0.9 --split valid=0.1
$ python scripts/examples/classification.py train.packed --size 224 --batch-size 128

JPEG files stay as they are in the dataset; all processors decode them, and no more of each than its crop needs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from readers import DataTimeMonitor, Loader, PackedDataset, ResizedCrop

#: Mean and spread of the colours of ImageNet, which most networks expect.
MEAN, SPREAD = torch.tensor([123.675, 116.28, 103.53]), torch.tensor([58.395, 57.12, 57.375])


def normalised(images: Tensor) -> Tensor:
    """Return images (B, 3, H, W) of uint8 as floats around 0; on the device, where four times the bytes cost little."""
    mean, spread = (value.to(images.device).view(3, 1, 1) for value in (MEAN, SPREAD))
    return (images.float() - mean) / spread


def network(classes: int) -> nn.Module:
    """Return three convolutions, and a layer that tells the classes by the mean of what they find."""
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


@torch.no_grad()
def share_right(model: nn.Module, loader: Loader, device: str) -> float:
    """Return the share of the samples whose class is told right."""
    model.eval()
    right = sum(
        int((model(normalised(batch["image"].to(device))).argmax(1) == batch["label"].to(device)).sum())
        for batch in loader
    )
    model.train()
    return right / len(loader.dataset)


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, and return the share of the split `valid` that is told right in the end."""
    parser = argparse.ArgumentParser(description="Train a network on the classes of a packed dataset.")
    parser.add_argument("dataset", help="folder that packer convert made, with splits train and valid")
    parser.add_argument("--size", type=int, default=64, help="pixels of a side (default: 64)")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    fields, size, device = ["image", "label"], options.size, options.device
    crop, middle = ResizedCrop(size, of="image"), ResizedCrop(size, of="image", at="center", short=size * 8 // 7)
    train = PackedDataset(options.dataset, fields, crop=crop, split="train")
    valid = Loader(PackedDataset(options.dataset, fields, crop=middle, split="valid"), options.batch_size)
    if train.classes is None:
        parser.error(f"{options.dataset} has no classes; convert it with --label folder")
    model = network(len(train.classes)).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader: Any = DataTimeMonitor(Loader(train, options.batch_size, shuffle=True), every=1000)
    share = 0.0
    for epoch in range(options.epochs):
        for batch in loader:
            decisions = model(normalised(batch["image"].to(device)))
            loss = functional.cross_entropy(decisions, batch["label"].to(device))
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        share = share_right(model, valid, device)
        print(f"epoch {epoch}: {share:.1%} told right")
    return share


if __name__ == "__main__":
    main()
