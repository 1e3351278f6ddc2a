"""Makes the golden datasets beside this file: `python tests/golden/make.py FOLDER`.

`exact` holds only codecs whose bytes do not depend on a library's version, and every way to store a column;
`coded` holds the others; `kinds` holds codecs with every kind of field, fixed and ragged, in frames of samples and of
rows; `photos` holds the codecs for photographs and `decimals` those for decimals, which came later. They are committed.
A new codec gets a dataset of its own here, as `photos` is; those that are there are made anew only after a deliberate
change of the format, with a new format version.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packer.codecs import NAMED, Config
from packer.format import (
    ColumnTotals,
    Field,
    FileEntry,
    FrameRule,
    Manifest,
    Shard,
    ShardEntry,
    ShardWriter,
    map_size,
    shard_bytes,
    write_names,
)
from packer.format import manifest as manifests

ORIGIN = {"kind": "golden"}
NAMES = ("b/1", "a", "größe", "c", "b/2")

PHOTO_LZ4: tuple[Config, ...] = ({"id": "photo"}, {"id": "lz4"})
EXACT = (
    Field(name="image", dtype="uint8", kind="image", shape=(40, 2, 1), codec=PHOTO_LZ4, frame=FrameRule(samples=2)),
    Field(name="photo", dtype="uint16", kind="image", shape=(None, None, 2), frame=FrameRule(rows=2)),
    Field(name="points", dtype="float32", shape=(None, 3), codec=NAMED["lz4"], frame=FrameRule(samples=2)),
    Field(name="signal", dtype="float16", shape=(600,), frame=FrameRule(samples=2)),
    Field(name="grid", dtype="complex64", shape=(3, 2), frame=FrameRule(rows=2)),
    Field(name="tags", dtype="bool", shape=(None,), frame=FrameRule(samples=4)),
    Field(name="label", dtype="int64", frame=FrameRule(samples=8192)),
    Field(name="caption", dtype="uint8", kind="text", shape=(None,), frame=FrameRule(samples=256)),
)
CODED = (
    Field(
        name="photo",
        dtype="uint8",
        kind="image",
        shape=(None, 8, 3),
        codec=NAMED["photo+zstd"],
        frame=FrameRule(rows=16),
    ),
    Field(name="cloud", dtype="float32", shape=(None, 3), codec=NAMED["bitshuffle"], frame=FrameRule(samples=2)),
    Field(name="table", dtype="float64", shape=(100,), codec=NAMED["zstd"], frame=FrameRule(samples=1)),
    Field(name="count", dtype="int32", shape=(100,), codec=NAMED["lz4hc"], frame=FrameRule(samples=2)),
    Field(name="extra", dtype="int16", shape=(100,), codec=({"id": "zlib", "level": 6},), frame=FrameRule(samples=2)),
)

#: The codecs of `photos`.
PHOTO_CODECS = ("photo+lz4", "photo+zstd")
#: Those that had a name when `kinds` was made, and one of two stages of numcodecs.
KINDS_NAMED = ("none", "lz4", "lz4hc", "zstd", "bitshuffle", "shuffle+lz4", "shuffle+zstd")
KINDS_CODECS = {
    **{name: NAMED[name] for name in KINDS_NAMED},
    "shuffle+zlib": ({"id": "shuffle", "elementsize": 2}, {"id": "zlib", "level": 6}),
}
#: What a field is and how it is framed, by the part of its name after the codec.
KINDS_FORMS: dict[str, dict[str, Any]] = {
    "image": {"dtype": "uint8", "kind": "image", "shape": (12, 8, 3), "frame": FrameRule(samples=2)},
    "image bands": {"dtype": "uint16", "kind": "image", "shape": (10, 16, 1), "frame": FrameRule(rows=4)},
    "image ragged": {"dtype": "uint16", "kind": "image", "shape": (None, None, 1), "frame": FrameRule(samples=2)},
    "image ragged bands": {"dtype": "uint8", "kind": "image", "shape": (None, 16, 3), "frame": FrameRule(rows=8)},
    "array": {"dtype": "float32", "shape": (64,), "frame": FrameRule(samples=3)},
    "array bands": {"dtype": "int32", "shape": (6, 40), "frame": FrameRule(rows=4)},
    "array ragged": {"dtype": "float64", "shape": (None, 3), "frame": FrameRule(samples=2)},
    "array ragged bands": {"dtype": "int16", "shape": (None, 4), "frame": FrameRule(rows=50)},
    "text": {"dtype": "uint8", "kind": "text", "shape": (None,), "frame": FrameRule(samples=3)},
}
KINDS = tuple(
    Field(name=f"{codec} {form}", codec=configs, **options)
    for codec, configs in KINDS_CODECS.items()
    for form, options in KINDS_FORMS.items()
)
#: As `KINDS_FORMS`: one to five channels, so many that a pixel is no element, and other numbers in each sample.
PHOTO_FORMS: dict[str, dict[str, Any]] = {
    "colour": {"dtype": "uint8", "shape": (24, 17, 3), "frame": FrameRule(samples=2)},
    "alpha bands": {"dtype": "uint16", "shape": (20, 15, 4), "frame": FrameRule(rows=8)},
    "gray ragged": {"dtype": "uint16", "shape": (None, None, 1), "frame": FrameRule(samples=2)},
    "two": {"dtype": "uint8", "shape": (24, 17, 2), "frame": FrameRule(samples=1)},
    "colour ragged bands": {"dtype": "uint16", "shape": (None, 24, 3), "frame": FrameRule(rows=10)},
    "five": {"dtype": "uint16", "shape": (24, 17, 5), "frame": FrameRule(samples=2)},
    "many": {"dtype": "uint8", "shape": (4, 4, 300), "frame": FrameRule(samples=1)},
    "mixed": {"dtype": "uint8", "shape": (None, None, None), "frame": FrameRule(samples=1)},
}
PHOTOS = tuple(
    Field(name=f"{codec} {form}", kind="image", codec=NAMED[codec], **options)
    for codec in PHOTO_CODECS
    for form, options in PHOTO_FORMS.items()
)
#: The codecs of `decimals`, each with so many digits.
DECIMAL_CODECS: dict[str, tuple[Config, ...]] = {
    "decimal+lz4": ({**NAMED["decimal+lz4"][0], "digits": 3}, *NAMED["decimal+lz4"][1:]),
    "decimal+zstd": ({**NAMED["decimal+zstd"][0], "digits": 2}, *NAMED["decimal+zstd"][1:]),
    "decimal, plain lz4": ({"id": "decimal", "digits": 0}, {"id": "lz4"}),
    "decimal, plain zstd": ({"id": "decimal", "digits": 15}, {"id": "zstd", "level": 3}),
}
#: As `KINDS_FORMS`. `strange` has values with integers of their own, and `raw` a sample of other values in each shard.
DECIMAL_FORMS: dict[str, dict[str, Any]] = {
    "fixed": {"dtype": "float32", "shape": (64,), "frame": FrameRule(samples=3)},
    "bands": {"dtype": "float64", "shape": (6, 40), "frame": FrameRule(rows=4)},
    "ragged": {"dtype": "float64", "shape": (None, 3), "frame": FrameRule(samples=2)},
    "ragged bands": {"dtype": "float32", "shape": (None, 4), "frame": FrameRule(rows=50)},
    "strange": {"dtype": "float32", "shape": (9, 20), "frame": FrameRule(samples=1)},
    "strange doubles": {"dtype": "float64", "shape": (None, 2), "frame": FrameRule(samples=1)},
    "raw": {"dtype": "float32", "shape": (80,), "frame": FrameRule(samples=1)},
    "image": {"dtype": "float32", "kind": "image", "shape": (12, 10, 2), "frame": FrameRule(rows=5)},
}
DECIMALS = tuple(
    Field(name=f"{codec} {form}", codec=configs, **options)
    for codec, configs in DECIMAL_CODECS.items()
    for form, options in DECIMAL_FORMS.items()
)
KINDS_NAMES = tuple(f"sample {n}" for n in range(5))


def kinds_samples(start: int, stop: int) -> dict[str, Any]:
    """The samples start..stop of `kinds`; those that are ragged grow with their number, from nothing."""
    return {field.name: _kinds_values(field, start, stop) for field in KINDS}


def _kinds_values(field: Field, start: int, stop: int) -> Any:
    if field.kind == "text":
        return ["größer " * (6 * n) for n in range(start, stop)]
    values = []
    for n in range(start, stop):
        shape = tuple(17 * n if axis is None else axis for axis in field.shape)
        if field.name.endswith("image ragged"):
            shape = (5 * n, 3 + n, 1)
        steps = np.arange(np.prod(shape, dtype=int)) // 8 * 5 + 7 * n
        values.append((steps % 251).reshape(shape).astype(field.dtype))
    return values if field.is_ragged else np.array(values)


def photos_samples(start: int, stop: int) -> dict[str, Any]:
    """The samples start..stop of `photos`; those that are ragged grow with their number, from nothing."""
    found: dict[str, Any] = {}
    for field in PHOTOS:
        values = []
        for n in range(start, stop):
            y, x, c = np.indices(
                [full if full is not None else part for full, part in zip(field.shape, (13 * n, 24, n), strict=True)]
            )
            # Brightness that goes up and down again beyond each end of the dtype, and colours that differ from it.
            values.append(
                ((7 * y + 3 * x + (y * x) // 9) * 2 ** (8 * (field.itemsize - 1)) + (90 * c + n) * (c + 1)).astype(
                    field.dtype
                )
            )
        found[field.name] = values if field.is_ragged else np.array(values)
    return found


def decimals_samples(start: int, stop: int) -> dict[str, Any]:
    """The samples start..stop of `decimals`; those that are ragged grow with their number, from nothing."""
    found: dict[str, Any] = {}
    for field in DECIMALS:
        values = []
        for n in range(start, stop):
            shape = [31 * n if axis is None else axis for axis in field.shape]
            steps = np.arange(np.prod(shape, dtype=int)) // 4 % 40 * (n + 1) - 60
            value = (steps / 10.0 ** field.codec[0]["digits"]).astype(field.dtype)
            if "strange" in field.name:
                value[n::9], value[n + 1 :: 11], value[n + 2 :: 13], value[n + 3 :: 17] = -0.0, np.nan, np.inf, -np.inf
            if field.name.endswith("raw") and n in (1, 4):
                value[7] = np.pi * 1e-16
            values.append(value.reshape(shape))
        found[field.name] = values if field.is_ragged else np.array(values)
    return found


def exact_samples(start: int, stop: int) -> dict[str, Any]:
    """The samples start..stop of `exact`."""
    rows = np.arange(40)[:, None, None]
    return {
        "image": np.array([np.broadcast_to(rows * 7 + n, (40, 2, 1)) for n in range(start, stop)]).astype(np.uint8),
        "photo": [
            1000 * n + np.arange((n + 1) * n * 2, dtype=np.uint16).reshape(n + 1, n, 2) for n in range(start, stop)
        ],
        "points": [np.full((20 * n, 3), n - 0.5, np.float32) for n in range(start, stop)],
        "signal": np.array([np.arange(600) / 8 - n for n in range(start, stop)], np.float16),
        "grid": np.array([np.arange(6).reshape(3, 2) + 1j * n for n in range(start, stop)], np.complex64),
        "tags": [np.arange(n) % 3 == 0 for n in range(start, stop)],
        "label": np.array([(-1) ** n * 10**n for n in range(start, stop)], np.int64),
        "caption": ["ä" * n for n in range(start, stop)],
    }


def coded_samples(start: int, stop: int) -> dict[str, Any]:
    """The samples start..stop of `coded`."""
    return {
        "photo": [
            (np.arange((20 + n) * 24).reshape(20 + n, 8, 3) // 24 * 3 + n).astype(np.uint8) for n in range(start, stop)
        ],
        "cloud": [np.arange(3 * 300 * n, dtype=np.float32).reshape(300 * n, 3) for n in range(start, stop)],
        "table": np.array([np.arange(100) % 5 + n for n in range(start, stop)], np.float64),
        "count": np.array([np.arange(100) // 10 - n for n in range(start, stop)], np.int32),
        "extra": np.array([np.arange(100) // 20 * 100 + n for n in range(start, stop)], np.int16),
    }


def make_exact(folder: Path) -> None:
    """Two shards of three and two samples with names, in chunks of at most 1500 bytes where samples allow."""
    shards = [
        _shard(folder, number, EXACT, exact_samples(a, b), NAMES[a:b]) for number, (a, b) in enumerate([(0, 3), (3, 5)])
    ]
    write_names(folder / "names.lmdb", [name.encode() for name in NAMES])
    _manifest(folder, EXACT, shards, 5, True)


def make_expected(path: Path) -> None:
    """The samples of `exact` as JSON, for readers in any language: by field, one nested array a sample.

    Complex numbers are pairs of real and imaginary part, texts are strings.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return value
        array = np.asarray(value)
        return (np.stack([array.real, array.imag], axis=-1) if array.dtype.kind == "c" else array).tolist()

    fields = {name: [plain(value) for value in values] for name, values in exact_samples(0, 5).items()}
    path.write_text(json.dumps({"names": NAMES, "fields": fields}, ensure_ascii=False) + "\n", "utf-8")


def make_coded(folder: Path) -> None:
    """One shard of three samples without names."""
    _manifest(folder, CODED, [_shard(folder, 0, CODED, coded_samples(0, 3), None)], 3, False)


def make_photos(folder: Path) -> None:
    """Two shards of three and two samples without names: the last frames are not full."""
    shards = [
        _shard(folder, number, PHOTOS, photos_samples(a, b), None) for number, (a, b) in enumerate([(0, 3), (3, 5)])
    ]
    _manifest(folder, PHOTOS, shards, 5, False)


def make_decimals(folder: Path) -> None:
    """Two shards of three and two samples without names: the last frames are not full."""
    shards = [
        _shard(folder, number, DECIMALS, decimals_samples(a, b), None) for number, (a, b) in enumerate([(0, 3), (3, 5)])
    ]
    _manifest(folder, DECIMALS, shards, 5, False)


def make_kinds(folder: Path) -> None:
    """Two shards of three and two samples with names: the last frames are not full."""
    shards = [
        _shard(folder, number, KINDS, kinds_samples(a, b), KINDS_NAMES[a:b])
        for number, (a, b) in enumerate([(0, 3), (3, 5)])
    ]
    write_names(folder / "names.lmdb", [name.encode() for name in KINDS_NAMES])
    _manifest(folder, KINDS, shards, 5, True)


def _shard(
    folder: Path, number: int, fields: Sequence[Field], block: dict[str, Any], names: Sequence[str] | None
) -> tuple[ShardEntry, ShardWriter]:
    path = folder / "shards" / f"{number:05d}.lmdb"
    path.parent.mkdir(parents=True, exist_ok=True)
    count = len(block[fields[0].name])
    shapes = {f.name: np.array([_shape(v) for v in block[f.name]], np.int64) for f in fields if f.is_ragged}
    name_bytes = None if names is None else sum(len(name.encode()) for name in names)
    # Small chunks take a few pages more than the plan knows of.
    room = map_size(shard_bytes(number, fields, count, shapes, name_bytes, ORIGIN)[0]) + 2**20
    options: dict[str, Any] = {"map_size": room, "named": names is not None, "origin": ORIGIN, "chunk_bytes": 1500}
    with ShardWriter(path, number, fields, **options) as writer:
        writer.add(block, count, names)
    entry = _entry(folder, path)
    with Shard(path) as shard:
        index = shard.index_digest()
    return ShardEntry(file=entry.file, bytes=entry.bytes, digest=entry.digest, samples=count, index=index), writer


def _shape(value: Any) -> tuple[int, ...]:
    return (len(value.encode()),) if isinstance(value, str) else value.shape


def _entry(folder: Path, path: Path) -> FileEntry:
    file = path.relative_to(folder).as_posix()
    return FileEntry(file=file, bytes=path.stat().st_size, digest=manifests.file_digest(path))


def _manifest(
    folder: Path, fields: Sequence[Field], shards: list[tuple[ShardEntry, ShardWriter]], samples: int, named: bool
) -> None:
    columns = {}
    for number, field in enumerate(fields):
        written = [writer.columns[number] for _, writer in shards]
        columns[field.name] = ColumnTotals(
            raw=sum(column.raw_bytes for column in written), stored=sum(column.stored_bytes for column in written)
        )
    manifests.write(
        folder,
        Manifest(
            tool="golden",
            samples=samples,
            fields=tuple(fields),
            shards=tuple(entry for entry, _ in shards),
            names=_entry(folder, folder / "names.lmdb") if named else None,
            columns=columns,
            origin=ORIGIN,
        ),
    )


if __name__ == "__main__":
    make_exact(Path(sys.argv[1], "exact"))
    make_expected(Path(sys.argv[1], "exact.json"))
    make_coded(Path(sys.argv[1], "coded"))
    make_kinds(Path(sys.argv[1], "kinds"))
    make_photos(Path(sys.argv[1], "photos"))
    make_decimals(Path(sys.argv[1], "decimals"))
