"""`packer info`: what a packed dataset holds."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from packer.cli.logs import log_options
from packer.cli.summary import field_table, shards_text, sizes_texts
from packer.cli.text import counted, indented, listing, size_text
from packer.codecs.configs import codec_name
from packer.errors import DamagedError, first_few
from packer.format import manifest as manifests
from packer.format.constants import Constants
from packer.format.manifest import MANIFEST, REJECTED_FILE, Manifest
from packer.format.names import Names
from packer.packing.output import known_lines
from packer.packing.splits import split_text
from packer.remote.mirror import Mirror
from packer.remote.store import is_url

#: Names that are shown.
_FIRST = 5
#: How many lines tell of the origin, and how many names of what else is known of it.
_ORIGIN_LINES = 12
#: Blocks of `st_blocks`, whatever the file system's own.
_BLOCK = 512
_log = logging.getLogger(__name__)


@click.command()
@click.argument("dataset", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with exact bytes.")
@log_options
def info(dataset: str, as_json: bool) -> None:
    """Say what the packed dataset DATASET holds: fields, codecs and their ratios, shards, names, origin.

    DATASET may be a URL such as s3://bucket/set; only the manifest and the names are fetched from it.

    \b
    $ packer info div2k.packed
    $ packer info div2k.packed --json
    $ packer info s3://bucket/div2k.packed
    """
    found = describe(dataset)
    table = field_table(found.manifest.fields, sizes_texts(found.manifest.columns))
    click.echo(indented(_document(found)) if as_json else "\n".join([*table, "", *listing(facts(found))]))


@dataclass(frozen=True)
class Description:
    """A packed dataset as its manifest and its files show it.

    Attributes:
        path: its folder, or its URL.
        names: the first few names.
        disk_bytes: what the files take on the disk, which can be less or more than their length.
        rejected: samples that were left out when it was made.
        constants: names of what is kept once for all samples.
    """

    path: Path | str
    manifest: Manifest
    names: tuple[str, ...]
    disk_bytes: int
    rejected: int
    constants: tuple[str, ...]


def describe(place: str | Path) -> Description:
    """Return what the dataset in a folder or at a URL holds; a file that has another size is only warned of.

    Of a dataset at a URL the manifest, names and constants alone are fetched.

    Raises:
        DatasetError: it is not a packed dataset, or unfinished, or cannot be fetched.
    """
    with contextlib.ExitStack() as held:
        if is_url(place):
            mirror, manifest, lease = Mirror.open(str(place))
            held.callback(lease.close)
            folder = mirror.folder
            held.callback(mirror.fetch_tables(manifest).close)
            disk_bytes = manifest.file_bytes
        else:
            folder = place = Path(place)
            manifest = manifests.read(folder)
            sizes = {file.file: file.bytes for file in (*manifest.shards, *manifest.tables)}
            disk_bytes = sum(_disk_bytes(folder / file, sizes.get(file)) for file in (*sizes, MANIFEST))
        rejected = sum(shard.rejected for shard in manifest.shards)
        names: tuple[str, ...] = ()
        constants: tuple[str, ...] = ()
        with _warned():
            if not is_url(place):
                rejected = known_lines(folder, manifest).count(b"\n")
        with _warned():
            constants = tuple(Constants(folder, manifest.constants))
        with _warned():
            if manifest.names is not None:
                with contextlib.closing(Names(folder / manifest.names.file, manifest.names)) as table:
                    names = tuple(table.name(number) for number in range(min(_FIRST, manifest.samples)))
    return Description(place, manifest, names, disk_bytes, rejected, constants)


@contextlib.contextmanager
def _warned() -> Iterator[None]:
    """Warn of a damaged file, and go on without it."""
    try:
        yield
    except DamagedError as error:
        _log.warning("%s", error)


def facts(found: Description) -> list[tuple[str, str]]:
    """Return what is known of the dataset as a whole, a name and a text each."""
    manifest = found.manifest
    held = f"{size_text(manifest.file_bytes)} ({size_text(found.disk_bytes)} on disk)"
    pairs = [
        ("dataset", str(found.path)),
        ("samples", f"{manifest.samples:,}"),
        ("shards", shards_text([shard.bytes for shard in manifest.shards])),
        ("size", f"{held}, {size_text(manifest.raw_bytes)} as arrays"),
        ("planned", _planned(manifest)),
        ("names", _listed(found.names, manifest.samples) if manifest.names else "none; samples have only numbers"),
        ("made by", manifest.tool),
    ]
    if manifest.classes:
        pairs.append(("classes", f"{len(manifest.classes):,}: {_listed(manifest.classes)}"))
    if found.rejected:
        pairs.append(("left out", f"{counted(found.rejected, 'sample')}, listed in {REJECTED_FILE}"))
    if found.constants:
        pairs.append(("constants", ", ".join(found.constants)))
    if splits := manifest.splits:
        pairs.append(("splits", split_text(splits, manifest.samples)))
    return pairs + _origin(manifest.origin)


def _document(found: Description) -> dict[str, Any]:
    """Return all that the manifest says, and what was found next to it, for machines."""
    manifest = found.manifest
    return {
        "path": str(found.path),
        **msgspec.to_builtins(manifest),
        "codec_names": {field.name: codec_name(field.codec) for field in manifest.fields},
        "first_names": found.names,
        "file_bytes": manifest.file_bytes,
        "disk_bytes": found.disk_bytes,
        "rejected": found.rejected,
        "split_samples": {name: len(manifest.split(name)) for name in manifest.splits},
    }


def _listed(names: Sequence[str], count: int | None = None) -> str:
    """Return the first of `count` names."""
    more = ["..."] if min(len(names), _FIRST) < (count or len(names)) else []
    return ", ".join([*names[:_FIRST], *more])


def _planned(manifest: Manifest) -> str:
    """Return the planned size of the shards next to what they take."""
    fact = sum(shard.bytes for shard in manifest.shards)
    if manifest.planned_bytes is None:
        by_sample = manifest.origin.get("kind") == "writer"
        return "nothing: written sample by sample" if by_sample else "not known: joined, or made again from the shards"
    if manifest.planned_bytes == fact:
        return f"exactly the {fact:,} bytes of the shards"
    # If sizes are not known before the samples are read, the plan is a guess.
    about = "at most" if fact <= manifest.planned_bytes else "about"
    return f"{about} {size_text(manifest.planned_bytes)} for the shards, which take {size_text(fact)}"


def _origin(origin: dict[str, Any]) -> list[tuple[str, str]]:
    """Return a line for each word or number that is known of the origin; other things by name alone."""
    plain = {name: value for name, value in origin.items() if isinstance(value, (str, int, float))}
    lines = [(f"origin {name}", str(value)) for name, value in list(plain.items())[:_ORIGIN_LINES]]
    others = [name for name, value in origin.items() if value and name not in plain]
    others += list(plain)[_ORIGIN_LINES:]
    if others:
        lines.append(("origin ...", f"{first_few(others, _ORIGIN_LINES)}: --json shows them"))
    return lines


def _disk_bytes(path: Path, expected: int | None) -> int:
    """Return what a file takes on the disk; warn if it is not there, or has another length than expected."""
    try:
        found = path.stat()
    except OSError as error:
        _log.warning("%s: %s; run `packer verify`", path, error.strerror)
        return 0
    if expected not in (None, found.st_size):
        _log.warning("%s: %s bytes, %s expected; run `packer verify`", path, f"{found.st_size:,}", f"{expected:,}")
    return getattr(found, "st_blocks", -(-found.st_size // _BLOCK)) * _BLOCK
