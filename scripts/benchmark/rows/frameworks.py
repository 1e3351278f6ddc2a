"""The loops of frameworks for training, over a Loader, against a loop of one's own."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from benchmark.inputs import LARGE, SMALL, pairs
from benchmark.loops import loader_side
from benchmark.measuring import Bench, Figures, Side, checksum, epochs, files_of, row
from readers import Loader, PackedDataset

BARE = "a for loop over the Loader"
#: Epochs of a fit, so that what a Trainer does before the first weighs little.
EPOCHS = 20


@row("pairs 16/64, none, batch 128, Accelerate", BARE, at_least=0.8, size=SMALL)
@row("pairs 48/192, none, batch 128, Accelerate", BARE, at_least=0.8, size=LARGE)
def accelerate(bench: Bench, size: int) -> Figures:
    """What `Accelerator.prepare` makes of a Loader."""
    from accelerate import Accelerator

    path, fields = bench.packed(pairs, size), list(bench.arrays(pairs, size).values())
    prepared = Accelerator(cpu=True).prepare(Loader(PackedDataset(path), 128, shuffle=True))
    samples = len(prepared.dataset)
    theirs = epochs("Accelerate", lambda: prepared, samples, checksum(fields), files_of(path))
    return bench.race(theirs, loader_side(path, 128, fields))


@row("pairs 16/64, none, batch 128, Lightning", BARE, at_least=0.1, size=SMALL)
@row("pairs 48/192, none, batch 128, Lightning", BARE, at_least=0.8, size=LARGE)
def lightning(bench: Bench, size: int) -> Figures:
    """A Trainer whose steps do nothing; what it does itself at every step is part of it."""
    path, fields = bench.packed(pairs, size), list(bench.arrays(pairs, size).values())
    loader = Loader(PackedDataset(path), 128, shuffle=True)
    return bench.race(_fit(loader, files_of(path)), loader_side(path, 128, fields))


def _fit(loader: Loader, files: Any) -> Side:
    import lightning
    import torch

    class Nothing(lightning.LightningModule):
        def training_step(self, batch: Any, number: int) -> None:
            """Do nothing."""

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])

    def run() -> int:
        quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
            trainer = lightning.Trainer(max_epochs=EPOCHS, accelerator="cpu", enable_checkpointing=False, **quiet)
            trainer.fit(Nothing(), loader)
        return EPOCHS * len(loader.dataset)

    return Side("Lightning", run, files)
