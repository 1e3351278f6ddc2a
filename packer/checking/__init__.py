"""Compares shards and datasets with their sources."""

from packer.checking.against import SHOWN_NAMES, Comparison, Damage, check_same_schema, compare, compare_shard

__all__ = ["SHOWN_NAMES", "Comparison", "Damage", "check_same_schema", "compare", "compare_shard"]
