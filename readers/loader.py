"""Loader: the batches of every epoch, at the speed of memory, in one process.

    for batch in Loader(ds, batch_size=128, shuffle=True):
        ...                                     # dict of tensors, the caller's own

No worker processes: handing a batch from one to another costs more than reading it. Threads are used
if there is time to hide (see `threads`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from operator import index
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data import DataLoader, Subset, default_collate

from packer.errors import UsageError
from readers.arguments import (
    check_batch_sampler,
    check_settings,
    count_threads,
    given_rank,
    keep_frames,
    make_order,
    refuse_others,
    without_subsets,
)
from readers.dataset import PackedDataset
from readers.device import move_ahead, resolve_device
from readers.draws import visits_of
from readers.epoch import Epoch, EpochBatchSampler, EpochSampler, Position, check_order, check_state
from readers.finishing import Finisher
from readers.gather import Pool
from readers.mix import Mix
from readers.mix_source import AnySource
from readers.order import Order
from readers.reading import ReadPlan, read_batches
from readers.samplers import BatchOrder
from readers.shard_order import ShardShuffled
from readers.share import Batches, Share, present_rank
from readers.streamed import check_fits, open_stream
from readers.valid import check_count, remark

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: What a loop says that goes on in a forked process.
_FORKED = (
    "a loop over a Loader cannot go on in a forked process: its threads and locks stayed in the other; "
    "begin a new loop, after load_state_dict() with the state of the old one"
)


class Loader(DataLoader[Any]):
    """Iterates over the batches of a `PackedDataset`, or of a `Mix` of several, epoch after epoch.

    Each `for` loop is one epoch and moves on to the next; `set_epoch` chooses one. The order of the samples
    depends on seed and epoch alone: not on threads, ranks, batch size, or where an epoch was resumed. Random crops and
    points depend on seed, epoch and position in the order: a sample that comes twice gives two.

    Each field of a batch has a storage of its own: it can be kept, saved, or sent to another process by itself. Several
    small batches are read at once, into one piece of memory of up to 8 MiB, which stays as long as any of them does.
    `clone()` what you keep for long.

    It is an instance of torch's DataLoader, but reads by itself. Frameworks find `sampler`, the order of this rank, and
    `batch_sampler`, that of all ranks, and may call `set_epoch` of either.

    Args:
        dataset: what to read, or a torch `Subset` of it, as `random_split` makes it. `first + second` of two datasets
            is read one after the other; it takes no `shuffle="block"`. A `Mix` takes neither that nor a `Subset` or a
            `sampler`; with `"shards"` each of its datasets is shuffled so.
        batch_size: samples in a batch, on this rank.
        shuffle: True for a full shuffle; `"block"` to shuffle blocks of frames and then within a window of
            blocks, so that each compressed frame is decoded about once an epoch. What a block is depends on the frames
            of the fields that are read, so another choice of fields gives another order. `"shards"` shuffles whole
            shards, and then within a window of shards: those of a dataset at a URL are fetched ahead and let go of, so
            that `cache_bytes` may be far smaller than the dataset. It is what True means for a dataset larger than
            `cache_bytes`, with a remark. In other orders shards come and go likewise.
        seed: of the order, and of random crops and points.
        drop_last: leave out the last batch if it is not full.
        threads: 0 does everything in the caller's thread; n reads ahead in n threads; `"auto"` is as many as processors
            with JPEG files, 2 if another field has a codec (1 on one processor) and an epoch has more than 8 MiB, else
            0. Functions of your own (`batch_transform`, `sample_transform`, `collate_fn`) are called by n other
            threads, so with n > 1 they must be thread-safe. With `"auto"` the first batches decide, which are made in
            your thread: quick functions stay there, others are called ahead, by one thread, in the order of the
            batches. Give a random one a second parameter `generator`: what it draws from that depends on seed, epoch
            and position alone. One that draws from the generators of torch, numpy or Python instead, or seeds them,
            does not repeat in threads: `"auto"` leaves it in your thread.
        prefetch: how many batches are made ahead at most by threads that call functions, or one for each thread if
            that is more. Without functions how many are read ahead; batches in one piece of memory, as above, count as
            one. Without threads it means nothing.
        device: moves batches to this device: they are gathered into page-locked memory, and copied while the caller
            computes.
        rank: number of this rank, whose share of the common order is read; by default from torch.distributed if it is
            initialised when a loop begins, else from RANK and WORLD_SIZE of the environment, with a remark.
        world_size: how many ranks there are; needs `rank`.
        sampler: sample numbers, instead of `shuffle`: a torch Sampler, or an array or list of int. When a loop begins,
            a Sampler or `batch_sampler` gives its numbers with torch's global generator seeded by seed and epoch; its
            state is restored afterwards. Do not draw from it in other threads meanwhile.
        batch_sampler: gives the numbers of the samples of each batch of this rank, instead of `batch_size`, `shuffle`,
            `sampler` and ranks: a torch BatchSampler, or a list of lists of int. A state then counts batches.
        shuffle_window: about how many samples are shuffled among themselves in a block shuffle; by default up to
            16,384, as memory allows: the decoded frames of a window take up to 64 MiB, and those of ragged fields more.
            With `shuffle="shards"` it is rounded to whole shards, one at least; by default up to 16,384 samples and 8
            shards, and fewer if `cache_bytes` does not hold four times as many.
        pin_memory: gives page-locked batches, for callers who copy them to a device themselves.
        as_numpy: gives numpy arrays instead of tensors.
        channels_last: False hands out contiguous (B, C, H, W), as other datasets give it, at the cost of a copy after
            the transform. By default images are (B, C, H, W) in channels_last memory, of which `view` cannot join axes.
        repeat: visits of each sample in an epoch, which has this many passes, each in another order. Random crops and
            points differ from visit to visit. The order of an epoch takes 8 bytes a visit.
        nodes: machines that the ranks run on, as many on each, with `shuffle="shards"`: each node fetches the shards of
            its own ranks alone. The order of an epoch is the same for 1, 2, 4, ... nodes. By default `world_size` over
            LOCAL_WORLD_SIZE of the environment, as torchrun sets it, where that shares the shards evenly, else 1.
        mesh: one axis of a torch DeviceMesh, along which batches differ, instead of `rank` and `world_size`: with
            `mesh["dp"]` the processes of one tensor, sequence or pipeline parallel group read the same.
        on_error: `"skip"` leaves damaged samples out of their batches, which then have fewer; each is named once by a
            remark, and is in `skipped` from then on. Order, ranks and states stay as they are. A batch without a sound
            sample is an error all the same, and so is a shard that is missing or has a damaged index. `"stop"` raises
            DamagedError for the first one. Some damage is only seen with `PackedDataset(..., verify=True)`.
        collate_fn: makes each batch from the list of its samples, as that of torch's DataLoader; they come after the
            transforms. Where a function can take a whole batch, `batch_transform` is faster.

    Attributes:
        skipped: the reason for each sample that was skipped, by its number, as in `dataset[number]`.

    Raises:
        UsageError: an argument has no meaning, or two do not go together.
    """

    dataset: PackedDataset | Mix

    def __init__(  # one keyword a setting, as torch's own DataLoader has it
        self,
        dataset: PackedDataset | Mix | Subset[Any],
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
        shuffle_window: int | None = None,
        pin_memory: bool = False,
        as_numpy: bool = False,
        repeat: int = 1,
        channels_last: bool = True,
        nodes: int | None = None,
        mesh: DeviceMesh | None = None,
        on_error: str = "stop",
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **others: Any,
    ) -> None:
        refuse_others(others)
        dataset, subset = without_subsets(dataset)
        flags = {"drop_last": drop_last, "pin_memory": pin_memory, "as_numpy": as_numpy, "channels_last": channels_last}
        check_settings(flags, {"prefetch": prefetch, "repeat": repeat}, seed, on_error)
        if as_numpy and device is not None:
            raise UsageError("as_numpy and device do not go together: numpy arrays are in main memory; leave out one")
        # How batches are read, and into what memory.
        source = dataset._source
        self.on_error = on_error
        self.skipped: dict[int, str] = {}
        self.as_numpy, self.channels_last = as_numpy, channels_last
        self.device = None if device is None else resolve_device(device)
        self.threads = count_threads(threads, source, repeat * len(dataset if subset is None else subset))
        self.prefetch = int(prefetch)  # deques take no numbers of numpy
        self._pinned = _takes_pinned(pin_memory, self.device)
        self._collate = None if collate_fn is default_collate else collate_fn
        self._call_threads = None if threads == "auto" else self.threads
        self._use_transforms(source)
        # Which samples come when.
        self._seed = seed
        self._given_rank, self._given_nodes = given_rank(rank, world_size, mesh), nodes
        self._make_order: Callable[[int], Order] | None = None
        if batch_sampler is None:
            self._make_order = partial(make_order, dataset, subset, shuffle, seed, sampler, shuffle_window, repeat)
            samplers = self._share_order(source, batch_size, bool(drop_last))
        else:
            others_given = (batch_size != 1, shuffle, drop_last, sampler is not None, shuffle_window, repeat != 1)
            check_batch_sampler(subset, any(others_given) or self._given_rank is not None)
            samplers = self._take_batches(batch_sampler, len(dataset))
        super().__init__(dataset, pin_memory=pin_memory, collate_fn=self._collate, **samplers)
        if batch_sampler is None:
            # torch made it from the sampler of this rank. Frameworks share the batches of this one among the ranks.
            common = EpochSampler(self._position, Share(self.share.batch_size))
            vars(self)["batch_sampler"] = EpochBatchSampler(common, self.share.batch_size, self.share.drop_last)

    def _share_order(self, source: AnySource, batch_size: int, drop_last: bool) -> dict[str, Any]:
        """Make the order and take this rank's share of it; return the same as arguments of torch's DataLoader."""
        assert self._make_order is not None, "no batch_sampler is given"
        check_count("batch_size", batch_size)
        batch_size = int(batch_size)  # torch takes no numbers of numpy, and neither do files of saved states
        self.share = Share(batch_size, *(self._given_rank or present_rank()), drop_last)
        self._position = Position(self._make_order(self.share.global_batch_size))
        self.share = replace(self.share, nodes=self._count_nodes(self.order, self.share.world_size))
        check_fits(source, self.order, self.share)
        if drop_last and len(self.order) and not self.share.count_batches(len(self.order)):
            remark(
                f"an epoch has no batch: drop_last=True leaves out the only one, which has {len(self.order):,} samples "
                f"of {self.share.global_batch_size:,}; take smaller batches"
            )
        return {
            "batch_size": batch_size,
            "sampler": EpochSampler(self._position, self.share),
            "drop_last": drop_last,
        }

    def _take_batches(self, batch_sampler: Iterable[Sequence[int]], samples: int) -> dict[str, Any]:
        """Take the batches that the caller's own sampler makes; return it as an argument of torch's DataLoader."""
        self.share = Share(1)
        self._position = Position(BatchOrder(batch_sampler, samples, self.seed))
        return {"batch_sampler": batch_sampler}

    @property
    def _source(self) -> AnySource:
        return self.dataset._source

    @property
    def seed(self) -> int:
        """Return the seed of the order, and of random crops and points."""
        return self._seed

    @property
    def order(self) -> Order:
        """Return the order of epochs that begin from now on."""
        return self._position.order

    @property
    def epoch(self) -> int:
        """Return the present epoch, or the next one after the end of a loop."""
        return self._position.epoch.number

    @property
    def remaining(self) -> int:
        """Return how many batches are left of the present epoch on this rank; all of them between two epochs.

        After `load_state_dict`, and inside of a loop, it is less than `len(loader)`.
        """
        self._update_share()
        epoch = self._position.epoch
        return self.share.count_batches(len(epoch.order), epoch.done)

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch, on this rank."""
        self._update_share()
        return self.share.count_batches(len(self.order))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next loop; one that is under way goes on. A loaded state of the same epoch is kept.

        A state taken at the last batch of an epoch stands at the beginning of the next one: `set_epoch` with the number
        of the epoch that has ended reads that epoch again.
        """
        self._position.set_epoch(epoch)

    def _use_transforms(self, source: AnySource) -> None:
        """Take the transforms that the dataset has now, and memory for the batches that are made ahead."""
        self._finisher = Finisher(
            source.transforms,
            self._collate,
            self._call_threads,
            channels_last=self.channels_last,
            as_numpy=self.as_numpy,
            pinned=self._pinned,
        )
        # The caller holds up to two batches: the next one is made before its name lets go of the last.
        readers = max(self.threads, int(self._finisher.threads is None))
        batches_in_use = 2 + (max(self.prefetch, readers) if readers else 0)
        self._pool = Pool(self._pinned, batches_in_use * max(len(source.fields), 1))

    def _update_share(self) -> None:
        """Take another share if torch.distributed was initialised after the loader was made."""
        if self._make_order is None:
            return
        rank, world_size = self._given_rank or present_rank()
        if (rank, world_size) != (self.share.rank, self.share.world_size):
            self.share = replace(self.share, rank=rank, world_size=world_size, nodes=1)
            self._position.use(self._make_order(self.share.global_batch_size))
            self.share = replace(self.share, nodes=self._count_nodes(self.order, world_size))
            vars(self)["sampler"] = EpochSampler(self._position, self.share)

    def _count_nodes(self, order: Order, world_size: int) -> int:
        """Return among how many nodes the shards are shared; see `nodes`.

        Raises:
            UsageError: the order has no shards to share.
        """
        if isinstance(order, ShardShuffled):
            return order.nodes(self._given_nodes, world_size)
        if self._given_nodes not in (None, 1):
            raise UsageError("nodes is only for shuffle='shards': in other orders every node reads all shards")
        return 1

    def state_dict(self) -> dict[str, Any]:
        """Return where the loop stands that handed out the last batch: its epoch, and how much of it is done.

        `done` counts samples of the common order that all ranks were given.

        Raises:
            UsageError: another loader has read the samplers since, as the one that Accelerate's `prepare` returns.
        """
        return {**self._position.state(), "dataset": self._dataset_digest}

    @cached_property
    def _dataset_digest(self) -> str:
        return self._source.digest

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next loop go on after the last batch handed out before `state_dict()`.

        Batch size and ranks may differ. A loop that is under way goes on as it is.

        An epoch of a `Mix` that was begun with other weights ends with those; the next one has the present weights. For
        a `Mix` of `batches="one"`, batch size and ranks must be the same.

        Raises:
            UsageError: the state is not that of a loader, or has other samples (their schema, numbers and names are
                compared), shuffle, seed, shuffle_window, array or list of numbers, or, with `shuffle="block"`, choice
                of fields. Of a torch sampler only the length is compared.
        """
        self._update_share()
        check_state(state)
        order = self.order.resume(state)
        check_order(state, order)
        if state.get("dataset", self._dataset_digest) != self._dataset_digest:
            raise UsageError(
                "the state is of another dataset, or of other samples of it, although there are as many: give the same "
                "dataset, split, samples and windows; or begin the epoch again: set_epoch(state['epoch'])"
            )
        self.share.check_done(len(order), state["done"])
        self._position.choose(Epoch(order if state["done"] else self.order, index(state["epoch"]), state["done"]))

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch's own iterator has more, which nobody calls
        """Yield the rest of this epoch, or all of the next; which one is decided when the first batch is asked for.

        Raises:
            UsageError: the sampler gives a number that no sample has, a sample does not have the size that its crop or
                points ask for, or the loop goes on in a process that was forked within it.
            DamagedError: a stored frame cannot be decoded.
        """
        process = os.getpid()
        self._update_share()
        position, share = self._position, self.share
        epoch = position.begin()
        done_before = epoch.done
        batches = epoch.order.batches(epoch.number, share, done_before)
        n = len(epoch.order)  # after that: a sampler of batches may have another length in each epoch
        # Worked out once: what a batch costs beside its copying counts in small batches.
        left, step = len(batches), share.global_batch_size
        if not left:
            position.advance(epoch, is_through=True)
            return
        plan = self._plan(epoch, batches)
        batches_read = moved = read_batches(plan)
        if self.device is not None:
            moved = cast(Generator[Any, None, None], move_ahead(batches_read, self.device))
        with plan.stream or nullcontext(), closing(batches_read), closing(moved):
            for number in range(1, left + 1):
                if os.getpid() != process:
                    raise UsageError(_FORKED)
                batch = next(moved)
                # The state is that of the loop that handed out the last batch, whichever loops run meanwhile.
                epoch.done = min(done_before + number * step, n)
                position.advance(epoch, is_through=number == left)
                yield batch
                # The generator must not hold a batch whose memory the pool could use again.
                del batch

    def _plan(self, epoch: Epoch, batches: Batches) -> ReadPlan:
        """Return how some batches of an epoch are read."""
        source, share, stream = self._source, self.share, None
        if source.is_at_url:
            stream = open_stream(source, epoch.order, batches, epoch.number, share, epoch.done)
        if stream is None and epoch.order.window:
            for member in source.members:
                keep_frames(member, epoch.order.window // len(source.members), share.batch_size)
        if source.transforms is not self._finisher.transforms:  # replaced since the loader was made
            self._use_transforms(source)
        return ReadPlan(
            source,
            batches,
            partial(visits_of, self.seed, epoch.number) if source.draws else None,
            self._pool,
            self._finisher,
            threads=self.threads,
            prefetch=self.prefetch,
            stream=stream,
            skipped=self.skipped if self.on_error == "skip" else None,
        )


def _takes_pinned(pin_memory: bool, device: torch.device | None) -> bool:
    """Return whether batches are gathered into page-locked memory: if the caller says so, or for a GPU."""
    is_wanted = pin_memory or (device is not None and device.type == "cuda")
    # Asked last, and only if needed: on a machine with a GPU the call alone spoils forking.
    return is_wanted and torch.cuda.is_available()
