"""Which LMDB keys a shard has and which arrays its columns need.

Keys are ASCII and sort in the order in which they are written: all chunks, then the index arrays of each
column, then the header, then the names.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from packer.format.schema import Field

FORMAT_NAME = "packed dataset"
FORMAT_VERSION = 1

HEADER = b"header"
NAME_BYTES = b"names/bytes"
NAME_OFFSETS = b"names/offsets"

#: Keys of chunks begin with this; eight digits follow.
CHUNK = b"chunk/"
#: Keys of index arrays begin with this; the number of the column and the name of the array follow.
COLUMN = b"column/"
MAX_CHUNKS = 10**8


def chunk_key(number: int) -> bytes:
    """Return the key of the shard's chunk `number`, counted over all its columns."""
    return b"%b%08d" % (CHUNK, number)


def column_key(column: int, array: str) -> bytes:
    """Return the key of an index array of the column of field number `column`."""
    return b"%b%03d/%b" % (COLUMN, column, array.encode())


def index_lengths(field: Field, samples: int, frames: int, chunks: int) -> dict[str, int]:
    """Return the index arrays that the column of a field has, in key order, with how many numbers each holds.

    `checksums` (frames,) and `chunks` (chunks, 3) always; `frame_offsets` (frames + 1,) if frames are encoded;
    `sample_frames` (samples + 1,) for ragged samples framed by rows; `sample_offsets` (samples + 1,) and `shapes`
    (samples, ragged axes) for ragged fields. All are uint64, little-endian.
    """
    lengths = {"checksums": frames, "chunks": 3 * chunks}
    if field.codec:
        lengths["frame_offsets"] = frames + 1
    if field.is_ragged:
        if field.frame.rows is not None:
            lengths["sample_frames"] = samples + 1
        lengths |= {"sample_offsets": samples + 1, "shapes": samples * len(field.ragged_axes)}
    return lengths


def index_arrays(field: Field) -> tuple[str, ...]:
    """Return the names of the index arrays that the column of a field has, in key order."""
    return tuple(index_lengths(field, 0, 0, 0))


class ShardHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shard's description of itself.

    Attributes:
        origin: where the samples came from, in shards of earlier versions; now the manifest alone says it.
    """

    format: str = FORMAT_NAME
    version: int = FORMAT_VERSION
    shard: int
    samples: Annotated[int, msgspec.Meta(ge=0)]
    named: bool
    fields: tuple[Field, ...]
    origin: dict[str, Any]


#: Target size of a chunk. Such a chunk stays in the processor's cache while LMDB and the kernel copy it to the file,
#: and LMDB can reuse its memory. Smaller ones gain nothing more, and each costs time when a dataset is opened
#: (docs/how/choices.md, "Sizes and shares").
#: LMDB values of 4096 m - 16 bytes waste nothing.
CHUNK_BYTES = 2 * 2**20 - 16
#: LMDB's largest value is 4 GiB - 1; a sample lies in one chunk, so this bounds what is stored of it. It bounds the raw
#: bytes of ragged samples as well, encoded or not: readers allocate no more than this for what a file claims.
MAX_CHUNK_BYTES = 2**32 - 4096 - 16

#: Limit of the memory in which all columns of one shard fill their chunks, together.
_FILLING_BYTES = 64 * 2**20
_LEAST_PAGES = 16


def chunk_bytes(fields: int) -> int:
    """Return the target size of a chunk in a dataset with `fields` fields: smaller from three on, to bound memory."""
    return min(CHUNK_BYTES, max(_LEAST_PAGES, _FILLING_BYTES // 4096 // max(fields, 1)) * 4096 - 16)
