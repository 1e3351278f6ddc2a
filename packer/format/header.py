"""What a shard says of itself, under a key of its own."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from packer.format.layout import FORMAT_NAME, FORMAT_VERSION
from packer.format.schema import Field


class ShardHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a shard says of itself, so that a lost manifest can be made again from the shards."""

    format: str = FORMAT_NAME
    version: int = FORMAT_VERSION
    shard: int
    samples: Annotated[int, msgspec.Meta(ge=0)]
    named: bool
    fields: tuple[Field, ...]
    origin: dict[str, Any]
