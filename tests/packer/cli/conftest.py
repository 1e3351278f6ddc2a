"""Runs `packer` within the test's own process."""

from __future__ import annotations

import logging

import pytest
from click.testing import CliRunner

from packer.cli import main


@pytest.fixture
def logger():
    """The logger of the library; its handlers and level are put back afterwards."""
    logger = logging.getLogger("packer")
    before = logger.handlers, logger.level
    yield logger
    logger.handlers = before[0]
    logger.setLevel(before[1])


@pytest.fixture
def packer(monkeypatch, logger):
    """A function that runs `packer` with these arguments, demands its exit status, and gives stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments, status=0):
        result = CliRunner().invoke(main, [str(a) for a in arguments], prog_name="packer")
        assert result.exit_code == status, (result.stdout, result.stderr, result.exception)
        return result

    return run


@pytest.fixture
def refused(packer):
    """A function that runs `packer`, and demands one clear sentence on stderr, the exit status and the words given."""

    def run(status, arguments, *words):
        result = packer(*arguments, status=status)
        _, *errors = result.stderr.split("packer: error: ")
        assert len(errors) == 1
        assert not [line for line in errors[0].splitlines()[1:] if not line.startswith("  ")]
        assert "Traceback" not in result.stderr
        assert "should not happen" not in errors[0]
        for word in words:
            assert str(word) in errors[0]
        return f"packer: error: {errors[0].rstrip()}"

    return run


@pytest.fixture
def more(new_pairs, tmp_path):
    """Three more pairs, of other names: z000 and so on."""
    made = new_pairs(tmp_path / "more", 3, 6, 5)
    for path in list((tmp_path / "more").rglob("*.png")):
        path.rename(path.with_name(f"z{path.name}"))
    return made


@pytest.fixture
def dataset(packer, pairs, tmp_path):
    """The pairs, packed."""
    packer("convert", *pairs.sources, tmp_path / "d", "--workers", 0)
    return tmp_path / "d"
