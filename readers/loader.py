"""Loader: the batches of every epoch, at the speed of memory, in one process.

    for batch in Loader(ds, batch_size=128, shuffle=True):
        ...                                     # dict of tensors, the caller's own

No worker processes: handing a batch from one to another costs more than reading it. Threads are used
if there is time to hide (see `threads`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from packer.codecs.configs import LZ4
from packer.errors import UsageError
from packer.format.column import Numbers
from readers.dataset import PackedDataset
from readers.device import ahead, device_of
from readers.draws import visits_of
from readers.fields import WholeReader
from readers.gather import Pool
from readers.joined import starts_of
from readers.mix import Mix
from readers.order import (
    WINDOW,
    BatchOrder,
    BlockShuffled,
    Given,
    Mixed,
    Order,
    Repeated,
    SamplerOrder,
    Sequential,
    Share,
    Shuffled,
    base,
    check_state,
    describe,
    resumed,
)
from readers.stream import CODED_RUN_BYTES, Stream, machine_decodes, run_bytes

#: Frames of at least this many raw bytes are worth a thread if their codec is a heavy one; short calls only fight for
#: the interpreter.
THREAD_BYTES = 32 * 2**10
#: Runs of an epoch that machine code decodes, from which two threads are started for it, whatever the frames.
LONG_RUNS = 8
#: Bytes of decoded frames that a block shuffle may hold; the window is smaller if it would hold more.
WINDOW_BYTES = 64 * 2**20
#: A block is so many times as long as a frame that crosses its edge and so may be decoded twice: a tenth of them.
BLOCK_FRAMES = 10


class Loader(DataLoader[Any]):
    """Iterates over the batches of a `PackedDataset`, or of a `Mix` of several, epoch after epoch.

    Each `for` loop is one epoch and moves on to the next; `set_epoch` chooses one. The order of the samples
    depends on seed and epoch alone: not on threads, ranks, batch size, or where an epoch was resumed. Random crops and
    points depend on these two and on the position in the order: a sample that comes twice gives two.

    Each field of a batch has a storage of its own: it can be kept, saved, or sent to another process by itself. The
    memory of small batches is filled several batches at once, up to 8 MiB, and stays as long as one of them does.
    `clone()` what you keep for long.

    It is a torch DataLoader to those who ask, and reads by itself: frameworks find `sampler`, the order of this rank,
    and `batch_sampler`, that of all ranks, and tell either of them the epoch.

    Args:
        dataset: what to read. Of a `Mix`, `shuffle="block"`, `sampler` and `window` cannot be.
        batch_size: samples a batch, on this rank.
        shuffle: True for a full shuffle; `"block"` to shuffle blocks of frames and then within a window of
            blocks, so that each compressed frame is decoded about once an epoch. What a block is depends on the frames
            of the fields that are read, so another choice of fields gives another order.
        seed: of the order, and of random crops and points.
        drop_last: leave out the last batch if it is not full.
        threads: 0 does all in the caller's thread; n reads ahead in n threads; `"auto"` takes threads if decoding
            or a transform leaves time to hide: two at most, and one if there is a transform. With
            n > 1 the transform runs in n threads at once and has to bear that; random ones are then not reproducible.
        prefetch: batches read ahead by threads, at most, or one a thread if that is more; batches that are parts of
            one piece of memory, as above, count as one. If a transform waits for them, each is read by itself.
        device: moves batches there: gathered into page-locked memory, copied next to the caller's work.
        rank: number of this rank, whose share of the common order is read; by default from torch.distributed if it is
            initialised when a loop begins.
        world_size: how many ranks there are; goes with `rank`.
        sampler: sample numbers instead of `shuffle`: a torch Sampler, or an array or list of int.
        batch_sampler: gives the numbers of the samples of each batch of this rank, instead of `batch_size`, `shuffle`,
            `sampler` and ranks: a torch BatchSampler, or a list of lists of int. A state then counts batches.
        window: samples of the window of a block shuffle, about; by default up to 16,384, as memory allows.
        pin_memory: page-locked batches, for those who copy themselves.
        as_numpy: numpy arrays instead of tensors.
        repeat: visits of each sample an epoch, in as many passes one after another, each in an order of its own. Random
            crops and points differ from visit to visit. The order of an epoch takes 8 bytes a visit.

    Raises:
        UsageError: arguments that cannot be or do not go together.
    """

    dataset: PackedDataset | Mix

    def __init__(  # one keyword a setting, as torch's own DataLoader has it
        self,
        dataset: PackedDataset | Mix,
        batch_size: int = 1,
        shuffle: bool | str = False,
        seed: int = 0,
        drop_last: bool = False,
        threads: int | str = "auto",
        prefetch: int = 2,
        device: torch.device | str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        window: int | None = None,
        pin_memory: bool = False,
        as_numpy: bool = False,
        repeat: int = 1,
    ) -> None:
        if not isinstance(dataset, PackedDataset | Mix):
            raise UsageError(f"Loader reads a PackedDataset, not a {type(dataset).__name__}; for others use DataLoader")
        if as_numpy and device is not None:
            raise UsageError("as_numpy and device do not go together: numpy arrays lie in the computer's memory")
        if (rank is None) != (world_size is None):
            raise UsageError("rank and world_size go together; give both or none")
        if not isinstance(prefetch, int) or prefetch < 1:
            raise UsageError(f"prefetch {prefetch!r}: a whole number from 1 on is expected")
        self._place = Place()
        self._rank = None if rank is None or world_size is None else (rank, world_size)
        if batch_sampler is not None:
            others = (batch_size != 1, shuffle, drop_last, sampler is not None, window, repeat != 1, rank is not None)
            if any(others):
                raise UsageError(
                    "batch_sampler says what comes when: leave out batch_size, shuffle, drop_last, sampler, window, "
                    "repeat and rank"
                )
            self.share = Share(1, 0, 1)
            self.order: Order = BatchOrder(batch_sampler, len(dataset), seed)
            super().__init__(dataset, batch_sampler=cast(Any, batch_sampler), pin_memory=pin_memory)
        else:
            self._make_order = partial(_order_of, dataset, shuffle, seed, sampler, window, repeat)
            self.share = Share(batch_size, *self._present_rank(), drop_last)
            self.order = self._make_order(self.share.step_size)
            mine, of_all = (EpochSampler(self.order, self._place, share) for share in (self.share, Share(batch_size)))
            super().__init__(dataset, batch_size, sampler=mine, drop_last=drop_last, pin_memory=pin_memory)
            # torch would make it of `mine`; who takes batches from it shares them out among the ranks by himself.
            vars(self)["batch_sampler"] = BatchSampler(of_all, batch_size, drop_last)
        self.device = None if device is None else device_of(device)
        self.seed = seed
        self.as_numpy = as_numpy
        self.threads = _threads(threads, dataset)
        self.prefetch = prefetch
        on_gpu = self.device is not None and self.device.type == "cuda"
        # The caller holds up to two batches: the next one is made before its name lets go of the last.
        held = 2 + (max(prefetch, self.threads) if self.threads else 0)
        self._pool = Pool(torch.cuda.is_available() and (pin_memory or on_gpu), held * max(len(dataset.fields), 1))
        self._finish: Callable[[Any], Any] | None = _to_numpy if as_numpy else None

    @property
    def epoch(self) -> int:
        """The present epoch, or the next one after the end of a loop."""
        return self._place.epoch

    def __len__(self) -> int:
        """Return the batches of a whole epoch, on this rank."""
        self._settle()
        return self.share.steps(len(self.order))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next loop. If a state was loaded in the middle of this epoch, it stays there.

        A state taken at the last step of an epoch is that of the beginning of the next one: `set_epoch` with the epoch
        that has ended would read it again.
        """
        self._place.set_epoch(epoch)

    def _present_rank(self) -> tuple[int, int]:
        """Return this rank and the number of ranks, as they were given or as torch.distributed has them now."""
        if self._rank is None and torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return self._rank or (0, 1)

    def _settle(self) -> None:
        """Take another share if torch.distributed was initialised after the loader was made."""
        if isinstance(self.order, BatchOrder):
            return
        rank, world_size = self._present_rank()
        if (rank, world_size) != (self.share.rank, self.share.world_size):
            self.share = replace(self.share, rank=rank, world_size=world_size)
            self.order = self._make_order(self.share.step_size)
            vars(self)["sampler"] = EpochSampler(self.order, self._place, self.share)

    @property
    def _present(self) -> Order:
        """The order of the present epoch."""
        return self.order if self._place.begun is None else self._place.begun

    @cached_property
    def _order_in_words(self) -> str:
        # Once: some take a state at every step.
        return describe(self.order)

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands: epoch, and how many samples of the common order all ranks were given."""
        order = base(self._present)
        return {
            "epoch": self._place.epoch,
            "done": self._place.done,
            "samples": len(self._present),
            "order": self._order_in_words,
            **({"weights": list(order.weights)} if isinstance(order, Mixed) else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the last batch handed out before `state_dict()`, at once; with any batch size and any ranks.

        An epoch of a `Mix` that was begun with other weights is ended with those; the next one has the present ones.

        Raises:
            UsageError: the state is none of a loader, or of another number of samples, shuffle, seed, window, array of
                numbers, or, with `shuffle="block"`, choice of fields. Of a torch sampler only the length is compared.
        """
        self._settle()
        order = resumed(self.order, state)
        check_state(state, len(order), self._order_in_words)
        self.share.steps(len(order), state["done"])
        self._place.begin(state["epoch"])
        if state["done"]:
            self._place.done, self._place.begun = state["done"], order
        self._place.is_chosen = True

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch's own iterator has more that nobody asks for
        """Yield the rest of this epoch, or all of the next; which it is is settled when the first batch is asked for.

        Raises:
            UsageError: the sampler gives a number that no sample has, or a sample has not the size that its crop or
                points ask for. This and damage of an index may come early, since the places of several thousand samples
                are looked up at once.
            DamagedError: what is stored cannot be decoded.
        """
        self._settle()
        place = self._place
        if not place.is_chosen and place.done:
            # The last loop was left in the middle of its epoch: as with torch's DataLoader, a new one begins.
            place.begin(place.epoch + 1)
        place.is_chosen = False
        epoch, done = place.epoch, place.done
        self.dataset.set_epoch(epoch)
        order = self._numbers_of(epoch)
        n = len(order)
        steps = self.share.steps(n, done)
        if not steps:
            place.begin(epoch + 1)
            return
        self._keep_window()
        read = self._batches(order, epoch, done)
        moved = read if self.device is None else cast(Generator[Any, None, None], ahead(read, self.device))
        with closing(read), closing(moved):
            for step in range(1, steps + 1):
                batch = next(moved)
                place.done = min(done + step * self.share.step_size, n)
                if step == steps:
                    place.begin(epoch + 1)
                yield batch
                # The generator must not hold a batch whose memory the pool could use again.
                del batch

    def _numbers_of(self, epoch: int) -> Numbers:
        """Return the sample numbers of an epoch, or of each of its batches; raises UsageError for no sample."""
        order = self._present.epoch(epoch)
        if isinstance(base(self.order), Given | SamplerOrder) and not isinstance(self.order, BatchOrder):
            wrong = order[(order < 0) | (order >= len(self.dataset))]
            if len(wrong):
                raise UsageError(f"sampler: number {wrong[0]} is outside of the {len(self.dataset)} samples")
        return order

    def _batches(self, order: Numbers, epoch: int, done: int) -> Generator[Any, None, None]:
        """Yield what this rank still has of an epoch; closing it stops the threads."""
        stream = Stream(self.dataset, self._pool, self.threads, self.prefetch, self._finish)
        if isinstance(self.order, BatchOrder):
            pieces: Iterable[tuple[Numbers, Numbers, int]] = self.order.pieces(order, done)
        else:
            positions = self.share.numbers(np.arange(len(order)), done)
            pieces = [(self.share.numbers(order, done), positions, self.share.batch_size)]
        for numbers, positions, batch_size in pieces:
            visits = visits_of(self.seed, epoch, positions) if self.dataset.draws else None
            with closing(stream.batches(numbers, batch_size, visits)) as batches:
                yield from batches

    def _keep_window(self) -> None:
        """Make room for the decoded frames of a window, so that a block shuffle decodes each frame about once.

        There are those of a window, those of what is read at once while one window ends and the next begins, those that
        cross the edges of its blocks, and those at the end of a shard, which may hold less.
        """
        order = base(self.order)
        if not isinstance(order, BlockShuffled) or not isinstance(self.dataset, PackedDataset) or not len(self.dataset):
            return
        block, shards, total = _block_samples(self.dataset), len(self.dataset.manifest.shards), self.dataset.items.total
        # Of a split the items of a window lie among more samples than they are, and windows of samples among fewer.
        window = min(order.window * total // len(self.dataset) + block, total)
        limit = run_bytes(self.dataset.readers.values())
        for reader in self.dataset.opened.readers.values():
            if isinstance(reader, WholeReader):
                frame = reader.field.frame.samples or 1
                frames = -(-window // frame) + 1 + window * shards // total
                frames += -(-window // block) if block % frame else 0
                at_once = max(self.share.batch_size, limit // max(int(reader.sample_bytes), 1))
                touched = min(at_once, frames * (at_once // window + 2))  # a run may hold several windows
                # The cache itself asks for twice what one call touches.
                reader.keep(frame * max(frames + (1 + self.threads) * touched, 2 * touched + 2))


@dataclass
class Place:
    """Where a loader stands; its samplers may be told the epoch as well.

    Attributes:
        epoch: the present one, or the next.
        done: samples of the order that were handed out on all ranks; batches, of a `BatchOrder`.
        begun: the order of the present epoch, if it was begun with other weights of a mix.
        is_chosen: whether somebody said where the next loop begins.
    """

    epoch: int = 0
    done: int = 0
    begun: Order | None = None
    is_chosen: bool = False

    def begin(self, epoch: int) -> None:
        """Stand at the beginning of an epoch."""
        self.epoch, self.done, self.begun = epoch, 0, None

    def set_epoch(self, epoch: int) -> None:
        """See `Loader.set_epoch`."""
        if not (self.is_chosen and epoch == self.epoch):
            self.begin(epoch)
            self.is_chosen = True


class EpochSampler(DistributedSampler[int]):
    """A share of a loader's order as a torch sampler, for frameworks that take a loader apart or tell it the epoch.

    As a DistributedSampler it says that ranks are taken care of.
    """

    def __init__(self, order: Order, place: Place, share: Share) -> None:
        super().__init__(range(len(order)), share.world_size, share.rank, shuffle=False)  # type: ignore[arg-type]
        self._order, self._place, self._share = order, place, share

    def __iter__(self) -> Iterator[int]:
        return iter(self._share.numbers(self._order.epoch(self._place.epoch)).tolist())

    def __len__(self) -> int:
        return len(self._share.numbers(np.arange(len(self._order))))

    def set_epoch(self, epoch: int) -> None:
        """See `Loader.set_epoch`."""
        self._place.set_epoch(epoch)


def _order_of(
    dataset: PackedDataset | Mix,
    shuffle: bool | str,
    seed: int,
    sampler: Iterable[int] | None,
    window: int | None,
    repeat: int,
    step_size: int,
) -> Order:
    """Return the order that a loader's arguments ask for.

    Args:
        step_size: samples that all ranks together take at a step.

    Raises:
        UsageError: they cannot be, or do not go together.
    """
    if window is not None and shuffle != "block":
        raise UsageError("window is for shuffle='block'; nothing else has one")
    order: Order
    if isinstance(dataset, Mix):
        if sampler is not None or shuffle not in (True, False):
            raise UsageError("a Mix has an order of its own, by weights: shuffle=True or False, and no sampler")
        order = dataset.order(bool(shuffle), seed, step_size)
    elif sampler is not None:
        if shuffle:
            raise UsageError("shuffle and sampler do not go together: the sampler gives the order")
        is_array = isinstance(sampler, (list, tuple, np.ndarray, range, torch.Tensor))
        order = Given(np.asarray(sampler)) if is_array else SamplerOrder(sampler, seed)
    elif shuffle == "block":
        order = BlockShuffled(_block_edges(dataset), _window(dataset) if window is None else window, seed)
    elif shuffle in (True, False):
        order = Shuffled(len(dataset), seed) if shuffle else Sequential(len(dataset))
    else:
        raise UsageError(f"shuffle {shuffle!r}: True, False or 'block' is expected")
    return order if repeat == 1 else Repeated(order, repeat)


def _block_samples(dataset: PackedDataset) -> int:
    """Return the samples of a block: some of the longest frames, so many that few other frames cross its edges."""
    fields = dataset.fields.values()
    # An uncompressed frame is not read as a whole: only if there is no other does it say what lies together.
    frames = [f.frame.samples or 1 for f in fields if f.codec] or [f.frame.samples or 1 for f in fields]
    longest = block = max(frames, default=1)
    while any(block % frame and block < BLOCK_FRAMES * frame for frame in frames):
        block += longest
    return block


def _block_edges(dataset: PackedDataset) -> Numbers:
    """Return the first item of every block, and the number of items; a block lies in one shard."""
    block = _block_samples(dataset)
    firsts = starts_of([shard.samples for shard in dataset.manifest.shards])
    edges = [np.arange(first, stop, block, dtype=np.int64) for first, stop in itertools.pairwise(firsts.tolist())]
    return dataset.items.before(np.concatenate([*edges, firsts[-1:]]))


def _window(dataset: PackedDataset) -> int:
    """Return the samples of the window of a block shuffle, as memory allows."""
    coded = sum(f.fixed_bytes for f in dataset.fields.values() if f.codec and not f.is_ragged and f.frame.samples != 1)
    items_held = WINDOW_BYTES // max(coded, 1) * len(dataset) // max(dataset.manifest.samples, 1)
    return max(1, min(WINDOW, items_held))


def _threads(threads: int | str, dataset: PackedDataset | Mix) -> int:
    if isinstance(dataset, Mix):
        return max(_threads(threads, each) for each in dataset.datasets)
    if threads == "auto":
        heavy = any(_is_heavy(dataset, name) for name in dataset.fields) or _is_long(dataset)
        # Of two threads either may be first to draw a transform's random numbers.
        if heavy and dataset.transform is None:
            return min(2, os.cpu_count() or 1)
        return 1 if heavy or dataset.transform is not None else 0
    if not isinstance(threads, int) or threads < 0:
        raise UsageError(f"threads {threads!r}: 0 or more, or 'auto', is expected")
    return threads


def _is_heavy(dataset: PackedDataset, name: str) -> bool:
    """Whether decoding a field leaves time to hide: a codec heavier than lz4, and large frames."""
    field = dataset.fields[name]
    if all(config["id"] in LZ4 for config in field.codec) or not len(dataset):
        return False
    mean = dataset.manifest.columns[name].raw / dataset.manifest.samples
    return mean * (field.frame.samples or 1) >= THREAD_BYTES


def _is_long(dataset: PackedDataset) -> bool:
    """Whether machine code decodes an epoch, for so long that threads are worth starting."""
    if dataset.windows is not None:
        read = [reader.field for reader in dataset.readers.values()]
        raw = [(field, field.fixed_bytes * len(dataset)) for field in read if field.fixed_bytes >= THREAD_BYTES]
    elif dataset.crop is not None or dataset.sample_points is not None:
        return False
    else:
        raw = [(field, dataset.manifest.columns[field.name].raw) for field in dataset.fields.values()]
    return sum(nbytes for _, nbytes in raw) >= LONG_RUNS * CODED_RUN_BYTES and machine_decodes(raw)


def _to_numpy(batch: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.numpy(), batch)
