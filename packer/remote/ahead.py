"""Shards of a dataset at a URL, fetched ahead in the order in which they are needed, and let go of.

Threads fetch one shard after another as long as there is room in the cache. A shard that is fetched has a lease on its
file until it was read. So a cache that holds a few shards is enough, and disk is never taken beyond its limit.

When room is needed, the shard goes that is needed last (Belady's rule): the order is known, also that of the next
epoch. The cache removes the files of the earliest time of use first, so each file gets a time by its place in the
order: the later it is needed, the earlier its time. A shard that is fetched too soon takes the room of another that
will be needed again; `depth` bounds that.

Room is set aside in the order in which shards are needed: no shard waits for one that is needed later.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterable
from functools import partial
from types import TracebackType

from packer.errors import UsageError
from packer.format import MANIFEST, FileEntry, Manifest, ShardEntry
from packer.remote.cache import LOOK_SECONDS, Cache, Lease
from packer.remote.mirror import Mirror
from packer.remote.retries import LINE_SECONDS
from packer.remote.sharing import Claim, Sign, Wait
from packer.remote.transfer import STREAMS, Transfer

_log = logging.getLogger(__name__)

#: A file of a dataset, and what fetches it.
Wanted = tuple[Mirror, FileEntry]

#: Seconds to wait for room while a shard is due, before that is an error; as long as for a server if loops of others
#: go on, which give it back.
PATIENCE = 10.0
#: Seconds between the times of use of two shards that are needed one after the other.
STEP = 0.001


class GiveWay(Exception):  # noqa: N818
    """Another reader waits that is to go first: give back all shards, and take them again."""


class Ahead:
    """Fetches shards ahead, by threads, until it is closed; a context manager.

    Args:
        cache: into which they are fetched.
        wanted: the shards that are needed, in this order, each with what fetches it; one that is needed again later
            comes again. The methods call each by its place among these.
        later: those that are needed after all these, in this order: the cache keeps the first of them.
        depth: how many to fetch beyond the last that was taken; by default as many as have room.
        claim: what the caller holds at once, so that others leave room for it; it gives way to others in turn.

    Raises:
        UsageError: loops that go on need the room.
    """

    def __init__(
        self,
        cache: Cache,
        wanted: Iterable[Wanted],
        later: Iterable[Wanted] = (),
        depth: int | None = None,
        claim: Claim | None = None,
    ) -> None:
        self._cache = cache
        is_limited = cache.limit is not None
        self._claim = cache.claim(claim) if claim is not None and is_limited else None
        self._wait = Wait()
        self._held = 0
        self._wanted = list(wanted)
        self._coming = list(range(len(self._wanted)))[::-1]
        self._pending = set(self._coming)
        self._depth, self._last_taken = len(self._coming) if depth is None else depth, -1
        self._began = time.time()
        self._ready: dict[int, Lease | BaseException] = {}
        self._passed: set[int] = set()
        self._changed = threading.Condition()
        self._turn = threading.Lock()
        self._due: set[int] = set()
        self._coming_in: set[int] = set()
        self._transfer = Transfer(0)
        for folder in {mirror.folder for mirror, _ in self._wanted}:
            with contextlib.suppress(OSError):
                os.utime(folder / MANIFEST)  # else it would be older than the shards
        self._next_uses = self._list_next_uses(later)
        self._threads = [
            threading.Thread(target=self._work, daemon=True) for _ in range(min(STREAMS, len(self._coming)))
        ]
        if is_limited and self._threads:
            self._threads.append(threading.Thread(target=self._give_back, daemon=True))
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop fetching, at once; those that were fetched and not taken are let go of, and stay in the cache."""
        self._transfer.stop()
        with self._changed:
            self._coming.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        for lease in self._ready.values():
            if isinstance(lease, Lease):
                lease.close()
        self._ready.clear()
        if self._claim is not None:
            self._claim.close()

    def take(self, place: int, epoch: int = -1, position: int = -1) -> Lease:
        """Wait until a shard is fetched; return the lease on its file, which goes to the caller.

        One that was taken before is fetched now.

        Args:
            epoch, position: how far the caller is; of those that wait for room, the one least far goes first. A caller
                that is no loop goes before all.

        Raises:
            GiveWay: the caller has a claim, and another one that waits goes first.
            As `Mirror.fetch_shards`.
        """
        with self._changed:
            self._wait = Wait(epoch, position, self._wait.token)
            self._passed.discard(place)
            self._due.add(place)
            self._last_taken = max(self._last_taken, place)
            self._changed.notify_all()
            while place in self._pending:
                self._changed.wait()
            lease = self._ready.pop(place, None)
        try:
            if isinstance(lease, BaseException):
                raise lease
            lease = lease or self._fetch(place)
            with self._changed:
                self._held += 1
            return lease
        finally:
            with self._changed:
                self._due.discard(place)
                self._coming_in.discard(place)

    def pass_by(self, places: Iterable[int]) -> None:
        """Give up shards that are not needed any more, whether they were taken or not: others of the node read them."""
        with self._changed:
            self._passed.update(places)
            leases = {place: self._ready.pop(place) for place in list(self._ready) if place in self._passed}
            self._changed.notify_all()
        for place, lease in leases.items():
            if isinstance(lease, Lease):
                self._set_use(self._wanted[place], self._next_uses[place])
                lease.close()

    def let_go(self, place: int, lease: Lease) -> None:
        """Give back a shard that was read: it is removed when room is needed, the one that is needed last first."""
        self._set_use(self._wanted[place], self._next_uses[place])
        lease.close()
        with self._changed:
            self._held -= 1
            self._changed.notify_all()

    def _list_next_uses(self, later: Iterable[Wanted]) -> list[int | None]:
        """Return the place at which each wanted shard is needed again, (n,); those of `later` come after all."""
        next_use = {shard: place for place, shard in enumerate(dict.fromkeys(later), len(self._wanted))}
        uses: list[int | None] = []
        for place in reversed(range(len(self._wanted))):
            uses.append(next_use.get(self._wanted[place]))
            next_use[self._wanted[place]] = place
        for shard, next_place in next_use.items():
            self._set_use(shard, next_place)
        return uses[::-1]

    def _set_use(self, shard: Wanted, place: int | None) -> None:
        """Give the file of a shard, if it is there, a time of use by its next place in the order; None: it has none."""
        seconds = 0.0 if place is None else self._began - place * STEP
        with contextlib.suppress(OSError):
            os.utime(shard[0].folder / shard[1].file, (seconds, seconds))

    def _work(self) -> None:
        """Fetch shards until none is left."""
        while True:
            self._turn.acquire()
            turn = _Turn(self._turn)
            try:
                with self._changed:
                    while self._coming and self._coming[-1] > self._last_taken + self._depth:
                        self._changed.wait()
                    if not self._coming:
                        return
                    place = self._coming.pop()
                    if place in self._passed:
                        self._pending.discard(place)
                        continue
                result: Lease | BaseException
                try:
                    result = self._fetch(place, turn)
                except BaseException as error:  # raised where the shard is taken
                    result = error
            finally:
                turn.end()
            with self._changed:
                self._ready[place] = result
                self._pending.discard(place)
                self._coming_in.discard(place)
                self._changed.notify_all()
                is_passed = place in self._passed
            del result  # whoever takes the lease lets go of it
            if is_passed:
                self.pass_by([])  # it is given up here

    def _fetch(self, place: int, turn: _Turn | None = None) -> Lease:
        mirror, entry = self._wanted[place]
        return mirror.fetch_one(entry, self._transfer, partial(self._make_room, place, turn))

    def _make_room(self, place: int, turn: _Turn | None = None) -> None:
        """Set room aside for a shard; wait until there is, and then let the next thread have its turn.

        Raises:
            UsageError: the shard alone is larger than the cache may be.
            DatasetError: a shard is due, and nothing was let go of for long.
        """
        cache, (mirror, entry) = self._cache, self._wanted[place]
        if cache.limit is not None and entry.bytes > cache.limit:
            name = f"the shard {entry.file}" if isinstance(entry, ShardEntry) else entry.file
            raise UsageError(
                f"cache_bytes is {cache.limit:,}, and {name}, {entry.bytes:,} bytes, must have room: raise it, or pack "
                "smaller shards with --shard-size"
            )
        since = time.monotonic()
        line_time = since + LINE_SECONDS
        with contextlib.ExitStack() as stack:
            sign: Sign | None = None
            while missing_bytes := self._missing_bytes(place):
                with self._changed:
                    self._changed.wait(LOOK_SECONDS)
                    now = time.monotonic()
                    since = now if self._due <= self._coming_in else since
                    patience = max(PATIENCE, mirror.patience if self._has_neighbours() else 0)
                    if self._transfer.is_stopped or place in self._passed or now - since > patience:
                        raise cache.too_full(missing_bytes)
                    is_due = self._is_due(place)
                    if is_due and self._held and self._claim is not None and not self._goes_first(place):
                        raise GiveWay
                    if now > line_time:
                        line_time = now + LINE_SECONDS
                        _log.warning("%s: other loops have the room in %s; waiting", mirror.url, cache.folder)
                    if is_due and sign is None:
                        sign = stack.enter_context(contextlib.closing(Sign(cache.readers, self._wait)))
        with self._changed:
            self._coming_in.add(place)
        if turn is not None:
            turn.end()

    def _missing_bytes(self, place: int) -> int:
        """Set room aside for a shard; return the bytes missing, all of its own if somebody else goes first."""
        mirror, entry = self._wanted[place]
        if self._cache.limit is None or self._goes_first(place):
            return self._cache.try_reserve(mirror.folder, [entry])
        return entry.bytes

    def _goes_first(self, place: int) -> bool:
        """Return whether nobody waits for room that comes before this shard; one that is not due comes last."""
        waits, own = self._cache.waits(), self._wait
        return all(wait.token == own.token or own < wait for wait in waits) if self._is_due(place) else not waits

    def _has_neighbours(self) -> bool:
        """Return whether loops of others go on in this cache."""
        return len(self._cache.claims()) > (self._claim is not None)

    def _is_due(self, place: int) -> bool:
        """Return whether the caller waits for a shard, or for one behind it."""
        return any(due >= place for due in list(self._due))

    def _give_back(self) -> None:
        """Let go of shards that are not taken yet, the last ones first, while anybody waits for room."""
        # Not woken with the others: a look into the cache at every shard takes several hundredths of a stream's rate.
        while not self._transfer.stops_within(LOOK_SECONDS):
            with self._changed:
                ready = [place for place, lease in self._ready.items() if isinstance(lease, Lease)]
            if ready and self._cache.waits():
                with self._changed:
                    lease = None if max(ready) in self._due else self._ready.pop(max(ready), None)
                if isinstance(lease, Lease):
                    self._set_use(self._wanted[max(ready)], max(ready))
                    lease.close()


def fetch_tables(mirror: Mirror, manifest: Manifest) -> list[Lease]:
    """Fetch the tables of names and the constants, if there are any; return leases on them.

    The shards beside them are not kept: in a small cache they make room.

    Raises:
        As `Mirror.fetch_shards`.
    """
    with Ahead(mirror.cache, [(mirror, table) for table in manifest.tables]) as ahead:
        return [ahead.take(place) for place in range(len(manifest.tables))]


class _Turn:
    """A lock that is let go of once, by whoever comes first."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock, self._is_mine = lock, True

    def end(self) -> None:
        """Let the next one have its turn."""
        if self._is_mine:
            self._is_mine = False
            self._lock.release()
