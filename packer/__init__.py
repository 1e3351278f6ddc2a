"""Turn pictures, point clouds, arrays, tables and videos into compressed, contiguous LMDB shards."""

__version__ = "1.0.0"
