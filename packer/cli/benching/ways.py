"""Ways to read a dataset, each as a user has it: it is given sample numbers, and gives their batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from torch.utils.data import DataLoader, Sampler

from packer.cli.benching.settings import DATALOADER, INDEXING, Setting
from readers import Loader, PackedDataset
from readers.block_order import BlockShuffled
from readers.order import Given
from readers.places import Numbers


class Way(Protocol):
    """Reads batches, pass after pass. A context manager: worker processes end with it."""

    def batches(self, numbers: Numbers) -> Iterable[Any]:
        """The batches of the samples `numbers` (n,), in this order."""

    def __enter__(self) -> Way: ...

    def __exit__(self, *error: Any) -> None: ...


def open_way(setting: Setting, dataset: PackedDataset, ahead: int = 2, pin_memory: bool = False) -> Way:
    """What reads in this setting.

    Args:
        ahead: batches that each worker process, or the threads together, read ahead.
        pin_memory: whether a Loader reads into page-locked memory.
    """
    if setting.way == INDEXING:
        return Indexing(dataset, setting.batch_size)
    if setting.way == DATALOADER:
        return Processes(dataset, setting, ahead)
    return Threads(dataset, setting, ahead, pin_memory)


class _Way:
    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class Indexing(_Way):
    """`ds[indices]`, batch by batch."""

    def __init__(self, dataset: PackedDataset, batch_size: int) -> None:
        self._dataset = dataset
        self._batch_size = batch_size

    def batches(self, numbers: Numbers) -> Iterator[Any]:
        for at in range(0, len(numbers), self._batch_size):
            yield self._dataset[numbers[at : at + self._batch_size]]


class Threads(_Way):
    """`Loader`, with the numbers in the place of an epoch's order: making the order of all samples is not measured."""

    def __init__(self, dataset: PackedDataset, setting: Setting, ahead: int, pin_memory: bool) -> None:
        shuffle = "block" if setting.shuffle == "block" else False
        self._loader = Loader(
            dataset, setting.batch_size, shuffle, threads=setting.workers, prefetch=ahead, pin_memory=pin_memory
        )

    def batches(self, numbers: Numbers) -> Iterable[Any]:
        order = self._loader.order
        # A shuffle by blocks stays one: the loader keeps decoded frames for it.
        self._loader.order = BlockPiece.of(order, numbers) if isinstance(order, BlockShuffled) else Given(numbers)
        return self._loader


@dataclass(frozen=True, eq=False)
class BlockPiece(BlockShuffled):
    """A piece of a shuffle by blocks."""

    numbers: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(cls, order: BlockShuffled, numbers: Numbers) -> BlockPiece:
        return cls(order.edges, order.window, order.seed, numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def epoch(self, epoch: int) -> Numbers:
        return self.numbers.copy()


class Processes(_Way):
    """torch's DataLoader over samples; its workers stay from pass to pass."""

    def __init__(self, dataset: PackedDataset, setting: Setting, ahead: int) -> None:
        self._draw = _Draw()
        workers = setting.workers
        self._loader: DataLoader[Any] | None = DataLoader(
            dataset,
            setting.batch_size,
            sampler=self._draw,
            num_workers=workers,
            persistent_workers=workers > 0,
            prefetch_factor=ahead if workers else None,
        )

    def batches(self, numbers: Numbers) -> Iterable[Any]:
        assert self._loader is not None
        self._draw.numbers = numbers.tolist()
        return self._loader

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The workers end with the last reference to the loader.
        self._loader = None


class _Draw(Sampler[int]):
    """The numbers of the present pass."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)
