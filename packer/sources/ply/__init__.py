"""Point clouds and meshes: PLY files, text or binary, and clouds without a header."""

from packer.sources.ply.clouds import open_clouds
from packer.sources.ply.fields import Rule, property_names, rules_of
from packer.sources.ply.header import TYPES, CountType, Element, Header, Property, opened
from packer.sources.ply.source import PointSource, open_ply

__all__ = [
    "TYPES",
    "CountType",
    "Element",
    "Header",
    "PointSource",
    "Property",
    "Rule",
    "open_clouds",
    "open_ply",
    "opened",
    "property_names",
    "rules_of",
]
