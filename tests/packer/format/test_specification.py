"""FORMAT.md says what packer writes, to the byte, and which broken rules must be noticed.

tests/survival/test_second_reader.py holds that a reader written from it alone reads all that packer writes."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import struct
from pathlib import Path

import lmdb
import msgspec
import pytest
from made_datasets import put_manifest

from packer.errors import PackerError
from packer.format import LmdbAppender
from packer.format import manifest as manifests
from packer.verify import verify
from readers import PackedDataset

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "golden"
TEXT = (ROOT / "packer" / "format" / "FORMAT.md").read_text("utf-8")


def spec_values(path: Path) -> dict[bytes, bytes]:
    env = lmdb.open(str(path), subdir=False, readonly=True, lock=False, lib_version=0)
    with env, env.begin() as txn:
        return {bytes(key): bytes(value) for key, value in txn.cursor()}


def test_the_manifest_in_the_example_is_that_of_the_golden_dataset() -> None:
    """To the byte."""
    assert f"```json\n{(GOLDEN / 'exact' / 'manifest.json').read_text('utf-8')}```" in TEXT


BAD = json.loads((GOLDEN / "bad" / "bad.json").read_text("utf-8"))


def test_every_bad_dataset_is_listed() -> None:
    """With the section of the rule that it breaks."""
    assert {path.name for path in (GOLDEN / "bad").iterdir()} == {*BAD, "bad.json"}
    assert not [bad for bad in BAD.values() if not re.match(r"[3-8]: ", bad["rule"])]


#: What only decoding shows, which `packer verify` does not do.
DECODED = {"bytes-after-a-Zstandard-frame", "Zstandard-frame-of-another-size", "text-that-is-not-UTF-8"}


@pytest.mark.parametrize("name", BAD)
def test_a_broken_rule_is_found(name: str) -> None:
    """By reading all samples if a reader must notice; by verify, unless only decoding shows it."""
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
    assert sound == (name in DECODED)


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
    put_manifest(tmp_path / "d", msgspec.structs.replace(manifests.read(tmp_path / "d"), names=names))
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
