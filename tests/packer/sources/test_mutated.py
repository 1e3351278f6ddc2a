"""Small PNG, PLY and HDF5 files with something changed: equal to what the reference library reads, or a PackerError.

`MUTATIONS=5000 pytest tests/packer/sources/test_mutated.py` tries more than the suite does.
"""

from __future__ import annotations

import io
import os
import random
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
from picture_files import chunk
from PIL import Image
from plyfile import PlyData, PlyElement
from real_files import real_files

from packer.errors import PackerError, SourceError
from packer.sources import Block, Source, open_sources
from packer.sources.ply import Rule, opened, rules_of
from packer.workers import Limits, call_guarded

COUNT = int(os.environ.get("MUTATIONS", "200"))
#: Larger real files would make the suite slow.
MOST_BYTES = 12_000


def real(pattern: str) -> list[bytes]:
    """Real files that fit a pattern."""
    return [p.read_bytes() for p in real_files(pattern) if p.stat().st_size <= MOST_BYTES]


def open_one(path: str) -> Source:
    return open_sources([path])


def changed(data: bytes, rng: random.Random) -> bytes:
    """`data` with some bytes changed, cut off, added, or copied to another place."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = rng.randrange(len(made))
        match rng.randrange(8):
            case 0:
                del made[place:]
            case 1:
                made[place:place] = rng.randbytes(rng.randrange(1, 9))
            case 2:
                del made[place : place + rng.randrange(1, 9)]
            case 3:
                other = rng.randrange(len(made))
                made[place : place + 8] = made[other : other + 8]
            case 4:
                made[place] = rng.choice((0, 1, 0x0A, 0x20, 0x39, 0x7F, 0x80, 0xFF))
            case _:
                made[place] ^= 1 << rng.randrange(8)
        if not made:
            break
    return bytes(made)


def packed_ones(
    path: Path, good: list[bytes], change: Callable[[bytes, random.Random], bytes], opened: Callable[[str], Source]
) -> Iterator[tuple[str, bytes, Source, Block]]:
    """Change good files; yield those that are packed: words for errors, the file, and what is packed of it."""
    rng, packed = random.Random(0), 0
    for number in range(COUNT):
        data = change(rng.choice(good), rng)
        path.write_bytes(data)
        try:
            source = opened(str(path))
            (block,) = source.read()
        except PackerError:
            continue
        packed += 1
        yield f"change {number}", data, source, block
    assert packed > COUNT // 10


# ---------------------------------------------------------------- PNG


def pngs() -> list[bytes]:
    """A picture of every kind, made here; and real ones."""
    rng, found = np.random.default_rng(0), []
    for shape, dtype, mode in (
        ((7, 9), "u1", "L"), ((7, 9), "u1", "P"), ((7, 9), "u1", "1"), ((7, 9, 2), "u1", "LA"),
        ((7, 9, 3), "u1", "RGB"), ((7, 9, 4), "u1", "RGBA"), ((7, 9), "u2", "I;16"),
    ):  # fmt: skip
        pixels = rng.integers(0, 256 if dtype == "u1" else 65536, shape, dtype=dtype)
        picture = Image.fromarray(pixels)
        file = io.BytesIO()
        (picture.convert(mode) if mode in ("P", "1") else picture).save(file, "PNG")
        found.append(file.getvalue())
    return found + real("png_*/**/*.png")


def chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Type and data of the chunks of a sound PNG."""
    found, at = [], 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        found.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    return found


def joined(parts: list[tuple[bytes, bytes]]) -> bytes:
    """A PNG of chunks, with right checksums."""
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, body) for kind, body in parts)


def changed_png(data: bytes, rng: random.Random) -> bytes:
    """A PNG with bytes changed; or, with right checksums, its chunks or scan lines changed, moved, split or added."""
    try:
        parts = chunks(data)
    except struct.error:
        return changed(data, rng)
    number = rng.randrange(len(parts))
    kind, body = parts[number]
    match rng.randrange(6):
        case 0:
            parts[number] = kind, changed(body, rng) if body else b"\0"
        case 1:
            parts.insert(rng.randrange(len(parts)), parts[number] if rng.random() < 0.5 else parts.pop(number))
        case 2:
            names = (b"tEXt", b"gAMA", b"tRNS", b"PLTE", b"sBIT", b"bKGD", b"eXIf", b"iCCP", b"ABCD", b"zzZz")
            parts.insert(rng.randrange(1, len(parts)), (rng.choice(names), rng.randbytes(rng.choice((0, 1, 2, 6, 30)))))
        case 3 | 4:
            pixels = b"".join(b for k, b in parts if k == b"IDAT")
            lines = pixels
            if rng.random() < 0.7:
                try:
                    lines = zlib.compress(changed(zlib.decompress(pixels), rng))
                except zlib.error:
                    return changed(data, rng)
            cuts = sorted(rng.randrange(len(lines) + 1) for _ in range(rng.randrange(4)))
            pieces = [lines[a:b] for a, b in zip([0, *cuts], [*cuts, len(lines)], strict=True)]
            first = next((i for i, (k, _) in enumerate(parts) if k == b"IDAT"), 1)
            rest = [part for part in parts if part[0] != b"IDAT"]
            parts = rest[:first] + [(b"IDAT", piece) for piece in pieces] + rest[first:]
        case _:
            return changed(data, rng)
    return joined(parts)


def pillows(data: bytes) -> np.ndarray | None:
    """The picture as Pillow reads it, palettes as colours; None where it does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(data)) as picture:
                if picture.mode == "P":
                    picture = picture.convert("RGBA" if "transparency" in picture.info else "RGB")
                found = np.asarray(picture.convert("L") if picture.mode == "1" else picture)
        except Exception:
            return None
    return found[:, :, None] if found.ndim == 2 else found


def only_pixels(data: bytes) -> list[tuple[bytes, bytes]]:
    """The chunks that pixels come from, with a right Adler-32, which kornia_rs does not compare."""
    parts = [part for part in chunks(data) if part[0][0] < 0x60 or part[0] == b"tRNS"]
    pixels = b"".join(body for kind, body in parts if kind == b"IDAT")
    lines = zlib.decompressobj(-15).decompress(pixels[2:])
    first = next(i for i, (kind, _) in enumerate(parts) if kind == b"IDAT")
    rest = [part for part in parts if part[0] != b"IDAT"]
    return [*rest[:first], (b"IDAT", zlib.compress(lines)), *rest[first:]]


def test_changed_png(tmp_path) -> None:
    """What is packed of a changed PNG are the pixels that Pillow reads; colours of 16 bits agree in the upper 8."""
    for change, data, _, block in packed_ones(tmp_path / "a.png", pngs(), changed_png, open_one):
        found, expected = np.asarray(block["image"][0]), pillows(data)
        if expected is None:  # Damage next to the pixels alone, which Pillow does not pass over.
            expected = pillows(joined(only_pixels(data)))
        assert expected is not None, change
        if found.dtype == np.uint16 and expected.dtype == np.uint8:
            found = (found >> 8).astype(np.uint8)
            expected = expected[:, :, [0, 3]] if found.shape[2] == 2 else expected
        np.testing.assert_array_equal(found, expected, change)


# ---------------------------------------------------------------- PLY


def plys() -> list[bytes]:
    """A cloud and a mesh, text and binary, made here; and real ones."""
    vertex = np.zeros(4, [("x", "f4"), ("y", "f4"), ("z", "f8"), ("red", "u1"), ("n", "i2")])
    vertex["x"], vertex["z"], vertex["red"], vertex["n"] = 1.5, [1, -2, 0.1, 1e300], [0, 9, 128, 255], range(4)
    face = np.empty(2, [("vertex_indices", "O"), ("q", "u1")])
    face["vertex_indices"] = [np.array([0, 1, 2], "i4"), np.array([0, 1, 2, 3], "i4")]
    face["q"] = 7
    found = []
    for text, order in ((True, "="), (False, "<"), (False, ">")):
        elements = [PlyElement.describe(vertex, "vertex"), PlyElement.describe(face, "face")]
        for some in (elements[:1], elements):
            file = io.BytesIO()
            PlyData(some, text=text, byte_order=order, comments=["made here"]).write(file)
            found.append(file.getvalue())
    return found + real("ply_*/**/*.ply")


def plyfiles(path: Path) -> PlyData | None:
    """The file as plyfile reads it; None where it does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return PlyData.read(str(path))
        except Exception:
            return None


def assert_holds(sample: dict[str, np.ndarray], rule: Rule, column: int, values: np.ndarray, change: str) -> None:
    """The field that a property went into holds the values that plyfile has for it."""
    array = sample[rule.field]
    if not rule.is_list:
        array = array[:, column] if len(rule.properties) > 1 else array
        np.testing.assert_array_equal(array, values, change)
        return
    sizes = sample[f"{rule.field}_size"] if array.ndim == 1 else np.full(len(array), array.shape[1])
    assert sizes.tolist() == [len(row) for row in values], change
    np.testing.assert_array_equal(array.ravel(), np.concatenate([array[:0].ravel(), *values]), change)


def test_changed_ply(tmp_path) -> None:
    """What is packed of a changed PLY file are the values of its properties as plyfile reads them."""
    path = tmp_path / "a.ply"
    for change, _, _, block in packed_ones(path, plys(), changed, open_one):
        expected = plyfiles(path)
        if expected is None:
            continue
        sample = {name: arrays[0] for name, arrays in block.items()}
        with opened(str(path)) as (header, _):
            names = [element.name for element in header.kinds]
            for rule in rules_of(header.kinds).values():
                # By place: plyfile keeps the zero byte that a name may end in.
                table = expected.elements[names.index(rule.element)].data
                for column, prop in enumerate(rule.properties):
                    assert_holds(sample, rule, column, table[table.dtype.names[prop]], change)


# ---------------------------------------------------------------- HDF5


def hdf5s(folder: Path) -> list[bytes]:
    """Datasets of many kinds in contiguous, chunked and compressed layouts, made here; and real ones."""
    rng, path = np.random.default_rng(0), folder / "made.h5"
    found = []
    for options in (
        {},
        {"chunks": True},
        {"compression": "gzip", "shuffle": True},
        {"chunks": True, "fletcher32": True},
    ):
        for version in ("earliest", "latest"):
            with h5py.File(path, "w", libver=version) as file:
                file.create_dataset("x", data=rng.standard_normal((6, 3)).astype("f4"), **options)
                file.create_dataset("g/y", data=np.arange(6, dtype=">i2"), **options)
                file.attrs["made"] = "here"
            found.append(path.read_bytes())
    with h5py.File(path, "w") as file:
        file["text"] = np.array(["a", "bc", ""], h5py.string_dtype())
        file["pair"] = np.array([(1, 2.5), (3, 4), (5, 6)], [("p", "i4"), ("q", "f8")])
        rows = file.create_dataset("rows", (3,), h5py.vlen_dtype("u2"))
        for i in range(3):
            rows[i] = np.arange(i)
    return [*found, path.read_bytes(), *real("h5_*/**/*.h*5"), *real("h5_*/**/*.mat"), *real("h5_*/**/*.nc")]


def members(file: h5py.File, field: str) -> np.ndarray:
    """The values of a field as h5py gives them."""
    found = file
    for step in field.split("."):
        found = found[step]
        found = found[()] if isinstance(found, h5py.Dataset) else found
    return np.asarray(found)


def packed_as_h5py_reads(path: str) -> str | None:
    """How a file is packed otherwise than h5py reads it; None where it is not."""
    source = open_one(path)
    blocks = list(source.read())
    with h5py.File(path, "r") as file:
        for spec in source.fields:
            expected = members(file, spec.name)
            found = [value for block in blocks for value in block[spec.name]]
            if spec.kind == "text":
                same = found == [text.decode() for text in expected]
            else:
                same = len(found) == len(expected) and all(
                    np.array_equal(a, np.asarray(b), equal_nan=np.asarray(b).dtype.kind in "fc")
                    for a, b in zip(found, expected, strict=True)
                )
            if not same:
                return f"field {spec.name}"
    return None


def test_changed_hdf5(tmp_path) -> None:
    """What is packed of a changed HDF5 file is what h5py reads; a crash of the library takes another process down."""
    good, rng = hdf5s(tmp_path), random.Random(0)
    paths = []
    for number in range(COUNT):
        path = tmp_path / f"{number}.h5"
        path.write_bytes(changed(rng.choice(good), rng))
        paths.append(str(path))
    packed = 0
    for path, outcome in zip(paths, call_guarded(packed_as_h5py_reads, paths, Limits(10, 2**30)), strict=True):
        assert outcome is None or isinstance(outcome, SourceError), (path, outcome)
        packed += outcome is None
    assert packed > COUNT // 10
