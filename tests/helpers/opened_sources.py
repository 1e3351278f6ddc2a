"""Sources for tests: opened as `convert` opens them, and read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.convert import ConvertOptions, open_source
from packer.sources.base import Source


def source_of(sources: Iterable[str], **options: Any) -> Source:
    """What `convert` opens with these options."""
    return open_source(list(sources), ConvertOptions(**options), [])


def read_each(source: Source) -> dict[str, list[Any]]:
    """All samples, by field one list of arrays."""
    blocks = list(source.read())
    return {spec.name: [array for block in blocks for array in block[spec.name]] for spec in source.fields}


def read_joined(source: Source) -> dict[str, NDArray[Any]]:
    """All samples of one shape, by field one array (n, *shape)."""
    blocks = list(source.read())
    return {spec.name: np.concatenate([block[spec.name] for block in blocks]) for spec in source.fields}
