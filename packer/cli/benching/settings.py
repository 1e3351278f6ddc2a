"""The settings that are compared: ways to read a dataset, batch sizes, workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

INDEXING, LOADER, DATALOADER = "ds[indices]", "Loader", "DataLoader"


@dataclass(frozen=True)
class Setting:
    """One way to read.

    Attributes:
        way: `ds[indices]`, `Loader` or `DataLoader`.
        batch_size: samples of a batch.
        workers: processes of a DataLoader, threads of a Loader.
        shuffle: `full`, or `block` where a Loader shuffles by blocks.
    """

    way: str
    batch_size: int
    workers: int = 0
    shuffle: str = "full"

    @property
    def text(self) -> str:
        """`ds[indices]`, `Loader 0`, `Loader block 2`, `DataLoader 4`."""
        if self.way == INDEXING:
            return self.way
        block = " block" if self.shuffle == "block" else ""
        return f"{self.way}{block} {self.workers}"

    @property
    def described(self) -> str:
        """The same with the batch size."""
        return f"{self.text}, batch {self.batch_size}"


@dataclass(frozen=True)
class Choice:
    """What the user asked for.

    Attributes:
        fields: those to read; None for all.
        batch_sizes, workers: those to try, each once.
        seconds: of measuring, in all.
        blocks: whether a shuffle by blocks is tried too.
    """

    fields: tuple[str, ...] | None
    batch_sizes: Sequence[int]
    workers: Sequence[int]
    seconds: float
    blocks: bool = False

    def settings(self, batch_size: int) -> Iterator[Setting]:
        """All settings of one batch size."""
        yield Setting(INDEXING, batch_size)
        yield from (Setting(LOADER, batch_size, n) for n in self.workers)
        if self.blocks:
            yield from (Setting(LOADER, batch_size, n, "block") for n in self.workers)
        yield from (Setting(DATALOADER, batch_size, n) for n in self.workers)

    def alone(self, batch_size: int) -> Iterator[Setting]:
        """Settings in which nothing overlaps, so that the time of a batch can be taken apart."""
        some = sorted({min(n, 1) for n in self.workers})
        yield Setting(INDEXING, batch_size)
        yield from (Setting(LOADER, batch_size, n) for n in some)
        yield from (Setting(DATALOADER, batch_size, n) for n in some)
