"""The benchmark; run by scripts/bench, which installs first. See benchmark/command.py."""

import sys

from benchmark.command import main

if __name__ == "__main__":
    sys.exit(main())
