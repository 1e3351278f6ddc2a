"""The benchmark; run by scripts/bench, which installs first. See benchmark/command.py."""

import sys

if __name__ == "__main__":
    # Here, since processes of its own import this module again, and are to be without torch.
    from benchmark.command import main

    sys.exit(main())
