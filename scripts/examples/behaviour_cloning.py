"""Learn from demonstrations what to do next: windows of two pictures and the actions that followed.

$ packer convert data/demos.hdf5 demos.packed --samples groups
$ python scripts/examples/behaviour_cloning.py demos.packed

The file is laid out as robomimic's: a group a demonstration, and lists of those to train on and to validate with, which
become splits. A window is what a diffusion policy or an action transformer is given: some observations up to now, and a
chunk of actions from now on, the last one repeated beyond the end of a demonstration.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from readers import Loader, PackedDataset, Windows

IMAGE, ACTIONS = "obs.agentview_image", "actions"
SEEN, CHUNK = 2, 8


class Policy(nn.Module):
    """The pictures that were seen, one after the other, to the next actions."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.actions = actions
        self.layers = nn.Sequential(
            *(nn.Conv2d(3 * SEEN, 32, kernel_size=5, stride=2, padding=2), nn.ReLU()),
            *(nn.Conv2d(32, 32, kernel_size=3, stride=2, padding=1), nn.ReLU()),
            *(nn.Flatten(), nn.LazyLinear(128), nn.ReLU(), nn.Linear(128, CHUNK * actions)),
        )

    def forward(self, images: Tensor) -> Any:
        pictures = images.movedim(-1, 2).flatten(1, 2).float() / 255  # (B, T, H, W, 3) to (B, 3 T, H, W)
        return self.layers(pictures).view(-1, CHUNK, self.actions)


def error(policy: Policy, batch: dict[str, Any]) -> Any:
    """Return the mean squared error of the actions, without those beyond the end of a demonstration."""
    off = (policy(batch[IMAGE]) - batch[ACTIONS]).square().mean(dim=2)
    return off[~batch[ACTIONS + "_is_pad"]].mean()


def main(arguments: Sequence[str] | None = None) -> float:
    """Return the error on demonstrations that were held back, as a share of that of doing nothing."""
    parser = argparse.ArgumentParser(description="Learn actions from pictures, on demonstrations of a packed dataset.")
    parser.add_argument("dataset", help="folder that packer convert --samples groups made")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    windows = Windows({IMAGE: range(1 - SEEN, 1), ACTIONS: range(CHUNK)}, pad="edge")
    train, valid = (
        PackedDataset(options.dataset, fields=[IMAGE, ACTIONS], windows=windows, split=split)
        for split in ("train", "valid")
    )
    torch.manual_seed(0)
    policy = Policy(train[0][ACTIONS].shape[-1]).to(options.device)
    policy(train[[0]][IMAGE].to(options.device))  # one batch, so that the lazy layer knows how wide it is
    optimiser = torch.optim.Adam(policy.parameters(), lr=1e-3)
    loader = Loader(train, options.batch_size, shuffle=True, device=options.device)
    held_back = next(iter(Loader(valid, len(valid), device=options.device)))
    nothing = float(held_back[ACTIONS][~held_back[ACTIONS + "_is_pad"]].square().mean())
    share = 1.0
    for epoch in range(options.epochs):
        for batch in loader:
            loss = error(policy, batch)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            share = float(error(policy, held_back)) / nothing
        print(f"epoch {epoch}: {len(train)} windows; actions held back are off by {share:.0%} of doing nothing")
    return share


if __name__ == "__main__":
    main()
