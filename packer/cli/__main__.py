"""`python -m packer.cli` does what `packer` does."""

from packer.cli.main import run

run()
