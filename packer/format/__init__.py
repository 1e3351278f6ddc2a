"""What a packed dataset is. FORMAT.md next to this file is the specification.

    schema          what a field is, and how its column is stored
    manifest        manifest.json: fields, shards, totals, statistics
    constants       constants.npz, arrays that all samples share
    layout          keys and header of a shard, and the sizes that the format is built around
    column          finds and decodes the samples of a column; column_index checks its index arrays first
    column_writer   samples become frames, frames fill chunks
    shard           reads one shard through a map; btree finds its values, and names in names.lmdb, without LMDB
    shard_writer    writes one shard, through lmdb_appender
    names           names.lmdb, written and looked up
    sizes           how large files get, before they are written
    sync            files and renames that last

Importing this package loads numpy, msgspec and the codecs, and none of torch, click, h5py, PIL, plyfile.
"""
