"""Train on image pairs with DistributedDataParallel: one process a GPU, or several on the processor.

$ packer convert lr=data/pairs/lr hr=data/pairs/hr pairs.packed --split train=0.9 --split valid=0.1
$ torchrun --nproc-per-node 2 scripts/examples/distributed.py pairs.packed

`Loader` takes its rank from torch.distributed: each rank reads its own share of one common order, and all take the same
number of steps. Validation reads by number, so that each sample counts once, whatever the number of ranks.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from readers import Crop, Loader, PackedDataset


class Enlarge(nn.Module):
    """Enlarges a picture, and adds what two convolutions have learned."""

    def __init__(self, channels: int, scale: int) -> None:
        super().__init__()
        self.scale = scale
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 32, kernel_size=5, padding=2), nn.ReLU(), nn.Conv2d(32, channels, 5, padding=2)
        )

    def forward(self, lr: Tensor) -> Any:
        enlarged = functional.interpolate(lr, scale_factor=self.scale, mode="bicubic")
        return enlarged + self.layers(enlarged)


def error(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the mean squared error of a batch of bytes."""
    lr, hr = (batch[name].float() / 255 for name in ("lr", "hr"))
    return functional.mse_loss(model(lr), hr)


def validate(model: nn.Module, dataset: PackedDataset, batch_size: int, rank: int, ranks: int, device: str) -> float:
    """Return the mean error over all samples: each rank reads every `ranks`-th of them, then all add up."""
    total = torch.zeros(2, dtype=torch.float64, device=device)
    mine = range(rank, len(dataset), ranks)
    with torch.no_grad():
        for start in range(0, len(mine), batch_size):
            batch = {name: values.to(device) for name, values in dataset[mine[start : start + batch_size]].items()}
            total += torch.tensor([error(model, batch).item(), 1], device=device) * len(batch["lr"])
    if ranks > 1:
        dist.all_reduce(total)
    return (total[0] / total[1]).item()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train on the fields lr and hr of a packed dataset, on many ranks.")
    parser.add_argument("dataset", help="folder that packer convert made, with splits train and valid")
    parser.add_argument("--batch-size", type=int, default=16, help="samples of one rank (default: 16)")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--scale", type=int, default=4, help="how many times as wide as lr is hr (default: 4)")
    options = parser.parse_args(arguments)
    rank, ranks = 0, int(os.environ.get("WORLD_SIZE", "1"))  # torchrun sets it
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    if ranks > 1:
        dist.init_process_group("nccl" if device != "cpu" else "gloo")
        rank = dist.get_rank()
    fields, patch = ["lr", "hr"], partial(Crop, 8 * options.scale, of="hr", aligned={"lr": options.scale})
    train = PackedDataset(options.dataset, fields, crop=patch(), split="train")
    valid = PackedDataset(options.dataset, fields, crop=patch(at="center"), split="valid")
    torch.manual_seed(0)
    model: nn.Module = Enlarge(train[0]["hr"].shape[0], options.scale).to(device)
    model = DistributedDataParallel(model) if ranks > 1 else model
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = Loader(train, options.batch_size, shuffle=True, drop_last=True, device=device)
    for epoch in range(options.epochs):
        for batch in loader:
            optimiser.zero_grad()
            error(model, batch).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        mean = validate(model, valid, options.batch_size, rank, ranks, device)
        if rank == 0:
            print(f"epoch {epoch}: {len(loader)} steps on {ranks} ranks, error {mean:.6f} on {len(valid)} samples")
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
