"""`packer doctor`: which settings suit this machine, and what will hurt."""

from __future__ import annotations

from pathlib import Path

import click

from packer.cli.logs import log_options


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with exact bytes.")
@log_options
def doctor(dataset: Path, as_json: bool) -> None:
    """Say how this machine suits the packed dataset DATASET: disk, memory, processors, GPU.

    Ends with the settings to start from. What will make training slow, or fail, is marked with an exclamation mark.

    \b
    $ packer doctor div2k.packed
    $ packer doctor div2k.packed --json
    """
    from packer.cli.health import findings
    from packer.cli.health_text import finding_lines, json_text
    from packer.cli.machine import machine_of
    from packer.format import manifest as manifests

    manifest = manifests.read(dataset)
    machine = machine_of(dataset)
    found = findings(manifest, machine)
    click.echo(json_text(dataset, machine, found) if as_json else "\n".join(finding_lines(found)))
