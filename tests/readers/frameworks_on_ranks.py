"""What `test_frameworks.py` runs in two ranks; all that is slow to import is imported before they are forked."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning  # noqa: F401
import torch
from accelerate import Accelerator
from test_frameworks import Loader, PackedDataset, loader_of, module, numbers, trainer


def train(arguments: Sequence[str]) -> None:
    """Train with Lightning, then with Accelerate; write the numbers of the samples that this rank is given as JSON.

    Args:
        arguments: the dataset, and the folder of the JSON files, `0.json` and `1.json`.
    """
    path, out = arguments
    dataset = PackedDataset(path, ["x", "n"])
    made_before = loader_of(dataset)  # torch.distributed is initialised later
    assert not torch.distributed.is_initialized()
    given = {"lightning": with_lightning(dataset, made_before), "accelerate": with_accelerate(dataset)}
    (Path(out) / f"{os.environ['RANK']}.json").write_text(json.dumps(given))
    torch.distributed.destroy_process_group()


def with_lightning(dataset: PackedDataset, made_before: Loader) -> dict[str, Any]:
    model = module()
    runner = trainer(max_epochs=2, num_sanity_val_steps=0, strategy="ddp", devices=2)
    runner.fit(model, made_before, Loader(dataset, 8))
    predicted = [part.tolist() for part in runner.predict(model, Loader(dataset, 8))]
    return {"train": list(model.seen.values()), "validate": model.validated, "predict": predicted}


def with_accelerate(dataset: PackedDataset) -> dict[str, Any]:
    accelerate = Accelerator(cpu=True)
    prepared, whole = accelerate.prepare(loader_of(dataset), Loader(dataset, 4))
    trained = [numbers(prepared) for _ in range(2)]
    gathered = [number for batch in whole for number in accelerate.gather_for_metrics(batch["n"]).tolist()]
    accelerate.prepare(torch.nn.Linear(3, 1))
    return {"train": trained, "validate": gathered}
