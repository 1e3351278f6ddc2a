"""Sizes the format is built around, each with its reason."""

#: Target size of a chunk: what is copied into it, by LMDB and by the kernel, stays in the processor's cache on its way
#: to the file, and LMDB asks for memory that it has used before. 84 MB of HDF5 take 140 ms, 150 in chunks of 4 MiB and
#: 180 in chunks of 16. Smaller ones gain nothing more, and each costs time when a dataset is opened.
#: LMDB values of 4096 m - 16 bytes waste nothing.
CHUNK_BYTES = 2 * 2**20 - 16
#: Small samples share a compressed frame of about this size: below it codecs gain little.
FRAME_BYTES = 16 * 2**10
#: Samples at least this large have frames of their own, so that reading one at random decodes no neighbours: pictures
#: of 7 kB read twice as fast, and take 0.7% less space with rowdelta+zstd, 3% less with zstd.
OWN_FRAME_BYTES = 4 * 2**10
#: With LZ4 the shared frames are smaller: larger ones gain little, and LZ4 is chosen to read single samples quickly.
LZ4_FRAME_BYTES = 4 * 2**10
#: And samples at least this large have frames of their own: pictures of 768 bytes read twice as fast, and take 2% less
#: space, since each one that does not shrink is kept raw.
LZ4_OWN_FRAME_BYTES = 512
#: Uncompressed frames only carry a checksum: 64 KiB costs 0.01% of space.
RAW_FRAME_BYTES = 64 * 2**10
#: Larger samples are stored in bands of rows, so that a crop decodes only the bands it touches.
BAND_SAMPLE_BYTES = 2**20
#: Size of such a band before compression.
BAND_BYTES = 64 * 2**10
#: LMDB's largest value is 4 GiB - 1; a sample lies in one chunk, so this bounds a sample too.
MAX_CHUNK_BYTES = 2**32 - 4096 - 16

#: Bytes that the columns of one shard hold between them while it is written, each in a chunk that is being filled.
_FILLING_BYTES = 64 * 2**20
_LEAST_PAGES = 16


def chunk_bytes(fields: int) -> int:
    """Target size of a chunk in a dataset of so many fields: smaller for three and more, so that memory is bounded."""
    return min(CHUNK_BYTES, max(_LEAST_PAGES, _FILLING_BYTES // 4096 // max(fields, 1)) * 4096 - 16)
