"""LMDB folders that BasicSR and its family read, one for each field: OUT/FIELD.lmdb, or OUT itself if it is *.lmdb.

Each holds `data.mdb`, whose keys are the samples' names and whose values are whole PNG or BMP files, and
`meta_info.txt` with a line `NAME.png (height,width,channels) 1` for each: what BasicSR's `make_lmdb_from_imgs` writes.
The frames of a clip are images of their own, with REDS' keys: `NAME/00000000`, `NAME/00000001` and so on.
Its code decodes BMP many times as fast as PNG, but BMP is as large as the pixels.
"""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packer.errors import UsageError
from packer.export.files import Files, Writer
from packer.export.png import check_image, image_spec, images_of, write_png
from packer.format import clear_errors, open_new
from packer.sources import Block, PackedSource

#: Suffix of the folders that BasicSR takes for LMDB.
_SUFFIX = ".lmdb"
#: Bytes besides its pixels that a value may take: with its key, its share of LMDB's pages and the head of its file.
_SLACK = 3 * 4096


class BasicsrWriter(Writer):
    """Writes a folder for each field.

    Args:
        values: `png` or `bmp`, what each value is.
    """

    def __init__(self, source: PackedSource, files: Files, values: str = "png") -> None:
        for spec in source.fields:
            check_image(image_spec(spec), values.upper())
        super().__init__(source, files)
        for name in self._names:
            if not name.isascii() or "." in name or name.splitlines() != [name]:
                raise UsageError(
                    f"sample {name[:80]!r} cannot be a key of BasicSR, which is ASCII without a dot and without a line "
                    "break; export to png and rename the files"
                )
        self._values = values
        fields, is_one = [spec.name for spec in source.fields], files.folder.suffix == _SUFFIX
        if is_one and len(fields) > 1:
            raise UsageError(
                f"{files.folder} is one LMDB folder, but there are the fields {', '.join(fields)}: name one of them "
                f"with --fields, or a folder without {_SUFFIX} for all"
            )
        #: Where each field's folder lies below OUT, with a slash at its end.
        self._folders = {field: "" if is_one else f"{field}{_SUFFIX}/" for field in fields}
        # Enough for uncompressed values; the file only grows to what is written.
        self._map_sizes = {}
        for spec in source.fields:
            shapes = source.shapes(spec.name)
            images = len(source) if spec.kind == "image" else int(shapes[:, 0].sum())
            self._map_sizes[spec.name] = (images + 1) * _SLACK + int(shapes.prod(axis=1).sum()) * spec.itemsize * 9 // 8

    def write(self) -> Generator[Block]:
        lines: dict[str, list[str]] = {field: [] for field in self._folders}
        with ExitStack() as stack:
            environments = {field: stack.enter_context(self._open_lmdb(field)) for field in self._folders}
            for block, names in self._blocks():
                for field, (path, environment) in environments.items():
                    with clear_errors(path), environment.begin(write=True) as txn:
                        for value, name in zip(block[field], names, strict=True):
                            for key, image in images_of(name, value):
                                txn.put(key.encode(), self._encode(image))
                                lines[field].append(f"{key}.png ({','.join(map(str, image.shape))}) 1\n")
                yield block
        for field, folder in self._folders.items():
            with self._files.create(f"{folder}meta_info", ".txt") as file:
                file.writelines(line.encode() for line in lines[field])

    @contextmanager
    def _open_lmdb(self, field: str) -> Iterator[tuple[Path, lmdb.Environment]]:
        """Yield the final path of a new LMDB file, and the file; at the end of the block it is synced and renamed."""
        with self._files.partial(f"{self._folders[field]}data", ".mdb") as partial:
            path = partial.with_suffix("")
            with clear_errors(path):
                environment = open_new(partial, self._map_sizes[field])
            with closing(environment):
                yield path, environment
                with clear_errors(path):
                    environment.sync(True)

    def _encode(self, image: NDArray[Any]) -> bytes:
        file = io.BytesIO()
        if self._values == "png":
            write_png(file, image, level=1)
        else:
            Image.fromarray(np.ascontiguousarray(image[:, :, 0] if image.shape[2] == 1 else image)).save(file, "BMP")
        return file.getvalue()
