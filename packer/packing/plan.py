"""The plan of a conversion: schema, codecs, which sample goes to which shard, and how large each file gets.

It is made from headers. Some samples are read as well if codecs are to be chosen, or headers do not give all sizes.
`estimate` reads more of them: it says how large compressed files get, and how long packing takes. Nothing is written.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.codecs import GROUP_STEPS, H264, JPEG, NAMED, FrameCodec, parse_codec
from packer.errors import SourceError, UsageError, first_few
from packer.format import MAX_CHUNK_BYTES, Field, FieldSpec, check_count, map_size, name_bytes, names_bytes, shard_bytes
from packer.packing.framing import (
    Extent,
    choose_codec,
    codec_by_field,
    encode_samples,
    lacks_digits,
    stored_field,
    with_digits,
)
from packer.packing.origin import Origin, origin_of
from packer.sources import Source, arrays_of, block_bytes
from packer.watcher import EXAMPLES, NOBODY, Watcher
from packer.workers import Limits, call_guarded

GIB = 2**30
#: Without --shard-size there are up to 16 shards, so that workers have something to share out; a shard has
#: at least 16 MiB and at most 1 GiB, or more where that would make more than 4,096 shards: each takes a map of the
#: process that reads it. The size of the data alone decides, so that output is reproducible.
AUTO_SHARDS, AUTO_MOST = 16, 4096
AUTO_SMALLEST = 16 * 2**20
#: Samples that are read as one, such as a group of rows, stay in one shard up to so many bytes; without --shard-size.
WHOLE_BYTES = 2**28
#: Samples are looked at in this many places, spread evenly, and no more than this many raw bytes of them.
EXAMPLE_RUNS = 16
EXAMPLE_BYTES = 32 * 2**20
#: Of a small source one sample in eight is looked at, and four at least: those looked at are read twice.
EXAMPLE_SHARE = 8
#: Text of at most `SHORT_TEXT` bytes on average is planned with `TEXT_BYTES`, so that datasets of labels and captions
#: get frames of one size, and can be merged.
TEXT_BYTES, SHORT_TEXT = 256, 1024
#: From each place comes a run of about this many bytes, at least one sample.
EXAMPLE_RUN_BYTES = 128 * 2**10
#: The same for the samples that `estimate` packs. Their runs are longer, since each has costs of its own, such as
#: opening an HDF5 file.
#: Samples that are read at most, whatever their size: of rows, and of files, each of which is opened.
MOST_ROWS, MOST_FILES = 2**16, 2**12
TRIAL_RUNS, TRIAL_RUN_BYTES, TRIAL_BYTES = 32, 2**19, 128 * 2**20

#: Some samples of every field; text as its bytes in UTF-8.
Examples = Mapping[str, Sequence[NDArray[Any]]]


@dataclass(frozen=True)
class ShardPlan:
    """One shard: the samples start..stop, its raw bytes, and its file's size (exact, or an upper bound).

    Attributes:
        number: of the shard, from 0.
        start, stop: of its samples, in the source.
        slack_bytes: part of `file_bytes` that encoded frames may need, but mostly do not.
    """

    number: int
    start: int
    stop: int
    raw_bytes: int
    file_bytes: int
    slack_bytes: int

    @property
    def samples(self) -> int:
        return self.stop - self.start

    @property
    def map_size(self) -> int:
        return map_size(self.file_bytes)


@dataclass(frozen=True)
class Plan:
    """How a source will be packed.

    Attributes:
        origin: where the samples came from, as the manifest will say it.
        fields: how every field is stored.
        raw_bytes: bytes of every field as arrays, by name.
        exact: whether `file_bytes` of the shards are exact rather than upper bounds.
        remarks: sentences for the user: those of the source, and what the plan found.
    """

    source: Source
    origin: Origin
    fields: tuple[Field, ...]
    shards: tuple[ShardPlan, ...]
    raw_bytes: dict[str, int]
    exact: bool
    remarks: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        return len(self.source)

    @property
    def file_bytes(self) -> int:
        """Return the bytes of all shards: exact, or an upper bound."""
        return sum(shard.file_bytes for shard in self.shards)


@dataclass(frozen=True)
class FieldSizes:
    """Sizes of all samples of one field: shapes (n, axes) if ragged, bytes (n,), and whether they are known."""

    shapes: NDArray[np.int64] | None
    bytes: NDArray[np.int64]
    known: bool

    @classmethod
    def of(cls, spec: FieldSpec, shapes: NDArray[np.int64], known: bool = True) -> FieldSizes:
        """Return the sizes of samples of these shapes."""
        return cls(shapes, shapes.prod(axis=1, dtype=np.int64) * spec.itemsize, known)

    def extent(self, spec: FieldSpec) -> Extent:
        """Return the bytes of the mean sample, of the largest one, and of a typical row."""
        distinct = _distinct(self.bytes)
        mean = float(distinct.mean()) if len(distinct) else 0.0
        largest = int(distinct.max()) if len(distinct) else 0
        if self.shapes is None or not len(self.shapes) or not spec.shape:
            row = float(math.prod(n or 1 for n in spec.shape[1:]) * spec.itemsize)
        else:
            # Weighted by size, since only large samples are cut by rows.
            rows = self.shapes[:, 1:].prod(axis=1) * spec.itemsize
            row = float(np.average(rows, weights=self.bytes)) if self.bytes.any() else 0.0
        return Extent(mean, largest, row)


def make_plan(
    source: Source,
    codec: str | Mapping[str, str],
    shard_size: int | None,
    limits: Limits | None = None,
    watcher: Watcher = NOBODY,
    starts: Sequence[int] | None = None,
) -> Plan:
    """Return the plan of packing `source`.

    Args:
        starts: number of the first sample of each shard; None to cut them by size.
        limits: what reading a sample may take, in a process of its own; None: in this one, unguarded.
        watcher: its `step` is called with how many places have been looked at, and of how many.

    Raises:
        UsageError: a codec cannot be used, the shard size is too small, a sample is too large, or there are too many
            fields.
        SourceError: there is no sample, or the name of one cannot be stored.
    """
    if not len(source):
        reason = f"no sample to pack: there are 0 rows of {first_few([spec.name for spec in source.fields])}"
        raise SourceError(f"{reason}; check that the files are whole", first_few(source.files()) or None)
    check_count(len(source.fields))
    if source.names is not None:
        for number, name in enumerate(source.names):
            name_bytes(name, number)  # raises an error if it cannot be stored
    examples = cache(partial(read_examples, source, limits, watcher))
    sizes = field_sizes(source, examples)
    fields = stored_fields(source.fields, codec, sizes, examples)
    _check_sizes(source, fields, sizes)
    origin = origin_of(source)
    starts = cut_shards(_sample_bytes(sizes), shard_size, source.cuts) if starts is None else starts
    shards = plan_shards(source, fields, sizes, starts)
    is_exact = all(size.known for size in sizes.values()) and not any(field.codec for field in fields)
    raw_bytes = {name: _sum(size.bytes) for name, size in sizes.items()}
    remarks = (
        *source.remarks,
        *remark_on_lengths(source, sizes),
        *remark_on_jpegs(source.fields, codec, fields, examples),
    )
    return Plan(source, origin, tuple(fields), tuple(shards), raw_bytes, is_exact, remarks)


def _check_sizes(source: Source, fields: Sequence[Field], sizes: Mapping[str, FieldSizes]) -> None:
    """Raise UsageError if a sample has more raw bytes than can be stored; of a fixed shape it may if it is encoded."""
    for field in fields:
        size = sizes[field.name]
        number = int(_distinct(size.bytes).argmax())
        if size.known and (field.is_ragged or not field.codec) and size.bytes[number] > MAX_CHUNK_BYTES:
            sample = f"number {number}" if source.names is None else repr(source.names[number])
            raise UsageError(
                f"field {field.name!r} of sample {sample} has {size.bytes[number]:,} bytes, but {MAX_CHUNK_BYTES:,} is "
                "the most; split the sample into several, or leave the field out"
            )


#: Kinds of lengths with which others are compared.
_KINDS_OF_LENGTHS = 16


def remark_on_lengths(source: Source, sizes: Mapping[str, FieldSizes]) -> list[str]:
    """Return a sentence for each field that has as many rows as another one in most samples, but not in all.

    Such fields are those of points or steps: readers take the same rows of both.
    """
    lengths = {
        spec.name: size.shapes[:, 0]
        for spec in source.fields
        if (size := sizes[spec.name]).known and size.shapes is not None and spec.ragged_axes == (0,)
    }
    remarks = []
    kinds: dict[bytes, str] = {}  # the first field of each kind of lengths; most fields have those of another one
    for name in lengths:
        known = [other for other in kinds.values() if other != name][:_KINDS_OF_LENGTHS]
        if kinds.setdefault(lengths[name].tobytes(), name) != name:
            continue
        differing = {other: np.flatnonzero(lengths[name] != lengths[other]) for other in known}
        other = min(differing, key=lambda other: len(differing[other]), default=None)
        if other is None or not 0 < len(differing[other]) <= len(source) / 2:
            continue
        number = int(differing[other][0])
        sample = f"number {number}" if source.names is None else repr(source.names[number])
        remarks.append(
            f"{other} and {name} differ in length in {len(differing[other]):,} of {len(source):,} samples, such as "
            f"{sample}: {lengths[other][number]:,} and {lengths[name][number]:,} rows"
        )
    return remarks


#: What reads faster than JPEG files that `auto` keeps, of images and of clips.
_FASTER = {
    "image": "photo+lz4 reads about 3 times as fast, from about 5 times",
    "array": "lz4 reads about 4 times as fast, from about 10 times",
}
#: Images that are encoded to say how much that changes them.
_CODED_IMAGES = 16


def remark_on_jpegs(
    specs: Sequence[FieldSpec],
    codec: str | Mapping[str, str],
    fields: Sequence[Field],
    get_examples: Callable[[], Examples],
) -> list[str]:
    """Return sentences on fields that are stored as JPEG files.

    On size and speed if `auto` keeps files; on how much values change if files are made; on pixels if there is no file.
    """
    codecs = codec_by_field(codec, {spec.name: "auto" for spec in specs if not isinstance(spec, Field)})
    kept = [field for field in fields if field.codec == NAMED[JPEG]]
    remarks = []
    for kind, faster in _FASTER.items():
        names = [field.name for field in kept if field.kind == kind and codecs.get(field.name) == "auto"]
        if names:
            remarks.append(f"JPEG files of {first_few(names)} stay as they are; --codec {names[0]}={faster} the bytes")
    for field in fields:
        if field.codec and field.codec[0]["id"] in (H264, JPEG) and codecs.get(field.name) != "auto":
            remarks += _remark_on_coding(field, get_examples().get(field.name, []))
    return remarks


#: What images become by the codecs that change them.
_IN_WORDS = {JPEG: "JPEG files of quality", H264: f"groups of {GROUP_STEPS} in H.264, of rate factor"}


def _remark_on_coding(field: Field, samples: Sequence[NDArray[Any]]) -> Iterator[str]:
    """Yield a sentence on how near the images of some samples come to what they were, in dB, once they are stored."""
    coder = FrameCodec(field.codec, field.np_dtype, image_axes=field.image_axes)
    images = [piece for sample in samples for piece in coder.pieces(sample)]
    new = [image for image in images if image.size and not coder.is_kept(image)]
    words = "frames" if len(field.shape) > field.image_axes else "images"
    if not new:
        return
    if coder.loss is None:
        yield (
            f"{len(new):,} of {len(images):,} {words} of {field.name} that were looked at are no JPEG files, and stay "
            f"pixels; --codec {field.name}=jpeg:90 makes files of them, which changes their values"
        )
        return
    new = new[:: -(-len(new) // _CODED_IMAGES)]
    differences = [np.square(coder.as_stored(image).astype(np.float64) - image).mean() for image in new]
    with np.errstate(divide="ignore"):
        nearness = 10 * np.log10(255**2 / np.array(differences))
    colours = "" if coder.image_shape(new[0].shape)[2] == 1 else ", with colours at half the height and width"
    yield (
        f"{words} of {field.name} become {_IN_WORDS[field.codec[0]['id']]} {coder.loss}{colours}: values change, PSNR "
        f"{nearness.min():.1f} to {nearness.max():.1f} dB in the {len(new)} that were looked at"
    )


def stored_fields(
    specs: Sequence[FieldSpec],
    codec: str | Mapping[str, str],
    sizes: Mapping[str, FieldSizes],
    get_examples: Callable[[], Examples],
) -> list[Field]:
    """Return how every field is stored: its codec, and how its samples are cut into frames.

    Args:
        specs: the fields. A `Field`, as when samples are added to a dataset, stays as it is.
        codec: a codec for all fields, `hr=zstd,label=none`, or a mapping of field to codec.
        get_examples: returns the samples of `read_examples`; called only if `auto` has to choose, or digits of decimals
            are unknown.

    Raises:
        UsageError: a codec cannot be used, or is named for a field that does not exist.
    """
    undecided = [spec for spec in specs if not isinstance(spec, Field)]
    texts = codec_by_field(codec, {spec.name: "auto" for spec in undecided})
    codecs = {name: parse_codec(text) for name, text in texts.items() if text != "auto"}
    for spec in undecided:
        if lacks_digits(codecs.get(spec.name, ())):
            codecs[spec.name] = with_digits(spec, codecs[spec.name], get_examples().get(spec.name, []))
    extents = {spec.name: sizes[spec.name].extent(spec) for spec in undecided}
    automatic = [spec for spec in undecided if spec.name not in codecs]
    if automatic:
        examples, all_bytes = get_examples(), max(sum(_sum(size.bytes) for size in sizes.values()), 1)
        for spec in automatic:
            share = _sum(sizes[spec.name].bytes) / all_bytes
            codecs[spec.name] = choose_codec(spec, examples.get(spec.name, []), share, extents[spec.name])
    return [
        spec if isinstance(spec, Field) else stored_field(spec, codecs[spec.name], extents[spec.name]) for spec in specs
    ]


def read_examples(
    source: Source, limits: Limits | None = None, watcher: Watcher = NOBODY
) -> dict[str, list[NDArray[Any]]]:
    """Return some samples of every field, each an array, from evenly spread places, the same every time.

    Bad ones are skipped.

    They decide the codecs, and the sizes that headers do not give.

    Args:
        limits, watcher: as in `make_plan`.
    """
    runs = min(EXAMPLE_RUNS, max(4, len(source) // EXAMPLE_SHARE))
    sample_bytes = max(1, sum(spec.fixed_bytes for spec in source.fields if not spec.is_ragged))
    run_samples = max(1, EXAMPLE_RUN_BYTES // sample_bytes) if not any(spec.is_ragged for spec in source.fields) else 1
    found = _read_runs(source, runs, run_samples, EXAMPLE_BYTES, limits, watcher)
    return {spec.name: list(found.samples(spec.name)) for spec in source.fields}


class _Runs(NamedTuple):
    """Runs of samples that were read.

    Attributes:
        blocks: of some samples each, by field their arrays.
        seconds: that reading them took, without what is done once for many samples.
        once: seconds of that for each piece: each file, or group of rows of it, whose rows are the samples.
    """

    blocks: list[dict[str, Any]]
    seconds: float
    once: float

    def samples(self, field: str) -> list[NDArray[Any]] | NDArray[Any]:
        """Return the samples of a field: in one array where they are in arrays, since a list of rows takes longer."""
        parts = [block[field] for block in self.blocks if field in block]
        if parts and all(isinstance(part, np.ndarray) for part in parts):
            return np.concatenate(parts)
        return [sample for part in parts for sample in part]


def _read_runs(
    source: Source, runs: int, run_samples: int, most_bytes: int, limits: Limits | None, watcher: Watcher
) -> _Runs:
    """Return runs of samples; after `most_bytes` no further run is read."""
    blocks_read = list[dict[str, Any]]()
    bytes_read, seconds, once, pieces_read = 0, 0.0, 0.0, 0
    most_samples = MOST_ROWS if source.names is None else MOST_FILES
    run_samples = max(1, min(run_samples, most_samples // runs))
    spans = spread_runs(len(source), runs, run_samples)
    pieces: NDArray[Any] = np.zeros(len(spans))
    if source.cuts is not None:  # of a piece all that lies before is decoded: so one after another, from its begin on
        found = source.cuts.searchsorted([start for start, _ in spans], "right").tolist()
        order = sorted(range(len(spans)), key=lambda n: (found.index(found[n]), spans[n]))
        spans, pieces = [spans[n] for n in order], np.array([found[n] for n in order])
    slices = [source.slice(start, stop) for start, stop in spans]
    is_first = np.append(True, np.diff(pieces) != 0).tolist()
    results = watcher.watch(call_guarded(_read_arrays, slices, limits), EXAMPLES, len(slices))
    for result, is_first_of_piece in zip(results, is_first, strict=False):
        if isinstance(result, SourceError):
            continue  # whether it stops the conversion is decided when it is packed
        blocks, taken, taken_once = result
        seconds, once, pieces_read = seconds + taken, once + taken_once, pieces_read + is_first_of_piece
        blocks_read += blocks
        bytes_read += sum(map(block_bytes, blocks))
        if bytes_read > most_bytes:
            break
    return _Runs(blocks_read, seconds, once / max(1, pieces_read))


def _read_arrays(source: Source) -> tuple[list[dict[str, Any]], float, float]:
    """Return the blocks of a source, the seconds that they took, and of these what was done once for many samples.

    The latter is what is saved when rows are read again: of Parquet a whole group is decoded.
    """
    began = time.perf_counter()
    blocks = [arrays_of(block) for block in source.read()]
    seconds = again = time.perf_counter() - began
    if source.cuts is not None:
        began = time.perf_counter()
        for _ in source.read():
            pass
        again = min(seconds, time.perf_counter() - began)
    return blocks, again, seconds - again


def spread_runs(count: int, most: int, run_samples: int) -> list[tuple[int, int]]:
    """Return up to `most` runs of samples, evenly spread, no two overlapping; the first few are spread too."""
    starts = sorted({int(i) for i in np.linspace(0, count - 1, min(most, count))})
    runs = [(start, min(start + run_samples, end)) for start, end in zip(starts, [*starts[1:], count], strict=True)]
    bits = len(runs).bit_length()
    # Their numbers with the bits reversed: 0, 1/2, 1/4, 3/4, 1/8, ...
    return [runs[i] for i in sorted(range(len(runs)), key=lambda i: f"{i:0{bits}b}"[::-1])]


def field_sizes(source: Source, get_examples: Callable[[], Examples]) -> dict[str, FieldSizes]:
    """Return the sizes of all samples of every field, from headers if they give them.

    Args:
        get_examples: returns the samples of `read_examples`; called only if sizes are unknown. The plan then assumes
            their sizes. If that is too little, the map of a shard grows while it is written.
    """
    sizes = {}
    for spec in source.fields:
        if not spec.is_ragged:
            sizes[spec.name] = FieldSizes(None, _repeat(spec.fixed_bytes, len(source)), True)
            continue
        shapes = source.shapes(spec.name)
        known = shapes is not None
        if shapes is None:
            example_shapes = [sample.shape for sample in get_examples().get(spec.name, [])] or [
                tuple(n or 1 for n in spec.shape)
            ]
            if spec.kind == "text" and np.mean(example_shapes) <= SHORT_TEXT:
                example_shapes = [(TEXT_BYTES,)]
            shapes = np.resize(np.array(example_shapes, np.int64), (len(source), len(spec.shape)))
        sizes[spec.name] = FieldSizes.of(spec, shapes, known)
    return sizes


def plan_shards(
    source: Source,
    fields: Sequence[Field],
    sizes: Mapping[str, FieldSizes],
    starts: Sequence[int],
) -> list[ShardPlan]:
    """Return the shards that begin with the samples `starts`, and the size of each file.

    Args:
        fields: how every field is stored.
        sizes: of all samples, by field.
        starts: number of the first sample of each shard, ascending from 0.
    """
    stops = [*starts[1:], len(source)]
    sample_bytes = _sample_bytes(sizes)
    names = source.names
    shards = []
    for number, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        shapes = {name: size.shapes[start:stop] for name, size in sizes.items() if size.shapes is not None}
        bytes_of_names = None if names is None else sum(len(name.encode()) for name in names[start:stop])
        file_bytes, slack_bytes = shard_bytes(number, fields, stop - start, shapes, bytes_of_names)
        shards.append(ShardPlan(number, start, stop, _sum(sample_bytes[start:stop]), file_bytes, slack_bytes))
    return shards


def _sample_bytes(sizes: Mapping[str, FieldSizes]) -> NDArray[np.int64]:
    """Return the bytes of every sample, all fields together, (n,)."""
    field_bytes = [size.bytes for size in sizes.values()]
    total = _repeat(sum(int(nbytes[0]) for nbytes in field_bytes if _is_repeated(nbytes)), len(field_bytes[0]))
    for nbytes in field_bytes:
        total = total if _is_repeated(nbytes) else total + nbytes
    return total


def _repeat(value: int, count: int) -> NDArray[np.int64]:
    """Return one value `count` times, in the memory of one: there may be a hundred million rows."""
    return np.broadcast_to(np.int64(value), (count,))


def _distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the values, or the only one of those that repeat it: numpy would copy them all."""
    return values[:1] if _is_repeated(values) else values


def _sum(values: NDArray[np.int64]) -> int:
    return int(values[0]) * len(values) if len(values) and _is_repeated(values) else int(values.sum())


def _is_repeated(values: NDArray[np.int64]) -> bool:
    return values.strides == (0,)


def cut_shards(sizes: NDArray[np.int64], shard_size: int | None, cuts: NDArray[np.int64] | None = None) -> list[int]:
    """Return the first sample of each shard, so that all shards have about the same number of bytes.

    Args:
        sizes: raw bytes of every sample, (n,).
        shard_size: raw bytes that a shard holds, about; None chooses them by the size of the data.
        cuts: as in `Source`; a shard begins with the nearest one, if that is less than half a shard away.

    Raises:
        UsageError: the shard size is too small.
    """
    total = _sum(sizes)
    if shard_size is None:
        shard_size = max(min(GIB, max(AUTO_SMALLEST, -(-total // AUTO_SHARDS))), -(-total // AUTO_MOST))
        if cuts is not None and len(cuts) > 1:
            most_samples = int(np.diff(cuts, append=len(sizes)).max())
            stretch = total * most_samples // len(sizes)
            shard_size = max(shard_size, stretch) if stretch <= WHOLE_BYTES else shard_size
    if shard_size < 4096:
        raise UsageError(f"--shard-size {shard_size} is too small; 4 KiB is the least, 1GiB is usual")
    count = min(max(1, -(-total // shard_size)), len(sizes))
    targets = [total * index // count for index in range(1, count)]
    if _is_repeated(sizes):
        starts = [0, *(-(-nbytes // int(sizes[0])) for nbytes in targets)]
    else:
        starts = [0, *(np.searchsorted(np.cumsum(sizes), targets, side="left") + 1).tolist()]
    if cuts is not None:
        starts = [_nearest(start, cuts, len(sizes) // count // 2) for start in starts]
    return sorted({start for start in starts if start < len(sizes)})


def _nearest(start: int, cuts: NDArray[np.int64], most: int) -> int:
    """Return the cut that is nearest to a sample; the sample itself if that is further away than `most`."""
    after = int(cuts.searchsorted(start))
    nearest = min(cuts[max(0, after - 1) : after + 1].tolist(), key=lambda cut: abs(cut - start))
    return int(nearest) if abs(nearest - start) <= most else start


# ---------------------------------------------------------------- size and time


@dataclass(frozen=True)
class FieldEstimate:
    """Bytes of one field: as arrays, and as frames on disk."""

    raw: int
    stored: int

    @property
    def ratio(self) -> float:
        return self.raw / self.stored if self.stored else 1.0


@dataclass(frozen=True)
class Estimate:
    """How large a dataset will get, all files but the manifest, and how long packing it may take.

    Attributes:
        file_bytes: the likely size; exact if `exact`.
        most: the size if nothing shrinks.
        samples: how many were packed for it.
        seconds: that one process may take for all samples, without writing.
    """

    fields: dict[str, FieldEstimate]
    file_bytes: int
    most: int
    exact: bool
    samples: int
    seconds: float


def estimate(plan: Plan, limits: Limits | None = None, watcher: Watcher = NOBODY) -> Estimate:
    """Return the likely size and time of packing `plan`: some of its samples are read, packed and dropped.

    Args:
        limits, watcher: as in `make_plan`.
    """
    raw_bytes = sum(plan.raw_bytes.values())
    run_samples = max(1, round(TRIAL_RUN_BYTES * plan.samples / max(raw_bytes, 1)))
    found = _read_runs(plan.source, TRIAL_RUNS, run_samples, TRIAL_BYTES, limits, watcher)
    examples = {field.name: found.samples(field.name) for field in plan.fields}
    start_time = time.perf_counter()
    columns = {field.name: encode_samples(field, examples[field.name]) for field in plan.fields}
    seconds = found.seconds + time.perf_counter() - start_time
    samples = len(next(iter(examples.values())))
    fields, are_known = {}, True
    for field in plan.fields:
        total, column = plan.raw_bytes[field.name], columns[field.name]
        if samples and field.is_ragged and plan.source.shapes(field.name) is None:
            total, are_known = round(column.raw_bytes / samples * plan.samples), False
        ratio = column.stored_bytes / column.raw_bytes if field.codec and column.raw_bytes else 1.0
        fields[field.name] = FieldEstimate(total, round(total * ratio))
    packed_bytes = sum(column.raw_bytes for column in columns.values())
    share = packed_bytes / raw_bytes if raw_bytes and are_known else samples / plan.samples
    # The plan takes every frame to be raw; its other bytes are indexes and ends of pages.
    table_bytes = names_bytes([name.encode() for name in plan.source.names]) if plan.source.names is not None else 0
    other_bytes = plan.file_bytes - sum(shard.slack_bytes for shard in plan.shards) - raw_bytes + table_bytes
    file_bytes = sum(field.stored for field in fields.values()) + other_bytes
    pieces = 0 if plan.source.cuts is None else len(plan.source.cuts)
    all_seconds = seconds / share + found.once * pieces if share else 0.0
    return Estimate(fields, file_bytes, plan.file_bytes + table_bytes, plan.exact, samples, all_seconds)
