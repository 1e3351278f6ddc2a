"""A batch of several fields: each is located and read in one go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import get_worker_info

from packer.format.schema import Field
from readers.arrays import Allocate, Numbers
from readers.batch import Views
from readers.draws import Visits
from readers.fields import FieldReader, locate_all
from readers.gather import shared


def gathered(
    readers: Mapping[str, FieldReader],
    numbers: Numbers,
    allocate: Allocate | None = None,
    visits: Visits | None = None,
) -> dict[str, Any]:
    """Samples (n,) of some fields of one open dataset: field name to values.

    Args:
        allocate: gives the memory that each field is read into; torch's allocator by default.
        visits: (n,), where random parts of samples are read.
    """
    in_worker = get_worker_info() is not None
    # Shared memory within a worker process of DataLoader, where a batch would else be copied once more.
    memory = allocate or (shared if in_worker else None)
    out = {}
    located = iter(locate_all(readers.values(), numbers, visits))
    for name, reader in readers.items():
        values = as_images(reader.field, reader.read(next(located), memory))
        out[name] = for_worker(reader.field, values) if in_worker else values
    return out


def for_worker(field: Field, values: Any) -> Any:
    """What a worker process hands over: a list of tensors as one tensor and what tells them apart."""
    return Views(values) if isinstance(values, list) and field.kind != "text" else values


def as_images(field: Field, value: Any) -> Any:
    """Images with their channels first, as a view: (B, H, W, C) to (B, C, H, W); other values as they are."""
    if field.kind != "image":
        return value
    if isinstance(value, list):
        return [image.permute(2, 0, 1) for image in value]
    return value.permute(0, 3, 1, 2)
