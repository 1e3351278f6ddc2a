"""Makes the golden datasets beside this file: `python tests/golden/make.py FOLDER`.

`exact` holds only codecs whose bytes do not depend on a library's version, and every way to store a column;
`coded` holds the others; `kinds` holds codecs with every kind of field, fixed and ragged, in frames of samples and of
rows; `photos` holds the codecs for photographs, `decimals` those for decimals, `jpegs` JPEG files, `clips` clips of
them, `stacks` gray ones without an axis of channels, and `groups` clips in H.264, which came later.
They are committed. A new codec gets a dataset of its own here, as `photos` is; those that are there are made anew only
after a deliberate change of the format, with a new format version.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from packer.codecs import GROUP_STEPS, NAMED, Config, EncodedImage, FrameCodec
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
#: As `KINDS_FORMS`: of each sample the options of Pillow, and the mode; None for a sample that is no file.
JPEG_FORMS: dict[str, tuple[dict[str, Any], tuple[tuple[str, dict[str, Any]] | None, ...]]] = {
    "colour ragged": (
        {"shape": (None, None, 3)},
        (
            ("RGB", {"subsampling": "4:2:0"}),
            ("RGB", {"subsampling": "4:2:2", "progressive": True}),
            ("L", {"quality": 90}),
            None,
            ("RGB", {"subsampling": "4:4:4", "restart_marker_rows": 1}),
        ),
    ),
    "gray ragged": ({"shape": (None, None, 1)}, (("L", {}), ("L", {"progressive": True}), None, ("L", {}), ("L", {}))),
    "colour": ({"shape": (64, 80, 3)}, (("RGB", {}), None, ("RGB", {"quality": 30}), ("L", {}), ("RGB", {}))),
    # Files of more bytes than their pixels.
    "tiny": ({"shape": (None, 80, 3)}, (("RGB", {}), ("RGB", {}), ("RGB", {}), ("RGB", {}), ("RGB", {}))),
}
JPEGS = tuple(
    Field(name=f"jpeg {form}", dtype="uint8", kind="image", codec=NAMED["jpeg"], **options)
    for form, (options, _) in JPEG_FORMS.items()
)
#: As `KINDS_FORMS`. Each step is a file that Pillow writes: what a quality makes depends on a library's version.
CLIP_FORMS: dict[str, dict[str, Any]] = {
    "jpeg": {"shape": (None, 32, 40, 3), "codec": NAMED["jpeg"]},
    "jpeg:90": {"shape": (3, 32, 40, 3), "codec": ({"id": "jpeg", "quality": 90},)},
    "jpeg:75 gray": {"shape": (None, None, None, 1), "codec": ({"id": "jpeg", "quality": 75},)},
}
CLIPS = tuple(
    Field(name=f"clip {form}", dtype="uint8", frame=FrameRule(rows=1), **options)
    for form, options in CLIP_FORMS.items()
)
#: As `KINDS_FORMS`: gray images, and stacks of them.
STACK_FORMS: dict[str, dict[str, Any]] = {
    "jpeg:90": {"shape": (None, 32, 40), "frame": FrameRule(rows=1)},
    "jpeg:75 ragged": {"shape": (None, None, None), "frame": FrameRule(rows=1)},
    "jpeg:90 image": {"shape": (32, 40), "frame": FrameRule(samples=1)},
}
STACKS = tuple(
    Field(name=form, dtype="uint8", codec=({"id": "jpeg", "quality": int(form[5:7])},), **options)
    for form, options in STACK_FORMS.items()
)
#: As `KINDS_FORMS`: streams depend on a library's version. The smallest groups of `ragged` are stored raw.
GROUP_FORMS: dict[str, dict[str, Any]] = {
    "h264:18": {"shape": (None, 32, 40, 3)},
    "h264:30 odd": {"shape": (9, 33, 41, 3)},
    "h264:18 ragged": {"shape": (None, None, None, 3)},
}
#: Beside the clips that are coded, the pixels that they were decoded to when they were packed.
GROUPS = tuple(
    Field(name=part + form, dtype="uint8", codec=codec, frame=FrameRule(rows=GROUP_STEPS), **options)
    for form, options in GROUP_FORMS.items()
    for part, codec in (("", ({"id": "h264", "crf": int(form[5:7])},)), ("pixels of ", NAMED["zstd"]))
)
KINDS_NAMES = tuple(f"sample {n}" for n in range(5))


def kinds_value(field: Field, n: int) -> Any:
    """Sample `n` of a field of `kinds`; one that is ragged grows with its number, from nothing."""
    if field.kind == "text":
        return "größer " * (6 * n)
    shape = tuple(17 * n if axis is None else axis for axis in field.shape)
    if field.name.endswith("image ragged"):
        shape = (5 * n, 3 + n, 1)
    steps = np.arange(np.prod(shape, dtype=int)) // 8 * 5 + 7 * n
    return (steps % 251).reshape(shape).astype(field.dtype)


def photos_value(field: Field, n: int) -> Any:
    """Sample `n` of a field of `photos`; one that is ragged grows with its number, from nothing."""
    shape = [full if full is not None else part for full, part in zip(field.shape, (13 * n, 24, n), strict=True)]
    y, x, c = np.indices(shape)
    # Brightness that goes up and down again beyond each end of the dtype, and colours that differ from it.
    brightness = (7 * y + 3 * x + (y * x) // 9) * 2 ** (8 * (field.itemsize - 1))
    return (brightness + (90 * c + n) * (c + 1)).astype(field.dtype)


def decimals_value(field: Field, n: int) -> Any:
    """Sample `n` of a field of `decimals`; one that is ragged grows with its number, from nothing."""
    shape = [31 * n if axis is None else axis for axis in field.shape]
    steps = np.arange(np.prod(shape, dtype=int)) // 4 % 40 * (n + 1) - 60
    value = (steps / 10.0 ** field.codec[0]["digits"]).astype(field.dtype)
    if "strange" in field.name:
        value[n::9], value[n + 1 :: 11], value[n + 2 :: 13], value[n + 3 :: 17] = -0.0, np.nan, np.inf, -np.inf
    if field.name.endswith("raw") and n in (1, 4):
        value[7] = np.pi * 1e-16
    return value.reshape(shape)


def jpegs_value(field: Field, n: int) -> Any:
    """Sample `n` of a field of `jpegs`: soft colours, as a file that Pillow writes, or as they are."""
    options = JPEG_FORMS[field.name.removeprefix("jpeg ")][1][n]
    tall = 1 if field.name.endswith("tiny") and n % 2 else 61 + 7 * n
    shape = [full if full is not None else part for full, part in zip(field.shape, (tall, 75 - 8 * n, 0), strict=True)]
    y, x, c = np.indices(shape)
    image = ((3 * y + 2 * x + 40 * n) % 400 // 2 + 20 * c).astype(np.uint8)
    if options is None:
        return image
    mode, settings = options
    file = io.BytesIO()
    Image.fromarray(image[..., 0] if mode == "L" else image).save(file, "JPEG", **settings)
    with Image.open(file) as opened:
        pixels = np.asarray(opened.convert("RGB" if shape[2] == 3 else "L")).reshape(shape)
    return EncodedImage.of(pixels, file.getvalue())


def clips_value(field: Field, n: int) -> Any:
    """Sample `n` of a field of `clips`: soft steps, each as a file; of `jpeg` the last of four as it is."""
    steps, *sides, channels = (axis if axis is not None else n + 20 * at for at, axis in enumerate(field.shape))
    mode, clip, files = "RGB" if channels == 3 else "L", np.empty((steps, *sides, channels), np.uint8), []
    for step in range(steps):
        image, file = _soft(sides, channels, 40 * n + 5 * step), io.BytesIO()
        Image.fromarray(image if channels == 3 else image[..., 0]).save(file, "JPEG")
        with Image.open(file) as opened:
            clip[step] = np.asarray(opened.convert(mode)).reshape(image.shape)
        files.append(file.getvalue())
        if field.codec == NAMED["jpeg"] and step == 3:
            clip[step], files[step] = image, b""
    return EncodedImage.of(clip, *files)


def stacks_value(field: Field, n: int) -> Any:
    """Sample `n` of a field of `stacks`: soft steps, each as a file that Pillow writes."""
    shape = tuple(axis if axis is not None else n + 20 * at for at, axis in enumerate(field.shape))
    stack, files = np.empty(shape, np.uint8), []
    for step, out in enumerate(stack if stack.ndim == 3 else stack[None]):
        file = io.BytesIO()
        Image.fromarray(_soft(shape[-2:], 1, 40 * n + 5 * step)[..., 0]).save(file, "JPEG")
        with Image.open(file) as opened:
            out[:] = np.asarray(opened)
        files.append(file.getvalue())
    return EncodedImage.of(stack, *files)


def groups_value(field: Field, n: int) -> Any:
    """Sample `n` of a field of `groups`: soft steps, or the pixels that are decoded from them."""
    steps, *sides, _ = (
        axis if axis is not None else max(2, 6 * n - 4) if at else 5 * n for at, axis in enumerate(field.shape)
    )
    clip = np.array([_soft(sides, 3, 40 * n + 5 * step) for step in range(steps)], np.uint8).reshape(steps, *sides, 3)
    coded = {f"pixels of {other.name}": other.codec for other in GROUPS}
    return FrameCodec(coded[field.name], clip.dtype).as_stored(clip) if field.name in coded else clip


def _soft(sides: Sequence[int], channels: int, seed: int) -> Any:
    """An image (H, W, C) whose colours change slowly."""
    y, x, c = np.indices((*sides, channels))
    return ((3 * y + 2 * x + seed) % 400 // 2 + 20 * c).astype(np.uint8)


def exact_value(field: Field, n: int) -> Any:
    """Sample `n` of a field of `exact`."""
    return {
        "image": np.broadcast_to(np.arange(40)[:, None, None] * 7 + n, (40, 2, 1)).astype(np.uint8),
        "photo": 1000 * n + np.arange((n + 1) * n * 2, dtype=np.uint16).reshape(n + 1, n, 2),
        "points": np.full((20 * n, 3), n - 0.5, np.float32),
        "signal": (np.arange(600) / 8 - n).astype(np.float16),
        "grid": (np.arange(6).reshape(3, 2) + 1j * n).astype(np.complex64),
        "tags": np.arange(n) % 3 == 0,
        "label": np.int64((-1) ** n * 10**n),
        "caption": "ä" * n,
    }[field.name]


def coded_value(field: Field, n: int) -> Any:
    """Sample `n` of a field of `coded`."""
    values = {
        "photo": np.arange((20 + n) * 24).reshape(20 + n, 8, 3) // 24 * 3 + n,
        "cloud": np.arange(3 * 300 * n).reshape(300 * n, 3),
        "table": np.arange(100) % 5 + n,
        "count": np.arange(100) // 10 - n,
        "extra": np.arange(100) // 20 * 100 + n,
    }
    return values[field.name].astype(field.dtype)


#: Of each dataset the fields, the value of a sample, the names of all, and how many samples each shard has. The last
#: frames are not full.
DATASETS: dict[str, tuple[Sequence[Field], Callable[[Field, int], Any], Sequence[str] | None, tuple[int, ...]]] = {
    "exact": (EXACT, exact_value, NAMES, (3, 2)),
    "coded": (CODED, coded_value, None, (3,)),
    "kinds": (KINDS, kinds_value, KINDS_NAMES, (3, 2)),
    "photos": (PHOTOS, photos_value, None, (3, 2)),
    "decimals": (DECIMALS, decimals_value, None, (3, 2)),
    "jpegs": (JPEGS, jpegs_value, None, (3, 2)),
    "clips": (CLIPS, clips_value, None, (3, 2)),
    "stacks": (STACKS, stacks_value, None, (3, 2)),
    "groups": (GROUPS, groups_value, None, (3, 2)),
}


def samples(name: str, start: int, stop: int) -> dict[str, Any]:
    """The samples start..stop of a dataset, by field."""
    fields, value, _, _ = DATASETS[name]
    found = {field.name: [value(field, n) for n in range(start, stop)] for field in fields}
    files = ("jpeg", "h264")
    lists = {field.name for field in fields if field.is_ragged or (field.codec and field.codec[0]["id"] in files)}
    return {name: values if name in lists else np.array(values) for name, values in found.items()}


def make(name: str, folder: Path) -> None:
    """A dataset, in chunks of at most 1500 bytes where samples allow."""
    fields, _, names, counts = DATASETS[name]
    shards, start = [], 0
    for number, count in enumerate(counts):
        block, own = samples(name, start, start + count), names and names[start : start + count]
        shards.append(_shard(folder, number, fields, block, own))
        start += count
    if names:
        write_names(folder / "names.lmdb", [name.encode() for name in names])
    _manifest(folder, fields, shards, start, names is not None)


def make_expected(path: Path) -> None:
    """The samples of `exact` as JSON, for readers in any language: by field, one nested array a sample.

    Complex numbers are pairs of real and imaginary part, texts are strings.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return value
        array = np.asarray(value)
        return (np.stack([array.real, array.imag], axis=-1) if array.dtype.kind == "c" else array).tolist()

    fields = {name: [plain(value) for value in values] for name, values in samples("exact", 0, 5).items()}
    path.write_text(json.dumps({"names": NAMES, "fields": fields}, ensure_ascii=False) + "\n", "utf-8")


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
    manifest = Manifest(
        tool="golden",
        samples=samples,
        fields=tuple(fields),
        shards=tuple(entry for entry, _ in shards),
        names=_entry(folder, folder / "names.lmdb") if named else None,
        columns=columns,
        origin=ORIGIN,
    )
    (folder / "manifest.json").write_bytes(manifests.encode(manifest))


if __name__ == "__main__":
    for name in DATASETS:
        make(name, Path(sys.argv[1], name))
    make_expected(Path(sys.argv[1], "exact.json"))
