"""PLY headers: what they declare, where the body begins, and what is refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from packer.errors import SourceError
from packer.sources.ply import Element, Property, opened
from packer.sources.ply.header import parse_header

HEADER = (
    b"ply",
    b"format binary_little_endian 1.0",
    b"comment made by hand",
    b"obj_info  two  blanks ",
    b"element vertex 2",
    b"property float32 x",
    b"property list uchar int ids",
    b"end_header",
)


def test_everything_declared_is_kept() -> None:
    """Format, elements, counts and types in either naming style come out as written."""
    header = parse_header(b"\n".join(HEADER) + b"\n", "a.ply")
    assert header.format == "binary_little_endian"
    assert header.elements == (Element("vertex", (Property("x", "float32"), Property("ids", "int32", "uint8")), 2),)
    assert (header.lines, header.body) == (len(HEADER), len(b"\n".join(HEADER)) + 1)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_headers_that_differ_in_counts_alone(end: bytes) -> None:
    """Each has its own counts, also where the line of an element is written in an odd way."""
    for line in (b"element vertex %d", b" element  vertex\t%d ", b"element vertex %d\x0b", b"element vertex 0%d"):
        for count in (0, 7, 10**14 - 1):
            lines = [*HEADER[:4], line % count, *HEADER[5:7], b"element face 3", b"property int a", HEADER[7]]
            header = parse_header(end.join(lines) + end, "a.ply")
            assert [(e.name, e.count, len(e.properties)) for e in header.elements] == [
                ("vertex", count, 2),
                ("face", 3, 1),
            ]


def test_words_stand_between_blanks_and_tabs() -> None:
    """Lines that mix blanks and tabs say the same, and blank ones nothing."""
    lines = [line.replace(b" ", b"\t", 1) for line in HEADER]
    mixed = parse_header(b"\n".join([*lines[:4], b"", b"comment a\tb", *lines[4:]]) + b"\n", "a.ply")
    plain = parse_header(b"\n".join(HEADER) + b"\n", "a.ply")
    assert replace(mixed, body=plain.body, lines=plain.lines) == plain


def test_old_comments() -> None:
    """A Latin-1 comment, or one that says end_header, does not stop the reader."""
    data = b"\n".join([*HEADER[:2], b"comment caf\xe9", b"comment end_header", *HEADER[2:]]) + b"\n"
    assert parse_header(data, "a.ply").body == len(data)


def test_header_longer_than_the_first_read(tmp_path) -> None:
    """A header of any length up to the limit is read whole, its end across a read boundary too."""
    for pad in range(4060, 4100):
        path = tmp_path / "a.ply"
        comment = b"comment " + b"x" * (pad - 200)
        data = b"\r\n".join([*HEADER[:2], comment, *HEADER[2:]]) + b"\r\n"
        path.write_bytes(data + b"\n\n\n")
        with opened(str(path)) as (header, _file):
            assert header.body == len(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-LFS"),
        (b"\x89PNG\r\n\x1a\n", "not a PLY"),
        (b"ply", "not a PLY"),
        (b"plyx\n", "not a PLY"),
        (b"ply x\n", "line 1"),
        (b"ply\nformat ascii 1.0\nelement vertex 0\n", "end_header"),
        (b"ply\nelement vertex 0\nend_header\n", "format"),
        (b"ply\nformat ascii 2.0\n", "line 2: .format ascii 2.0. is wrong"),
        (b"ply\nformat ascii 1.0\nformat ascii 1.0\n", "second format"),
        (b"ply\nformat ascii 1.0\nelement vertex -1\n", "COUNT"),
        (b"ply\nformat ascii 1.0\nelement vertex 1e3\n", "COUNT"),
        (b"ply\nformat ascii 1.0\nelement vertex \xc2\xb2\n", "COUNT"),
        (b"ply\nformat ascii 1.0\nelement vertex 99999999999999999999\n", "COUNT"),
        (b"ply\nformat ascii 1.0\nelement vertex " + b"9" * 5000 + b"\n", "COUNT"),
        (b"ply\nformat ascii 1.0\nelement vertex 1\nelement vertex 1\n", "second element"),
        (b"ply\nformat ascii 1.0\nproperty float x\n", "of an element"),
        (b"ply\nformat ascii 1.0\nElemnt vertex 1\n", "'Elemnt' is not known; comment, obj_info, format"),
        (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty half x\n", "'half' is not known"),
        (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty list float int x\n", "integer"),
        (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x y\n", "property TYPE NAME"),
        (b"ply\nformat ascii 1.0\nelement vertex 1\nend_header\n1\n", "no properties"),
        (
            b"ply\nformat ascii 1.0\nelement vertex 1\n" + b"".join(b"property int a%d\n" % i for i in range(5000)),
            "more than 4096",
        ),
    ],
)
def test_wrong_headers_are_refused(data: bytes, reason: str) -> None:
    """A wrong header is an error that names the file and what is wrong."""
    with pytest.raises(SourceError, match=reason) as caught:
        parse_header(data, "bad.ply")
    assert caught.value.path == "bad.ply"
