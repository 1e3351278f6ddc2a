"""Tars of WebDataset: `kind.py` makes samples of members, `index.py` finds these, `members.py` reads one."""

from packer.sources.tars.kind import KIND

__all__ = ["KIND"]
