"""Looking keys up without the LMDB library: the same answers, and errors where that one crashes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from packer.errors import DamagedError
from packer.format import FileEntry, Names, Tree, write_names


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 3,000 names, three levels deep."""
    path = tmp_path_factory.mktemp("names") / "names.lmdb"
    write_names(path, [f"{'long/' * 20}{number}".encode() for number in range(3000)])
    return path


def test_the_same_as_lmdb(table: Path) -> None:
    """Every key of the file has the value that LMDB gives; keys between them have none."""
    search = Tree(memoryview(table.read_bytes()), "names")
    with lmdb.open(str(table), subdir=False, readonly=True, lock=False, lib_version=0) as env, env.begin() as txn:
        held = dict(txn.cursor())
    assert len(held) == 6000
    assert {key: search.get(key) for key in held} == held
    assert not [
        key for key in (b"", b"\0", b"=", b"\xff" * 600, *(k + b"x" for k in held)) if search.get(key) is not None
    ]


def test_an_empty_table_holds_no_key(tmp_path: Path) -> None:
    """A file without a tree answers None."""
    write_names(tmp_path / "names", [])
    assert Tree(memoryview((tmp_path / "names").read_bytes()), "names").get(b"=a") is None


def test_damaged_pages_are_errors(table: Path) -> None:
    """Of 300 tables with hostile numbers in their pages each look-up gives a value, none, or a DamagedError."""
    sound, rng, refused = table.read_bytes(), random.Random(1), 0
    for _ in range(300):
        data = bytearray(sound)
        for _ in range(20):
            at = rng.randrange(0, len(data), 2)
            at = at if rng.random() < 0.3 else at // 4096 * 4096 + at % 64
            data[at : at + 2] = rng.choice([b"\0\0", b"\xff\xff", b"\xff\x0f", rng.randbytes(2)])
        try:
            search = Tree(memoryview(bytes(data)), "names")
            for number in range(0, 3000, 100):
                search.get(b"=" + b"long/" * 20 + str(number).encode())
        except DamagedError:
            refused += 1
    assert refused > 50


def in_leaf(layout: str, offset: int, key: bytes = b"=b") -> Callable[[bytearray, int], None]:
    """Writes a number into the entry of a key: 4 bytes of size, 2 of kind, 2 of the key's length."""

    def change(data: bytearray, number: int) -> None:
        value = next(v for v in Tree(memoryview(bytes(data)), "a").values() if v.key == key)
        struct.pack_into(layout, data, value.offset - len(key) - 8 + offset, number)

    return change


def in_page(layout: str, offset: int) -> Callable[[bytearray, int], None]:
    """Writes a number into the root page of a table of one leaf."""

    def change(data: bytearray, number: int) -> None:
        root = Tree(memoryview(bytes(data)), "a").meta.root
        struct.pack_into(layout, data, root * 4096 + offset, number)

    return change


def in_meta(layout: str, offset: int) -> Callable[[bytearray, int], None]:
    """Writes a number into the meta page that is not the one of an empty file."""

    def change(data: bytearray, number: int) -> None:
        (at,) = (at for at in (0, 4096) if struct.unpack_from("<H", data, at + 88 + 6)[0])
        struct.pack_into(layout, data, at + offset, number)

    return change


DAMAGES = {
    "kind of an entry": (in_leaf("<H", 4), 2, "has an entry that is no plain value"),
    "value on pages outside the file": (in_leaf("<H", 4), 1, "has a value outside the file"),
    "value longer than its page": (in_leaf("<I", 0), 4096, "has an entry that leaves it"),
    "page number": (in_page("<Q", 0), 4, "has a header that belongs elsewhere"),
    "a branch in a leaf's place": (in_page("<H", 10), 1, "has a header that belongs elsewhere"),
    "slots behind the page": (in_page("<H", 12), 4098, "has no room for its entries"),
    "an entry behind the page": (in_page("<H", 16 + 4), 4094, "has an entry outside itself"),
    "root outside the file": (in_meta("<Q", 88 + 40), 2**40, "is not a page of the file"),
    "root a meta page": (in_meta("<Q", 88 + 40), 1, "is not a page of the file"),
    "root a leaf in a branch's place": (in_meta("<H", 88 + 6), 2, "has a header that belongs elsewhere"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_named(tmp_path: Path, name: str) -> None:
    """Every check of a look-up finds what it is for, and the message names the file and what to do."""
    change, number, message = DAMAGES[name]
    write_names(tmp_path / "names", [b"a", b"b"])
    data = bytearray((tmp_path / "names").read_bytes())
    assert Tree(memoryview(bytes(data)), "names").get(b"=b") == struct.pack("<Q", 1)
    change(data, number)
    with pytest.raises(DamagedError, match=rf"^names: page \d+ of its B-tree {message}; the file is damaged: fetch"):
        Tree(memoryview(bytes(data)), "names").get(b"=b")


def test_a_name_of_no_sample_is_damage(table: Path) -> None:
    """A number that the dataset has no sample of is not handed on to those who read samples by it."""
    entry = FileEntry(file="names.lmdb", bytes=table.stat().st_size, digest="0" * 32)
    names = Names(table, entry, samples=2000)
    assert names.numbers(["long/" * 20 + "1999"]).tolist() == [1999]
    with pytest.raises(DamagedError, match="sample 2000 of 2000"):
        names.numbers(["long/" * 20 + "2000"])
    names.close()
