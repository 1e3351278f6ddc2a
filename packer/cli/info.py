"""`packer info`: what a packed dataset holds."""

from __future__ import annotations

import contextlib
import logging
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from packer.cli.logs import log_options
from packer.cli.summary import field_table, shards_text, sizes_texts
from packer.cli.text import count_text, json_text, listing, size_text
from packer.codecs import codec_name
from packer.errors import DamagedError, first_few
from packer.format import Constants, Manifest, Names, check_file
from packer.format import manifest as manifests
from packer.packing import read_rejected, split_text
from packer.remote import Mirror, fetch_tables, is_url

#: Names that are shown.
_FIRST = 5
_log = logging.getLogger(__name__)


@click.command()
@click.argument("dataset", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with exact bytes.")
@log_options
def info(dataset: str, as_json: bool) -> None:
    """Say what the packed dataset DATASET holds: fields, codecs and their ratios, shards, names, origin, and by which
    commands it was packed.

    DATASET may be a URL such as s3://bucket/set; only the manifest, names and constants are fetched from it.

    \b
    $ packer info div2k.packed
    $ packer info div2k.packed --json
    $ packer info s3://bucket/div2k.packed
    """
    description = describe(dataset)
    if as_json:
        click.echo(json_text(_document(description)))
        return
    table = field_table(description.manifest.fields, sizes_texts(description.manifest.columns))
    commands = _commands(description.manifest, dataset)
    click.echo("\n".join([*table, "", *listing(facts(description)), *([""] if commands else []), *commands]))


@dataclass(frozen=True)
class Description:
    """What the manifest and the files of a packed dataset say.

    Attributes:
        path: its folder, or its URL.
        names: the first few names.
        rejected: how many samples were skipped when it was made.
        constants: names of the arrays kept once for all samples.
    """

    path: str
    manifest: Manifest
    names: tuple[str, ...]
    rejected: int
    constants: tuple[str, ...]


def describe(dataset: str) -> Description:
    """Return what the dataset in a folder or at a URL holds; warn of damaged files, and go on without them.

    From a URL only the manifest, names and constants are fetched.

    Raises:
        DatasetError: it is not a packed dataset, or unfinished, or cannot be fetched.
    """
    with contextlib.ExitStack() as stack:
        if is_url(dataset):
            mirror, manifest, lease = Mirror.open(dataset)
            stack.callback(lease.close)
            folder = mirror.folder
            for lease in fetch_tables(mirror, manifest):
                stack.callback(lease.close)
        else:
            folder, manifest = Path(dataset), manifests.read(Path(dataset))
            for shard in manifest.shards:
                with _warn_of_damage():
                    check_file(folder / shard.file, shard)
        rejected = sum(shard.rejected for shard in manifest.shards)
        names: tuple[str, ...] = ()
        constants: tuple[str, ...] = ()
        with _warn_of_damage():
            if not is_url(dataset):
                rejected = len(read_rejected(folder, manifest))
            constants = tuple(Constants(folder, manifest.constants))
            if manifest.names is not None:
                with contextlib.closing(Names(folder, manifest)) as table:
                    names = tuple(table.name(number) for number in range(min(_FIRST, manifest.samples)))
    return Description(dataset, manifest, names, rejected, constants)


@contextlib.contextmanager
def _warn_of_damage() -> Iterator[None]:
    """Warn of a damaged file, and go on without it."""
    try:
        yield
    except DamagedError as error:
        _log.warning("%s", error)


def facts(description: Description) -> list[tuple[str, str]]:
    """Return facts about the dataset as a whole, a name and a text each."""
    manifest = description.manifest
    pairs = [
        ("dataset", description.path),
        ("samples", f"{manifest.samples:,}"),
        ("shards", shards_text([shard.bytes for shard in manifest.shards])),
        ("size", f"{size_text(manifest.file_bytes)}, {size_text(manifest.raw_bytes)} as arrays"),
        (
            "names",
            _first_names_text(description.names, manifest.samples)
            if manifest.names
            else "none; samples have only numbers",
        ),
        ("made by", manifest.tool),
    ]
    if manifest.classes:
        pairs.append(
            ("classes", f"{len(manifest.classes):,}: {_first_names_text(manifest.classes, len(manifest.classes))}")
        )
    if description.rejected and manifest.left_out:
        pairs.append(("skipped", f"{count_text(description.rejected, 'sample')}, listed in {manifest.left_out.file}"))
    if description.constants:
        pairs.append(("constants", ", ".join(description.constants)))
    if splits := manifest.splits:
        pairs.append(("splits", split_text(splits, manifest.samples)))
    plain = {name: value for name, value in manifest.origin.items() if isinstance(value, (str, int, float))}
    pairs += [(f"origin {name}", str(value)) for name, value in plain.items()]
    for verb in ("joined", "dropped"):
        fields = manifest.origin.get(verb)
        if fields and isinstance(fields, list | dict):
            pairs.append((f"{verb} later", first_few(list(map(str, fields)))))
    others = [name for name, value in manifest.origin.items() if value and name not in (*plain, "joined", "dropped")]
    kept = f"the manifest also has {first_few(others)}: --json shows them"
    return pairs + ([("origin", kept)] if others else [])


def _commands(manifest: Manifest, path: str) -> list[str]:
    """Return the first commands that packed the samples, as they would be written in a shell."""
    texts = []
    for command in manifest.commands[:_FIRST]:
        out = command.out or path
        words = [out, *command.sources] if command.verb == "append" else [*command.sources, out]
        for flag, value in command.options.items():
            if isinstance(value, dict):
                value = [f"{name}={text}" for name, text in value.items()]
            values = value if isinstance(value, list) else [value]
            words += [word for each in values for word in ([flag] if each is True else [flag, str(each)])]
        texts.append(shlex.join(["packer", command.verb, *words]))
    if more := len(manifest.commands) - len(texts):
        texts.append(f"and {more:,} more: --json shows them")
    if others := list(dict.fromkeys(command.out for command in manifest.commands if command.out)):
        texts.append(f"then {path} took over the samples of {first_few(others)}, by packer merge or packer append")
    return texts


def _document(description: Description) -> dict[str, Any]:
    """Return the manifest, and what was found next to it, for machines."""
    manifest = description.manifest
    return {
        "path": description.path,
        **msgspec.to_builtins(manifest),
        "codec_names": {field.name: codec_name(field.codec) for field in manifest.fields},
        "first_names": description.names,
        "file_bytes": manifest.file_bytes,
        "rejected": description.rejected,
        "split_samples": {name: len(manifest.split(name)) for name in manifest.splits},
    }


def _first_names_text(names: Sequence[str], count: int) -> str:
    """Return the first of `count` names."""
    return ", ".join(names[:_FIRST]) + (", ..." if count > _FIRST else "")
