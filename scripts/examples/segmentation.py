"""Train a small 3-D U-Net on random patches of volumes, and measure Dice on whole volumes that it has not seen.

$ packer convert image=imagesTr label=labelsTr volumes.packed --split train=0.8 --split test=0.2
$ python scripts/examples/segmentation.py volumes.packed

A patch is a cube at a random place; little else of the volume is decoded.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from readers import Crop, Loader, PackedDataset


class UNet(nn.Module):
    """Two levels of convolutions, the lower at half the resolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.low = self.block(channels, 8), self.block(8, 16)
        self.up = nn.Sequential(self.block(24, 8), nn.Conv3d(8, 2, 1))

    @staticmethod
    def block(before: int, after: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv3d(before, after, 3, padding=1), nn.InstanceNorm3d(after), nn.LeakyReLU())

    def forward(self, image: Tensor) -> Any:
        high = self.down(image)
        low = functional.interpolate(self.low(functional.max_pool3d(high, 2)), size=high.shape[2:])
        return self.up(torch.cat([high, low], dim=1))


def volumes(batch: Tensor) -> Tensor:
    """Return (B, X, Y, Z, C) as (B, C, X, Y, Z) float32, each channel with mean 0 and deviation 1."""
    return functional.instance_norm(batch.movedim(-1, 1).float())


def dice_loss(logits: Tensor, label: Tensor) -> Tensor:
    """Return cross entropy plus one minus the soft Dice of class 1."""
    share = logits.softmax(dim=1)[:, 1]
    overlap = 2 * (share * label).sum() / (share.sum() + label.sum() + 1)
    return functional.cross_entropy(logits, label) + 1 - overlap


@torch.no_grad()
def dice(model: UNet, dataset: PackedDataset, device: str) -> float:
    """Return the Dice of class 1 over whole volumes."""
    both = total = 0
    for sample in dataset:
        found, label = model(volumes(sample["image"][None].to(device))).argmax(dim=1)[0], sample["label"].to(device)
        both, total = both + int((found & label).sum()), total + int(found.sum() + label.sum())
    return 2 * both / max(total, 1)


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, and return the Dice on the split test."""
    parser = argparse.ArgumentParser(description="Train on the fields image and label of a packed dataset.")
    parser.add_argument("dataset", help="packed dataset with the splits train and test")
    parser.add_argument("--patch", type=int, default=24, help="voxels of a side (default: 24)")
    parser.add_argument("--patches", type=int, default=12, help="patches of each volume an epoch (default: 12)")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    fields = ("image", "label")
    crop = Crop((options.patch,) * 3, of="image", aligned={"label": 1}, flips=True)
    patches = PackedDataset(options.dataset, fields, split="train", crop=crop)
    torch.manual_seed(0)
    model = UNet(patches.fields["image"].shape[-1] or 1).to(options.device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = Loader(patches, options.batch_size, shuffle=True, repeat=options.patches, device=options.device)
    for epoch in range(options.epochs):
        losses = []
        for batch in loader:
            loss = dice_loss(model(volumes(batch["image"])), batch["label"].long())
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}")
    found = dice(model, PackedDataset(options.dataset, fields, split="test"), options.device)
    print(f"Dice {found:.2f} on whole volumes that it had not seen")
    return found


if __name__ == "__main__":
    main()
