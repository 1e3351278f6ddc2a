"""Runs, as long as you like, the trials that the tests run for seconds.

.venv/bin/python tests/soak/soak.py kill --count 200      # conversions, appending, merging, repacking, repairing
.venv/bin/python tests/soak/soak.py power --count 5000    # disks that a power cut can leave, of every command
.venv/bin/python tests/soak/soak.py fail --count 5000     # system calls that fail, of every command
.venv/bin/python tests/soak/soak.py plan --count 300      # plans of random datasets, against their files
.venv/bin/python tests/soak/soak.py damage --count 2000   # damaged datasets, read in every way
.venv/bin/python tests/soak/soak.py replace --count 200   # datasets and shards replaced by others of the same size
.venv/bin/python tests/soak/soak.py stream --count 240    # faults while epochs are streamed from a bucket
.venv/bin/python tests/soak/soak.py ways --count 200      # random datasets, read in every way, by machine code too
.venv/bin/python tests/soak/soak.py model --count 50      # verbs in any order, killed at any call, against a model
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "helpers")]  # when this file is run
from soaking import disks, failing, kills, plans, replacing, streaming, survival  # noqa: E402

from tests.survival import model, two_ways  # noqa: E402

TRIALS = {
    "kill": kills.trial,
    "power": disks.trial,
    "fail": failing.trial,
    "plan": plans.trial,
    "damage": survival.trial,
    "replace": replacing.trial,
    "stream": streaming.trial,
    "ways": two_ways.trial,
    "model": model.trial,
}


def run(what: str, folder: Path, seeds: Iterable[int]) -> Counter[str]:
    """Run a trial for each seed; return how often each result came.

    Raises:
        AssertionError: trials failed; the message lists every fault with its seed.
    """
    found: Counter[str] = Counter()
    faults = []
    for seed in seeds:
        try:
            found[TRIALS[what](folder, seed)] += 1
        except AssertionError as error:
            faults.append(f"seed {seed}: {error}")
    assert not faults, "\n".join(faults)
    return found


def main() -> None:
    """Run trials of one kind and print their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=TRIALS)
    parser.add_argument("--count", type=int, default=200, help="how many trials")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = run(arguments.what, Path(folder), range(arguments.seed, arguments.seed + arguments.count))
    for what, count in sorted(found.items()):
        print(f"{count:6}  {what}")
    print(f"all as it should be, in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
