"""Fields that are read in another dtype than they are stored in: `PackedDataset(path, cast={"token": "int64"})`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from packer.errors import UsageError
from packer.format import Field, FrameRule, Located
from readers.batch import Ragged
from readers.fields import FieldReader, WrappedReader
from readers.gather import TORCH_DTYPES, Allocate, fresh
from readers.valid import check_read


def check_cast(cast: Mapping[str, Any], fields: Mapping[str, Field]) -> dict[str, str]:
    """Return the names of the dtypes that fields are read in, by field.

    Args:
        cast: of each field a dtype of torch or numpy, or its name.
        fields: that are read.

    Raises:
        UsageError: there is no such field or dtype, or values of the field may not fit it.
    """
    check_read("cast", cast, fields)
    dtypes = {}
    for name, given in cast.items():
        dtype, field = str(given).removeprefix("torch."), fields[name]
        if dtype not in TORCH_DTYPES:
            with_name = getattr(given, "__name__", dtype)  # np.int64, a class
            if with_name not in TORCH_DTYPES:
                raise UsageError(f"cast: {name}={dtype}: one of {', '.join(TORCH_DTYPES)} is expected")
            dtype = with_name
        if field.kind == "text":
            raise UsageError(f"cast: field {name!r} is text, which has no other dtype; leave it out")
        old, new = np.dtype(field.dtype), np.dtype(dtype)
        narrows = old.kind in "iu" and new.kind in "iu" and not np.can_cast(old, new)
        # To numpy any float is of the same kind as integers, but float16 ends at 65504.
        overflows = old.kind in "iu" and new.kind == "f" and np.iinfo(old).max > float(np.finfo(new).max)
        if narrows or overflows or not np.can_cast(old, new, "same_kind"):
            raise UsageError(
                f"cast: values of field {name!r} ({old.name}) may not fit {new.name}; convert them in a batch_transform"
            )
        dtypes[name] = dtype
    return dtypes


def cast_reader(reader: FieldReader, dtype: str) -> FieldReader:
    """Return a reader of the same values in another dtype."""
    return reader.converting(dtype) or CastReader(reader, dtype)


class CastReader(WrappedReader):
    """Converts what another reader reads to another dtype.

    Args:
        reader: of whole samples or of parts of them.
        dtype: one that holds its values; floats may be rounded.
    """

    def __init__(self, reader: FieldReader, dtype: str) -> None:
        super().__init__(reader, replace(reader.field, dtype=dtype, codec=(), frame=FrameRule(samples=1)))

    @property
    def in_words(self) -> str:
        """Return what it reads of a sample in a few words."""
        return f"{self._reader.in_words} as {self.field.dtype}"

    def read(self, located: Located, allocate: Allocate | None = None) -> Any:
        """Return the converted values, in new memory or in what `allocate` gives; raises as the reader does."""
        return self._converted(self._reader.read(located), allocate or fresh)

    def _converted(self, values: Any, allocate: Allocate) -> Any:
        if isinstance(values, torch.Tensor):
            converted = allocate(values.numel() * self.field.itemsize).view(self._dtype).view(values.shape)
            np.copyto(converted.numpy(), values.numpy(), casting="same_kind")  # torch would wait for its threads
            return converted
        if isinstance(values, Ragged):
            return Ragged(self._converted(values.values, allocate), values.offsets)
        if isinstance(values, dict):
            return {name: self._converted(views, allocate) for name, views in values.items()}
        return [value.to(self._dtype) for value in values]
