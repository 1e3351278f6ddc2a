"""Runs for long what the tests run for seconds: conversions killed, plans of random datasets, damaged datasets read.

.venv/bin/python scripts/soak.py kill --count 200
.venv/bin/python scripts/soak.py plan --count 300
.venv/bin/python scripts/soak.py damage --count 2000
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from soaking import kills, mutations, plans, survival


def main() -> None:
    """Runs one of the three; faults are told with their seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kill", "plan", "damage"])
    parser.add_argument("--count", type=int, help="how many; 200 kills, 300 plans, 2000 damaged datasets by default")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.what == "kill":
            found = soak_kills(Path(folder), arguments.count or 200, arguments.seed)
        elif arguments.what == "damage":
            found = soak_damage(Path(folder), arguments.count or 2000, arguments.seed)
        else:
            found = soak_plans(Path(folder), arguments.count or 300, arguments.seed)
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
    """Compares `count` plans with what was made; returns how many files of how many shards."""
    found: Counter[str] = Counter()
    for number in range(seed, seed + count):
        shards = plans.check_plan(folder / str(number), number)
        found[f"of {'1 shard' if shards == 1 else '2 to 9 shards' if shards < 10 else '10 shards and more'}"] += 1
    return found


def soak_damage(folder: Path, count: int, seed: int) -> Counter[str]:
    """Reads `count` damaged datasets; returns how often what was done to them came to what."""
    template = mutations.make_dataset(folder / "sound")
    (folder / "damaged").mkdir()
    outcomes = survival.soak(folder / "damaged", template, count, seed)
    faults = [f"seed {o.seed}, {o.damage}: {o.what}" for o in outcomes if o.is_fault]
    assert not faults, "\n".join(faults)
    return Counter(f"{outcome.damage.split()[0]}: {outcome.what}" for outcome in outcomes)


if __name__ == "__main__":
    main()
