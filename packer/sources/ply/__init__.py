"""Point clouds and meshes: PLY files, text or binary, and clouds without a header."""
