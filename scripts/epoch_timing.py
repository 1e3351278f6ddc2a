"""How many samples a second a DataLoader gives."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, Dataset

#: An epoch is read again until this many seconds have gone by, and at least twice.
SECONDS = 0.5


def epoch_rate(
    dataset: Dataset[Any], batch_size: int, workers: int = 0, collate: Callable[[list[Any]], Any] | None = None
) -> float:
    """Samples a second of the fastest of several shuffled epochs.

    The first epoch starts the workers and fills the page cache, so it is seldom the fastest.
    """
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        num_workers=workers,
        collate_fn=collate,
        persistent_workers=workers > 0,
    )
    fastest, spent, epochs = float("inf"), 0.0, 0
    while epochs < 2 or spent < SECONDS:
        start = time.perf_counter()
        for _ in loader:
            pass
        seconds = time.perf_counter() - start
        fastest, spent, epochs = min(fastest, seconds), spent + seconds, epochs + 1
    return len(dataset) / fastest  # type: ignore[arg-type]  # Dataset promises no __len__; all of ours have one
