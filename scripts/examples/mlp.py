"""Train a small network on rows of an HDF5 file, such as 33 measured features and a class.

$ packer convert rows.h5 rows.packed                # datasets /features (n, 33) and /label (n,)
$ python scripts/examples/mlp.py rows.packed

The demo's digits are 8 x 8 pictures, which are rows of 64 features:
$ python scripts/examples/mlp.py data/packed/digits.packed --features images --label labels --classes 10
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from readers import DataTimeMonitor, Loader, PackedDataset


def mean_and_spread(dataset: PackedDataset, field: str) -> tuple[Tensor, Tensor]:
    """Return both of every feature, over the whole dataset: read once, in large batches."""
    total, squares = torch.zeros(()), torch.zeros(())
    for batch in Loader(dataset, 4096):
        rows = batch[field].flatten(1).double()
        total, squares = total + rows.sum(0), squares + rows.square().sum(0)
    mean = total / len(dataset)
    spread = (squares / len(dataset) - mean.square()).clamp(min=0).sqrt()
    # A feature that never changes has no spread to divide by.
    return mean.float(), spread.float().clamp(min=1e-6)


def network(features: int, classes: int) -> nn.Module:
    """Return a network of two hidden layers."""
    return nn.Sequential(nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, classes))


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, and return the share of rows told right in the last epoch."""
    parser = argparse.ArgumentParser(description="Train a network on two fields of a packed dataset.")
    parser.add_argument("dataset", help="folder that packer convert made")
    parser.add_argument("--features", default="features", help="field of the numbers (default: features)")
    parser.add_argument("--label", default="label", help="field of the class, 0 to CLASSES - 1 (default: label)")
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    dataset = PackedDataset(options.dataset, fields=[options.features, options.label])
    mean, spread = mean_and_spread(dataset, options.features)
    model = network(len(mean), options.classes)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataTimeMonitor(Loader(dataset, options.batch_size, shuffle=True), every=1000)
    share = 0.0
    for epoch in range(options.epochs):
        right = 0
        for batch in loader:
            rows = (batch[options.features].flatten(1) - mean) / spread
            labels = batch[options.label].long()
            decisions = model(rows)
            loss = functional.cross_entropy(decisions, labels)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            right += int((decisions.argmax(dim=1) == labels).sum())
        share = right / len(dataset)
        print(f"epoch {epoch}: {share:.1%} told right")
    return share


if __name__ == "__main__":
    main()
