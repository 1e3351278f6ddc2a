"""Tables, each row a sample: `kind.py` finds and reads rows, the other modules know one matter each."""

from packer.sources.tables.arrow import faults
from packer.sources.tables.kind import KIND
from packer.sources.tables.text import CSV, JSON

__all__ = ["CSV", "JSON", "KIND", "faults"]
