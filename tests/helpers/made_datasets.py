"""Small packed datasets that are made without a source, and the files of any dataset under names of their own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import numpy as np

from packer.errors import ManifestError
from packer.format import MANIFEST, MANIFEST_COPY, FileEntry, Manifest
from packer.format import manifest as manifests
from packer.writer import DatasetWriter


def put_manifest(folder: Path, manifest: Manifest) -> None:
    """Make `manifest` that of the dataset in a folder, as it is."""
    (folder / MANIFEST).write_bytes(manifests.encode(manifest))


def written(folder: Path, prefix: str, count: int, named: bool = True, codec: str = "lz4", width: int = 600) -> Path:
    """Write a dataset of samples named by a prefix and a number, in several shards; the values depend on the prefix."""
    rng = np.random.default_rng(sum(prefix.encode()))
    with DatasetWriter(folder, shard_size=8192, codec=codec) as writer:
        for n in range(count):
            writer.add({"x": rng.integers(0, 9, width), "y": np.float32(n)}, name=f"{prefix}{n}" if named else None)
    return folder


def without_commands(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files of a dataset as if no command had packed it: a manifest names its sources as given."""

    def plain(data: bytes) -> bytes:
        try:
            members = json.loads(data)
        except ValueError:  # damaged for a test
            return data
        if "commands" not in members:
            return data
        kept = {name: value for name, value in members.items() if name not in ("commands", "digest")}
        return json.dumps(kept).encode()

    return {name: plain(data) if name.endswith(".json") else data for name, data in files.items()}


def plain_names(files: dict[str, bytes], keeps: bool = True) -> dict[str, bytes]:
    """Return the files of a dataset as if no run had named them: shards/00000.lmdb, names.lmdb, and so on.

    Two datasets of the same bytes are equal then. A copy of the manifest that equals it is left out.

    Args:
        keeps: whether to leave out tables that an append keeps for open readers.
    """
    try:
        manifest = manifests.decode(files[MANIFEST], MANIFEST)
    except (KeyError, ManifestError):
        return files
    renamed = _renamed(manifest)
    names = dict(zip(_entries(manifest), _entries(renamed), strict=True))
    kept = re.compile(r"(names|left-out)-[^.]*\.(lmdb|jsonl)")
    found = {
        names.get(name, name): data
        for name, data in files.items()
        if name in names or not (keeps and kept.fullmatch(name))
    }
    if found.get(MANIFEST_COPY) == found[MANIFEST]:
        del found[MANIFEST_COPY]
    return found | {MANIFEST: manifests.encode(renamed)}


def make_plain(folder: Path) -> Path:
    """Give the files of a dataset the names that earlier versions gave, without a copy of the manifest."""
    manifest = manifests.read(folder)
    renamed = _renamed(manifest)
    for old, new in zip(_entries(manifest), _entries(renamed), strict=True):
        (folder / old).rename(folder / new)
    (folder / MANIFEST_COPY).unlink(missing_ok=True)
    put_manifest(folder, renamed)
    return folder


def _entries(manifest: Manifest) -> list[str]:
    tables = manifest.names, *manifest.more_names, manifest.constants, manifest.left_out
    return [entry.file for entry in (*manifest.shards, *tables) if entry]


def _renamed(manifest: Manifest) -> Manifest:
    def to(entry: FileEntry | None, name: str) -> FileEntry | None:
        return None if entry is None else msgspec.structs.replace(entry, file=name)

    shards = [
        msgspec.structs.replace(entry, file=f"shards/{number:05d}.lmdb") for number, entry in enumerate(manifest.shards)
    ]
    return msgspec.structs.replace(
        manifest,
        shards=tuple(shards),
        names=to(manifest.names, "names.lmdb"),
        more_names=tuple(
            msgspec.structs.replace(entry, file=f"names-{number:05d}.lmdb")
            for number, entry in enumerate(manifest.more_names, 1)
        ),
        constants=to(manifest.constants, "constants.npz"),
        left_out=to(manifest.left_out, "rejected.jsonl"),
        runs={},
    )
