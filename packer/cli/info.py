"""`packer info`: what a packed dataset holds."""

from __future__ import annotations

import click

from packer.cli.logs import log_options


@click.command()
@click.argument("dataset", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with exact bytes.")
@log_options
def info(dataset: str, as_json: bool) -> None:
    """Say what the packed dataset DATASET holds: fields, codecs and their ratios, shards, names, origin.

    DATASET may be a URL such as s3://bucket/set, of which the manifest and the names alone are fetched.

    \b
    $ packer info div2k.packed
    $ packer info div2k.packed --json
    $ packer info s3://bucket/div2k.packed
    """
    from packer.cli.description import describe, description_lines, json_text

    found = describe(dataset)
    click.echo(json_text(found) if as_json else "\n".join(description_lines(found)))
