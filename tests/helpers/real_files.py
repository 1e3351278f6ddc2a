"""The real files of other programs in tests/files; their licences lie beside them."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1] / "files"


def real_files(*patterns: str) -> list[Path]:
    """Return the files that match the patterns, sorted. A pattern without a file raises FileNotFoundError."""
    found = {pattern: [path for path in _FOLDER.glob(pattern) if path.is_file()] for pattern in patterns}
    for pattern, paths in found.items():
        if not paths:
            raise FileNotFoundError(f"{_FOLDER}/{pattern}: no such file; a clone has them all")
    return sorted(path for paths in found.values() for path in paths)


def real_folder(name: str) -> Path:
    """Return a folder of real files."""
    real_files(f"{name}/**/*")
    return _FOLDER / name
