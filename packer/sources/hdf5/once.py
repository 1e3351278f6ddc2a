"""What is kept once for all samples, such as grids and coordinates: found, compared in every unit, read at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.format.schema import DTYPES
from packer.sources.hdf5.file import faults_named, opened
from packer.sources.hdf5.listing import MAX_LINKS, walk
from packer.sources.hdf5.storage import dataset_at


@dataclass(frozen=True)
class Constant:
    """A dataset that is to be the same wherever it stands.

    Attributes:
        path: the file.
        dataset: its path in the file.
        digest: of its dtype, shape and values.
    """

    path: str
    dataset: str
    digest: str


def constants_at(file: h5py.File, path: str, root: str, once: Iterable[str]) -> dict[str, Constant]:
    """Return what `--once` names in a unit, or in the file itself if `root` is empty, by field name.

    Raises:
        SourceError: a dataset cannot be read, or holds no numbers.
    """
    found: dict[str, Constant] = {}
    for asked in once:
        place = f"{root}/{asked.strip('/')}"
        thing = file.get(place)
        names = [place] if isinstance(thing, h5py.Dataset) else []
        if isinstance(thing, h5py.Group):
            names = [place + below.path for below in walk(thing, MAX_LINKS) if isinstance(below.thing, h5py.Dataset)]
        for name in names:
            values = _values(file, path, name)
            digest = xxhash.xxh3_128(f"{values.dtype} {values.shape} ".encode())
            digest.update(values.tobytes())
            found[name[len(root) + 1 :].replace("/", ".")] = Constant(path, name, digest.hexdigest())
    return found


def _values(file: h5py.File, path: str, name: str) -> NDArray[Any]:
    """Return a whole dataset, native-endian."""
    dataset, _ = dataset_at(file, path, name, 1)
    dtype = dataset.dtype.newbyteorder("=")
    if dtype.name not in DTYPES:
        raise SourceError(
            f"{name} is {dataset.dtype}, and numbers alone can be kept once; leave it out with --skip", path
        )
    return np.asarray(dataset[()]).astype(dtype, copy=False)


def common(found: Iterable[tuple[str, Mapping[str, Constant]]]) -> dict[str, Constant]:
    """Return what all units share.

    Args:
        found: each unit, in words, and what it holds of what is to be kept once.

    Raises:
        SourceError: a unit has another value, or lacks one.
    """
    first: dict[str, Constant] = {}
    where = ""
    for unit, held in found:
        if not where:
            first, where = dict(held), unit
        for name in sorted(first.keys() | held.keys()):
            if name not in held or name not in first:
                lacking, path = (unit, first[name].path) if name in first else (where, held[name].path)
                raise SourceError(f"{lacking} has no {name}, which is to be kept once for all; leave out --once", path)
            if held[name].digest != first[name].digest:
                raise SourceError(
                    f"{name} of {unit} differs from that of {where}, and is to be kept once for all; without --once it "
                    "is packed with every sample",
                    held[name].path,
                )
    return first


def check_once(found: Iterable[str], once: Iterable[str]) -> None:
    """Raise UsageError if something that is to be kept once was not found, by name."""
    for asked in once:
        dotted = asked.strip("/").replace("/", ".")
        if not any(f"{name}.".startswith(f"{dotted}.") for name in found):
            raise UsageError(f"--once {asked}: there is no such dataset, in the samples or in the file itself")


class Kept(Mapping[str, NDArray[Any]]):
    """Constants by name, read from their files when they are asked for."""

    def __init__(self, constants: Mapping[str, Constant]) -> None:
        self._constants = dict(constants)

    def __getitem__(self, name: str) -> NDArray[Any]:
        held = self._constants[name]
        with opened(held.path) as file, faults_named(held.path, f"reading {held.dataset}"):
            return _values(file, held.path, held.dataset)

    def __iter__(self) -> Iterator[str]:
        return iter(self._constants)

    def __len__(self) -> int:
        return len(self._constants)
