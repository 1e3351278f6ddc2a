"""Which frames some rows of some samples lie in, and those frames decoded, each once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.codecs.configs import Buffer, FrameCodec
from packer.format.column import BEFORE, SHAPE
from readers.fixed import FixedCoded
from readers.memory import Memory
from readers.places import Numbers
from readers.varied import Varied


@dataclass(frozen=True)
class Touched:
    """The frames that rows lie in.

    Attributes:
        item: which sample of the batch each frame is of, (f,).
        band: which of that sample's bands it is, (f,); 0 where samples are not stored in bands.
        frame: number of the frame of each row asked for, (n * k,).
        row: number of that row within its frame, or within its sample where there are no bands, (n * k,).
    """

    item: Numbers
    band: Numbers
    frame: Numbers
    row: Numbers

    @classmethod
    def of(cls, rows: Numbers, band_rows: int | None) -> Touched:
        """The frames of rows (n, k) of n samples."""
        n, k = rows.shape
        item = np.arange(n)
        if band_rows is None:
            return cls(item, np.zeros(n, np.int64), item.repeat(k), rows.reshape(-1))
        band, row = np.divmod(rows, band_rows)
        bands = int(band.max()) + 1
        found, frame = np.unique(item[:, None] * bands + band, return_inverse=True)
        return cls(found // bands, found % bands, frame.reshape(-1), row.reshape(-1))

    def places(self) -> Iterator[Numbers]:
        """For each frame, which of the rows asked for lie in it."""
        order = self.frame.argsort(kind="stable")
        ends = np.bincount(self.frame, minlength=len(self.item)).cumsum()
        start = 0
        for end in ends.tolist():
            yield order[start:end]
            start = end


@dataclass(frozen=True)
class Decoder:
    """Decodes frames of one field; differences of rows are not undone."""

    reader: FixedCoded | Varied
    memory: Memory
    codec: FrameCodec

    def frames(self, located: Numbers, touched: Touched) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Number of each touched frame, and the bytes of its rows, (rows, bytes of a row); in the order of the file.

        A frame that several samples share gives the rows of one sample at a time, and is decoded once.

        Raises:
            ValueError: a frame is damaged.
            DamagedError: an index is.
        """
        frames = self.reader.some_frames(located, touched.item, touched.band)
        of = located[touched.item]
        row_bytes = of[:, SHAPE + 1 :].prod(axis=1) * self.reader.field.itemsize
        shared = self.reader.field.frame.rows is None  # with other samples
        begins = of[:, BEFORE].tolist()
        sizes, widths = frames.sizes.tolist(), row_bytes.tolist()
        counts = (of[:, SHAPE] if shared else frames.sizes // np.maximum(row_bytes, 1)).tolist()
        decoded: Buffer = b""
        held = -1
        for number in frames.spans[:, 0].argsort(kind="stable").tolist():
            start, end = frames.spans[number].tolist()
            if start != held:
                decoded, held = self.codec.decode(self.memory.bytes[start:end], sizes[number]), start
            part = np.frombuffer(decoded, np.uint8, counts[number] * widths[number], begins[number])
            yield number, part.reshape(counts[number], widths[number])
