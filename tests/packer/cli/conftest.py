"""Runs `packer` within the test's own process."""

from __future__ import annotations

import logging

import pytest
from click.testing import CliRunner

from packer.cli.main import main


@pytest.fixture
def packer(monkeypatch):
    """A function that runs `packer` with these arguments and gives exit_code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")
    logger = logging.getLogger("packer")
    before = logger.handlers, logger.level
    yield lambda *arguments: CliRunner().invoke(main, [str(a) for a in arguments], prog_name="packer")
    logger.handlers = before[0]
    logger.setLevel(before[1])


@pytest.fixture
def refused(packer):
    """A function that runs `packer`, and demands one clear line on stderr, the exit status and the words given."""

    def run(status, arguments, *words):
        result = packer(*arguments)
        assert result.exit_code == status, (result.stdout, result.stderr, result.exception)
        errors = [line for line in result.stderr.splitlines() if line.startswith("packer: error: ")]
        assert len(errors) == 1
        assert result.stderr.splitlines()[-1] == errors[0]
        assert "Traceback" not in result.stderr
        assert "should not happen" not in errors[0]
        for word in words:
            assert str(word) in errors[0]
        return errors[0]

    return run
