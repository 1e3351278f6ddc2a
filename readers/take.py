"""Copies records out of a window of memory, with as many of torch's threads as pay.

Small gathers are slower with several threads, ten times so on a busy machine: the team waits for the thread that
did not get a processor. Large ones gain where processors are free (1.6 MB: 84 us with two threads, 150 with one).
Which it is changes while a program runs, so large gathers are timed, and now and then the other way is tried. Smaller
ones behind them use the threads while they are awake.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from readers.forks import has_team
from readers.fresh import fresh
from readers.openmp import set_own_threads

#: Elements from which torch spreads an index_select over its threads (its GRAIN_SIZE).
TORCH_GRAIN = 32768
#: Bytes from which several threads are worth a try. 8 pictures of 110 kB take 52 us by numpy and 290 by two threads
#: that have to wake first; to tell which is quicker takes another 10.
TEAM_BYTES = 2**20
#: Bytes from which they are worth it while the threads are still awake from a gather that was: for the small pictures
#: of a batch of pairs, behind the large ones. 98 kB take 30 us by numpy then, and 10 by two threads.
AWAKE_BYTES = 2**16
#: Seconds for which they are taken to be awake: what the steps between two fields take. They spin for a millisecond.
AWAKE_SECONDS = 1e-4
#: Calls between two tries of the slower way: at first, and at most. Each try that fails doubles the distance.
FIRST_TRY, LAST_TRY = 8, 512
#: Calls with several threads behind one with one that do not count, and calls of a try, these included. Threads that
#: have not been used for a while have to wake: with tries of one call, pairs of 13 kB in batches of 128 took 185 to 250
#: us in some runs and 140 in others.
WAKING, TRY_CALLS = 1, 4
#: A try ends at once where it is so many times as slow as the other way. With four calls each, tries took a thirtieth
#: of the time of the first epochs of those pairs.
CLEARLY = 1.25


def take(window: torch.Tensor, records: NDArray[np.int64], out: torch.Tensor | None = None) -> torch.Tensor:
    """Copies `records` (n,) of a window (records, length) into `out` (n, length), or into a new tensor."""
    elements = len(records) * window.shape[1]
    # torch takes one thread for so little by itself, and the calls around it cost 0.7 us.
    if elements < TORCH_GRAIN or torch.get_num_threads() == 1:
        return together(window, records, out)
    nbytes = elements * window.itemsize
    return quicker(nbytes, lambda: together(window, records, out), lambda: alone(window, records, out))


def take_rows(memory: torch.Tensor, rows: NDArray[np.int64], out: torch.Tensor) -> None:
    """Copies rows (n,) of `memory`, uint8 of rows that lie one behind the other, into `out` (n, length).

    By numpy, where several threads would not pay: 1,000 rows of 132 bytes take 10 us so and 12 to 16 by torch, rows of
    8 bytes 2 and 10.
    """
    length = out.shape[1]
    if out.nbytes >= TEAM_BYTES:
        take(memory.view(-1, length), rows, out)
        return
    # Each row is one item to numpy. Not to change `out` before an error, it would fill a copy; "clip" knows no errors.
    items = memory.numpy().view(np.dtype((np.void, length)))
    items.take(rows, out=out.numpy().reshape(-1).view(items.dtype), mode="clip")


def together(window: torch.Tensor, records: NDArray[np.int64], out: torch.Tensor | None = None) -> torch.Tensor:
    """The same with as many threads as torch likes."""
    index = torch.from_numpy(records)
    return torch.index_select(window, 0, index) if out is None else torch.index_select(window, 0, index, out=out)


def alone(window: torch.Tensor, records: NDArray[np.int64], out: torch.Tensor | None = None) -> torch.Tensor:
    """The same with one thread; other threads of the program do not notice."""
    if set_own_threads is None:
        return _by_few(window, records, out)
    with one_thread():
        return together(window, records, out)


class one_thread:  # noqa: N801  # a context manager; of contextlib's kind it takes 2 us more
    """One of torch's threads for the thread that enters; where there is such a way, see `set_own_threads`."""

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        if set_own_threads is not None:
            set_own_threads(1)

    def __exit__(self, *_: object) -> None:
        if set_own_threads is not None:
            set_own_threads(self._before)


def _by_few(window: torch.Tensor, records: NDArray[np.int64], out: torch.Tensor | None = None) -> torch.Tensor:
    """The same with so few records a call that torch spreads nothing: up to 1.7 times as slow."""
    length = window.shape[1]
    if out is None:
        out = fresh(len(records) * length * window.itemsize).view(window.dtype).view(len(records), length)
    few = max((TORCH_GRAIN - 1) // max(length, 1), 1)
    index = torch.from_numpy(records)
    for at in range(0, len(records), few):
        torch.index_select(window, 0, index[at : at + few], out=out[at : at + few])
    return out


def quicker(nbytes: int, several: Callable[[], torch.Tensor], one: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Does whichever of two was quicker lately for about so many bytes: with several threads, or with one.

    Several are used only for who has them, see `has_team`. Less than `TEAM_BYTES` is not timed: several are used where
    they are awake.
    """
    if nbytes < TEAM_BYTES:
        return several() if nbytes >= AWAKE_BYTES and team_is_awake() else one()
    if torch.get_num_threads() == 1 or not has_team():
        return one()
    team = _TEAMS.of(nbytes)
    began = time.perf_counter()
    result = several() if team.together else one()
    ended = time.perf_counter()
    if team.together:
        _TEAMS.awake_until = ended + AWAKE_SECONDS
    team.note((ended - began) / nbytes)
    return result


def team_is_awake() -> bool:
    """Whether the thread that asks has torch's threads, and finds them awake from its last large gather."""
    return time.perf_counter() < _TEAMS.awake_until and torch.get_num_threads() > 1 and has_team()


class Team:
    """Whether several threads or one are quicker, by the time that gathers of about one size took.

    Attributes:
        together: whether the next gather is to use several threads.
        is_try: whether that is the slower way, which is tried.
    """

    def __init__(self) -> None:
        self.together = True
        self.is_try = True
        self._calls = 0
        self._distance = FIRST_TRY
        self._cost: dict[bool, float] = {}

    def note(self, cost: float) -> None:
        """Takes down what a gather cost, done the way `together` said, in seconds a byte; may change the way."""
        self._calls += 1
        if self.together and self._calls <= WAKING:
            return
        way, known = self.together, self._cost
        # The mean of about the last four. One slow call, the first of an epoch say, raises it by a quarter and no more;
        # else it would be tries that found out, hundreds of calls later, that the other way is no better.
        before = known.get(way, cost)
        known[way] = 0.75 * before + 0.25 * min(cost, 2 * before)
        if self.is_try:
            if self._calls >= TRY_CALLS or known[way] > CLEARLY * known.get(not way, float("inf")):
                self._end_try()
        elif self._calls >= self._distance:
            del known[not way]  # measured anew, by the try alone
            self._turn(is_try=True)
        elif known[way] > known[not way]:
            self._turn(is_try=False)

    def _end_try(self) -> None:
        """Goes back to the way before, unless it was the slower one."""
        before = self._cost.get(not self.together)
        if before is None:
            self._turn(is_try=True)
        elif self._cost[self.together] < before:
            self._distance, self.is_try, self._calls = FIRST_TRY, False, WAKING
        else:
            self._distance = min(2 * self._distance, LAST_TRY)
            self._turn(is_try=False)

    def _turn(self, is_try: bool) -> None:
        self.together = not self.together
        self.is_try, self._calls = is_try, 0


class Teams:
    """One `Team` for each size of gathers, and how long their threads are awake.

    Attributes:
        awake_until: by `time.perf_counter`.
    """

    def __init__(self) -> None:
        self.awake_until = 0.0
        self._by_bits: dict[int, Team] = {}

    def of(self, nbytes: int) -> Team:
        """That of gathers of about so many bytes."""
        bits = nbytes.bit_length()
        if bits not in self._by_bits:
            self._by_bits[bits] = Team()
        return self._by_bits[bits]


_TEAMS = Teams()


def settle() -> None:
    """Readies torch for several threads; to be called before they are started.

    A process that was forked makes itself a new pool of threads when it first asks for one, and torch 2.13 fails with
    "Invalid thread pool!" where two threads ask at once: 246 of 300 children with four threads did.
    """
    torch.set_num_threads(torch.get_num_threads())
