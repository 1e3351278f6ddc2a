"""The order in which a loader reads a dataset: what its arguments ask for, and what a saved state says of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import index
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from packer.errors import UsageError
from readers.arrays import Numbers
from readers.dataset import PackedDataset
from readers.gather import CPU
from readers.mix import Mix
from readers.order import (
    ORDER_VERSION,
    WINDOW,
    BlockShuffled,
    Given,
    Mixed,
    Order,
    Repeated,
    Sequential,
    Shuffled,
    base,
    check_seed,
    random_bits,
)

#: Bytes of decoded frames that a block shuffle may hold; the window is made smaller where it would hold more.
WINDOW_BYTES = 64 * 2**20
#: What comes before the number of the way in which random orders are made.
_WAY = ", way "
#: A block is so many times as long as a frame that crosses its edge and so may be decoded twice: a tenth of them.
BLOCK_FRAMES = 10


def order_of(
    dataset: PackedDataset | Mix,
    shuffle: bool | str,
    seed: int,
    sampler: Iterable[int] | None,
    window: int | None,
    step_size: int,
) -> Order:
    """The order that a loader's arguments ask for.

    Args:
        step_size: samples that all ranks together take at a step.

    Raises:
        UsageError: they cannot be, or do not go together.
    """
    if window is not None and shuffle != "block":
        raise UsageError("window is for shuffle='block'; nothing else has one")
    if isinstance(dataset, Mix):
        if sampler is not None or shuffle not in (True, False):
            raise UsageError("a Mix has an order of its own, by weights: shuffle=True or False, and no sampler")
        return dataset.order(bool(shuffle), seed, step_size)
    if sampler is not None:
        if shuffle:
            raise UsageError("shuffle and sampler do not go together: the sampler gives the order")
        if isinstance(sampler, (list, tuple, np.ndarray, range, torch.Tensor)):
            return Given(np.asarray(sampler))
        return SamplerOrder(sampler, seed)
    if shuffle == "block":
        return BlockShuffled(_block_edges(dataset), _window(dataset) if window is None else window, seed)
    if shuffle not in (True, False):
        raise UsageError(f"shuffle {shuffle!r}: True, False or 'block' is expected")
    return Shuffled(len(dataset), seed) if shuffle else Sequential(len(dataset))


def block_samples(dataset: PackedDataset) -> int:
    """Samples of a block: some of the longest frames, so many that few frames of other fields cross its edges."""
    fields = dataset.fields.values()
    # An uncompressed frame is not read as a whole: only where there is no other does it say what lies together.
    frames = [f.frame.samples or 1 for f in fields if f.codec] or [f.frame.samples or 1 for f in fields]
    longest = block = max(frames, default=1)
    while any(block % frame and block < BLOCK_FRAMES * frame for frame in frames):
        block += longest
    return block


def _block_edges(dataset: PackedDataset) -> Numbers:
    """First item of every block, and the number of items; a block lies in one shard."""
    block = block_samples(dataset)
    edges = []
    first = 0
    for shard in dataset.manifest.shards:
        edges.append(np.arange(first, first + shard.samples, block, dtype=np.int64))
        first += shard.samples
    return dataset.items.before(np.concatenate([*edges, [first]]))


def _window(dataset: PackedDataset) -> int:
    coded = sum(f.fixed_bytes for f in dataset.fields.values() if f.codec and not f.is_ragged and f.frame.samples != 1)
    items_held = WINDOW_BYTES // max(coded, 1) * len(dataset) // max(dataset.manifest.samples, 1)
    return max(1, min(WINDOW, items_held))


def describe(order: Order) -> str:
    """What an order depends on, for a saved state: one of another kind, seed, window, blocks or numbers goes on with
    other samples. Of a torch sampler only the kind and the seed are known here.

    Takes 0.4 ms a million blocks or numbers.
    """
    if isinstance(order, Repeated):
        said, way, version = describe(order.order).partition(_WAY)
        return f"{said}, {order.times} times{way}{version}" if order.times > 1 else describe(order.order)
    seed = getattr(order, "seed", None)
    window = getattr(order, "window", None)
    said = f"{type(order).__name__}, seed {seed}, window {window}"
    if isinstance(order, BlockShuffled):
        said += f", blocks {_digest(order.edges)}"
    if isinstance(order, Given):
        said += f", numbers {_digest(order.indices)}"
    if isinstance(order, Mixed):
        said += f", sizes {list(order.sizes)}, shuffle {order.shuffle}, stop {'all' if order.every else 'first'}"
        said += f", {order.together} together"
    return f"{said}{_WAY}{ORDER_VERSION}" if isinstance(order, Shuffled | BlockShuffled | Mixed) else said


def resumed(order: Order, state: Mapping[str, Any]) -> Order:
    """Return the order of the epoch that a state was saved in: of a mix, with the weights that it had then.

    Raises:
        UsageError: the state's weights are none of such a mix.
    """
    mixed, weights = base(order), state.get("weights")
    if not isinstance(mixed, Mixed) or weights is None:
        return order
    numbers = isinstance(weights, Sequence) and all(isinstance(w, int | float) and w > 0 for w in weights)
    if not numbers or len(weights) != len(mixed.weights):
        raise UsageError(
            f"the state's weights are {weights!r}; one above 0 for each of {len(mixed.weights)} is expected"
        )
    mixed = replace(mixed, weights=tuple(weights))
    return Repeated(mixed, order.times) if isinstance(order, Repeated) else mixed


def check_state(state: Mapping[str, Any], samples: int, own: str) -> None:
    """Raises UsageError where a saved state is none of a loader, or of an order of another length or description."""
    for name in ("epoch", "done", "samples"):
        number = state.get(name)
        if not isinstance(number, int | np.integer) or number < 0:
            raise UsageError(f"the state's {name} is {number!r}: what Loader.state_dict() gave is expected")
    if state["samples"] != samples:
        raise UsageError(f"the state is of {state['samples']} samples; this loader reads {samples}")
    if state.get("order", own) != own:
        if str(state["order"]).partition(_WAY)[0] == own.partition(_WAY)[0]:
            raise UsageError(
                "the state was saved by another version of readers, in which this seed gave another order; begin the "
                "epoch anew: set_epoch(state['epoch'])"
            )
        raise UsageError(
            f"the state is of another order ({state['order']}); this loader's is {own}. Give the same shuffle, seed, "
            "window and sampler; the blocks of shuffle='block' follow from the fields that are read"
        )


def _digest(numbers: Numbers) -> str:
    return str(xxhash.xxh3_64_hexdigest(np.ascontiguousarray(numbers).data))


class SamplerOrder:
    """What `sampler` gives, epoch by epoch.

    While it is iterated, torch's random numbers, and those of its own `generator`, start from seed and epoch,
    and are put back afterwards: so its order, too, depends on seed and epoch alone, and every rank sees
    the same. A sampler that draws from elsewhere has to see to that itself, in `set_epoch`.

    Args:
        sampler: gives sample numbers; a torch Sampler or any iterable that starts anew each time, with a length.
        seed: from 0 on.

    Raises:
        UsageError: the sampler is made for one rank of several.
    """

    def __init__(self, sampler: Iterable[Any], seed: int = 0) -> None:
        check_seed(seed)
        if getattr(sampler, "num_replicas", 1) > 1:
            raise UsageError(
                f"sampler: {type(sampler).__name__} gives the share of one rank; a sampler of the whole dataset is "
                "expected, of which each rank then takes its share (rank=0, world_size=1 takes all of it)"
            )
        self._sampler = sampler
        self.seed = seed

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]  # torch's Sampler has a length where it can know it

    def epoch(self, epoch: int) -> NDArray[Any]:
        """The sampler's numbers, (n,).

        Raises:
            UsageError: it gives something else than numbers.
        """
        word = int(random_bits(self.seed, epoch).random_raw())
        seeds = {torch.default_generator: word}
        # A sampler of batches takes its numbers from another.
        for sampler in (self._sampler, getattr(self._sampler, "sampler", None)):
            set_epoch = getattr(sampler, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
            own = getattr(sampler, "generator", None)
            # The seed that the user gave the sampler's own generator keeps its meaning.
            if isinstance(own, torch.Generator):
                seeds[own] = word ^ own.initial_seed()
        states = {generator: generator.get_state() for generator in seeds}
        try:
            for generator, seed in seeds.items():
                generator.manual_seed(seed)
            with CPU:  # samplers of torch mix its CPU generator with whatever its default device is
                return self._numbers()
        finally:
            for generator, state in states.items():
                generator.set_state(state)

    def _numbers(self) -> NDArray[Any]:
        return _whole(self._sampler, self._sampler)


class BatchOrder(SamplerOrder):
    """The batches that a sampler of batches gives, epoch by epoch. Its places are batches, not samples.

    Args:
        batches: gives the numbers of each batch; a torch BatchSampler, or any iterable that starts anew each time, with
            a length.
        samples: of the dataset.
        seed: see `SamplerOrder`.
    """

    def __init__(self, batches: Iterable[Sequence[int]], samples: int, seed: int = 0) -> None:
        super().__init__(batches, seed)
        self._samples = samples

    def pieces(self, order: NDArray[Any], done: int) -> Iterator[tuple[Numbers, Numbers, int]]:
        """Yield the batches of an epoch that are left, those of one size after another together.

        Yields:
            Numbers of the samples (n,), their positions in the epoch (n,), and samples of each batch.
        """
        position = sum(map(len, order[:done]))
        for size, some in itertools.groupby(order[done:], len):
            numbers = np.concatenate(list(some))
            yield numbers, position + np.arange(len(numbers)), size
            position += len(numbers)

    def _numbers(self) -> NDArray[Any]:
        found = [_whole(batch, self._sampler) for batch in self._sampler]
        order = np.empty(len(found), object)
        for place, batch in enumerate(found):
            wrong = batch[(batch < 0) | (batch >= self._samples)]
            if len(wrong) or not len(batch):
                what = f"number {wrong[0]}, outside of the {self._samples}" if len(wrong) else "a batch without any"
                raise UsageError(f"batch_sampler: {type(self._sampler).__name__} gives {what} samples")
            order[place] = batch
        return order


def _whole(numbers: Any, sampler: object) -> Numbers:
    """Return what a sampler gives as numbers (n,); raises UsageError if it is something else."""
    try:
        return np.fromiter(map(index, numbers), dtype=np.int64)
    except TypeError as error:
        raise UsageError(f"{type(sampler).__name__} gives {numbers!r:.60}; sample numbers are expected") from error
