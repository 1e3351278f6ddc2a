"""Makes the bad datasets in `bad`: `python tests/golden/make_bad.py FOLDER`.

Each breaks one rule of FORMAT.md and is right in all else, digests and checksums too. `bad.json` next to the folders
says which rule, and whether a reader of all samples must notice; `packer verify` notices all but those that only
decoding shows. For whoever writes a reader. They are committed; run this again only to add one.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import numpy as np
import xxhash
import zstandard

from packer.format import (
    ColumnTotals,
    Field,
    FileEntry,
    FrameRule,
    LmdbAppender,
    Manifest,
    ShardEntry,
    ShardWriter,
    write_names,
)
from packer.format import manifest as manifests

ZSTD = ({"id": "zstd", "level": 1},)
FIELDS = (
    Field(name="points", dtype="int32", shape=(None, 2), codec=ZSTD, frame=FrameRule(samples=4)),
    Field(name="tags", dtype="bool", shape=(3,), frame=FrameRule(samples=4)),
    Field(name="caption", dtype="uint8", kind="text", shape=(None,), frame=FrameRule(samples=4)),
)
NAMES = ("a", "b", "c")
SHARD = "shards/00000.lmdb"

Values = dict[bytes, bytes]
Document = dict[str, Any]


def uint64s(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def frame(values: Values, column: int, chunk: int, stored: bytes) -> None:
    """Puts another single frame into a column, with all that says where it lies."""
    values[b"chunk/%08d" % chunk] = stored
    values[b"column/%03d/checksums" % column] = uint64s(xxhash.xxh3_64_intdigest(stored))
    values[b"column/%03d/chunks" % column] = uint64s(chunk, 1, len(stored))
    if b"column/%03d/frame_offsets" % column in values:
        values[b"column/%03d/frame_offsets" % column] = uint64s(0, len(stored))


def member(name: str, value: Any) -> Callable[[Document], None]:
    return lambda document: document.update({name: value})


def same_field_twice(document: Document) -> None:
    document["fields"][1]["name"] = document["fields"][0]["name"]


def pickled(values: Values) -> None:
    fields = json.loads(values[b"header"])["fields"]
    fields[0]["codec"] = [{"id": "pickle"}]
    header(fields=fields)(values)


def outside(document: Document) -> None:
    document["shards"][0]["file"] = "../00000.lmdb"


def another_index(document: Document) -> None:
    document["shards"][0]["index"] = 32 * "0"


def another_raw(document: Document) -> None:
    document["columns"]["points"]["raw"] += 8


def key(name: str, value: bytes) -> Callable[[Values], None]:
    return lambda values: values.update({name.encode(): value})


def header(**members: Any) -> Callable[[Values], None]:
    return lambda values: values.update({b"header": json.dumps(json.loads(values[b"header"]) | members).encode()})


def missing(name: str) -> Callable[[Values], None]:
    return lambda values: values.pop(name.encode()) and None


def more_after_zstd(values: Values) -> None:
    frame(values, 0, 0, values[b"chunk/00000000"] + b"more")


def another_size(values: Values) -> None:
    raw = zstandard.ZstdDecompressor().decompress(values[b"chunk/00000000"])
    frame(values, 0, 0, zstandard.ZstdCompressor(1).compress(raw + bytes(8)))


def wrong_checksum(values: Values) -> None:
    values[b"column/001/checksums"] = uint64s(1)


#: Of the manifest: the rule, what breaks it.
MANIFESTS: dict[str, tuple[str, Callable[[Document], None]]] = {
    "unknown member": ("3: members that are not listed are an error", member("more", 1)),
    "later version": ("3: version is 1", member("version", 2)),
    "wrong sum of samples": ("3: samples is the sum of those of all shards", member("samples", 4)),
    "count with a fraction": ("3: counts are integers, 3.0 is none", member("samples", 3.0)),
    "not a number": ("3: JSON has no NaN", member("origin", {"x": float("nan")})),
    "origin is an array": ("3: origin is an object", member("origin", [])),
    "two fields of one name": ("3: names of fields differ", same_field_twice),
    "path out of the folder": ("3: file is a path within the folder", outside),
    "index of another shard": ("3: index is the digest of the index arrays", another_index),
    "wrong raw bytes": ("3: columns has the raw bytes of all samples", another_raw),
}
#: Of values of the shard.
SHARDS: dict[str, tuple[str, Callable[[Values], None]]] = {
    "header of more samples": ("4: header and manifest agree in samples", header(samples=4)),
    "codec pickle": ("6: the codec pickle is refused", pickled),
    "header with another member": ("4: the header has no other members", header(more=1)),
    "index array too long": ("4: index arrays have their lengths", key("column/001/checksums", uint64s(1, 2))),
    "index array missing": ("4: index arrays are there", missing("column/001/chunks")),
    "chunk missing": ("4: chunks are there", missing("chunk/00000001")),
    "chunk without frames": ("5: F grows from row to row", key("column/001/chunks", uint64s(1, 1, 9, 1, 1, 9))),
    "frames that descend": ("8: frame_offsets do not descend", key("column/000/frame_offsets", uint64s(9, 1))),
    "shape of another size": ("8: a sample has the bytes of its shape", key("column/000/shapes", uint64s(41, 39, 40))),
    "wrong checksum": ("4: checksums are those of the stored bytes", wrong_checksum),
    "bytes after a Zstandard frame": ("6: nothing follows the Zstandard frame", more_after_zstd),
    "Zstandard frame of another size": ("6: a frame decodes to its raw bytes", another_size),
    "text that is not UTF-8": ("3: text is UTF-8", lambda values: frame(values, 2, 2, b"one\xfftwo-three")),
    "names that descend": ("4: names/offsets ascend", key("names/offsets", uint64s(0, 2, 1, 3))),
    "another name than in the table": ("7: names in shards and in the table are the same", key("names/bytes", b"abx")),
}
#: What a reader of all samples need not notice: it would have to look at every frame, or at the names of all samples.
UNNOTICED = {
    "wrong checksum",
    "wrong raw bytes",
    "names that descend",
    "another name than in the table",
}


def good(folder: Path) -> None:
    """Writes the dataset that all of the bad ones are made of: three named samples in one shard."""
    (folder / "shards").mkdir(parents=True)
    points = [np.repeat(np.arange(n, dtype=np.int32)[:, None] // 20, 2, axis=1) for n in (40, 39, 40)]
    writer = ShardWriter(folder / SHARD, 0, FIELDS, map_size=2**20, named=True, origin={"kind": "golden"})
    with writer:
        writer.add({"points": points, "tags": np.eye(3, dtype=bool), "caption": ["one", "two--", "three"]}, 3, NAMES)
    columns = {c.field.name: ColumnTotals(raw=c.raw_bytes, stored=c.stored_bytes) for c in writer.columns}
    write_names(folder / "names.lmdb", [name.encode() for name in NAMES])
    names = FileEntry(file="names.lmdb", **written(folder / "names.lmdb"))
    shard = ShardEntry(file=SHARD, samples=3, **written(folder / SHARD))
    manifest = Manifest(
        tool="golden",
        samples=3,
        fields=FIELDS,
        shards=(shard,),
        names=names,
        columns=columns,
        origin={"kind": "golden"},
    )
    (folder / "manifest.json").write_bytes(manifests.encode(manifest))


def written(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "digest": manifests.file_digest(path)}


def write_manifest(folder: Path, document: Document) -> None:
    """Writes a manifest of whatever members, with the digest that its bytes have."""
    document.pop("digest", None)
    body = json.dumps(document, indent=1).encode()[:-2]
    digest = xxhash.xxh3_128_hexdigest(body + b"\n}").encode()
    (folder / "manifest.json").write_bytes(body + b',\n "digest": "' + digest + b'"\n}\n')


def break_shard(folder: Path, change: Callable[[Values], None]) -> None:
    """Changes values of the shard; the manifest says what is there then."""
    path = folder / SHARD
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, lib_version=0) as env, env.begin() as txn:
        values = {bytes(k): bytes(v) for k, v in txn.cursor()}
    change(values)
    appender = LmdbAppender(path, 2**20)
    for name, value in sorted(values.items()):
        appender.put(name, value)
    appender.finish()
    document = msgspec.json.decode((folder / "manifest.json").read_bytes())
    document["shards"][0] |= written(path)
    if json.loads(values[b"header"])["fields"][0]["codec"] != document["fields"][0]["codec"]:
        document["fields"] = json.loads(values[b"header"])["fields"]
    for number, (name, total) in enumerate(document["columns"].items()):
        chunks = values.get(b"column/%03d/chunks" % number)
        total["stored"] = struct.unpack("<Q", chunks[-8:])[0] if chunks else total["stored"]
        assert name == FIELDS[number].name
    write_manifest(folder, document)


def main(target: Path) -> None:
    rules = {}
    for name, (rule, change) in {**MANIFESTS, **SHARDS}.items():
        folder = target / name.replace(" ", "-")
        good(folder)
        if name in MANIFESTS:
            document = msgspec.json.decode((folder / "manifest.json").read_bytes())
            change(document)
            write_manifest(folder, document)
        else:
            break_shard(folder, change)
        rules[folder.name] = {"rule": rule, "a reader must notice": name not in UNNOTICED}
    (target / "bad.json").write_text(json.dumps(rules, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
