"""A dataset behind a URL, shard by shard: only those that samples are asked of are fetched and opened.

A batch over several shards is joined from what each gives. That costs a copy more than one window over all of them,
which `PackedDataset` goes over to once every shard is there.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from torch.utils.data import get_worker_info

from packer.format.manifest import Manifest
from readers.arrays import Numbers
from readers.batch import Ragged, share_offsets
from readers.fields import as_images, for_worker, gathered
from readers.opened import Opened

if TYPE_CHECKING:
    from packer.remote.mirror import Mirror


class ByShard:
    """Opens the shards of a dataset one by one.

    Args:
        mirror: fetches them.
        manifest: of the dataset.
        fields: names of the fields to open, in order.
        extras: of these, names are read as a field is.
    """

    def __init__(self, mirror: Mirror, manifest: Manifest, fields: Sequence[str], extras: Sequence[str] = ()) -> None:
        self._mirror = mirror
        self._manifest = manifest
        self._fields = list(fields)
        self._extras = extras
        self._entries = [entry for entry in manifest.shards if entry.samples]
        self._first: Numbers = np.cumsum([0, *(entry.samples for entry in self._entries)], dtype=np.int64)
        self._opened: dict[int, Opened] = {}
        self._lock = threading.Lock()

    @property
    def is_whole(self) -> bool:
        """Whether all shards have been opened."""
        return len(self._opened) == len(self._entries)

    def holding(self, number: int) -> tuple[Opened, int]:
        """Return the open shard that holds a sample, and the sample's number in it."""
        shard = int(self._first[1:-1].searchsorted(number, "right"))
        return self._open([shard])[0], number - int(self._first[shard])

    def gather(self, numbers: Numbers) -> dict[str, Any]:
        """Return the batch of the samples `numbers` (n,): field name to values.

        Raises:
            RemoteError, DamagedError: a shard cannot be had, or cannot be read.
        """
        shards = self._first[1:-1].searchsorted(numbers, "right")
        wanted = np.unique(shards).tolist() or [0]
        opened = self._open(wanted)
        if len(wanted) == 1:
            return gathered(opened[0].readers, numbers - self._first[wanted[0]])
        parts = [
            (part.readers, numbers[shards == shard] - self._first[shard])
            for part, shard in zip(opened, wanted, strict=True)
        ]
        back = shards.argsort(kind="stable").argsort()  # where each sample stands in the parts, one after another
        out = {}
        for name, reader in parts[0][0].items():
            read = [readers[name].read(readers[name].locate(local)) for readers, local in parts]
            values = as_images(reader.field, _joined(read, back))
            out[name] = values if get_worker_info() is None else for_worker(reader.field, values)
        share_offsets(out)
        return out

    def _open(self, wanted: Sequence[int]) -> list[Opened]:
        """Return some shards; those that are missing are fetched at once."""
        with self._lock:
            missing = [shard for shard in wanted if shard not in self._opened]
            lease = self._mirror.fetch_shards(self._manifest, [self._entries[i] for i in missing]) if missing else None
            for shard in missing:
                entry = self._entries[shard]
                alone = msgspec.structs.replace(
                    self._manifest, shards=(entry,), samples=entry.samples, splits=msgspec.UNSET
                )
                self._opened[shard] = Opened(self._mirror.folder, alone, self._fields, lease, self._extras)
            return [self._opened[shard] for shard in wanted]


def _joined(parts: Sequence[Any], back: Numbers) -> Any:
    """Return the values of the parts of a batch in its order; `back` (n,) says where each stands in the parts.

    By numpy, since torch gathers no unsigned numbers of several bytes.
    """
    if isinstance(parts[0], torch.Tensor):
        return torch.from_numpy(np.concatenate([part.numpy() for part in parts])[back])
    if isinstance(parts[0], Ragged):
        each = [sample for part in parts for sample in part.to_list()]
        lengths = torch.cat([part.lengths for part in parts])[torch.from_numpy(back)]
        values = np.concatenate([each[i].numpy() for i in back.tolist()])
        return Ragged(torch.from_numpy(values), torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))
    each = [sample for part in parts for sample in part]
    return [each[i] for i in back.tolist()]
