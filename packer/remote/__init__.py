"""Files and datasets at a URL.

    retries     requests that are made again, and for how long
    transfer    bytes under way, by several threads
    store       a folder at a URL, read and written; whether a text is a URL
    cache       the folder that fetched files are kept in, with a limit and leases
    sharing     what readers that share a cache tell each other
    ahead       shards of such a dataset fetched ahead, and let go of, where it is larger than the cache
    mirror      a packed dataset at a URL, fetched into the cache file by file, by digest
    sources     files to be packed, fetched into the cache

fsspec is imported when the first URL is opened.
"""

from packer.remote.ahead import Ahead, GiveWay, fetch_tables
from packer.remote.cache import UNUSED_SECONDS, Cache, Lease, default_cache, remove_unused
from packer.remote.mirror import Mirror, manifest_at, whole
from packer.remote.sharing import Claim
from packer.remote.sources import fetch_files, inputs_here, list_urls, local_inputs
from packer.remote.store import (
    BLOCK_BYTES,
    RemoteFile,
    RemoteFolder,
    has_conditional_put,
    is_url,
    label,
    refuse_url,
    url_in,
)
from packer.remote.transfer import STREAMS, Transfer, note, noted

__all__ = [
    "BLOCK_BYTES",
    "STREAMS",
    "UNUSED_SECONDS",
    "Ahead",
    "Cache",
    "Claim",
    "GiveWay",
    "Lease",
    "Mirror",
    "RemoteFile",
    "RemoteFolder",
    "Transfer",
    "default_cache",
    "fetch_files",
    "fetch_tables",
    "has_conditional_put",
    "inputs_here",
    "is_url",
    "label",
    "list_urls",
    "local_inputs",
    "manifest_at",
    "note",
    "noted",
    "refuse_url",
    "remove_unused",
    "url_in",
    "whole",
]
