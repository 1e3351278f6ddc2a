"""A second reader of packed datasets, written from packer/format/FORMAT.md alone: where to begin in another language.

It imports nothing of ours. It reads whole shards and single samples, so it is slow. "Section 5" is one of FORMAT.md.

    dataset = Dataset("div2k.packed")
    dataset.read(3, "hr")                     # one field of sample 3: an array, or a str where the field is text
    dataset.number("0004"), dataset.name(3)   # the table of names in both directions

Digests and checksums are compared if a module with `xxh3_64_intdigest` and `xxh3_128_hexdigest` is given, as xxhash is.
"""

from __future__ import annotations

import io
import json
import math
import re
import struct
import zipfile
import zlib
from bisect import bisect_right
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import av
import lmdb
import lz4.block
import numpy as np
import zstandard
from numcodecs.blosc import Blosc
from PIL import Image

NUMBERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
DTYPES = ("bool", *NUMBERS, "float16", "float32", "float64", "complex64", "complex128")

# JSON as section 3 describes it, for `fits`: members with "?" may be absent, "*" is any other; a tuple gives choices.
FILE = {"file": str, "bytes": int, "digest": str}
FIELD = {"name": str, "dtype": DTYPES, "kind?": ("array", "image", "text"), "shape?": [(int, None)]}
FIELD |= {"codec?": [{"id": str, "*": object}], "frame?": ({"samples": int}, {"rows": int})}
DEFAULTS = {"kind": "array", "shape": [], "codec": [], "frame": {"samples": 1}}
FIGURES = {"count": int, "nan?": int, "inf?": int} | dict.fromkeys(("min", "max", "mean", "std"), (float, None))
MANIFEST = {"format": "packed dataset", "version": 1, "tool": str, "samples": int, "fields": [FIELD]}
MANIFEST |= {"shards": [FILE | {"samples": int, "rejected?": int, "index?": (str, None)}], "names?": (FILE, None)}
MANIFEST |= {"more_names?": [FILE | {"samples": int}], "origin": {"*": object}}
MANIFEST |= {"columns": {"*": {"raw": int, "stored": int, "scale?": [object]}}, "planned_bytes?": (int, None)}
MANIFEST |= {"stats?": {"*": {"all": FIGURES, "channels?": [FIGURES]}}, "splits?": {"*": [[int]]}, "classes?": [str]}
MANIFEST |= {"left_out?": (FILE, None), "constants?": (FILE, None), "runs?": {"*": str}, "digest": str}
MANIFEST |= {"commands?": [{"verb": str, "sources": [str], "options?": {"*": object}, "out?": str}]}
HEADER = {"format": "packed dataset", "version": 1, "fields": [FIELD], "shard": int, "samples": int}
HEADER |= {"named": bool, "origin": {"*": object}}


class FormatError(ValueError):
    """A file is not as FORMAT.md says. A library that finds this first raises its own error."""


def check(good: bool, what: str) -> None:
    if not good:
        raise FormatError(what)


def fits(value: Any, pattern: Any) -> bool:
    """Whether a value of JSON is as a pattern says; no count is negative, true is no number, 3.0 is no integer."""
    if isinstance(pattern, tuple):
        return any(fits(value, choice) for choice in pattern)
    if isinstance(pattern, list):
        return isinstance(value, list) and all(fits(one, pattern[0]) for one in value)
    if isinstance(pattern, dict):
        given = isinstance(value, dict) and {name for name in pattern if name[-1] not in "?*"} <= set(value)
        any_other = pattern.get("*", ())
        return given and all(fits(v, pattern.get(k, pattern.get(k + "?", any_other))) for k, v in value.items())
    if isinstance(pattern, type):
        numbers = {int: type(value) is int and value >= 0, float: type(value) in (int, float)}
        return numbers.get(pattern, isinstance(value, pattern))
    return type(value) is type(pattern) and bool(value == pattern)


def as_json(data: bytes, pattern: Any, what: str) -> Any:
    """Return what JSON says, provided that it is as the pattern says."""
    found = json.loads(data.decode(), parse_constant=lambda constant: check(False, f"{what}: {constant}"))
    check(fits(found, {"format": "packed dataset", "version": 1, "*": object}), f"{what}: another format or version")
    check(fits(found, pattern), f"{what}: its members, or the types of some")
    return found


def is_name(name: str) -> bool:
    """Whether a field may have this name."""
    good = name.isprintable() and name == name.strip() and not set("=/\\") & set(name)
    return good and 1 <= len(name.encode()) <= 255


class Field:
    """A field as section 3 describes it."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.described = DEFAULTS | found
        self.name, self.kind, self.shape = (self.described[name] for name in ("name", "kind", "shape"))
        self.dtype = np.dtype(found["dtype"]).newbyteorder("<")
        self.ragged = [axis for axis, length in enumerate(self.shape) if length is None]
        ((self.rule, self.count),) = self.described["frame"].items()
        self.encoded, self.stages = bool(self.described["codec"]), [codec["id"] for codec in self.described["codec"]]
        whole = self.encoded and not self.ragged and self.rule == "samples" and self.count > 1
        check(is_name(self.name), f"the field's name {self.name!r}")
        axes = {"image": len(self.shape) == 3, "text": (self.dtype, self.shape) == (np.uint8, [None])}
        check(axes.get(self.kind, True), f"{self.name}: dtype or shape of an {self.kind}")
        check(len(self.shape) <= 16 and len(self.stages) <= 8, f"{self.name}: too many axes or codecs")
        check(self.nbytes([length or 1 for length in self.shape]) <= 2**48, f"{self.name}: too large")
        check(1 <= self.count <= 2**32 and (self.rule, self.shape) != ("rows", []), f"{self.name}: its frames")
        check(not whole or self.count * self.nbytes(self.shape) <= 2**24, f"{self.name}: frames of too many bytes")
        #: For `jpeg`: whether the last axis is no channels.
        self.is_gray = self.kind != "image" and self.shape[-1:] not in ([1], [3])
        self.filter = self.stages.pop(0) if self.stages[:1] in (["photo"], ["decimal"]) else None
        self.digits = self.described["codec"][0].get("digits") if self.filter == "decimal" else 0
        good = self.filter != "photo" or (self.kind == "image" and self.dtype in (np.uint8, np.uint16))
        good &= self.filter != "decimal" or (self.dtype in (np.float32, np.float64) and self.digits in range(16))
        if "jpeg" in self.stages:
            config, steps = self.described["codec"][0], len(self.shape) - (2 if self.is_gray else 3)
            good &= self.dtype == np.uint8 and (self.is_gray or self.shape[-1] in (1, 3)) and steps in (0, 1)
            good &= config.keys() <= {"id", "quality"} and config.get("quality", 1) in range(1, 101)
            good &= len(self.stages) == 1 and self.described["frame"] == {"rows" if steps else "samples": 1}
        if "h264" in self.stages:
            good &= self.kind == "array" and self.dtype == np.uint8 and len(self.shape) == 4 and self.shape[3] == 3
            good &= len(self.stages) == 1 and self.described["frame"] == {"rows": 8}
        check(good and not {"pickle", "photo", "decimal"} & set(self.stages), f"{self.name}: codecs {self.stages}")

    def nbytes(self, shape: list[int]) -> int:
        return int(self.dtype.itemsize) * math.prod(shape)

    def array(self, piece: bytes, shape: list[int]) -> Any:
        """Return a sample, or a band of one: section 6, step 4."""
        values = np.frombuffer(piece, self.dtype).reshape(shape)
        if self.filter == "photo":
            values = np.cumsum((values >> 1) ^ -(values & 1), axis=0, dtype=self.dtype)
            if shape[2] in (3, 4):
                values[..., [0, 2]] += values[..., [1]]
        return values

    def decoded(self, stored: bytes, raw: int, shape: list[int]) -> bytes:
        """Return the raw bytes of an encoded frame, which holds the sample or rows of this shape, or others besides.

        Section 6, step 3. One codec besides a filter is enough here."""
        codec, found = " and ".join(self.stages), b""
        wrong = f"{self.name}: a frame of {codec} that is not one of {raw} bytes"
        if codec in ("lz4", "lz4hc"):
            check(int.from_bytes(stored[:4], "little") == raw, wrong)
            found = lz4.block.decompress(stored[4:], uncompressed_size=raw)
        elif codec == "zstd":
            check(zstandard.frame_content_size(stored) == raw, wrong)
            found = zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
        elif codec == "blosc":
            check(struct.unpack("<4xI4xI", stored[:16]) == (raw, len(stored)), wrong)
            found = Blosc().decode(stored)
        elif codec == "jpeg":
            image = Image.open(io.BytesIO(stored[:-1] if len(stored) > raw else stored), formats=["JPEG"])
            channels = 1 if self.is_gray else self.shape[-1]
            check(image.width * image.height * channels == raw and image.mode in ("L", "RGB"), wrong)
            found = image.convert("RGB" if channels == 3 else "L").tobytes()
        elif codec == "h264":
            steps, height, width, _ = shape
            with av.open(io.BytesIO(stored), format="h264") as stream:
                pictures = [picture.to_ndarray(format="rgb24") for picture in stream.decode(video=0)]
            sides = height + height % 2, width + width % 2, 3
            check(len(pictures) == steps and all(picture.shape == sides for picture in pictures), wrong)
            found = np.array(pictures)[:, :height, :width].tobytes()
        elif codec == "zlib":
            machine = zlib.decompressobj()
            found = machine.decompress(stored, raw + 1)
            check(machine.eof and not machine.unused_data, wrong)
        else:
            raise NotImplementedError(f"{self.name}: this reader lacks {codec}; it can read the other fields")
        check(len(found) == raw, wrong)
        if self.filter == "decimal":
            values = ((q := np.frombuffer(found, f"<i{self.dtype.itemsize}")) / 10.0**self.digits).astype(self.dtype)
            for n, value in enumerate((-0.0, np.nan, np.inf, -np.inf)):
                values[q == np.iinfo(q.dtype).min + n] = value
            found = values.tobytes()
        return found


class Column:
    """One field of one shard: sections 4 and 5."""

    def __init__(self, values: dict[bytes, bytes], number: int, field: Field, samples: int, xxhash: Any) -> None:
        self.values, self.field, self.samples, self.xxhash = values, field, samples, xxhash

        def index(name: str, length: int | None = None) -> list[int]:
            value = values.get(b"column/%03d/%s" % (number, name.encode()), b"absent")
            check(len(value) == 8 * (len(value) // 8 if length is None else length), f"{field.name}: length of {name}")
            return [int(n) for n in np.frombuffer(value, "<u8")]

        self.shapes = index("shapes", samples * len(field.ragged)) if field.ragged else []
        self.offsets = index("sample_offsets", samples + 1) if field.ragged else []
        bands = [-(-self.shape(i)[0] // field.count) for i in range(samples)] if field.rule == "rows" else []
        self.begins = [0, *accumulate(bands)]
        if field.ragged and field.rule == "rows":
            check(index("sample_frames", samples + 1) == self.begins, f"{field.name}: sample_frames and shapes differ")
        frames = self.begins[-1] if field.rule == "rows" else -(-samples // field.count)
        self.checksums = index("checksums", frames)
        self.frame_offsets = index("frame_offsets", frames + 1) if field.encoded else []
        chunks = index("chunks")
        self.chunks, self.last, self.ends = chunks[::3], [0, *chunks[1::3]], [0, *chunks[2::3]]
        stream = self.frame_offsets[-1] if field.encoded else self.offset(samples)
        check(len(chunks) % 3 == 0 and all(a < b for a, b in pairwise(self.last)), f"{field.name}: chunks")
        check((self.last[-1], self.ends[-1]) == (frames, stream), f"{field.name}: chunks end elsewhere")
        for chunk, (a, b) in zip(self.chunks, pairwise(self.ends), strict=True):
            found = values.get(b"chunk/%08d" % chunk)
            check(found is not None and len(found) == b - a, f"{field.name}: no chunk {chunk} of {b - a} bytes")

    def shape(self, i: int) -> list[int]:
        own = iter(self.shapes[i * len(self.field.ragged) :])
        return [next(own) if length is None else length for length in self.field.shape]

    def offset(self, i: int) -> int:
        return self.offsets[i] if self.field.ragged else i * self.field.nbytes(self.field.shape)

    def read(self, i: int) -> Any:
        """Return sample i of the shard."""
        field, shape, start = self.field, self.shape(i), self.offset(i)
        raw = self.offset(i + 1) - start
        check(raw == field.nbytes(shape), f"{field.name}: sample {i} is not as large as its shape")
        if field.rule == "samples":
            first = i // field.count * field.count
            before, after = self.offset(first), self.offset(min(first + field.count, self.samples))
            check(before <= start <= start + raw <= after, f"{field.name}: sample_offsets descend")
            values = field.array(
                self.frame(i // field.count, before, after - before, shape)[start - before :][:raw], shape
            )
        else:
            values = np.empty(shape, field.dtype)
            for top in range(0, shape[0], field.count):
                rows, row_bytes = min(field.count, shape[0] - top), raw // shape[0]
                part, f = [rows, *shape[1:]], self.begins[i] + top // field.count
                values[top : top + rows] = field.array(
                    self.frame(f, start + top * row_bytes, rows * row_bytes, part), part
                )
        return values.tobytes().decode() if field.kind == "text" else values

    def frame(self, f: int, start: int, raw: int, shape: list[int]) -> bytes:
        """Return the raw bytes of a frame, which begins at the raw offset `start`; of the shape see `decoded`."""
        a, b = self.frame_offsets[f : f + 2] if self.field.encoded else (start, start + raw)
        row = bisect_right(self.last, f) - 1
        check(self.ends[row] <= a <= b <= self.ends[row + 1], f"{self.field.name}: frame {f} is not within its chunk")
        stored = self.values[b"chunk/%08d" % self.chunks[row]][a - self.ends[row] : b - self.ends[row]]
        if self.xxhash:
            found = self.xxhash.xxh3_64_intdigest(stored)
            check(found == self.checksums[f], f"{self.field.name}: the checksum of frame {f}")
        return stored if b - a == raw else self.field.decoded(stored, raw, shape)


class Dataset:
    """A packed dataset: sections 2, 3 and 7."""

    def __init__(self, folder: str | Path, xxhash: Any = None) -> None:
        self.folder, self.xxhash = Path(folder), xxhash
        self._held, self._columns = dict[str, dict[bytes, bytes]](), dict[tuple[int, str], Column]()
        data = (self.folder / "manifest.json").read_bytes()
        self.manifest = found = as_json(data, MANIFEST, "manifest.json")
        check(data.endswith(b',\n "digest": "%s"\n}\n' % found["digest"].encode()), "manifest.json: its end")
        self._check_digest(data[:-50] + b"\n}", found["digest"], "manifest.json")
        self.fields = {field.name: field for field in map(Field, found["fields"])}
        self.shards, self.samples = found["shards"], found["samples"]
        self.starts = [0, *accumulate(shard["samples"] for shard in self.shards)]
        check(1 <= len(self.fields) == len(found["fields"]) <= 1000, "names of fields differ")
        check(self.samples == self.starts[-1] <= 2**53, "samples is not the sum of those of the shards")
        check(set(found["columns"]) == set(self.fields) >= set(found.get("stats", ())), "columns, and stats, of fields")
        check(len({shard["file"] for shard in self.shards}) == len(self.shards), "files of shards differ")
        self.tables = [found["names"], *found.get("more_names", [])] if found.get("names") else []
        counts = [table["samples"] for table in self.tables[1:]]
        self.firsts = [0, *accumulate(counts, initial=self.samples - sum(counts))][:-1]
        check(self.firsts == sorted(self.firsts), "more names than samples")
        others = [found[name] for name in ("left_out", "constants") if found.get(name)]
        for entry in [*self.shards, *self.tables, *others]:
            outside = set("\\:\0") & set(entry["file"]) or {"", ".", ".."} & set(entry["file"].split("/"))
            check(not outside and bool(re.fullmatch("[0-9a-f]{32}", entry["digest"])), f"the file {entry['file']!r}")
        for name, ranges in found.get("splits", {}).items():
            flat = [n for one in ranges for n in one]
            good = flat == sorted(flat) and all(len(one) == 2 and one[0] < one[1] <= self.samples for one in ranges)
            check(good and name != "", f"the split {name!r}")

    def _check_digest(self, data: bytes, digest: str, what: str) -> None:
        check(not self.xxhash or self.xxhash.xxh3_128_hexdigest(data) == digest, f"{what}: its digest")

    def read(self, g: int, name: str) -> Any:
        """Return one field of sample g."""
        check(0 <= g < self.samples, f"there is no sample {g}")
        s = bisect_right(self.starts, g) - 1
        if (s, name) not in self._columns:
            self._columns[s, name] = self._column(self.shards[s], name)
        return self._columns[s, name].read(g - self.starts[s])

    def _column(self, entry: dict[str, Any], name: str) -> Column:
        values = self._values(entry)
        header = as_json(values.get(b"header", b""), HEADER, entry["file"])
        same = [DEFAULTS | one for one in header["fields"]] == [field.described for field in self.fields.values()]
        check(same and header["samples"] == entry["samples"], f"{entry['file']}: other fields or samples")
        if entry.get("index"):
            index = b"".join(value for key, value in values.items() if key.startswith(b"column/"))
            self._check_digest(index, entry["index"], f"{entry['file']}: index arrays")
        return Column(values, list(self.fields).index(name), self.fields[name], entry["samples"], self.xxhash)

    def _values(self, entry: dict[str, Any]) -> dict[bytes, bytes]:
        """Return all that an LMDB file holds, in the order of its keys."""
        path = self.folder / entry["file"]
        if entry["file"] not in self._held:
            check(path.stat().st_size == entry["bytes"], f"{path}: not of {entry['bytes']} bytes")
            with lmdb.open(str(path), subdir=False, readonly=True, lock=False, lib_version=0) as env:
                self._held[entry["file"]] = dict(env.begin().cursor())
        return self._held[entry["file"]]

    def name(self, g: int) -> str:
        """Return the name of sample g: section 7."""
        t = bisect_right(self.firsts, g) - 1
        return self._values(self.tables[t])[b"#" + struct.pack(">Q", g - self.firsts[t])].decode()

    def number(self, name: str) -> int:
        """Return the number of the sample of this name, or raise KeyError."""
        for first, table in zip(self.firsts, self.tables, strict=True):
            if number := self._values(table).get(b"=" + name.encode()):
                return first + int.from_bytes(number, "little")
        raise KeyError(name)

    def constants(self) -> dict[str, Any]:
        """Return the arrays that are the same for all samples."""
        found: dict[str, Any] = {}
        if not (entry := self.manifest.get("constants")):
            return found
        data = (self.folder / entry["file"]).read_bytes()
        self._check_digest(data, entry["digest"], entry["file"])
        archive = zipfile.ZipFile(io.BytesIO(data))
        for one in archive.infolist():
            plain = (one.compress_type, one.flag_bits & 1, one.filename[-4:]) == (zipfile.ZIP_STORED, 0, ".npy")
            file, name = io.BytesIO(archive.read(one) if plain else b""), one.filename[:-4]
            check(plain and is_name(name) and name not in found, f"constants: {one.filename}")
            check(np.lib.format.read_magic(file) == (1, 0), f"constants: {name} is not of NPY version 1.0")
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
            check(not fortran and dtype.name in DTYPES and dtype.str[0] in "<|", f"constants: {name}: its dtype")
            check(len(held := file.read()) == dtype.itemsize * math.prod(shape), f"constants: {name}: its size")
            found[name] = np.frombuffer(held, dtype).reshape(shape)
        return found
