"""The command line: the only place that knows click, prints or exits.

Results go to stdout, progress and logs to stderr. Exit status: 0 good, 1 the data is bad, 2 wrong usage,
130 stopped by Ctrl-C, 143 stopped by SIGTERM.
"""

from packer.cli.main import COMMANDS, main

__all__ = ["COMMANDS", "main"]
