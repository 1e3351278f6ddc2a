"""Train SRCNN on image pairs, and see what the batch size does to an epoch and to the wait for data.

$ packer convert lr=data/pairs/lr hr=data/pairs/hr pairs.packed
$ python scripts/examples/srcnn.py pairs.packed --batch-sizes 8 128

It takes a square of every picture, another one each time, so that pictures may differ in size. Large batches make few
steps: 16 of 128 in an epoch of 2,160 pairs learn next to nothing, 270 of 8 do better than bicubic.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from readers import Crop, DataTimeMonitor, Loader, PackedDataset


class SRCNN(nn.Module):
    """Dong et al., 2014; here its three convolutions learn what is to be added to the enlarged picture."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 64, kernel_size=9, padding=4),
            nn.ReLU(),
            nn.Conv2d(64, 32, kernel_size=1),
            nn.ReLU(),
            nn.Conv2d(32, channels, kernel_size=5, padding=2),
        )
        for added in self.layers[-1].parameters():  # at first nothing, so that it starts as good as bicubic
            nn.init.zeros_(added)

    def forward(self, enlarged: Tensor) -> Any:
        return enlarged + self.layers(enlarged)


def pictures(batch: Tensor) -> Tensor:
    """Return bytes as floats from 0 to 1; on the device, since bytes are a quarter of the data to be copied."""
    return batch.float() / 255


def train(dataset: PackedDataset, batch_size: int, epochs: int, device: str) -> None:
    """Train a new model and print a line an epoch, after the monitor's."""
    torch.manual_seed(0)
    model = SRCNN(dataset[0]["hr"].shape[0]).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-4)
    loader = Loader(dataset, batch_size, shuffle=True, drop_last=True, device=device)
    monitored = DataTimeMonitor(loader, every=1000)  # and at the end of an epoch
    for epoch in range(epochs):
        start, losses, bicubic = perf_counter(), [], []
        for batch in monitored:
            hr = pictures(batch["hr"])
            enlarged = functional.interpolate(pictures(batch["lr"]), size=hr.shape[-2:], mode="bicubic")
            loss = functional.mse_loss(model(enlarged), hr)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.detach())
            bicubic.append(functional.mse_loss(enlarged, hr))
        ours, theirs = (-10 * torch.stack(errors).mean().log10().item() for errors in (losses, bicubic))
        took = f"{perf_counter() - start:.2f} s"
        print(f"batch {batch_size}, epoch {epoch}: {took}, {ours:.2f} dB (bicubic {theirs:.2f} dB)")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train SRCNN on the fields lr and hr of a packed dataset.")
    parser.add_argument("dataset", help="folder that packer convert made")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 128])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--crop", type=int, default=32, help="pixels of hr that a square is wide (default: 32)")
    parser.add_argument("--scale", type=int, default=4, help="how many times as wide as lr is hr (default: 4)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    crop = Crop(options.crop, of="hr", aligned={"lr": options.scale})
    dataset = PackedDataset(options.dataset, fields=["lr", "hr"], crop=crop)
    for batch_size in options.batch_sizes:
        train(dataset, batch_size, options.epochs, options.device)


if __name__ == "__main__":
    main()
