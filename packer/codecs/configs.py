"""Codecs by name: names for the common ones, and any numcodecs config as JSON.

A codec is a tuple of configs, applied first to last when encoding: at most one filter (`filters.py`), then stages that
make bytes smaller (`stages.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from packer.codecs.filters import DECIMAL
from packer.codecs.frames import FrameCodec
from packer.codecs.h264 import H264, MOST_CRF
from packer.codecs.jpeg import JPEG
from packer.codecs.stages import Config
from packer.errors import UsageError

#: The codecs that have a name on the command line. The `digits` of decimals are those of a field's values.
NAMED: dict[str, tuple[Config, ...]] = {
    "none": (),
    "lz4": ({"id": "lz4"},),
    "lz4hc": ({"id": "lz4hc", "level": 9},),
    "zstd": ({"id": "zstd", "level": 3},),
    "bitshuffle": ({"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 2},),
    "shuffle+lz4": ({"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},),
    "shuffle+zstd": ({"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 1},),
    "decimal+lz4": ({"id": "decimal"}, {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 2}),
    "decimal+zstd": ({"id": "decimal"}, {"id": "blosc", "cname": "zstd", "clevel": 1, "shuffle": 2}),
    "photo+lz4": ({"id": "photo"}, {"id": "blosc", "cname": "lz4hc", "clevel": 5, "shuffle": 2}),
    "photo+zstd": ({"id": "photo"}, {"id": "blosc", "cname": "zstd", "clevel": 1, "shuffle": 2}),
    "jpeg": ({"id": "jpeg"},),
}

#: Quality of the JPEG files that are made of images, as in `jpeg:90`: the most one.
MOST_QUALITY = 100
#: A codec has at most as many configs.
MAX_STAGES = 8
#: Ids of the two that write blocks of LZ4: fast ones, and small ones.
LZ4 = ("lz4", "lz4hc")


def parse_codec(text: str) -> tuple[Config, ...]:
    """Return the configs that `text` names: one of `NAMED`, `jpeg:90`, `h264:18`, or numcodecs configs as JSON.

    Those of decimals may lack their `digits`; `packer.packing.framing` finds these.

    Raises:
        UsageError: no codec of that name, or not a config.
    """
    if text in NAMED:
        return NAMED[text]
    name, _, quality = text.partition(":")
    if name == JPEG:
        if not quality.isdecimal() or not 1 <= int(quality) <= MOST_QUALITY:
            raise UsageError(f"codec {text!r}: a quality from 1 to {MOST_QUALITY} is expected, as in {JPEG}:90")
        return ({"id": JPEG, "quality": int(quality)},)
    if name == H264:
        if not quality.isdecimal() or not 1 <= int(quality) <= MOST_CRF:
            raise UsageError(f"codec {text!r}: a rate factor of x264 from 1 to {MOST_CRF} is expected, as in {H264}:18")
        return ({"id": H264, "crf": int(quality)},)
    if not text.lstrip().startswith(("{", "[")):
        names = f"{', '.join(NAMED)}, {JPEG}:QUALITY and {H264}:CRF (which lose some of it)"
        raise UsageError(f"there is no codec {text!r}; take auto, {names}, or a numcodecs config as JSON")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"codec {text!r} is not JSON: {error}") from None
    configs = value if isinstance(value, list) else [value]
    if not all(isinstance(c, dict) and isinstance(c.get("id"), str) for c in configs):
        raise UsageError(f'codec {text!r}: an object such as {{"id": "zstd", "level": 5}} is expected')
    if len(configs) > MAX_STAGES:
        raise UsageError(f"codec {text!r} has {len(configs)} stages; at most {MAX_STAGES} are possible")
    # Tried on zeros, which suit every codec; without `decimal`, whose digits are not known yet.
    is_decimal = bool(configs) and configs[0]["id"] == DECIMAL
    try:
        FrameCodec(configs[is_decimal:], np.dtype("u1")).encode(np.zeros((1, 16, 16, 3), np.uint8))
    except Exception as error:  # numcodecs raises many kinds for a wrong setting
        raise UsageError(f"codec {json.dumps(configs)} cannot be used: {error}") from None
    return tuple(configs)


def codec_name(configs: Sequence[Config]) -> str:
    """Return the short name of a codec, for people; JSON where its short name is that of another codec."""
    no_digits = tuple({"id": DECIMAL} if c["id"] == DECIMAL else c for c in configs)
    for name, named in NAMED.items():
        if no_digits == named:
            return name
    if list(configs) == [{"id": JPEG, "quality": configs[0].get("quality")}]:
        return f"{JPEG}:{configs[0]['quality']}"
    if list(configs) == [{"id": H264, "crf": configs[0].get("crf")}]:
        return f"{H264}:{configs[0]['crf']}"
    joined = "+".join(str(c["id"]) for c in configs)
    return json.dumps(configs if len(configs) > 1 else configs[0]) if joined in NAMED else joined
