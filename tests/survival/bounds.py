"""Reads sound and damaged datasets by machine code that checks each index; run with NUMBA_BOUNDSCHECK=1."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import numpy as np
from numba import njit
from soaking import mutations, survival

from packer.codecs import compiled


@njit
def beyond(array, at):
    return array[at]


def main(folder: Path, count: int) -> None:
    """Read the golden datasets, and `count` copies with damaged frames, in every way; print how many were refused."""
    try:
        beyond(np.zeros(3), 4)
    except IndexError:
        pass
    else:
        sys.exit("bounds are not checked")
    if compiled.loading.load() is None:
        sys.exit(f"the loops cannot be loaded: {compiled.loading.failure}")
    for sound in mutations.TEMPLATES:
        assert survival.read_all_ways(sound) == "right"
    refused = 0
    for seed in range(count):
        rng, place = random.Random(seed), folder / "damaged"
        shutil.copytree(mutations.TEMPLATES[seed % len(mutations.TEMPLATES)], place)
        path = rng.choice(sorted(place.glob("shards/*.lmdb")))
        data = bytearray(path.read_bytes())
        for _ in range(rng.choice([1, 2, 5, 20])):
            mutations.KINDS["frames"](data, rng)
        path.write_bytes(data)
        refused += survival.read_all_ways(place, parts=seed % 3 == 0) == "refused"
        shutil.rmtree(place)
    print(f"{count} read, {refused} refused")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
