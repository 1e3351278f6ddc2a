"""`packer plan DATASET --bandwidth RATE`: how long it takes to read a packed dataset from a bucket."""

from __future__ import annotations

import re
from typing import Any

import click

from packer.cli.text import count_text, json_text, listing, size, size_text, time_text

#: Samples of the first batch. Its size hardly changes how many shards it needs.
_BATCH = 64

#: A rate of a network, in bits.
_BITS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmg]?)(?:bit|bps)", re.IGNORECASE)


def rate(text: str) -> int:
    """Return the bytes a second that `text` says: `100MB/s` is 100 * 10**6, `1Gbit/s` 10**9 / 8.

    Raises:
        click.BadParameter: it is not a rate.
    """
    amount = text.strip().removesuffix("/s")
    if match := _BITS.fullmatch(amount):
        return round(float(match[1]) * 1000.0 ** " kmg".index(match[2].lower() or " ") / 8)
    try:
        return size(amount)
    except click.BadParameter:
        raise click.BadParameter(f"{text!r} is not a rate; 100MB/s or 1Gbit/s is expected") from None


def show_stream(dataset: str, bandwidth: int, as_json: bool) -> None:
    """Print how a packed dataset is read from a bucket.

    Args:
        dataset: its URL, or its folder before it is uploaded.
        bandwidth: of one node, in bytes a second.

    Raises:
        DatasetError, RemoteError: there is no packed dataset, or it cannot be read.
    """
    if bandwidth < 1:
        raise click.UsageError("--bandwidth: 1 byte a second or more is expected")
    plan = _plan(dataset, bandwidth)
    click.echo(json_text(plan) if as_json else "\n".join(listing(_lines(plan))))


def _plan(dataset: str, bandwidth: int) -> dict[str, Any]:
    """Return the plan for machines: bytes, seconds, and counts of shards."""
    from readers import Loader, PackedDataset  # here: torch takes seconds to load

    opened_dataset = PackedDataset(dataset)
    sizes = [shard.bytes for shard in opened_dataset.manifest.shards]
    if not opened_dataset.manifest.samples:
        raise click.UsageError(f"{dataset}: it has no samples to read")

    def needs_of(shuffle: str | bool) -> tuple[dict[str, Any], int]:
        loader = Loader(opened_dataset, _BATCH, shuffle, rank=0, world_size=1)
        first_shards, shards_at_once = loader.shards_needed()
        nbytes = sum(sizes[shard] for shard in first_shards)
        needs = {
            "first_batch_shards": len(first_shards),
            "first_batch_bytes": nbytes,
            "first_batch_seconds": nbytes / bandwidth,
            "least_cache_shards": shards_at_once,
            "least_cache_bytes": sum(sorted(sizes, reverse=True)[:shards_at_once]),
        }
        return needs, getattr(loader.order, "hands", 1)

    shuffled, most_nodes = needs_of("shards")
    return {
        "samples": opened_dataset.manifest.samples,
        "shards": len(sizes),
        "bytes": sum(sizes),
        "bandwidth": bandwidth,
        "epoch_seconds": sum(sizes) / bandwidth,
        "most_nodes": most_nodes,
        "shuffled": shuffled,
        "in_order": needs_of(False)[0],
    }


def _lines(plan: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the plan for people."""
    shuffled, in_order = plan["shuffled"], plan["in_order"]

    def first_batch_text(needs: dict[str, Any]) -> str:
        shards = count_text(needs["first_batch_shards"], "shard")
        return f"{time_text(needs['first_batch_seconds'])} ({shards}, {size_text(needs['first_batch_bytes'])})"

    nodes, total_bytes = plan["most_nodes"], plan["bytes"]
    share = f"; on each of up to {nodes} nodes its share of that" if nodes > 1 else ""
    least_cache = size_text(shuffled["least_cache_bytes"])
    return [
        ("samples", f"{plan['samples']:,}"),
        ("shards", f"{plan['shards']:,}, {size_text(total_bytes)}"),
        (
            "first batch",
            f"after {first_batch_text(shuffled)} with shuffle='shards', {first_batch_text(in_order)} without shuffling",
        ),
        ("epoch", f"{time_text(plan['epoch_seconds'])} at {size_text(plan['bandwidth'])}/s{share}"),
        (
            "cache",
            f"{least_cache} at least, {size_text(in_order['least_cache_bytes'])} without shuffling; every epoch "
            f"fetches what does not fit, so that {size_text(total_bytes)} are fetched once",
        ),
    ]
