"""Train a small PointNet on clouds of many sizes, without padding any of them.

$ packer convert data/clouds clouds.packed
$ python scripts/examples/pointnet.py clouds.packed

The demo clouds are windows of two maps, some 5 km and some 150 km wide. Scaled to one size they are told apart by
their relief. For clouds of your own, pack a field `label` with them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import SubsetRandomSampler

from packer.errors import UsageError
from readers import Loader, PackedDataset, Ragged

WIDE = 50_000  # metres: the demo clouds are far narrower or far wider


class PointNet(nn.Module):
    """The same layers for every point, the largest value over each cloud, then a decision."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.points = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU())
        self.cloud = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, clouds: Ragged) -> Any:
        features = self.points(clouds.values)  # (points of all clouds, 64)
        return self.cloud(torch.segment_reduce(features, "max", offsets=clouds.offsets))


def clouds_and_labels(batch: dict[str, Any]) -> tuple[Ragged, Tensor]:
    """Return what the model sees, clouds of one size about the origin, and what it should say, (B,) int64."""
    xyz: Ragged = batch["xyz"]
    low, high = (torch.segment_reduce(xyz.values, how, offsets=xyz.offsets) for how in ("min", "max"))
    size = (high - low).amax(dim=1)
    of_point = torch.repeat_interleave(xyz.lengths)  # number of each point's cloud: 0, 0, 0, 1, 1, ...
    scaled = (xyz.values - ((low + high) / 2)[of_point]) / size[of_point, None]
    points = scaled * torch.tensor([1.0, 1.0, 10.0])  # heights tenfold, as relief maps show them
    return Ragged(points, xyz.offsets), batch.get("label", size > WIDE).long()


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, and return the share of the held-back clouds that were told right."""
    parser = argparse.ArgumentParser(description="Train a PointNet on the field xyz (and label) of a packed dataset.")
    parser.add_argument("dataset", help="folder that packer convert made")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    dataset = PackedDataset(options.dataset)
    if "xyz" not in dataset.fields:
        raise UsageError(f"{options.dataset} has no field 'xyz'; it has {', '.join(dataset.fields)}; pack clouds")
    shuffled = torch.randperm(len(dataset)).tolist()
    held_back, rest = shuffled[: len(dataset) // 5], shuffled[len(dataset) // 5 :]
    model = PointNet(classes=2)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = Loader(dataset, options.batch_size, sampler=SubsetRandomSampler(rest))
    for epoch in range(options.epochs):
        for batch in loader:  # each time in another order
            clouds, labels = clouds_and_labels(batch)
            loss = functional.cross_entropy(model(clouds), labels)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        print(f"epoch {epoch}: loss of the last batch {loss.item():.3f}")
    clouds, labels = clouds_and_labels(dataset[held_back])
    right = float((model(clouds).argmax(dim=1) == labels).float().mean())
    print(f"{right:.0%} of {len(held_back)} clouds that it had not seen are told right")
    return right


if __name__ == "__main__":
    main()
