"""What a packed dataset is. FORMAT.md next to this file is the specification.

    schema          what a field is, and how its column is stored
    manifest        manifest.json: fields, shards, totals, statistics
    constants       constants.npz, arrays that all samples share
    layout          keys and header of a shard, and the sizes that the format is built around
    locator         finds and decodes the samples of a field; column_index checks the index arrays of a column first
    open_shards     where their chunks and index arrays lie in memory, which it looks up
    column          reads one column of one shard with it
    arrays          ways to look up and copy many things by one call
    frame_cache     decoded frames that several samples share, kept for the next read
    column_writer   samples become frames, frames fill chunks
    shard           reads one shard through a map; btree finds its values, and names in the table of names, without LMDB
    shard_writer    writes one shard, through lmdb_appender
    names           the table of names, written and looked up
    sizes           how large files get, before they are written
    sync            files, folders and renames that survive a power cut, and clear errors of writing

Importing this package loads numpy, msgspec and the codecs, and none of torch, click, h5py, PIL, plyfile.
"""

from packer.format import manifest
from packer.format.arrays import Numbers, distinct, items_of, join, starts_of, take_rows
from packer.format.btree import HEAD_BYTES, BTree, Value
from packer.format.column import Column
from packer.format.column_index import ColumnIndex, shard_totals
from packer.format.column_writer import ColumnWriter
from packer.format.constants import Constants, encode_constants, read_constants, same_constants
from packer.format.layout import MAX_CHUNK_BYTES, ShardHeader, column_key, index_arrays
from packer.format.lmdb_appender import LmdbAppender, open_new
from packer.format.locator import Located, Locator
from packer.format.manifest import (
    MANIFEST,
    MANIFEST_COPY,
    MAX_MANIFEST_BYTES,
    SHARD_FOLDER,
    UNFINISHED,
    URL_AS_PATH,
    ColumnTotals,
    Count,
    FieldStats,
    FileEntry,
    GivenCommand,
    Manifest,
    NamesEntry,
    Ranges,
    Scale,
    ShardEntry,
    Splits,
    ValueStats,
    check_count,
    check_file,
    data_entry,
    file_digest,
    file_entry,
    list_folder,
    number_ranges,
    open_file,
    range_numbers,
    read_errors,
    total_of,
)
from packer.format.meanings import find_meanings
from packer.format.names import Names, NameTable, name_bytes, names_bytes, write_names
from packer.format.schema import (
    DTYPES,
    MAX_AXIS,
    Field,
    FieldSpec,
    FrameRule,
    check_field_name,
    no_text,
    spec_of,
)
from packer.format.shard import Shard, ShardNames
from packer.format.shard_writer import ShardWriter
from packer.format.sizes import PAGE_SIZE, map_size, shard_bytes
from packer.format.sync import (
    LOCK,
    PARTIAL,
    clear_errors,
    draft_of,
    flock,
    held_lock,
    make_folder,
    removed_if_stopped,
    sync_folder,
    write_synced,
)

__all__ = [
    "DTYPES",
    "HEAD_BYTES",
    "LOCK",
    "MANIFEST",
    "MANIFEST_COPY",
    "MAX_AXIS",
    "MAX_CHUNK_BYTES",
    "MAX_MANIFEST_BYTES",
    "PAGE_SIZE",
    "PARTIAL",
    "SHARD_FOLDER",
    "UNFINISHED",
    "URL_AS_PATH",
    "BTree",
    "Column",
    "ColumnIndex",
    "ColumnTotals",
    "ColumnWriter",
    "Constants",
    "Count",
    "Field",
    "FieldSpec",
    "FieldStats",
    "FileEntry",
    "FrameRule",
    "GivenCommand",
    "LmdbAppender",
    "Located",
    "Locator",
    "Manifest",
    "NameTable",
    "Names",
    "NamesEntry",
    "Numbers",
    "Ranges",
    "Scale",
    "Shard",
    "ShardEntry",
    "ShardHeader",
    "ShardNames",
    "ShardWriter",
    "Splits",
    "Value",
    "ValueStats",
    "check_count",
    "check_field_name",
    "check_file",
    "clear_errors",
    "column_key",
    "data_entry",
    "distinct",
    "draft_of",
    "encode_constants",
    "file_digest",
    "file_entry",
    "find_meanings",
    "flock",
    "held_lock",
    "index_arrays",
    "items_of",
    "join",
    "list_folder",
    "make_folder",
    "manifest",
    "map_size",
    "name_bytes",
    "names_bytes",
    "no_text",
    "number_ranges",
    "open_file",
    "open_new",
    "range_numbers",
    "read_constants",
    "read_errors",
    "removed_if_stopped",
    "same_constants",
    "shard_bytes",
    "shard_totals",
    "spec_of",
    "starts_of",
    "sync_folder",
    "take_rows",
    "total_of",
    "write_names",
    "write_synced",
]
