"""Train a small video super-resolution network on clips: windows of frames, with one crop for all frames of a window.

$ packer convert lr=data/clips/lr hr=data/clips/hr clips.packed --samples folders
$ python scripts/examples/video_sr.py clips.packed

Every frame of every clip is learnt once an epoch: it is enlarged with the help of the frames next to it, which show the
same thing on other pixels. Only that one frame of hr is read.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from readers import Crop, Loader, PackedDataset, Windows


class FramesToOne(nn.Module):
    """Enlarges the middle of some frames; what it learns is added to the bicubic picture."""

    def __init__(self, frames: int, scale: int) -> None:
        super().__init__()
        self.scale = scale
        self.layers = nn.Sequential(
            nn.Conv2d(3 * frames, 64, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 3 * scale**2, kernel_size=3, padding=1),
            nn.PixelShuffle(scale),
        )
        for added in self.layers[-2].parameters():  # at first nothing, so that it starts as good as bicubic
            nn.init.zeros_(added)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return the middle of `frames` (B, T, 3, h, w), enlarged by us and by bicubic interpolation."""
        bicubic = functional.interpolate(frames[:, frames.shape[1] // 2], scale_factor=self.scale, mode="bicubic")
        return bicubic + self.layers(frames.flatten(1, 2)), bicubic


def pictures(batch: Tensor) -> Tensor:
    """Return bytes (B, T, H, W, C) as floats from 0 to 1, (B, T, C, H, W)."""
    return batch.movedim(-1, -3).float() / 255


def main(arguments: Sequence[str] | None = None) -> float:
    """Return how many decibels we gained on bicubic interpolation in the last epoch."""
    parser = argparse.ArgumentParser(description="Train on the fields lr and hr, clips of a packed dataset.")
    parser.add_argument("dataset", help="folder that packer convert --samples folders made")
    parser.add_argument("--frames", type=int, default=5, help="of lr that one of hr is made from, odd (default: 5)")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--crop", type=int, default=64, help="pixels of hr that a square is wide (default: 64)")
    parser.add_argument("--scale", type=int, default=4, help="how many times as wide as lr is hr (default: 4)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    half = options.frames // 2
    windows = Windows({"lr": range(-half, half + 1), "hr": [0]}, pad="edge")
    crop = Crop(options.crop, of="hr", aligned={"lr": options.scale}, flips=True)
    dataset = PackedDataset(options.dataset, fields=["lr", "hr"], windows=windows, crop=crop)
    loader = Loader(dataset, options.batch_size, shuffle=True, device=options.device)
    torch.manual_seed(0)
    model = FramesToOne(2 * half + 1, options.scale).to(options.device)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    gain = 0.0
    for epoch in range(options.epochs):
        errors = []
        for batch in loader:
            hr = pictures(batch["hr"])[:, 0]
            ours, bicubic = model(pictures(batch["lr"]))
            loss = functional.mse_loss(ours, hr)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            errors.append(torch.stack([loss.detach(), functional.mse_loss(bicubic, hr)]))
        quality, before = (-10 * torch.stack(errors).mean(0).log10()).tolist()
        gain = quality - before
        print(f"epoch {epoch}: {len(dataset)} windows, {quality:.2f} dB (bicubic {before:.2f} dB)")
    return gain


if __name__ == "__main__":
    main()
