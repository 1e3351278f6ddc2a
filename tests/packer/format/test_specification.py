"""FORMAT.md is enough: a reader written from it alone, without packer, reads what packer writes."""

from __future__ import annotations

import bisect
import contextlib
import json
import math
import re
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import lz4.block
import msgspec
import numcodecs
import numpy as np
import pytest
import xxhash

from packer.errors import PackerError
from packer.format import LmdbAppender, Shard
from packer.format import manifest as manifests
from packer.verify import verify
from readers import PackedDataset

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "golden"
TEXT = (ROOT / "packer" / "format" / "FORMAT.md").read_text("utf-8")


class SpecColumn:
    """A column read as sections 4 to 6 of FORMAT.md say; nothing of packer in it."""

    def __init__(self, values: dict[bytes, bytes], number: int, field: dict[str, Any], samples: int) -> None:
        self.values, self.samples, self.field = values, samples, field
        self.shape, self.codec = field["shape"], field["codec"]
        self.item = np.dtype(field["dtype"]).itemsize
        self.rule = field["frame"]
        prefix = b"column/%03d/" % number
        self.array = {
            key[len(prefix) :].decode(): struct.unpack(f"<{len(value) // 8}Q", value)
            for key, value in values.items()
            if key.startswith(prefix)
        }

    def shape_of(self, i: int) -> list[int]:
        ragged = [axis for axis, length in enumerate(self.shape) if length is None]
        own = dict(zip(ragged, self.array.get("shapes", ())[i * len(ragged) :], strict=False))
        return [own.get(axis, length) for axis, length in enumerate(self.shape)]

    def raw_offset(self, i: int) -> int:
        if None in self.shape:
            return self.array["sample_offsets"][i]
        return i * self.item * math.prod(self.shape)

    def frame(self, f: int, first: int, last: int, band: int) -> bytes:
        """Frame f, which holds the samples first..last, or one band of the sample `first`."""
        start, raw = self.raw_offset(first), self.raw_offset(last) - self.raw_offset(first)
        if "rows" in self.rule:
            rows = self.shape_of(first)[0]
            row_bytes = raw // rows
            start += band * self.rule["rows"] * row_bytes
            raw = min(self.rule["rows"], rows - band * self.rule["rows"]) * row_bytes
        a, b = (
            (self.array["frame_offsets"][f], self.array["frame_offsets"][f + 1]) if self.codec else (start, start + raw)
        )
        chunks = self.array["chunks"]
        row = bisect.bisect_right(chunks[1::3], f)
        before = chunks[3 * row - 1] if row else 0
        stored = self.values[b"chunk/%08d" % chunks[3 * row]][a - before : b - before]
        assert len(stored) == b - a
        assert xxhash.xxh3_64_intdigest(stored) == self.array["checksums"][f]
        return stored if len(stored) == raw else self.decoded(stored, raw)

    def decoded(self, stored: bytes, raw: int) -> bytes:
        for config in reversed(self.codec):
            if config["id"] in ("lz4", "lz4hc"):
                (size,) = struct.unpack("<I", stored[:4])
                stored = lz4.block.decompress(stored[4:], uncompressed_size=size)
            elif config["id"] not in ("rowdelta", "photo"):
                stored = bytes(numcodecs.get_codec(dict(config)).decode(stored))
        assert len(stored) == raw
        return stored

    def sample(self, i: int) -> np.ndarray[Any, Any]:
        shape = self.shape_of(i)
        if "samples" in self.rule:
            k = self.rule["samples"]
            first, last = i // k * k, min(i // k * k + k, self.samples)
            frame = self.frame(i // k, first, last, 0)
            at = self.raw_offset(i) - self.raw_offset(first)
            pieces = [frame[at : at + self.item * math.prod(shape)]]
        else:
            bands = -(-shape[0] // self.rule["rows"])
            begin = self.array["sample_frames"][i] if None in self.shape else i * bands
            pieces = [self.frame(begin + band, i, i + 1, band) for band in range(bands)]
        dtype = np.dtype(self.field["dtype"]).newbyteorder("<")
        values = np.frombuffer(b"".join(pieces), dtype).reshape(shape).copy()
        if self.codec and self.codec[0]["id"] in ("rowdelta", "photo"):
            photo = self.codec[0]["id"] == "photo"
            if photo:
                values = np.where(values % 2, -1 - values.astype(int) // 2, values.astype(int) // 2).astype(dtype)
            step = max(self.rule.get("rows", len(values)), 1)
            for row in range(0, len(values), step):
                values[row : row + step] = np.cumsum(values[row : row + step], axis=0, dtype=dtype)
            if photo and shape[2] in (3, 4):
                values[..., 0] += values[..., 1]
                values[..., 2] += values[..., 1]
        return values


def spec_values(path: Path) -> dict[bytes, bytes]:
    env = lmdb.open(str(path), subdir=False, readonly=True, lock=False, lib_version=0)
    with env, env.begin() as txn:
        return {bytes(key): bytes(value) for key, value in txn.cursor()}


def spec_manifest(folder: Path) -> dict[str, Any]:
    data = (folder / "manifest.json").read_bytes()
    digest = xxhash.xxh3_128_hexdigest(data[:-50] + b"\n}")
    assert data[-50:] == b',\n "digest": "' + digest.encode() + b'"\n}\n'
    document: dict[str, Any] = json.loads(data)
    return document


def spec_samples(folder: Path, number: int) -> Iterator[np.ndarray[Any, Any]]:
    manifest = spec_manifest(folder)
    for entry in manifest["shards"]:
        path = folder / entry["file"]
        assert path.stat().st_size == entry["bytes"]
        assert xxhash.xxh3_128_hexdigest(path.read_bytes()) == entry["digest"]
        column = SpecColumn(spec_values(path), number, manifest["fields"][number], entry["samples"])
        yield from (column.sample(i) for i in range(entry["samples"]))


@pytest.mark.parametrize("name", ["exact", "coded", "photos"])
def test_a_reader_made_from_the_specification_reads_every_sample(name: str) -> None:
    """Its samples of all fields, in these golden datasets, are those of our own reader."""
    folder = GOLDEN / name
    manifest = manifests.read(folder)
    for number, field in enumerate(manifest.fields):
        ours: list[np.ndarray[Any, Any]] = []
        for entry in manifest.shards:
            with Shard(folder / entry.file, entry.bytes) as shard:
                ours += list(shard.column(number, field, entry.samples).read(0, entry.samples))
        theirs = list(spec_samples(folder, number))
        assert len(theirs) == manifest.samples
        for a, b in zip(theirs, ours, strict=True):
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def plain(array: np.ndarray[Any, Any], kind: str) -> Any:
    """A sample as `exact.json` has it."""
    if kind == "text":
        return array.tobytes().decode()
    return (np.stack([array.real, array.imag], axis=-1) if array.dtype.kind == "c" else array).tolist()


def test_expected_values_are_those_of_the_golden_dataset() -> None:
    """A reader in another language can compare all it reads with JSON."""
    expected = json.loads((GOLDEN / "exact.json").read_text("utf-8"))
    manifest = manifests.read(GOLDEN / "exact")
    assert list(expected["fields"]) == [field.name for field in manifest.fields]
    for number, field in enumerate(manifest.fields):
        found = [plain(sample, field.kind) for sample in spec_samples(GOLDEN / "exact", number)]
        assert found == expected["fields"][field.name]
    assert PackedDataset(GOLDEN / "exact").names == expected["names"]


def test_the_manifest_in_the_example_is_that_of_the_golden_dataset() -> None:
    """To the byte."""
    assert f"```json\n{(GOLDEN / 'exact' / 'manifest.json').read_text('utf-8')}```" in TEXT


BAD = json.loads((GOLDEN / "bad" / "bad.json").read_text("utf-8"))


def test_every_bad_dataset_is_listed() -> None:
    """With the section of the rule that it breaks."""
    assert {path.name for path in (GOLDEN / "bad").iterdir()} == {*BAD, "bad.json"}
    assert all(re.match(r"[3-8]: ", bad["rule"]) for bad in BAD.values())


@pytest.mark.parametrize("name", BAD)
def test_a_broken_rule_is_found(name: str) -> None:
    """By verify always; by reading all samples if a reader must notice."""
    folder = GOLDEN / "bad" / name

    def read() -> None:
        dataset = PackedDataset(folder)
        _ = dataset[:], dataset["a"]

    if BAD[name]["a reader must notice"]:
        with pytest.raises(PackerError):
            read()
    else:
        with contextlib.suppress(PackerError):
            read()
    sound = False
    with contextlib.suppress(PackerError):
        sound = not verify(folder).damages
    assert not sound


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({b"#\0\0\0\0\0\0\0\4": b"other"}, "sample 4 has another name"),
        ({b"=more": struct.pack("<Q", 4)}, "it has 11 entries"),
        ({b"=a": struct.pack("<Q", 2)}, "the name 'a' does not lead to sample 1"),
    ],
)
def test_names_in_shards_and_table_are_compared(tmp_path: Path, wrong: dict[bytes, bytes], words: str) -> None:
    """A table that differs from the shards in either direction is damaged, though its digest is right."""
    shutil.copytree(GOLDEN / "exact", tmp_path / "d")
    path = tmp_path / "d" / "names.lmdb"
    table = LmdbAppender(tmp_path / "names.lmdb", 2**20)
    for key, value in sorted((spec_values(path) | wrong).items()):
        table.put(key, value)
    table.finish()
    (tmp_path / "names.lmdb").replace(path)
    names = manifests.FileEntry(file=path.name, bytes=path.stat().st_size, digest=manifests.file_digest(path))
    manifests.write(tmp_path / "d", msgspec.structs.replace(manifests.read(tmp_path / "d"), names=names))
    (damage,) = verify(tmp_path / "d").damages
    assert damage.file == "names.lmdb"
    assert words in damage.what


def test_the_example_is_true() -> None:
    """Offsets, sizes and bytes in the example are those of the golden file, in the file and through LMDB."""
    path = GOLDEN / "exact" / "shards" / "00000.lmdb"
    data, values = path.read_bytes(), spec_values(path)
    rows = re.findall(r"^\| `([\w/]+)` \| (\d+) \| (\d+) \| ([0-9a-f ]+) \|$", TEXT, re.MULTILINE)
    assert len(rows) == 11
    for key, offset, size, digits in rows:
        expected = bytes.fromhex(digits)
        assert values[key.encode()] == expected
        assert len(expected) == int(size)
        assert data[int(offset) : int(offset) + int(size)] == expected


def test_the_names_of_the_example_are_true() -> None:
    """Both directions of names.lmdb as section 7 says."""
    values = spec_values(GOLDEN / "exact" / "names.lmdb")
    assert values[b"#" + struct.pack(">Q", 2)] == "größe".encode()
    assert values["=größe".encode()] == struct.pack("<Q", 2)
    assert len(values) == 10


def test_every_member_of_the_manifest_is_in_the_specification() -> None:
    """A member that the program writes or reads stands in FORMAT.md by name."""
    document = json.loads((GOLDEN / "exact" / "manifest.json").read_bytes())
    members = {*document, *document["fields"][0], *document["shards"][0], *manifests.ShardEntry.__struct_fields__}
    assert [name for name in sorted(members) if f"`{name}`" not in TEXT and f'"{name}"' not in TEXT] == []
