"""What is kept of a file besides its samples: attributes of the file and of its units, and arrays kept once for all.

Attributes of numbers or text, of at most 16 KiB each, are kept as JSON values. A scalar str, bool, int64 or float64 is
kept as it is, any other value as `{"dtype": ..., "value": ...}`, with nested lists for the axes. NaN, infinities and
complex numbers are strings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import h5py
import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import SourceError, as_text
from packer.format import DTYPES, Count
from packer.sources.hdf5.file import FAULTS, dataset_at, faults_named, opened
from packer.sources.hdf5.listing import walk

#: Larger attributes are not kept: the manifest is read by people.
_MAX_BYTES = 16 * 2**10


class KeptFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of a file of rows, or of one that holds units.

    Attributes:
        name: of the file; with units, the beginning of the names of its samples, which may be empty.
        samples: how many samples of it were packed.
        attributes: of its root, and of the groups above its units, by path.
    """

    name: str
    samples: Count
    attributes: dict[str, dict[str, Any]] = {}


class HDF5Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options of the conversion: `axis` if rows are samples, else `samples`."""

    fields: dict[str, str]
    skip: list[str]
    once: list[str] = []
    sparse: list[str] = []
    axis: int | None = None
    samples: str = "rows"


class HDF5Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of all files that were packed.

    Attributes:
        paths: paths of fields, by name, where the path is not the name with slashes for dots.
        files: the files, in order; none if each is a sample.
        attributes: of units, by the names of the samples.
        attrs: the fields that were attributes of units.
    """

    options: HDF5Options
    paths: dict[str, str]
    files: list[KeptFile] = []
    attributes: dict[str, dict[str, Any]] = {}
    attrs: list[str] = []


# ---------------------------------------------------------------- attributes


def attributes(thing: h5py.HLObject) -> tuple[dict[str, Any], list[str]]:
    """Return the attributes of an object that are kept, by name, and the names of all others, such as damaged ones."""
    kept: dict[str, Any] = {}
    lost: list[str] = []
    try:
        names = list(thing.attrs)
    except FAULTS:
        return {}, ["those that cannot be listed"]
    for name in names:
        try:
            kept[as_text(name)] = _json(thing, name)
        except FAULTS:
            lost.append(as_text(name))
    return kept, lost


def _json(thing: h5py.HLObject, name: str) -> Any:
    """Return an attribute as a JSON value. Raises ValueError if it is not kept; references are never read."""
    header = thing.attrs.get_id(name)
    dtype, shape = header.dtype, header.shape
    is_text = h5py.check_string_dtype(dtype) is not None
    native = dtype.newbyteorder("=").name
    if shape is None or not (is_text or native in DTYPES) or math.prod(shape) * dtype.itemsize > _MAX_BYTES:
        raise ValueError(f"{dtype} of shape {shape}")
    value = thing.attrs[name]
    if is_text:
        texts = np.asarray(value, object)
        if sum(map(len, texts.flat)) > _MAX_BYTES:
            raise ValueError("a long text")
        value = np.vectorize(_text, otypes=[object])(texts).tolist() if texts.size else texts.tolist()
        return {"dtype": "str", "value": value} if shape else value
    value = np.asarray(value).tolist()
    is_plain = native in ("bool", "int64", "float64") and not shape and math.isfinite(value)
    return value if is_plain else {"dtype": native, "value": _lists(value)}


def _text(item: str | bytes) -> str:
    # h5py decodes bytes that are not UTF-8 as lone surrogates.
    return (item if isinstance(item, bytes) else item.encode("utf-8", "surrogateescape")).decode()


def _lists(value: Any) -> Any:
    if isinstance(value, list):
        return [_lists(item) for item in value]
    # JSON has no NaN; writers would make it null.
    return value if not isinstance(value, complex) and math.isfinite(value) else str(value)


# ---------------------------------------------------------------- arrays kept once for all samples


@dataclass(frozen=True)
class Constant:
    """A dataset that is to be the same in every file or unit that has it.

    Attributes:
        path: the file.
        dataset: its path in the file.
        digest: of its dtype, shape and values.
    """

    path: str
    dataset: str
    digest: str


def constants_at(file: h5py.File, path: str, root: str, once: Iterable[str]) -> dict[str, Constant]:
    """Return the datasets that `--once` names in a unit, or in the file itself if `root` is empty, by field name.

    Raises:
        SourceError: a dataset cannot be read, or holds no numbers.
    """
    found: dict[str, Constant] = {}
    for asked in once:
        place = f"{root}/{asked.strip('/')}"
        thing = file.get(place)
        names = [place] if isinstance(thing, h5py.Dataset) else []
        if isinstance(thing, h5py.Group):
            names = [place + below for below, one in walk(thing) if isinstance(one, h5py.Dataset)]
        for name in names:
            values = _values(file, path, name)
            digest = xxhash.xxh3_128(f"{values.dtype} {values.shape} ".encode())
            digest.update(values.tobytes())
            found[name[len(root) + 1 :].replace("/", ".")] = Constant(path, name, digest.hexdigest())
    return found


def _values(file: h5py.File, path: str, name: str) -> NDArray[Any]:
    """Return a whole dataset, native-endian."""
    dataset = dataset_at(file, path, name)
    dtype = dataset.dtype.newbyteorder("=")
    if dtype.name not in DTYPES:
        raise SourceError(f"{name} is {dataset.dtype}, but only numbers can be kept once; use --skip instead", path)
    return np.asarray(dataset[()]).astype(dtype, copy=False)


def common(found: Iterable[tuple[str, Mapping[str, Constant]]]) -> dict[str, Constant]:
    """Return the constants that all units share.

    Args:
        found: each unit, in words, and its constants.

    Raises:
        SourceError: a unit has another value, or lacks one.
    """
    first: dict[str, Constant] = {}
    where = ""
    for unit, held in found:
        if not where:
            first, where = dict(held), unit
        for name in sorted(first.keys() | held.keys()):
            if name in first and name in held and first[name].digest == held[name].digest:
                continue
            how = "differs between" if name in first and name in held else "is not in both of"
            raise SourceError(
                f"{name} {how} {where} and {unit}, so --once cannot keep one for all; without --once it is packed with "
                "every sample",
                (held.get(name) or first[name]).path,
            )
    return first


def values_of(constant: Constant) -> NDArray[Any]:
    """Return a constant, native-endian."""
    with opened(constant.path) as file, faults_named(constant.path, f"reading {constant.dataset}"):
        return _values(file, constant.path, constant.dataset)
