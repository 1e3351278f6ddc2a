"""Which LMDB keys a shard has and which arrays its columns need.

Keys are ASCII and sort in the order in which they are written: all chunks, then the index arrays of each
column, then the header, then the names.
"""

from __future__ import annotations

from packer.format.schema import Field

FORMAT_NAME = "packed dataset"
FORMAT_VERSION = 1

HEADER = b"header"
NAME_BYTES = b"names/bytes"
NAME_OFFSETS = b"names/offsets"

#: Keys of chunks begin with this; eight digits follow.
CHUNK = b"chunk/"
MAX_CHUNKS = 10**8


def chunk_key(number: int) -> bytes:
    """Key of the shard's chunk `number`, counted over all its columns."""
    return b"%b%08d" % (CHUNK, number)


def column_key(column: int, array: str) -> bytes:
    """Key of an index array of the column of field number `column`."""
    return b"column/%03d/%s" % (column, array.encode())


def index_arrays(field: Field) -> tuple[str, ...]:
    """Names of the index arrays that the column of a field has, in key order.

    `checksums` (frames,) and `chunks` (chunks, 3) always; `frame_offsets` (frames + 1,) where frames are
    encoded; `sample_frames` (samples + 1,) for ragged samples framed by rows; `sample_offsets`
    (samples + 1,) and `shapes` (samples, ragged axes) for ragged fields. All are uint64, little-endian.
    """
    names = ["checksums", "chunks"]
    if field.codec:
        names.append("frame_offsets")
    if field.is_ragged:
        if field.frame.rows is not None:
            names.append("sample_frames")
        names += ["sample_offsets", "shapes"]
    return tuple(names)
