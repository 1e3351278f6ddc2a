"""The walk of the B-tree, and looking keys up in it: against py-lmdb, and in files damaged in every way."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import random
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.errors import DamagedError
from packer.format import HEAD_BYTES, BTree, Value
from packer.format.btree import MAX_PAGE_SIZE
from packer.format.layout import chunk_key

Items = list[tuple[bytes, bytes]]


def open_file(path: Path) -> lmdb.Environment:
    return lmdb.open(str(path), subdir=False, lib_version=0, lock=False, sync=False, map_size=2**28, max_dbs=4)


def read(data: bytes | bytearray) -> list[Value]:
    """Checks and walks a file as a reader does."""
    BTree(memoryview(bytes(data[:HEAD_BYTES])), "a.lmdb", len(data))
    return list(BTree(memoryview(data).toreadonly(), "a.lmdb").values())


def items(data: bytes | bytearray) -> Items:
    """Keys and values of a file; each key is looked up as well, and others close to it."""
    found = [(v.key, bytes(data[v.offset : v.offset + v.size])) for v in read(data)]
    tree, held = BTree(memoryview(bytes(data)), "a.lmdb"), dict(found)
    for key in (b"", b"\0", b"\xff" * 600, *(key + more for key in held for more in (b"", b"x"))):
        assert tree.get(key) == held.get(key)
    return found


def lmdb_items(path: Path) -> Items:
    with open_file(path) as env, env.begin() as txn:
        return [(bytes(key), bytes(value)) for key, value in txn.cursor()]


# ---------------------------------------------------------------- equal to py-lmdb

value_sizes = st.one_of(st.integers(0, 40), st.integers(1990, 2060), st.integers(4070, 4110), st.integers(0, 70_000))
commits = st.lists(
    st.dictionaries(st.binary(min_size=1, max_size=511), st.one_of(st.none(), value_sizes), max_size=40), max_size=5
)


@given(commits=commits)
@settings(max_examples=150, deadline=None)
def test_keys_and_values_are_those_that_lmdb_reads(commits: list[dict[bytes, int | None]]) -> None:
    """Any keys put, overwritten and deleted in any order and any number of commits."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        with open_file(path) as env:
            for number, commit in enumerate(commits):
                with env.begin(write=True) as txn:
                    for key, size in commit.items():
                        if size is None:
                            txn.delete(key)
                        else:
                            txn.put(key, bytes([number + 1]) * size)
        assert items(path.read_bytes()) == lmdb_items(path)


def test_a_deep_tree_of_many_small_keys(tmp_path: Path) -> None:
    """120,000 keys of 4 bytes, in a map; some of them looked up."""
    path = tmp_path / "file"
    with open_file(path) as env, env.begin(write=True) as txn:
        pairs = [(i.to_bytes(4, "big"), bytes([i & 255]) * (i % 4)) for i in range(120_000)]
        txn.cursor().putmulti(pairs, append=True)
        assert txn.stat()["depth"] >= 3
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        with memoryview(mapped) as view:
            tree = BTree(view, str(path))
            values = list(tree.values())
            assert [(key, tree.get(key)) for key, _ in pairs[::500]] == pairs[::500]
        assert [(v.key, mapped[v.offset : v.offset + v.size]) for v in values] == pairs


def test_an_empty_database_has_no_values(tmp_path: Path) -> None:
    """Neither a file never written to nor one emptied again has any."""
    path = tmp_path / "file"
    open_file(path).close()
    assert read(path.read_bytes()) == []
    for change in (lambda txn: txn.put(b"k", b"v"), lambda txn: txn.delete(b"k")):
        with open_file(path) as env, env.begin(write=True) as txn:
            change(txn)
    assert read(path.read_bytes()) == []


def test_named_databases_are_refused(tmp_path: Path) -> None:
    """Their records in the main tree are not values."""
    path = tmp_path / "file"
    with open_file(path) as env:
        env.open_db(b"other")
    with pytest.raises(DamagedError, match="no plain value"):
        read(path.read_bytes())


# ---------------------------------------------------------------- a small file made by hand

NO_PAGE = 2**64 - 1
FIRST, SECOND, BIG = b"apple" * 2, b"pear" * 5, b"x" * 700


def page(number: int, flags: int, nodes: list[bytes], size: int) -> bytearray:
    """A branch or leaf page: slots from the front, nodes from the back."""
    built = bytearray(size)
    end = size
    for i, node in enumerate(nodes):
        end -= len(node) + len(node) % 2
        built[end : end + len(node)] = node
        struct.pack_into("<H", built, 16 + 2 * i, end)
    struct.pack_into("<QHHHH", built, 0, number, 0, flags, 16 + 2 * len(nodes), end)
    return built


def node(low: int, flags: int, key: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<IHH", low, flags, len(key)) + key + data


def meta(number: int, pages: int, size: int) -> bytearray:
    built = bytearray(size)
    struct.pack_into("<QHHHHIIQQ", built, 0, number, 0, 8, 0, 0, 0xBEEFC0DE, 1, 0, 2**30)
    struct.pack_into("<IHHQQQQQ", built, 40, size, 8, 0, 0, 0, 0, 0, NO_PAGE)
    overflow = pages - 5
    struct.pack_into("<IHHQQQQQ", built, 88, 0, 0, 2, 1, 2, overflow, 3, 2)
    struct.pack_into("<QQ", built, 136, pages - 1, number + 1)
    return built


def small_file(size: int = 512) -> bytearray:
    """Pages: two of meta, the root (2), a leaf of two keys (3), a leaf of one (4), its overflow pages (5, ...)."""
    overflow = -(-(16 + len(BIG)) // size)
    run = struct.pack("<QHHI", 5, 0, 4, overflow) + BIG
    return bytearray().join(
        [
            meta(0, 5 + overflow, size),
            meta(1, 5 + overflow, size),
            page(2, 1, [node(3, 0, b""), node(4, 0, b"c")], size),
            page(3, 2, [node(len(FIRST), 0, b"a", FIRST), node(len(SECOND), 0, b"b", SECOND)], size),
            page(4, 2, [node(len(BIG), 1, b"c", struct.pack("<Q", 5))], size),
            run.ljust(overflow * size, b"\0"),
        ]
    )


@pytest.mark.parametrize("size", [512 << i for i in range(8)])
def test_every_page_size_is_read(size: int) -> None:
    """512 bytes to 64 KiB."""
    assert items(small_file(size)) == [(b"a", FIRST), (b"b", SECOND), (b"c", BIG)]
    assert size <= MAX_PAGE_SIZE


def test_the_file_made_by_hand_is_one_that_lmdb_reads(tmp_path: Path) -> None:
    """What the tests below damage was sound."""
    path = tmp_path / "file"
    path.write_bytes(small_file(4096))
    assert lmdb_items(path) == items(small_file(4096))


def put(layout: str, *places: int) -> Callable[[bytearray, int], None]:
    """Writes a number at each of these offsets."""

    def change(data: bytearray, number: int) -> None:
        for place in places:
            struct.pack_into(layout, data, place, number)

    return change


ROOT, LEFT, RIGHT = 2 * 512, 3 * 512, 4 * 512
# Where the nodes of the small file lie, as the slots say: at the end of each page, the first one last.
LEFT_FIRST, LEFT_SECOND = (struct.unpack_from("<H", small_file(), LEFT + 16 + 2 * i)[0] for i in (0, 1))
RIGHT_FIRST, ROOT_FIRST = (struct.unpack_from("<H", small_file(), at + 16)[0] for at in (RIGHT, ROOT))
META = (0, 512)


def in_meta(layout: str, offset: int) -> Callable[[bytearray, int], None]:
    return put(layout, *(at + offset for at in META))


DAMAGES = {
    "magic number": (in_meta("<I", 16), 0xBEEFC0DF, "not one of LMDB's data format"),
    "data format of LMDB 1.0": (in_meta("<I", 20), 2, "not one of LMDB's data format"),
    "meta page flag": (in_meta("<H", 10), 2, "not one of LMDB's data format"),
    "meta page number": (in_meta("<Q", 0), 1, "not one of LMDB's data format"),
    "page size no power of two": (in_meta("<I", 40), 513, "page size of 513 bytes"),
    "page size too small": (in_meta("<I", 40), 256, "page size of 256 bytes"),
    "page size too large": (in_meta("<I", 40), 2**17, "page size of 131072 bytes"),
    "page sizes that differ": (put("<I", 512 + 40), 1024, "differ in the page size"),
    "second meta page elsewhere": (put("<I", 40), 1024, "meta page 1 is not"),
    "duplicate keys": (in_meta("<H", 88 + 4), 4, "describes no plain database"),
    "depth beyond LMDB's": (in_meta("<H", 88 + 6), 33, "describes no plain database"),
    "no depth but a root": (in_meta("<H", 88 + 6), 0, "describes no plain database"),
    "a depth but no root": (in_meta("<Q", 88 + 40), NO_PAGE, "describes no plain database"),
    "too shallow": (in_meta("<H", 88 + 6), 1, "does not have the pages"),
    "too deep": (in_meta("<H", 88 + 6), 3, "header that belongs elsewhere"),
    "branch pages": (in_meta("<Q", 88 + 8), 2, "does not have the pages"),
    "leaf pages": (in_meta("<Q", 88 + 16), 1, "more children than there are pages"),
    "more pages than the file": (in_meta("<Q", 88 + 16), 2**63, "more pages than the file"),
    "entries, fewer": (in_meta("<Q", 88 + 32), 2, "the 2 keys"),
    "entries, more": (in_meta("<Q", 88 + 32), 4, "the 4 keys"),
    "root outside the file": (in_meta("<Q", 88 + 40), 2**40, "not a page of the file"),
    "root a meta page": (in_meta("<Q", 88 + 40), 1, "not a page of the file"),
    "last page behind the end": (in_meta("<Q", 136), 7, "LMDB wrote at least 4096"),
    "last page beyond belief": (in_meta("<Q", 136), 2**64 - 1, "LMDB wrote at least"),
    "last page before the value": (in_meta("<Q", 136), 5, "value outside the file"),
    "root its own child": (put("<I", ROOT + ROOT_FIRST), 2, "header that belongs elsewhere"),
    "child outside the file": (put("<H", ROOT + ROOT_FIRST + 4), 1, "not a page of the file"),
    "one leaf twice": (put("<I", ROOT + ROOT_FIRST), 4, "not above the one before it"),
    "page number": (put("<Q", LEFT), 4, "header that belongs elsewhere"),
    "a leaf in a branch's place": (put("<H", ROOT + 10), 2, "header that belongs elsewhere"),
    "fixed-size leaf": (put("<H", LEFT + 10), 0x22, "header that belongs elsewhere"),
    "slots behind the nodes": (put("<H", LEFT + 12), 500, "no room for its entries"),
    "no slots": (put("<H", LEFT + 12), 16, "no room for its entries"),
    "half a slot": (put("<H", LEFT + 12), 19, "no room for its entries"),
    "nodes behind the page": (put("<H", LEFT + 14), 514, "no room for its entries"),
    "slot into the slots": (put("<H", LEFT + 16), 16, "an entry outside itself"),
    "slot to the page's end": (put("<H", LEFT + 16), 506, "an entry outside itself"),
    "keys the wrong way round": (put("<B", LEFT + LEFT_FIRST + 8), ord("c"), "not above the one before it"),
    "equal keys": (put("<B", LEFT + LEFT_FIRST + 8), ord("b"), "not above the one before it"),
    "empty key": (put("<H", LEFT + LEFT_FIRST + 6), 0, "not above the one before it"),
    "keys of two leaves the wrong way round": (put("<B", LEFT + LEFT_SECOND + 8), ord("d"), "not above"),
    "key longer than the page": (put("<H", LEFT + LEFT_FIRST + 6), 600, "an entry that leaves it"),
    "inline value longer than the page": (put("<I", LEFT + LEFT_FIRST), 400, "an entry that leaves it"),
    "node flags": (put("<H", LEFT + LEFT_FIRST + 4), 2, "no plain value"),
    "overflow page number cut off": (put("<H", RIGHT + RIGHT_FIRST + 6), 20, "an entry that leaves it"),
    "overflow page outside the file": (put("<Q", RIGHT + RIGHT_FIRST + 9), 2**50, "value outside the file"),
    "overflow page a meta page": (put("<Q", RIGHT + RIGHT_FIRST + 9), 1, "value outside the file"),
    "value longer than the file": (put("<I", RIGHT + RIGHT_FIRST), 1009, "value outside the file"),
}


#: What looking up every key of the file finds as well.
ON_THE_WAY = (
    "header that belongs elsewhere",
    "no room for its entries",
    "not a page of the file",
    "an entry that leaves it",
    "no plain value",
    "value outside the file",
)


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_named(name: str) -> None:
    """Every check of the walk finds what it is for, and the message names the file and what to do."""
    change, number, message = DAMAGES[name]
    data = small_file()
    change(data, number)
    words = rf"^a\.lmdb: .*{message}.*; the file is damaged: fetch"
    with pytest.raises(DamagedError, match=words):
        read(data)
    if message in ON_THE_WAY:
        with pytest.raises(DamagedError, match=words):
            list(map(BTree(memoryview(data), "a.lmdb").get, (b"a", b"b", b"c")))


def test_the_largest_value_that_fits_the_file_is_read() -> None:
    """The bound on a value is exact."""
    data = small_file()
    struct.pack_into("<I", data, RIGHT + RIGHT_FIRST, 1008)
    assert read(data)[-1].size == 1008


def test_a_tree_of_circles_ends_at_once() -> None:
    """A root that has itself for every child, 32 levels deep, is not descended 200**32 times."""
    data = small_file()
    data[ROOT : ROOT + 512] = page(2, 1, [node(2, 0, b"")] * 40, 512)
    in_meta("<H", 88 + 6)(data, 32)
    with pytest.raises(DamagedError, match="more children than there are pages"):
        read(data)


def test_the_newer_meta_page_counts() -> None:
    """The transaction number decides, and a tie is the first page's, as in LMDB."""
    for older in (0, 1):
        data = small_file()
        put("<Q", 512 * older + 88 + 32)(data, 77)
        put("<Q", 512 * older + 144)(data, 1)
        put("<Q", 512 * (1 - older) + 144)(data, 9)
        assert len(read(data)) == 3
    data = small_file()
    put("<Q", 512 + 88 + 32)(data, 77)
    in_meta("<Q", 144)(data, 5)
    assert len(read(data)) == 3


# ---------------------------------------------------------------- files cut short or damaged at random


def of_chunks(folder: Path) -> bytes:
    """A file as packer writes them: pages of numbered keys alone, and other keys behind them."""
    path = folder / "chunks"
    with open_file(path) as env, env.begin(write=True) as txn:
        for i in range(400):
            txn.put(chunk_key(i), bytes([i % 251]) * (4080 + i), append=True)
        for name in (b"column/000/checksums", b"header", b"names/bytes"):
            txn.put(name, name * 5, append=True)
    return path.read_bytes()


@pytest.fixture(scope="module", params=["mixed", "chunks"])
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of three levels with values inline and on overflow pages, written in four commits; and one of chunks."""
    if request.param == "chunks":
        return of_chunks(tmp_path_factory.mktemp("chunks"))
    path = tmp_path_factory.mktemp("sound") / "file"
    rng = random.Random(1)
    with open_file(path) as env:
        for part in range(4):
            with env.begin(write=True) as txn:
                for i in range(60):
                    txn.put(b"%04d" % (60 * part + i) * 60, rng.randbytes(rng.choice([0, 50, 900, 3000, 9000])))
        assert env.stat()["depth"] >= 3
    return path.read_bytes()


def test_every_cut_is_found_before_mapping(sound: bytes) -> None:
    """Cut anywhere, by a byte or to nothing, the size check says so."""
    cuts = {*range(0, len(sound), 4096), *range(0, 3 * 4096, 97), len(sound) - 1}
    for size in cuts:
        with pytest.raises(DamagedError, match=r"^a\.lmdb: "):
            BTree(memoryview(sound[: min(size, HEAD_BYTES)]), "a.lmdb", size)
        with pytest.raises(DamagedError, match=r"^a\.lmdb: "):
            BTree(memoryview(sound)[:size], "a.lmdb")


def test_a_longer_file_is_read_as_it_is(sound: bytes) -> None:
    """LMDB itself leaves pages behind the last one after an aborted transaction."""
    assert read(sound + bytes(5000)) == read(sound)


def tree_page_numbers(data: bytes) -> list[int]:
    """Meta, branch and leaf pages, by what their headers say."""
    numbers = range(len(data) // 4096)
    kinds = [struct.unpack_from("<QHH", data, 4096 * n) for n in numbers]
    return [n for n in numbers if kinds[n][0] == n and kinds[n][2] in (1, 2, 8)]


INTERESTING = (0, 1, 2, 3, 7, 8, 15, 16, 127, 128, 254, 255)


def damage(rng: random.Random, data: bytearray, number: int) -> None:
    """Changes a few bytes of a page, mostly where its header, slots and nodes are; or all of it."""
    start = 4096 * number
    kind = rng.random()
    if kind < 0.08:
        data[start : start + 4096] = rng.randbytes(4096)
    elif kind < 0.16:
        other = 4096 * rng.randrange(len(data) // 4096)
        data[start : start + 4096] = data[other : other + 4096]
    else:
        for _ in range(rng.choice([1, 1, 2, 8])):
            at = start + rng.choice([rng.randrange(152), rng.randrange(40), rng.randrange(4096)])
            data[at] = rng.choice([rng.randrange(256), rng.choice(INTERESTING), data[at] ^ (1 << rng.randrange(8))])


def test_random_damage_gives_a_list_or_the_error(sound: bytes) -> None:
    """2,000 damaged files: only values that lie in the file, in order, or `DamagedError`, come out; keys likewise."""
    rng = random.Random(2)
    numbers, keys = tree_page_numbers(sound), [value.key for value in read(sound)[::40]]
    read_well = 0
    for _ in range(2000):
        data = bytearray(sound)
        damage(rng, data, rng.choice(numbers))
        with contextlib.suppress(DamagedError):
            tree = BTree(memoryview(data), "a.lmdb")
            for key in keys:
                with contextlib.suppress(DamagedError):
                    tree.get(key)
        try:
            values = read(data)
        except DamagedError:
            continue
        read_well += 1
        assert not [v for v in values if not (v.offset > 8192 and v.offset + v.size <= len(data))]
        assert not [(a, b) for a, b in itertools.pairwise(values) if not (a.key < b.key)]
    assert 100 < read_well < 1900


@given(data=st.binary(max_size=3000))
@settings(max_examples=100, deadline=None)
def test_any_bytes_behind_sound_meta_pages_give_a_list_or_the_error(data: bytes) -> None:
    """Nothing but `DamagedError` comes out whatever the tree's pages hold."""
    damaged = small_file()
    damaged[ROOT : ROOT + len(data)] = data
    with contextlib.suppress(DamagedError):
        assert len(read(damaged)) == 3
