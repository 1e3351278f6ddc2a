"""Sources for tests: opened as `convert` opens them, and read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.convert import ConvertOptions
from packer.errors import SourceError
from packer.packing import open_source
from packer.sources import Source, SourceOptions, open_sources
from packer.watcher import NOBODY, Watcher

#: Called with the error of each bad file.
Bad = Callable[[SourceError], None]


def source_of(sources: Iterable[str], **options: Any) -> Source:
    """Return the source that `convert` opens with these options."""
    return open_source(list(sources), ConvertOptions(**options), [])


def open_images(paths: Mapping[str, str], bad: Bad = NOBODY.bad, **options: Any) -> Any:
    """Open pictures of one or more fields with these `SourceOptions`."""
    return open_sources([f"{name}={path}" for name, path in paths.items()], SourceOptions(**options), Watcher(bad))


def open_npy(paths: Mapping[str, str], bad: Bad = NOBODY.bad, **options: Any) -> Any:
    """Open arrays by field; under the name "", files that name their fields themselves."""
    inputs = [f"{name}={path}" if name else path for name, path in paths.items()]
    return open_sources(inputs, SourceOptions(**options), Watcher(bad))


def open_ply(path: str, bad: Bad = NOBODY.bad, **options: Any) -> Any:
    """Open PLY files with these `SourceOptions`."""
    return open_sources([path], SourceOptions(**options), Watcher(bad))


def open_hdf5(path: str, bad: Bad = NOBODY.bad, **options: Any) -> Any:
    """Open HDF5 files with these `SourceOptions`."""
    return open_sources([path], SourceOptions(**options), Watcher(bad))


def read_each(source: Source) -> dict[str, list[Any]]:
    """Return all samples, by field a list of arrays."""
    blocks = list(source.read())
    return {spec.name: [array for block in blocks for array in block[spec.name]] for spec in source.fields}


def read_joined(source: Source) -> dict[str, NDArray[Any]]:
    """Return all samples, which have one shape, by field an array (n, *shape)."""
    blocks = list(source.read())
    return {spec.name: np.concatenate([block[spec.name] for block in blocks]) for spec in source.fields}
