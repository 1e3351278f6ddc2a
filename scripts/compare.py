"""The comparison with other systems; run by scripts/compare, which installs first. See comparing/__init__.py."""

import sys

if __name__ == "__main__":
    # Here, since processes of its own import this module again, and are to be without torch.
    from comparing.command import main

    sys.exit(main())
