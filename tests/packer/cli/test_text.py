"""Sizes, times and tables as people write and read them."""

from __future__ import annotations

import io
import sys

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.cli.text import count_text, listing, shorten, size, size_text, table, terminal_width, time_text


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4096", 4096),
        ("10B", 10),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("1k", 1024),
        ("1.5 GiB", 3 * 2**29),
        ("500MB", 500 * 10**6),
        ("2g", 2**31),
        (".5TiB", 2**39),
        (" 7 mib ", 7 * 2**20),
    ],
)
def test_sizes_that_people_write(text, nbytes):
    """Powers of 1024 with i or without a unit, powers of 1000 with B."""
    assert size(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 1", "1XB", "1e3", "0x10", "nan", "1GiBs"])
def test_what_is_no_size(text):
    """Anything else is refused."""
    with pytest.raises(click.BadParameter, match="is not a size"):
        size(text)


@given(st.integers(0, 2**62))
def test_size_text_says_the_size(nbytes):
    """What is shown differs from the size by half a unit of its third digit at most, and is short."""
    text = size_text(nbytes)
    assert len(text) <= 7
    assert abs(size(text) - nbytes) <= nbytes * 0.0051


def test_size_and_time_texts():
    """Three digits that count; tenths of a second, minutes, hours."""
    sizes = (0, 999, 999.7, 12345, 999_499, 999_600, 10**9)
    assert [size_text(n) for n in sizes] == ["0 B", "999 B", "1.00 kB", "12.3 kB", "999 kB", "1.00 MB", "1.00 GB"]
    assert [time_text(s) for s in (0.44, 59.6, 61, 3723)] == ["0.4 s", "1:00 min", "1:01 min", "1:02:03"]
    assert [count_text(1, "shard"), count_text(2400, "shard")] == ["1 shard", "2,400 shards"]


def test_nothing_is_cut_in_a_pipe(monkeypatch):
    """Without a terminal there is no width, unless COLUMNS says one."""
    monkeypatch.setattr("sys.stdout", io.StringIO())
    for said, width in (("100", 100), ("0", sys.maxsize), ("wide", sys.maxsize)):
        monkeypatch.setenv("COLUMNS", said)
        assert terminal_width() == width
    monkeypatch.delenv("COLUMNS")
    assert table(("field",), [["a" * 500]])[1] == "a" * 500


def test_tables_are_cut_to_the_width(monkeypatch):
    """The widest column gives way; numbers stand to the right."""
    monkeypatch.setenv("COLUMNS", "30")
    lines = table(("field", "bytes"), [["a" * 50, "1"], ["b", "1000"]], ("bytes",))
    assert lines == [
        "field                    bytes",
        "aaaaaaaaaaaaaaaaaaaa...      1",
        "b                         1000",
    ]
    assert table(("a", "b"), [["x", "y"]]) == ["a  b", "x  y"]


def test_listings_are_wrapped_and_printable(monkeypatch):
    """A value too long goes on in the next line, and control characters of a file name do not reach the terminal."""
    monkeypatch.setenv("COLUMNS", "16")
    assert listing([("a", "x" * 12 + " zz"), ("name", "")]) == ["a     xxxxxxxxxx", "      xx zz", "name"]
    monkeypatch.setenv("COLUMNS", "1000")
    assert listing([("a", "x " * 200)]) == ["a  " + "x " * 199 + "x"]
    assert shorten("\x1b[31mred\udcff", 80) == "\\x1b[31mred\\udcff"
