"""What `test_share.py` runs in four ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from packer.errors import UsageError
from readers import Loader, PackedDataset


def read(arguments: Sequence[str]) -> None:
    """Read three batches by four ranks that differ, and the rest of the epoch by a mesh of 2 x 2; write them as JSON.

    Args:
        arguments: the dataset, and the folder of the JSON files, `0.json` to `3.json`.
    """
    path, out = arguments
    rank, ranks = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    # They find each other by a file: a port could be taken meanwhile, and is gone once rank 0 has ended.
    torch.distributed.init_process_group("gloo", f"file://{out}/ranks", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dataset = PackedDataset(path, ["y"])
    apart = Loader(dataset, 32, shuffle=True)
    begun = [batch["y"].tolist() for batch in islice(apart, 3)]
    together = Loader(dataset, 32, shuffle=True, mesh=mesh["dp"])
    together.load_state_dict(apart.state_dict())
    rest = [batch["y"].tolist() for batch in together]
    refused = []
    for wrong in (mesh, DeviceMesh("cpu", torch.tensor([3, 1]))):
        try:
            refused.append(str(Loader(dataset, 32, mesh=wrong).share.rank))
        except UsageError as error:
            refused.append(str(error))
    (Path(out) / f"{rank}.json").write_text(json.dumps({"begun": begun, "rest": rest, "refused": refused}))
    torch.distributed.destroy_process_group()
