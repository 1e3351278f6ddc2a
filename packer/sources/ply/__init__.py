"""PLY files: point clouds and meshes, text or binary."""

from packer.sources.ply.source import open_ply

__all__ = ["open_ply"]
