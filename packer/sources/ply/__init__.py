"""PLY files: point clouds and meshes, text or binary."""
