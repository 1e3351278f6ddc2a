"""Runs for long what the tests run for seconds.

.venv/bin/python scripts/soak.py kill --count 200      # conversions, appending, merging, repacking, repairing
.venv/bin/python scripts/soak.py plan --count 300      # plans of random datasets, against what is made
.venv/bin/python scripts/soak.py damage --count 2000   # damaged datasets, read in every way
.venv/bin/python scripts/soak.py share --count 200     # batches kept while others are shared between processes
.venv/bin/python scripts/soak.py replace --count 200   # datasets and shards replaced by others of the same size
.venv/bin/python scripts/soak.py many                  # 1,100 shards under 1,024 file descriptors
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from soaking import kills, mutations, plans, survival, training


def main() -> None:
    """Run one of the soaks; faults are told with their seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=SOAKS)
    parser.add_argument("--count", type=int, default=200, help="how many trials")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = SOAKS[arguments.what](Path(folder), arguments.count, arguments.seed)
    for what, count in sorted(found.items()):
        print(f"{count:6}  {what}")
    print(f"all as it should be, in {time.perf_counter() - began:.0f} s")


def soak_kills(folder: Path, count: int, seed: int) -> Counter[str]:
    """Kill `count` calls that make or change a dataset; returns how often what was killed, and what was left."""
    rng = random.Random(seed)
    jobs = {name: kills.new_job(folder / name, name) for name in kills.JOBS}
    seconds = {name: kills.seconds_of(job) for name, job in jobs.items()}
    found: Counter[str] = Counter()
    for number in range(count):
        name, whom = list(jobs)[number % len(jobs)], kills.WHOM[number // len(jobs) % 3]
        job = jobs[name]
        kills.reset(job)
        kills.kill_after(job, rng.uniform(0, seconds[name]), whom, rng)
        kills.check_left(job)
        left = kills.what_is_left(job)
        kills.check_going_on(job, workers=rng.choice([0, 2]))
        found[f"{name}, {whom} killed, left: {left}"] += 1
    return found


def soak_plans(folder: Path, count: int, seed: int) -> Counter[str]:
    """Compare `count` plans with what was made; returns how many files of how many shards."""
    found: Counter[str] = Counter()
    for number in range(seed, seed + count):
        shards = plans.check_plan(folder / str(number), number)
        found[f"of {'1 shard' if shards == 1 else '2 to 9 shards' if shards < 10 else '10 shards and more'}"] += 1
    return found


def soak_damage(folder: Path, count: int, seed: int) -> Counter[str]:
    """Read `count` damaged datasets; returns how often what was done to them came to what."""
    template = mutations.make_dataset(folder / "sound")
    (folder / "damaged").mkdir()
    outcomes = survival.soak(folder / "damaged", template, count, seed)
    faults = [f"seed {o.seed}, {o.damage}: {o.what}" for o in outcomes if o.is_fault]
    assert not faults, "\n".join(faults)
    return Counter(f"{outcome.damage.split()[0]}: {outcome.what}" for outcome in outcomes)


def soak_sharing(folder: Path, count: int, seed: int) -> Counter[str]:
    """Keep batches while others are shared, in `count` children; returns how often in which way of reading."""
    data = training.make_dataset(folder / "data")
    return _trials(lambda number: training.keep_and_share(data, number), range(seed, seed + count))


def soak_replacing(folder: Path, count: int, seed: int) -> Counter[str]:
    """Replace datasets under `count` readers; returns how often what came of it."""
    pairs = []
    for codec in ("none", "lz4"):
        old = training.make_dataset(folder / f"{codec}-old", 0, codec)
        pairs.append((old, training.make_dataset(folder / f"{codec}-new", 1, codec)))
    return _trials(
        lambda number: training.replace(*pairs[number % 2], folder / str(number), number),
        range(seed, seed + count),
    )


def soak_many_shards(folder: Path, count: int, seed: int) -> Counter[str]:
    """Read a dataset of many shards once."""
    return _trials(lambda number: training.read_many_shards(folder / "many"), range(1))


def _trials(trial: Callable[[int], str], seeds: range) -> Counter[str]:
    outcomes = {seed: training.in_child(partial(trial, seed)) for seed in seeds}
    faults = [f"seed {seed}: {outcome}" for seed, outcome in outcomes.items() if outcome.startswith("fault")]
    assert not faults, "\n".join(faults)
    return Counter(outcomes.values())


SOAKS = {
    "kill": soak_kills,
    "plan": soak_plans,
    "damage": soak_damage,
    "share": soak_sharing,
    "replace": soak_replacing,
    "many": soak_many_shards,
}

if __name__ == "__main__":
    main()
