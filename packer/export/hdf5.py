"""HDF5 files: as the sources were where the dataset was packed from HDF5, else one file with a dataset a field."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py

from packer.export.files import Files, partial_path
from packer.export.hdf5_groups import GroupsFile
from packer.export.hdf5_layout import Segment, segments
from packer.export.hdf5_rows import RowsFile
from packer.export.hdf5_sink import Sink
from packer.sources.base import Block
from packer.sources.packed.source import PackedSource

_SUFFIX = ".h5"


class Hdf5Writer:
    """See `packer.export.dataset.Writer`."""

    def __init__(self, source: PackedSource, files: Files) -> None:
        stem = Path(source.folder).resolve().stem or "data"
        self.notes: list[str] = []
        self._source = source
        self._files = files
        self._todo = segments(source, f"{stem}{_SUFFIX}", self.notes)
        for segment in self._todo:
            segment.check()
        self._segment: Segment | None = None
        self._file: h5py.File | None = None
        self._sink: Sink | None = None
        self._path = Path()
        self._content: RowsFile | GroupsFile | None = None

    def write(self, block: Block, start: int, stop: int) -> None:
        at = start
        while at < stop:
            segment = self._segment_of(at)
            end = min(stop, segment.stop)
            assert self._content is not None
            assert self._sink is not None
            some: dict[str, Any] = {name: values[at - start : end - start] for name, values in block.items()}
            self._content.write(some, at - segment.start, end - segment.start)
            self._sink.check()
            at = end

    def close(self) -> None:
        self._end()
        while self._todo:  # files without samples
            self._begin(self._todo.pop(0))
            self._end()

    def abort(self) -> None:
        if self._sink is None:
            return
        with suppress(Exception):  # what failed was said already
            if self._file is not None:
                self._file.close()
        with suppress(OSError):
            self._sink.close()
        partial_path(self._path).unlink(missing_ok=True)

    def _segment_of(self, number: int) -> Segment:
        """The segment of a sample; its file is opened, and those before it ended."""
        while self._segment is None or number >= self._segment.stop:
            self._end()
            self._begin(self._todo.pop(0))
        return self._segment

    def _begin(self, segment: Segment) -> None:
        self._path = self._files.path(segment.file, "")
        self._segment = segment
        self._sink = Sink(partial_path(self._path))
        self._file = h5py.File(self._sink, "w")
        kind = GroupsFile if segment.grouped else RowsFile
        self._content = kind(self._file, segment, self._source, self.notes)
        self._sink.check()

    def _end(self) -> None:
        if self._file is None or self._sink is None or self._content is None:
            return
        self._content.finish()
        self._file.close()
        self._sink.check()
        self._sink.close()
        self._files.publish(partial_path(self._path), self._path)
        self._file, self._sink, self._content = None, None, None
