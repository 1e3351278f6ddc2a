"""The findings that `packer doctor` prints, for machines and for people."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from packer.cli.health import Finding
from packer.cli.machine import Machine
from packer.cli.tables import indented, printable, terminal_width


def finding_lines(found: Sequence[Finding]) -> list[str]:
    """What was found, and below it what to do; wrapped to the terminal."""
    indent = 4 + max(len(finding.topic) for finding in found)
    lines = []
    for finding in found:
        head = f"{'!' if finding.hurts else ' '} {finding.topic}".ljust(indent)
        for text in (finding.found, finding.advice):
            if text:
                width = max(terminal_width(), indent + 20)
                lines += textwrap.wrap(printable(text), width, initial_indent=head, subsequent_indent=" " * indent)
                head = " " * indent
    return lines


def json_text(path: Path, machine: Machine, found: Sequence[Finding]) -> str:
    """One JSON object: the machine in numbers, and the findings."""
    place = machine.file_system
    document = {
        "path": str(path),
        "machine": machine,
        "network": place.is_network if place else None,
        "findings": found,
    }
    return indented(document)
