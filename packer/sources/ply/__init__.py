"""Point clouds and meshes: PLY files, text or binary, and clouds without a header."""

from packer.sources.ply.fields import Rule, property_names, rules_of
from packer.sources.ply.header import TYPES, CountType, Element, Header, Property, opened

__all__ = [
    "TYPES",
    "CountType",
    "Element",
    "Header",
    "Property",
    "Rule",
    "opened",
    "property_names",
    "rules_of",
]
