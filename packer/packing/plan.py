"""The plan of a conversion: schema, codecs, which sample goes to which shard, and how large each file gets.

It is made from headers. Some samples are read as well if codecs are to be chosen, or headers do not give all sizes.
`estimating.py` reads more of them: it says how large compressed files get, and how long packing takes. Nothing is
written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from packer.codecs import parse_codec
from packer.errors import SourceError, UsageError, first_few
from packer.format import MAX_CHUNK_BYTES, Field, FieldSpec, check_count, name_bytes
from packer.packing.cutting import ShardPlan, cut_shards, plan_shards
from packer.packing.examples import Examples, read_examples
from packer.packing.framing import choose_codec, codec_by_field, lacks_digits, stored_field, with_digits
from packer.packing.origin import Origin, origin_of
from packer.packing.remarks import remark_on_jpegs, remark_on_lengths, sample_text
from packer.packing.sizes import FieldSizes, distinct, field_sizes, sample_bytes, sum_of
from packer.sources import Source
from packer.watcher import NOBODY, Watcher
from packer.workers import Limits


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
    starts = cut_shards(sample_bytes(sizes), shard_size, source.cuts) if starts is None else starts
    shards = plan_shards(source, fields, sizes, starts)
    is_exact = all(size.known for size in sizes.values()) and not any(field.codec for field in fields)
    raw_bytes = {name: sum_of(size.bytes) for name, size in sizes.items()}
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
        number = int(distinct(size.bytes).argmax())
        if size.known and (field.is_ragged or not field.codec) and size.bytes[number] > MAX_CHUNK_BYTES:
            sample = sample_text(source, number)
            raise UsageError(
                f"field {field.name!r} of sample {sample} has {size.bytes[number]:,} bytes, but {MAX_CHUNK_BYTES:,} is "
                "the most; split the sample into several, or leave the field out"
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
        examples, all_bytes = get_examples(), max(sum(sum_of(size.bytes) for size in sizes.values()), 1)
        for spec in automatic:
            share = sum_of(sizes[spec.name].bytes) / all_bytes
            codecs[spec.name] = choose_codec(spec, examples.get(spec.name, []), share, extents[spec.name])
    return [
        spec if isinstance(spec, Field) else stored_field(spec, codecs[spec.name], extents[spec.name]) for spec in specs
    ]
