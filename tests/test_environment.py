"""The environments that scripts/setup makes: what they hold, and that bounds are versions that were run."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import environment
import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text()
#: Extras that scripts/setup --lowest does not install.
NOT_RUN = ("ray", "frameworks", "docs")


def pins(lock: str) -> list[Requirement]:
    """The packages that a lock names for this version of Python."""
    lines = (line for line in (ROOT / lock).read_text().splitlines() if line and not line.startswith("#"))
    needed = map(Requirement, lines)
    return [requirement for requirement in needed if requirement.marker is None or requirement.marker.evaluate()]


def test_a_missing_package_is_a_failure() -> None:
    """No test is skipped since a package of the lock is not there, or is another version."""
    wrong = []
    for requirement in pins(environment.LOCK):
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            found = "none"
        if found == "none" or not requirement.specifier.contains(found, prereleases=True):
            wrong.append(f"{requirement}: {found}")
    assert not wrong, "run scripts/setup"


def test_every_lower_bound_is_run() -> None:
    """requirements.lowest.lock has the version of each bound in pyproject.toml: who changes one changes both."""
    lists = re.findall(r"^(\w+) = \[(.*?)\]$", PROJECT.partition("\n[project.scripts]")[0], re.MULTILINE | re.DOTALL)
    texts = [text for name, text in lists if name not in (*NOT_RUN, "classifiers", "keywords", "requires")]
    bounds = [Requirement(text) for names in texts for text in re.findall(r'"([^"]*>=[^"]*)"', names)]
    assert len(bounds) > 20
    lowest = {requirement.name: requirement.specifier for requirement in pins("requirements.lowest.lock")}
    for bound in bounds:
        is_for_other = bound.marker is not None and not bound.marker.evaluate({"python_version": "3.11"})
        if bound.name != "torch" and not is_for_other:  # for torch see docs/install.md
            (only,) = bound.specifier
            assert lowest[bound.name].contains(only.version), f"{bound} is not what requirements.lowest.lock has"


@pytest.mark.parametrize("minor", re.findall(r"Python :: 3\.(\d+)", PROJECT))
def test_versions_of_python_that_are_promised_are_run(minor: str) -> None:
    """The page on installing says which were run, and the classifiers promise no others."""
    (told,) = re.findall(r"^Python (3\.10.*) were run", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert f"3.{minor}" in re.findall(r"3\.\d+", told)
