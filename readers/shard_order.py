"""The order of an epoch over whole shards, so that a dataset can be read that is larger than the disk.

Shards are dealt to hands, a power of two, and the hands take turns: position p of the epoch is of hand p % hands.
Within a hand whole shards come in an order drawn for the epoch, and the samples of each window of shards are shuffled
among each other:

    position       0  1  2  3  4  5  6  7  8  9 ...
    hand           0  1  0  1  0  1  0  1  0  1 ...
    hand 0        17    12    19    14    11         shard 1, then others of hand 0
    hand 1           52    58    57    50    55      shard 5, then others of hand 1

Node k of n reads the hands h with h % n == k. So the order of an epoch is the same for 1, 2, 4, ... nodes, and each
fetches the shards of its own hands alone, the same in every epoch.

A hand has as many samples as positions, so the shards are laid side by side and cut into hands. The two parts of a
shard that is cut come at about the same time, to be fetched once. Hands of one node lie side by side: hands are laid
out in the order of their numbers with the bits reversed, so only one shard for every node but one is cut between two.

Nothing is kept for a sample: a window is a permutation that a key chooses (`readers/keyed.py`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from packer.errors import UsageError
from packer.format import Numbers, starts_of
from readers.keyed import Permutation
from readers.order import WindowShuffled, check_epoch, digest, random_state
from readers.share import Batches, ItemShards, Share, SharedBatches
from readers.valid import check_count, remark

#: Hands at most; so many nodes can share a bucket.
HANDS = 64


@dataclass(frozen=True)
class _HandPieces:
    """What one hand reads in an epoch.

    Attributes:
        firsts: first number of each piece of a shard, in the order of the epoch, (m,).
        places: place of each piece within the hand, and of the end, (m + 1,).
        windows: first piece of each window, and the end, (w + 1,).
    """

    firsts: Numbers
    places: Numbers
    windows: Numbers

    @property
    def bounds(self) -> Numbers:
        """Return the place of each window within the hand, and of the end, (w + 1,)."""
        bounds: Numbers = self.places[self.windows]
        return bounds


class ShardShuffled(WindowShuffled):
    """Shuffles whole shards, dealt to hands; a window is one shard at least."""

    @property
    def words(self) -> str:
        return f"{super().words}, shards {digest(self.edges)}"

    @cached_property
    def _shards(self) -> Numbers:
        """Return the first number of each shard that is not empty, and the end, (s + 1,)."""
        return np.unique(self.edges)

    @cached_property
    def _in_window(self) -> int:
        """Return the shards of a window, of all hands together; one at least."""
        shards = len(self._shards) - 1
        return max(1, min(shards, self.window * shards // max(len(self), 1)))

    @cached_property
    def hands(self) -> int:
        """Return the number of hands: a power of two, at most `HANDS` and the shards of a window."""
        return 1 << min(HANDS, self._in_window).bit_length() - 1

    def nodes(self, requested: int | None, world_size: int) -> int:
        """Return among how many nodes the hands are shared: as requested, or as the environment says if that is even.

        Raises:
            UsageError: so many nodes do not share the hands, or the ranks, evenly.
        """
        if requested is None:
            local = os.environ.get("LOCAL_WORLD_SIZE", "")
            nodes = world_size // int(local) if local.isdecimal() and int(local) and world_size % int(local) == 0 else 1
            if self.hands % nodes:
                remark(
                    f"every node fetches all shards: {self.hands} shards of a shuffle_window cannot be shared by "
                    f"{nodes} nodes evenly; raise shuffle_window, or take 2, 4, 8, ... nodes"
                )
                return 1
            return nodes
        check_count("nodes", requested)
        if self.hands % requested:
            raise UsageError(
                f"nodes is {requested}, which does not divide the {self.hands} shards of a shuffle_window that nodes "
                f"share: take a divisor of {self.hands}, raise shuffle_window, or give nodes=1, with which every node "
                "fetches all"
            )
        return int(requested)

    def epoch(self, epoch: int) -> Numbers:
        """Return the sample numbers of an epoch, (n,)."""
        return self.at(epoch)(np.arange(len(self)))

    def at(self, epoch: int) -> Callable[[Numbers], Numbers]:
        """Return a function that gives the samples at positions (n,) of this epoch, (n,)."""
        check_epoch(epoch)
        dealt: dict[int, _HandPieces] = {}
        open_windows: dict[int, tuple[int, Permutation]] = {}

        def numbers_in_window(hand: int, window: int, places: Numbers) -> Numbers:
            """Return the numbers at places (m,) of a hand, which all lie in one window."""
            pieces = dealt[hand]
            begin, end = pieces.bounds[window : window + 2].tolist()
            if hand not in open_windows or open_windows[hand][0] != window:
                open_windows[hand] = window, Permutation(end - begin, self.seed, epoch, hand, window)
            permuted = open_windows[hand][1].at(places - begin) + begin
            piece = pieces.places.searchsorted(permuted, side="right") - 1
            numbers: Numbers = pieces.firsts[piece] + permuted - pieces.places[piece]
            return numbers

        def numbers(positions: Numbers) -> Numbers:
            samples = np.empty(len(positions), np.int64)
            hands, places = positions % self.hands, positions // self.hands
            for hand in np.unique(hands).tolist():
                if hand not in dealt:
                    dealt[hand] = self._deal(epoch, hand)
                of_hand = np.flatnonzero(hands == hand)
                windows = dealt[hand].bounds.searchsorted(places[of_hand], side="right") - 1
                for window in np.unique(windows).tolist():
                    of_window = of_hand[windows == window]
                    samples[of_window] = numbers_in_window(hand, window, places[of_window])
            return samples

        return numbers

    def batches(self, epoch: int, share: Share, done: int) -> Batches:
        """Return the batches that one rank still has of an epoch: of the hands of its node."""
        share.check_done(len(self), done)
        return _HandBatches(self.at(epoch), len(self), share, done, partial(self._stretches, epoch, share))

    def _stretches(self, epoch: int, share: Share) -> Numbers:
        """Return the shards that a node needs in an epoch, and the first and the last position at which, (m, 3).

        A shard that is cut comes twice.
        """
        by_hand = []
        for hand in range(share.node, self.hands, share.nodes):
            pieces = self._deal(epoch, hand)
            shards = self.edges.searchsorted(pieces.firsts, side="right") - 1
            sizes = np.diff(pieces.windows)
            begins, ends = np.repeat(pieces.bounds[:-1], sizes), np.repeat(pieces.bounds[1:], sizes)
            by_hand.append(np.stack([shards, begins * self.hands + hand, (ends - 1) * self.hands + hand], 1))
        return np.concatenate(by_hand)

    @cached_property
    def _cuts(self) -> Numbers:
        """Return the first number of each hand in the order in which hands lie side by side, and the end."""
        return starts_of([-(-(len(self) - hand) // self.hands) for hand in map(self._place, range(self.hands))])

    def _place(self, hand: int) -> int:
        """Return the place of a hand among those side by side: its number with the bits reversed; its own inverse."""
        bits = self.hands.bit_length() - 1
        return int(f"{hand:0{bits}b}"[::-1], 2) if bits else 0

    def _deal(self, epoch: int, hand: int) -> _HandPieces:
        """Return what a hand reads in an epoch."""
        begin, end = self._cuts[self._place(hand) :][:2].tolist()
        edges = self._shards
        inner = edges[(edges > begin) & (edges < end)].tolist()
        pieces = list(itertools.pairwise([begin, *inner, end])) if begin < end else []
        cut = [(a, b) for a, b in pieces if not np.isin([a, b], edges).all()]
        uncut = [piece for piece in pieces if piece not in cut]
        state = random_state(self.seed, epoch, hand)
        turns = [[uncut[number]] for number in state.permutation(len(uncut)).tolist()]
        if cut:
            # At the same part of the epoch in all hands, so that the other part of a shard is read at about this time.
            turns.insert(int(random_state(self.seed, epoch).random_sample() * (len(turns) + 1)), cut)
        size = self._in_window // self.hands
        ordered = [piece for turn in turns for piece in turn]
        first = starts_of([len(turn) for turn in turns])
        windows = np.append(first[:-1][::size], first[-1])
        firsts = np.array([a for a, _ in ordered], np.int64)
        return _HandPieces(firsts, starts_of([b - a for a, b in ordered]), windows)


@dataclass(frozen=True)
class _HandBatches(SharedBatches):
    """A rank's share of the hands of its node: position k, k + n, k + 2 n, ... of node k of n.

    Attributes:
        stretches: gives the shards of the node, and the first and the last position at which, (m, 3).
    """

    stretches: Callable[[], Numbers] = lambda: np.zeros((0, 3), np.int64)

    def needs(self, shards: ItemShards) -> Numbers:
        """Return the shards of whole windows of the node, whichever of its ranks reads them."""
        stretches = self.stretches()
        stretches[:, 1:] = (stretches[:, 1:] - self.done) // self.share.global_batch_size
        stretches = stretches[(stretches[:, 2] >= 0) & (stretches[:, 1] < len(self))]
        stretches[:, 1:] = stretches[:, 1:].clip(0, len(self) - 1)
        return stretches

    def group(self, first: int, stop: int) -> tuple[Numbers, Numbers, Numbers]:
        share = self.share
        nodes, node, size = share.nodes, share.node, share.batch_size
        ranks = share.world_size // nodes
        rank = share.rank - node * ranks
        begin = -(-(self.done - node) // nodes)  # among the positions of this node
        full = min(stop, (self.n - self.done) // share.global_batch_size)
        batches = np.arange(first, full)[:, None]
        places = (begin + (batches * ranks + rank) * size + np.arange(size)).reshape(-1)
        edges = np.arange(0, len(places) + 1, size)
        if stop > full:  # the last one
            remaining = self.n - self.done - full * share.global_batch_size
            count = -(-remaining // share.world_size)
            last = begin + full * ranks * size + rank * count + np.arange(count)
            # Missing numbers are those read just before, whose shards are still there.
            total = -(-(self.n - node) // nodes)
            last = np.where(last < total, last, (last - ranks * count) % total)
            places = np.concatenate([places, last])
            edges = np.append(edges, len(places))
        positions = node + nodes * places
        return self.samples_at(positions), positions, edges
