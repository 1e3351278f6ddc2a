"""Compares shards and datasets with their sources, and makes a lost manifest again."""

from packer.checking.against import SHOWN_NAMES, Damage, check_same_schema, compare, compare_shard
from packer.checking.rebuild import rebuild_manifest

__all__ = ["SHOWN_NAMES", "Damage", "check_same_schema", "compare", "compare_shard", "rebuild_manifest"]
