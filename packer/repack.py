"""Packs a dataset again: with another codec, another size of shards, or in another order.

repack("div2k.packed", "div2k.zstd", codec="zstd")
repack("rows.packed", "rows.shuffled", seed=7)
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packer.codecs import Config, codec_name, loss_of, parse_codec
from packer.convert import Report, convert
from packer.errors import UsageError
from packer.packing import ConvertOptions, LocalPlace, check_apart, codec_by_field, place_of
from packer.sources import open_packed


def repack(
    dataset: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: ConvertOptions | None = None,
    *,
    codec: str | Mapping[str, str] | None = None,
    seed: int | None = None,
    **changes: Any,
) -> Report:
    """Pack the samples of `dataset` into `out`: names, kinds and origin stay.

    Args:
        options: as for `convert`, but for its codec.
        codec: as in `convert`; fields it does not name keep theirs.
        seed: shuffles the samples; None keeps their order.
        changes: single options by name, over those in `options`.

    Raises:
        DatasetError: there is no packed dataset, or it is damaged: then verify and repair it first.
        UsageError: as `convert`; or a field holds JPEG files of another quality.
        WriteError: as `convert`.
    """
    if seed is not None and seed < 0:
        raise UsageError(f"the seed is {seed}; 0 or more is expected")
    place = place_of(out)
    if not (isinstance(place, LocalPlace) and place.path.resolve() == Path(dataset).resolve()):
        check_apart([os.fspath(dataset)], place)
    source = open_packed(dataset, seed=seed)
    old_codecs = {field.name: json.dumps(field.codec) if field.codec else "none" for _, field in source.columns}
    codecs = codec_by_field(codec or {}, old_codecs)
    for _, field in source.columns:
        new: Sequence[Config] = () if codecs[field.name] == "auto" else parse_codec(codecs[field.name])
        has_losses = loss_of(field.codec) is not None and loss_of(new) is not None
        if has_losses and new[0]["id"] == field.codec[0]["id"] and tuple(new) != field.codec:
            raise UsageError(
                f"field {field.name!r} is packed as {codec_name(field.codec)}, and stays so; for {codec_name(new)} "
                "convert the sources again"
            )
    return convert(source, out, options, codec=codecs, **changes)
