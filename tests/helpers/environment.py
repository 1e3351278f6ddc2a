"""Says in which environment the tests run: scripts/setup makes three kinds."""

from __future__ import annotations

import sys
from pathlib import Path

#: The folder of the environment.
FOLDER = Path(sys.prefix)
#: Whether it holds the lowest versions that pyproject.toml allows, and no frameworks.
IS_LOWEST = FOLDER.name == "lowest"
#: What the environment holds.
LOCK = "requirements.lowest.lock" if IS_LOWEST else "requirements.lock"
#: Whether the frameworks are there, and what builds the book.
HAS_FRAMEWORKS = sys.version_info >= (3, 11) and not IS_LOWEST
