"""names.lmdb: from names to numbers and back."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.errors import DamagedError, MissingNameError, SourceError
from packer.format import (
    ColumnTotals,
    Field,
    FileEntry,
    Manifest,
    Names,
    NamesEntry,
    NameTable,
    ShardEntry,
    name_bytes,
    names_bytes,
    write_names,
)
from packer.format.names import MAX_NAME
from packer.packing import make_plan
from packer.sources import SampleSource


def opened(path: Path, names: list[str]) -> NameTable:
    write_names(path, [name.encode() for name in names])
    return NameTable(path, entry(path))


def entry(path: Path) -> FileEntry:
    return FileEntry(file=path.name, bytes=path.stat().st_size, digest="0" * 32)


texts = st.text(min_size=1, max_size=120).filter(lambda t: len(t.encode()) <= MAX_NAME and "\0" not in t)


@given(names=st.lists(texts, unique=True, max_size=40), data=st.data())
@settings(max_examples=60)
def test_names_lead_to_numbers_and_back(names: list[str], data: st.DataObject) -> None:
    """Any names of any script, in any order, one by one and as a batch with repeats."""
    with tempfile.TemporaryDirectory() as folder:
        table = opened(Path(folder, "names.lmdb"), names)
        try:
            assert [table.name(number) for number in range(len(names))] == names
            wanted = data.draw(st.lists(st.integers(0, len(names) - 1), max_size=10)) if names else []
            assert [table.number(names[number]) for number in wanted] == wanted
            assert [table.number(name) for name in names] == list(range(len(names)))
            other = data.draw(texts.filter(lambda t: t not in names))
            assert table.number(other) is None
        finally:
            table.close()


def test_keys_and_values_of_the_file(tmp_path: Path) -> None:
    """Literal bytes: `#` and the number big-endian, `=` and the name; in LMDB's order."""
    opened(tmp_path / "a", ["b", "ä", "a"]).close()
    env = lmdb.open(str(tmp_path / "a"), subdir=False, readonly=True, lock=False, lib_version=0)
    with env, env.begin() as txn:
        assert list(txn.cursor()) == [
            (b"#\0\0\0\0\0\0\0\0", b"b"),
            (b"#\0\0\0\0\0\0\0\x01", b"\xc3\xa4"),
            (b"#\0\0\0\0\0\0\0\x02", b"a"),
            (b"=a", b"\x02\0\0\0\0\0\0\0"),
            (b"=b", b"\0\0\0\0\0\0\0\0"),
            (b"=\xc3\xa4", b"\x01\0\0\0\0\0\0\0"),
        ]


def test_a_table_has_the_size_that_was_planned(tmp_path: Path) -> None:
    """Names in no order give a file of the size that `names_bytes` says; two alike are refused, however far apart."""
    listed = [f"sample {n * 7919 % 5000:0{1 + n % 300}}".encode() for n in range(5000)]
    write_names(tmp_path / "one", listed)
    assert (tmp_path / "one").stat().st_size == names_bytes(listed)
    with pytest.raises(SourceError, match="samples 7 and 5000 have the same name"):
        write_names(tmp_path / "twice", [*listed, listed[7]])


def test_a_missing_name_is_named(tmp_path: Path) -> None:
    """The first of a batch that is missing stands in the message, a KeyError; text that is no Unicode is missing."""
    table = opened(tmp_path / "names", ["a", "b"])
    assert [table.number(name) for name in ("a", "c", "", "\udc80", "b")] == [0, None, None, None, 1]
    table.close()
    manifest = example(("names",), 2)
    names = Names(tmp_path, manifest)
    with pytest.raises(MissingNameError, match="'c'"):
        names.numbers(["a", "c", "d"])
    with pytest.raises(KeyError):
        names.numbers([""])
    names.close()


def test_several_tables_are_one(tmp_path: Path) -> None:
    """Each table names the samples after those of the one before, from 0 on."""
    for file, own in (("first", ["d", "b", "c"]), ("second", ["a"]), ("third", ["f", "e"])):
        write_names(tmp_path / file, own)
    names = Names(tmp_path, example(("first", "second", "third"), 3, 1, 2))
    numbers = names.numbers(["e", "a", "d", "c", "f", "a"])
    assert (numbers.dtype, numbers.tolist()) == (np.int64, [5, 3, 0, 2, 4, 3])
    assert [names.name(number) for number in range(6)] == ["d", "b", "c", "a", "f", "e"]
    assert names.numbers([]).tolist() == []
    with pytest.raises(MissingNameError, match="'x'"):
        names.numbers(["e", "x"])
    with pytest.raises(DamagedError, match=r"third: sample 6 has no name"):
        names.name(6)
    for wanted in (["x", "e", "b"], [*"xebcda", "y"]):
        assert set(names.taken(wanted)) == set(wanted) - {"x", "y"}
    assert names.difference(2, [b"c", b"a", b"f"]) is None
    assert "sample 4 has another name" in str(names.difference(3, [b"a", b"e"]))
    names.close()


def example(files: Sequence[str], *samples: int) -> Manifest:
    """The manifest of a dataset with these tables of names."""
    first, *more = ({"file": file, "bytes": 12288, "digest": "0" * 32} for file in files)
    tables = [NamesEntry(**each, samples=count) for each, count in zip(more, samples[1:], strict=True)]
    field = Field(name="x", dtype="uint8")
    shard = ShardEntry(file="shards/0.lmdb", bytes=4096, digest="0" * 32, samples=sum(samples))
    return Manifest(
        tool="test",
        samples=sum(samples),
        fields=(field,),
        shards=(shard,),
        names=FileEntry(**first),
        more_names=tuple(tables),
        columns={"x": ColumnTotals(raw=0, stored=0)},
        origin={},
    )


def test_a_name_too_long_is_missing_and_not_its_beginning(tmp_path: Path) -> None:
    """The longest name is found; the same with a byte more is not taken for it."""
    table = opened(tmp_path / "names", ["x" * MAX_NAME])
    assert table.number("x" * MAX_NAME) == 0
    assert table.number("x" * (MAX_NAME + 1)) is None
    table.close()


def test_the_two_kinds_of_keys_do_not_meet(tmp_path: Path) -> None:
    """A name that looks like the key of a number is still only a name."""
    tricky = "#" + "\1" * 8
    table = opened(tmp_path / "names", [tricky, "=a", "a"])
    assert [table.number(name) for name in (tricky, "=a", "a")] == [0, 1, 2]
    assert [table.name(n) for n in range(3)] == [tricky, "=a", "a"]
    table.close()


def test_a_nul_in_a_name_of_another_writer_is_damage(tmp_path: Path) -> None:
    """No file and no path within HDF5 can have such a name: it is never given out."""
    table = opened(tmp_path / "names", ["a", "b\0c"])
    assert table.name(0) == "a"
    with pytest.raises(DamagedError, match="NUL"):
        table.name(1)
    with pytest.raises(DamagedError, match="NUL"):
        list(table.in_order())
    assert "NUL" in str(table.difference(1, b"b\0c"))
    table.close()


def test_two_samples_of_one_name_are_refused(tmp_path: Path) -> None:
    """Both numbers and the name stand in the message; nothing is written."""
    with pytest.raises(SourceError, match="samples 0 and 2 have the same name, 'ä'"):
        write_names(tmp_path / "names", ["ä".encode(), b"b", "ä".encode()])
    assert not (tmp_path / "names").exists()


def test_a_missing_or_truncated_file_is_an_error(tmp_path: Path) -> None:
    """The size is checked before LMDB maps the file."""
    path = tmp_path / "names"
    opened(path, [f"n{i}" for i in range(500)]).close()
    good = entry(path)
    data = path.read_bytes()
    for wrong in (data[:-4096], data + b"\0", b""):
        path.write_bytes(wrong)
        with pytest.raises(DamagedError, match="bytes"):
            NameTable(path, good)
    path.unlink()
    with pytest.raises(DamagedError, match="missing"):
        NameTable(path, good)


def test_a_file_of_the_right_size_that_is_not_lmdb(tmp_path: Path) -> None:
    """Other bytes are a DamagedError that names the file."""
    path = tmp_path / "names"
    path.write_bytes(b"x" * 16384)
    with pytest.raises(DamagedError, match="names"):
        NameTable(path, entry(path))


def test_names_and_numbers_that_do_not_go_together_are_damage(tmp_path: Path) -> None:
    """Every sample has a name where there are names, and no name leads to a sample that is not there."""
    table = opened(tmp_path / "names", ["a", "b"])
    with pytest.raises(DamagedError, match="sample 2 has no name"):
        table.name(2)
    table.close()
    names = NameTable(tmp_path / "names", entry(tmp_path / "names"), samples=1)
    assert names.number("a") == 0
    with pytest.raises(DamagedError, match="sample 1 of 1"):
        names.number("b")
    names.close()


@pytest.mark.parametrize("name", ["a", "n" * 510, "é" * 255, "a/b c", "\U0001f600" * 127])
def test_names_that_fit(name: str) -> None:
    """From 1 to 510 bytes of any text."""
    assert name_bytes(name, 0) == name.encode()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "its name '' has 0 bytes"),
        ("n" * 511, r"its name 'n{40}'\.\.\. has 511 bytes; 1 to 510 are allowed"),
        ("é" * 256, r"its name 'é{40}'\.\.\. has 512 bytes"),
        ("\U0001f600" * 128, "its name .* has 512 bytes"),
        ("a\0b", r"its name 'a\\x00b' has a NUL in it; give it another name"),
        ("picture \udcff", r"its name 'picture \\udcff' cannot be stored as UTF-8: its character 8"),
    ],
)
def test_names_that_do_not(name: str, said: str) -> None:
    """The error says which sample, and what is wrong with its name."""
    with pytest.raises(SourceError, match=f"sample 7: {said}"):
        name_bytes(name, 7)


class Named(SampleSource):
    """Samples with names, none of which may be read."""

    def __init__(self, names: list[str]) -> None:
        super().__init__([{"a": 1}] * len(names))
        self.names = names

    def read(self) -> NoReturn:
        raise AssertionError("a sample was read")


def test_a_name_too_long_is_told_before_anything_is_read() -> None:
    """The names are known from the start, so nobody packs for hours to be told at the end."""
    with pytest.raises(SourceError, match="sample 1: its name"):
        make_plan(Named(["a", "n" * 600, "b"]), "auto", None)


def test_no_error_is_worded_for_a_good_name() -> None:
    """A million names are checked one by one, and each costs no more than its bytes."""

    class Name(str):
        __slots__ = ()

        def __repr__(self) -> str:
            raise AssertionError("it is shown in no message")

    assert name_bytes(Name("good"), 0) == b"good"
