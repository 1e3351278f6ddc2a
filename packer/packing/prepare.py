"""From a source to its plan: schema, codecs, shards. Nothing is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs.configs import Config, parse_codec
from packer.errors import SourceError
from packer.format.manifest import check_count
from packer.format.schema import Field, FieldSpec
from packer.packing.framing import choose_codec, codec_by_field, stored_field
from packer.packing.plan import FieldSizes, Plan, field_sizes, make_plan
from packer.sources.apart import each
from packer.sources.base import Block, Looking, Source, not_looking, watched
from packer.sources.limits import Limits
from packer.sources.names import check_names

#: `auto` looks at samples from this many places, spread evenly, and at no more than this many raw bytes.
LOOK_PLACES = 16
#: Of a small source it looks at one sample in eight, and at four at least: those looked at are read twice.
LOOK_SHARE = 8
LOOK_BYTES = 32 * 2**20
#: From each place it takes a run of about this many bytes, at least one sample.
RUN_BYTES = 128 * 2**10


@dataclass(frozen=True)
class Prepared:
    """A source with its plan, and what the manifest will say of its origin."""

    source: Source
    plan: Plan
    origin: dict[str, Any]


def prepare(
    source: Source,
    codec: str | Mapping[str, str],
    shard_size: int | None,
    limits: Limits | None = None,
    looking: Looking = not_looking,
) -> Prepared:
    """The plan of packing `source`.

    Args:
        limits: what reading a sample may take, in a process of its own; None: in this one, unguarded.
        looking: told how far choosing codecs is.

    Raises:
        UsageError: a codec cannot be used, the shard size is too small, or there are too many fields.
        SourceError: there is no sample, or the name of one cannot be stored.
    """
    if not len(source):
        raise SourceError("there is no sample to pack")
    check_count(len(source.fields))
    if source.names is not None:
        check_names(source.names)
    # What is added to a dataset is stored as that is: its source's fields say how.
    open_ = [spec for spec in source.fields if not isinstance(spec, Field)]
    texts = codec_by_field(codec, [spec.name for spec in open_])
    sizes = field_sizes(source)
    codecs = {name: parse_codec(text) for name, text in texts.items() if text != "auto"}
    if len(codecs) < len(open_):
        codecs |= auto_codecs(source, sizes, [spec for spec in open_ if spec.name not in codecs], limits, looking)
    fields = [
        spec if isinstance(spec, Field) else stored_field(spec, codecs[spec.name], sizes[spec.name].extent(spec))
        for spec in source.fields
    ]
    origin = {"kind": source.kind, **source.provenance()}
    return Prepared(source, make_plan(source, fields, sizes, shard_size, origin), origin)


def auto_codecs(
    source: Source,
    sizes: Mapping[str, FieldSizes],
    specs: Sequence[FieldSpec],
    limits: Limits | None = None,
    looking: Looking = not_looking,
) -> dict[str, tuple[Config, ...]]:
    """The codec that `auto` takes for each of the fields `specs`, after a look at some samples.

    Args:
        limits, looking: as in `prepare`.
    """
    places = min(LOOK_PLACES, max(4, len(source) // LOOK_SHARE))
    samples = look_at(source, places, limits=limits, looking=looking)
    total = sum(int(size.bytes.sum()) for size in sizes.values())
    out = {}
    for spec in specs:
        share = int(sizes[spec.name].bytes.sum()) / max(total, 1)
        out[spec.name] = choose_codec(spec, samples.get(spec.name, []), share)
    return out


def look_at(
    source: Source,
    places: int = LOOK_PLACES,
    nbytes: int = LOOK_BYTES,
    limits: Limits | None = None,
    looking: Looking = not_looking,
) -> dict[str, list[NDArray[Any]]]:
    """Some samples of every field, from evenly spread places; a bad one is passed over here.

    Args:
        places: how many, at most.
        nbytes: no further place is looked at when this many raw bytes are exceeded.
        limits, looking: as in `prepare`.
    """
    found: dict[str, list[NDArray[Any]]] = {spec.name: [] for spec in source.fields}
    sample_bytes = max(1, sum(spec.fixed_bytes for spec in source.fields if not spec.is_ragged))
    run = max(1, RUN_BYTES // sample_bytes) if not any(spec.is_ragged for spec in source.fields) else 1
    seen = 0
    parts = [source.part(start, stop) for start, stop in _runs(len(source), places, run)]
    for blocks in watched(each(_blocks, parts, limits), "looking at samples", looking, len(parts)):
        if isinstance(blocks, SourceError):
            continue  # whether it stops the conversion is decided where it is packed
        for block in blocks:
            for name, values in block.items():
                # Text that cannot be stored is told of where it is packed.
                arrays = [v.encode(errors="surrogatepass") if isinstance(v, str) else v for v in values]
                found[name] += [np.frombuffer(a, np.uint8) if isinstance(a, bytes) else a for a in arrays]
                seen += sum(array.nbytes for array in found[name][-len(arrays) :])
        if seen > nbytes:
            break
    return found


def _blocks(source: Source) -> list[Block]:
    return list(source.read())


def _runs(count: int, places: int, run: int) -> list[tuple[int, int]]:
    """Up to `places` runs of samples, evenly spread and apart; the first few are spread over it all too."""
    starts = sorted({int(i) for i in np.linspace(0, count - 1, min(places, count))})
    runs = [(start, min(start + run, end)) for start, end in zip(starts, [*starts[1:], count], strict=True)]
    bits = len(runs).bit_length()
    # Their numbers with the bits reversed: 0, 1/2, 1/4, 3/4, 1/8, ...
    return [runs[i] for i in sorted(range(len(runs)), key=lambda i: f"{i:0{bits}b}"[::-1])]
