"""NumPy files: OUT/FIELD.npy, a row a sample; where samples have names or are ragged, OUT/FIELD/NAME.npy of each."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack

import numpy as np

from packer.errors import UsageError
from packer.export.files import Files, Writer
from packer.sources import Block, PackedSource


class NpyWriter(Writer):
    """Writes numbers as they are packed; text, whose length an array of NumPy cuts or pads, is refused."""

    def __init__(self, source: PackedSource, files: Files) -> None:
        for spec in source.fields:
            if spec.kind == "text":
                raise UsageError(
                    f"field {spec.name!r} is text, which .npy cannot hold: name other fields, or export to hdf5"
                )
        super().__init__(source, files)
        self._in_rows = source.names is None and not any(spec.is_ragged for spec in source.fields)

    def write(self) -> Generator[Block]:
        with ExitStack() as stack:
            rows = {}
            for spec in self._source.fields if self._in_rows else ():
                rows[spec.name] = stack.enter_context(self._files.create(spec.name, ".npy"))
                shape = (len(self._source), *spec.shape)
                header = {"descr": np.lib.format.dtype_to_descr(spec.np_dtype), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(rows[spec.name], header)
            for block, names in self._blocks():
                for field, values in block.items():
                    if self._in_rows:
                        rows[field].write(np.ascontiguousarray(values).data)
                        continue
                    for value, name in zip(values, names, strict=True):
                        with self._files.create(f"{field}/{name}", ".npy") as file:
                            np.save(file, value, allow_pickle=False)
                yield block
