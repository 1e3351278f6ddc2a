"""Works out what the arguments of a loader mean for one dataset: the order of its epochs, room for frames, threads.

Those that mean nothing, or do not go together, are refused here, each by a sentence.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, default_collate

from packer.codecs import JPEG
from packer.errors import UsageError
from packer.format import Numbers, starts_of
from packer.machine import processors
from readers.composed import Repeated, SubsetOrder
from readers.dataset import PackedDataset, reads_batches
from readers.fields import RUN_BYTES
from readers.indexing import resolve_numbers
from readers.mix import Mix, Sum, mixed_order
from readers.mix_source import AnySource
from readers.order import WINDOW, BlockShuffled, Order, Sequential, Shuffled
from readers.samplers import Given, SamplerOrder
from readers.shard_order import ShardShuffled
from readers.share import rank_in_mesh
from readers.source import Source, source_of
from readers.valid import check_choice, check_count, check_flags, check_seed, remark

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: Bytes of decoded frames that a block shuffle may hold; the window is smaller if it would hold more.
WINDOW_BYTES = 64 * 2**20
#: Shards of a window if the caller does not say: the first batch waits for all of them.
WINDOW_SHARDS = 8
#: An epoch of no more decoded bytes is read at once: two threads would cost more than they hide.
SHORT_BYTES = RUN_BYTES
#: Where frames of several fields differ in length, some cross the edge of a block and are decoded for both sides.
#: Blocks as long as this many frames keep these to a tenth.
BLOCK_FRAMES = 10
#: Arguments of torch's DataLoader that Loader does not take, and their replacements.
_INSTEAD = {
    "num_workers": "it reads in this process, by threads where that pays; leave it out, or give threads=",
    "prefetch_factor": "give prefetch=, how many batches threads read ahead",
    "generator": "the order follows from seed and epoch; give seed=",
}


# ---------------------------------------------------------------- what is given


def refuse_others(arguments: Mapping[str, Any]) -> None:
    """Raise an error if arguments of torch's DataLoader that Loader does not take have a value, or are none of these.

    Raises:
        UsageError: it is one of torch's.
        TypeError: nobody knows it.
    """
    for name, value in arguments.items():
        if name == "window":
            raise UsageError("Loader takes no window: the argument is called shuffle_window")
        torch_parameters = signature(DataLoader.__init__).parameters
        if name not in torch_parameters:
            raise TypeError(f"Loader got an unexpected keyword argument {name!r}")
        # Frameworks that build a loader again pass on torch's defaults.
        if value not in (torch_parameters[name].default, default_collate):
            instead = _INSTEAD.get(name, "it reads in this process, without workers; leave it out")
            raise UsageError(f"Loader takes no {name}: {instead}")


def without_subsets(dataset: Any) -> tuple[PackedDataset | Mix, Numbers | None]:
    """Return the dataset that a torch Subset is of, also one of another Subset, and the numbers of its items, (n,).

    Raises:
        UsageError: it is no dataset whose batches can be read whole.
    """
    numbers: Numbers | None = None
    while isinstance(dataset, Subset):
        indices, dataset = dataset.indices, dataset.dataset
        look_up = source_of(dataset).sample_numbers if isinstance(dataset, PackedDataset) else _no_names
        item_numbers = resolve_numbers(indices, len(dataset), look_up)
        numbers = item_numbers if numbers is None else item_numbers[numbers]
    _check_dataset(dataset)
    return dataset, numbers


def _no_names(names: Sequence[str]) -> Numbers:
    raise UsageError(f"Subset: numbers are expected, not the name {names[0]!r}")


def _check_dataset(dataset: Any) -> None:
    """Raise UsageError if it is no dataset whose batches can be read whole."""
    if isinstance(dataset, str | os.PathLike):
        raise UsageError(f"Loader reads a dataset, not its path: Loader(PackedDataset({str(dataset)!r}), ...)")
    if isinstance(dataset, ConcatDataset):
        raise UsageError(
            "Loader reads no ConcatDataset: give first + second, datasets of the same fields and transforms, "
            "or use DataLoader"
        )
    if not isinstance(dataset, Mix) and not reads_batches(dataset):
        raise UsageError(
            f"Loader reads a PackedDataset, not a {type(dataset).__name__}; for others, and for subclasses that "
            "have their own __getitem__, use DataLoader"
        )


def check_settings(flags: Mapping[str, object], counts: Mapping[str, object], seed: int, on_error: object) -> None:
    """Raise UsageError if one of these is no flag, no count from 1 on, no seed, or no way to treat damaged samples."""
    check_flags("Loader", **flags)
    for name, count in counts.items():
        check_count(name, count)
    check_seed(seed)
    check_choice("on_error", on_error, ("stop", "skip"))


def given_rank(rank: int | None, world_size: int | None, mesh: DeviceMesh | None) -> tuple[int, int] | None:
    """Return the rank and the number of ranks that the caller gave, or those of a mesh; None without either.

    Raises:
        UsageError: one without the other, or both and a mesh.
    """
    if (rank is None) != (world_size is None):
        raise UsageError("rank and world_size go together; give both or none")
    if mesh is None:
        return None if rank is None or world_size is None else (rank, world_size)
    if rank is not None:
        raise UsageError("mesh says which rank this is, and of how many: leave out rank and world_size")
    return rank_in_mesh(mesh)


def check_batch_sampler(subset: Numbers | None, has_others: bool) -> None:
    """Raise UsageError if something else than a batch_sampler says which batches there are, too."""
    if subset is not None:
        raise UsageError("batch_sampler makes the batches: give it the dataset itself, not a Subset")
    if has_others:
        raise UsageError(
            "batch_sampler makes the batches: leave out batch_size, shuffle, drop_last, sampler, "
            "shuffle_window, repeat, rank and mesh"
        )


# ---------------------------------------------------------------- orders


def make_order(
    dataset: PackedDataset | Mix,
    subset: Numbers | None,
    shuffle: bool | str,
    seed: int,
    sampler: Iterable[int] | None,
    shuffle_window: int | None,
    repeat: int,
    global_batch_size: int,
) -> Order:
    """Return the order that a loader's arguments ask for.

    Args:
        subset: the numbers of a torch Subset; None to read all items.
        global_batch_size: samples that all ranks together take for one batch each.

    Raises:
        UsageError: an argument has no meaning, or two do not go together.
    """
    source = dataset._source
    if shuffle is True and sampler is None and source.exceeds_cache:
        remark("the dataset is larger than cache_bytes: shuffle=True is shuffle='shards' here, see shuffle_window")
        shuffle = "shards"
    if shuffle_window is not None and shuffle not in ("block", "shards"):
        raise UsageError("shuffle_window is only for shuffle='block' and 'shards'; leave it out")
    order: Order
    count = len(dataset) if subset is None else len(subset)
    if isinstance(dataset, Mix) and not isinstance(dataset, Sum):
        if sampler is not None or shuffle not in (True, False, "shards") or subset is not None:
            raise UsageError(
                "a Mix has an order of its own, by weights: give shuffle=True, 'shards' or False, and no sampler or "
                "Subset"
            )
        orders = _make_member_orders(dataset, shuffle_window, seed) if shuffle == "shards" else []
        order = mixed_order(dataset, bool(shuffle), seed, global_batch_size, orders)
    elif sampler is not None:
        if shuffle:
            raise UsageError("shuffle and sampler do not go together: the sampler gives the order; leave out one")
        is_array = isinstance(sampler, (list, tuple, np.ndarray, range, torch.Tensor))
        order = Given(np.asarray(sampler), count) if is_array else SamplerOrder(sampler, count, seed)
    elif shuffle == "shards":
        order, subset = _make_shard_order(source, subset, shuffle_window, seed), None
    elif shuffle == "block":
        if not isinstance(source, Source):
            raise UsageError("shuffle='block' reads one dataset, not a sum: give shuffle=True or 'shards'")
        if subset is not None:
            raise UsageError("shuffle='block' reads no torch Subset: give dataset.select(numbers), which ascend")
        order = _make_block_order(source, shuffle_window, seed)
    elif shuffle in (True, False):
        order = Shuffled(count, seed) if shuffle else Sequential(count)
    else:
        raise UsageError(f"shuffle {shuffle!r}: True, False, 'block' or 'shards' is expected")
    order = order if subset is None else SubsetOrder(order, subset)
    return order if repeat == 1 else Repeated(order, repeat)


def _make_shard_order(
    source: AnySource, subset: Numbers | None, window: int | None, seed: int, sharing: int = 1
) -> Order:
    """Return the order of a shuffle of shards; by default its window and the next one fit into half the cache.

    The other half is for another loop, such as a validation in the middle of an epoch, and for shards fetched ahead.

    Args:
        subset: the numbers of the items that it is of; None for all.
        sharing: how many such orders share the cache.
    """
    shards = source.item_shards
    edges = shards.edges
    if edges is None or subset is not None:
        numbers = np.arange(len(source)) if subset is None else subset
        shard_of_number = shards.of(numbers)
        subset = numbers[shard_of_number.argsort(kind="stable")]
        edges = starts_of(np.bincount(shard_of_number))
    if window is None:
        members = source.members
        limit = min((m.mirror.cache.limit for m in members if m.mirror and m.mirror.cache.limit), default=None)
        largest = max([1, *(entry.bytes for entry in source.entries)])
        fitting = WINDOW_SHARDS if limit is None else (limit // sharing // largest // 2 - 1) // 2
        in_window = max(1, min(WINDOW_SHARDS, fitting))
        window = max(1, min(WINDOW, -(-in_window * int(edges[-1]) // max(1, int(np.count_nonzero(np.diff(edges)))))))
    order = ShardShuffled(edges, window, seed)
    return order if subset is None else SubsetOrder(order, subset)


def _make_member_orders(mix: Mix, window: int | None, seed: int) -> list[Order]:
    """Return a shuffle of shards for each dataset of a mix, which has an equal part of the window."""
    if window is not None:
        check_count("shuffle_window", window)
    members = mix._source.members
    # Not by weight: a state may be loaded with other weights.
    part = None if window is None else max(1, window // len(members))
    return [_make_shard_order(member, None, part, seed, len(members)) for member in members]


# ---------------------------------------------------------------- block shuffle


def _make_block_order(source: Source, window: int | None, seed: int) -> BlockShuffled:
    """Return the order of a block shuffle: a block lies in one shard; by default memory bounds the window."""
    if not source.items.is_ascending:
        raise UsageError("shuffle='block' needs samples in ascending order: sort the numbers of the chosen samples")
    block = _block_samples(source)
    firsts = starts_of([shard.samples for shard in source.manifest.shards])
    edges = [np.arange(first, stop, block, dtype=np.int64) for first, stop in itertools.pairwise(firsts.tolist())]
    items = source.items.before(np.concatenate([*edges, firsts[-1:]]))
    if window is None:
        fields = source.fields.values()
        coded = sum(f.fixed_bytes for f in fields if f.codec and not f.is_ragged and f.frame.samples != 1)
        fitting = WINDOW_BYTES // max(coded, 1) * len(source) // max(source.manifest.samples, 1)
        window = max(1, min(WINDOW, fitting))
    return BlockShuffled(items, window, seed)


def _block_samples(source: Source) -> int:
    """Return how many samples a block has: so many of the longest frames that few shorter frames cross its edges."""
    fields = source.fields.values()
    # Uncompressed frames are not read as a whole, so they count only if there are no others.
    frames = [f.frame.samples or 1 for f in fields if f.codec] or [f.frame.samples or 1 for f in fields]
    longest = block = max(frames, default=1)
    while any(block % frame and block < BLOCK_FRAMES * frame for frame in frames):
        block += longest
    return block


def keep_frames(source: Source, window: int, batch_size: int) -> None:
    """Make room for the decoded frames of a window and of two runs, so that a block shuffle decodes each about once.

    Args:
        window: items that are shuffled among each other.
        batch_size: that of this rank.
    """
    if not len(source):
        return
    # The items of a window lie among more samples in a split, among fewer if they are windows of steps.
    window = window * source.items.total // len(source) + _block_samples(source)
    for reader in source.opened.readers.values():
        reader.keep(window, batch_size)


# ---------------------------------------------------------------- threads


def count_threads(threads: int | str, source: AnySource, visits: int) -> int:
    """Return how many threads read ahead; `"auto"` gives all processors to JPEG files, and two to coded fields.

    Args:
        visits: samples of an epoch, on all ranks.

    Raises:
        UsageError: neither a number of threads nor "auto".
    """
    if threads != "auto":
        if isinstance(threads, bool) or not isinstance(threads, int | np.integer) or threads < 0:
            raise UsageError(f"threads {threads!r}: 0 or more, or 'auto', is expected")
        return int(threads)
    return max(_usual_threads(member, visits) for member in source.members)


def _usual_threads(source: Source, visits: int) -> int:
    codecs = [config["id"] for field in source.fields.values() for config in field.codec]
    if JPEG in codecs:
        return processors()
    nbytes = sum(source.manifest.columns[name].raw for name in source.fields) / max(source.manifest.samples, 1)
    return min(2, processors()) if codecs and visits * nbytes > SHORT_BYTES else 0
