"""The comparison with other systems; run by scripts/compare, which installs first. See comparing/__init__.py."""

import sys

from comparing.command import main

if __name__ == "__main__":
    sys.exit(main())
