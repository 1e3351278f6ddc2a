"""`packer warm`: a packed dataset in memory, before training begins."""

from __future__ import annotations

import click

from packer import warm as verb
from packer.cli.logs import Progress, log_options, say
from packer.cli.text import size_text
from packer.errors import UsageError
from packer.machine import free_memory
from packer.remote import manifest_at, whole


@click.command()
@click.argument("dataset", type=click.Path())
@log_options
def warm(dataset: str) -> None:
    """Put the packed dataset DATASET into memory, in pages of 2 MiB if this system has them for files.

    It is read once from beginning to end, as fast as the disk can. Training then does not wait for the disk, and
    reads uncompressed samples of about 100 kB faster. Programs that need the memory still get it, and a restart
    empties it. DATASET may be a URL such as s3://bucket/set: files that are not in the cache are fetched.

    \b
    $ packer warm div2k.packed
    """
    manifest = manifest_at(dataset)
    nbytes, free = sum(shard.bytes for shard in manifest.shards), free_memory()
    if nbytes > free:
        raise UsageError(
            f"{dataset}: its shards have {size_text(nbytes)}, and {size_text(free)} of memory are free: the "
            'beginning would be gone before the end is read; train without it, with Loader(..., shuffle="block")'
        )
    with Progress() as watcher, whole(dataset, watcher) as folder:
        verb.warm(folder, watcher)
    say(f"{dataset}: {size_text(nbytes)} in memory")
