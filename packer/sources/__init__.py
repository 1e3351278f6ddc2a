"""What a packed dataset is made from. A new source is one module that offers a `Source`."""

from packer.sources.agreeing import agree_on_most
from packer.sources.base import (
    BLOCK_BYTES,
    Block,
    LargeArray,
    Source,
    arrays_of,
    block_bytes,
    count,
    joined,
    one_list_of_classes,
    read_through,
    runs,
)
from packer.sources.beside import in_order_of
from packer.sources.derived import ClassSource, FittedSource
from packer.sources.files import TABLES, stamps_when_read, unreadable
from packer.sources.finding import list_files, named_paths
from packer.sources.keyed import named_by_table
from packer.sources.kinds import Kind, all_kinds, kinds_with, pair_by_name, pair_in_order
from packer.sources.looking import Header
from packer.sources.opening import open_sources
from packer.sources.options import SourceOptions, flag_of
from packer.sources.packed import PackedSource, names_of, open_packed, read_names, shuffled_order
from packer.sources.pairing import entry_of, read_lines
from packer.sources.samples import Sample, SampleSource, as_arrays, infer_fields, one_block
from packer.sources.source import TableSource, decode_source, encode_source
from packer.sources.table import LaidField, Row, SampleTable

__all__ = [
    "BLOCK_BYTES",
    "TABLES",
    "Block",
    "ClassSource",
    "FittedSource",
    "Header",
    "Kind",
    "LaidField",
    "LargeArray",
    "PackedSource",
    "Row",
    "Sample",
    "SampleSource",
    "SampleTable",
    "Source",
    "SourceOptions",
    "TableSource",
    "agree_on_most",
    "all_kinds",
    "arrays_of",
    "as_arrays",
    "block_bytes",
    "count",
    "decode_source",
    "encode_source",
    "entry_of",
    "flag_of",
    "in_order_of",
    "infer_fields",
    "joined",
    "kinds_with",
    "list_files",
    "named_by_table",
    "named_paths",
    "names_of",
    "one_block",
    "one_list_of_classes",
    "open_packed",
    "open_sources",
    "pair_by_name",
    "pair_in_order",
    "read_lines",
    "read_names",
    "read_through",
    "runs",
    "shuffled_order",
    "stamps_when_read",
    "unreadable",
]
