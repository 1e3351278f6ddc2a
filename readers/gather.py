"""The memory of the process as one array, how records are copied out of it, and the memory they are copied into.

Every shard is mapped read-only, somewhere. One array is laid over all addresses that a process may have, and bytes are
addressed by their distance from its start. One gather then fetches records of any number of chunks, shards and
datasets, and shards may be mapped later without any address changing. What lies between the maps is never read: every
address comes from a checked index.

The size of a copy decides who copies. To numpy a record is one item, so a gather is one memcpy a record. It goes into
new memory, which the system's allocator reuses. From `LARGE_BYTES` on torch's threads copy, or the calling thread alone
while they are busy, and batches of a loader, ours or torch's, go into memory of a `Pool`.

Each batch and field has a storage of its own. The storage owns an array, and when a weak reference to that array dies,
the pool reuses its memory. References are never counted.
"""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import os
import platform
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.format import DTYPES, Numbers, join

#: Gives `n` bytes of writable memory as a uint8 tensor (n,).
Allocate = Callable[[int], torch.Tensor]
TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}
_NUMPY_DTYPES = {dtype: np.dtype(name) for name, dtype in TORCH_DTYPES.items()}
#: Element types in which torch copies records, of 1, 2, 4 and 8 bytes.
UNITS = torch.uint8, torch.int16, torch.int32, torch.int64
#: Torch copies fewer elements than this by one thread.
GRAIN = 32767
#: One thread copies records from this many bytes on one by one: blocks of fewer than `GRAIN` elements hold few of them.
LONG_BYTES = 2**15
#: The device itself, not its name, which torch would have to look up.
CPU = torch.device("cpu")
#: Smaller memory for decoded batches comes from the system's allocator, which reuses it by itself.
LARGE_BYTES = 2**20
#: A copy that takes more seconds a byte than this was held up; then one thread copies alone for this many seconds.
SLOW, ALONE_SECONDS = 1e-9, 0.2
#: The flag of Linux for a process that began by fork and loaded no program since.
FORKED_NO_EXEC = 0x40
#: Items of numpy's own types are no larger.
MOST_ITEM_BYTES = 2**31 - 1
#: Addresses of a process lie below. numpy takes no array that begins at address 0, where nothing lies anyway.
_ADDRESSES, _FIRST = 2**48 if platform.machine() in ("aarch64", "arm64") else 2**47, 4096
#: Arrays of overlapping records count as if these lay apart; numpy and torch take no larger ones.
_MOST_BYTES = 2**63 - 1
#: Free memory that a pool keeps, in pieces, if the caller does not say.
KEEP = 6


def fresh(nbytes: int) -> torch.Tensor:
    """Return `nbytes` from torch's allocator, uint8 (nbytes,), on the CPU whatever the default device is."""
    return torch.empty(nbytes, dtype=torch.uint8, device=CPU)


def shared(nbytes: int) -> torch.Tensor:
    """Return `nbytes` of memory that other processes can map, uint8 (nbytes,)."""
    storage = torch.UntypedStorage._new_shared(nbytes)  # type: ignore[no-untyped-call]
    return fresh(0).set_(storage, 0, (nbytes,), (1,))


def as_values(array: NDArray[Any], dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return memory of numpy as a tensor of a dtype and shape; views of numpy cost a fourth of torch's."""
    return torch.from_numpy(np.ndarray(shape, _NUMPY_DTYPES[dtype], array))


def split_with_own_storage(tensor: torch.Tensor, sizes: Sequence[int]) -> Iterator[torch.Tensor]:
    """Return the parts of a tensor, of `sizes[i]` rows each, every part with a storage of its own; made one by one.

    Sharing a tensor with another process frees the memory of its storage. The numpy array of another tensor on the same
    storage would then point to freed memory.
    """
    pinned = _is_pinned(tensor)
    if len(set(sizes)) == 1 and not pinned:  # by one call for all
        return map(torch.from_numpy, tensor.numpy().reshape(len(sizes), sizes[0], *tensor.shape[1:]))
    edges = itertools.pairwise(itertools.accumulate(sizes, initial=0))
    if pinned:  # torch waits for copies to a device only of memory that it gave out itself
        pieces = (tensor[start:stop] for start, stop in edges)
        return (torch.empty_like(piece, pin_memory=True).copy_(piece) for piece in pieces)
    array = tensor.numpy()
    return (torch.from_numpy(array[start:stop]) for start, stop in edges)


def _is_pinned(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is page-locked. In a child by fork of a process that used CUDA, asking is an error."""
    return not torch.cuda._is_in_bad_fork() and tensor.is_pinned()


class Memory:
    """All memory of the process, addressed from `_FIRST` on.

    Attributes:
        array: all of it, read-only; slice it only at addresses that an index gives.
    """

    def __init__(self) -> None:
        # Writable, since torch warns of read-only arrays. Nothing writes to it, and no tensor on it is handed out.
        everything = np.ctypeslib.as_array((ctypes.c_uint8 * (_ADDRESSES - _FIRST)).from_address(_FIRST))
        self._flat = torch.from_numpy(everything)
        everything = everything.view()
        everything.flags.writeable = False
        self.array: NDArray[np.uint8] = everything
        self._records: dict[tuple[int, int], Records] = {}

    def address(self, data: Any) -> int:
        """Return the address of the first byte of a buffer."""
        return int(np.frombuffer(data, np.uint8).ctypes.data) - _FIRST

    def gather(
        self,
        addresses: Numbers,
        length: int,
        alignment: int,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        allocate: Allocate | None = None,
    ) -> torch.Tensor:
        """Return records of `length` bytes at addresses (n,), as values of a dtype and shape, (n, *shape).

        Args:
            alignment: a number that is a multiple of 2**k only if all addresses are.
            allocate: gives the memory that they are put into; new memory by default.
        """
        # Elements are addressed, of as many bytes as all records are aligned to, up to 8.
        alignment |= length | 8
        shift = (alignment & -alignment).bit_length() - 1
        records = self._records.get((length, shift))
        if records is None:
            if (_ADDRESSES >> shift) * length > _MOST_BYTES:  # only what lies about these records is small enough
                low, high = (int(addresses.min()), int(addresses.max())) if len(addresses) else (0, 0)
                return Records(self._flat[low : high + length], length, shift).gather(
                    addresses - low, dtype, shape, allocate
                )
            records = self._records[length, shift] = Records(self._flat, length, shift)
        return records.gather(addresses, dtype, shape, allocate)


class Records:
    """Memory as records of one length, one from each element, which overlap: copied without looking at their values.

    Args:
        memory: uint8 (bytes,); no tensor on it is handed out.
        length: bytes of a record.
        shift: an element has `2**shift` bytes; torch is slow for single bytes.
    """

    def __init__(self, memory: torch.Tensor, length: int, shift: int) -> None:
        self._memory, self._length = memory, length
        self._shift = np.array(shift)  # numpy would convert a number for each batch
        self._unit, self._count = UNITS[shift], length >> shift
        elements = memory[: len(memory) >> shift << shift].view(self._unit)
        starts = max(len(elements) - self._count + 1, 0)
        self._rows = elements.as_strided((starts, self._count), (1, 1))
        self._items: NDArray[Any] | None = None
        if self._count == 1:  # to numpy a number, which is faster than an opaque item
            self._items = elements.numpy()
        elif 0 < length <= MOST_ITEM_BYTES:
            opaque = np.dtype((np.void, length))
            self._items = np.ndarray((starts,), opaque, elements.numpy().data, 0, (1 << shift,))

    def gather(
        self, addresses: Numbers, dtype: torch.dtype, shape: tuple[int, ...], allocate: Allocate | None = None
    ) -> torch.Tensor:
        """Return the records at `addresses` (n,), which are those of elements, as values of a dtype and shape.

        They are (n, *shape), in new memory, or in memory that `allocate` gives.
        """
        nbytes, elements = len(addresses) * self._length, addresses >> self._shift
        if not nbytes:
            out = fresh(0)
        elif nbytes >= LARGE_BYTES and _threads.are_free():
            out = (allocate or fresh)(nbytes)
            target, began = out.view(self._unit).view(len(elements), self._count), time.perf_counter()
            torch.index_select(self._rows, 0, torch.from_numpy(elements), out=target)
            _threads.note(nbytes, time.perf_counter() - began)
        elif self._items is not None and allocate is None:
            records = self._items.take(elements) if self._count == 1 else self._items[elements]
            return as_values(records, dtype, (len(elements), *shape))
        elif self._length >= LONG_BYTES:
            out = (allocate or fresh)(nbytes)
            join(self._memory.numpy(), addresses, np.full(len(addresses), self._length), out.numpy())
        else:
            out = (allocate or fresh)(nbytes)
            target = out.view(self._unit).view(len(elements), self._count)
            # In blocks that torch copies by the calling thread alone.
            step = max(GRAIN // self._count, 1)
            for first in range(0, len(elements), step):
                block = slice(first, first + step)
                torch.index_select(self._rows, 0, torch.from_numpy(elements[block]), out=target[block])
        return out.view(dtype).view(len(elements), *shape)


class _Threads:
    """Whether torch's threads may copy a large batch.

    If one of them gets no processor, all others wait for it, for milliseconds. So after a copy that took longer than
    one thread ever takes, the calling thread copies alone for a while. So it always does in threads other than the main
    one, since each would start a team of its own, and in a forked process, since the team stayed in the parent.
    """

    def __init__(self) -> None:
        self._owner = None if _began_by_fork() else (os.getpid(), threading.main_thread().ident)
        self._busy_until = 0.0

    def are_free(self) -> bool:
        """Return whether the calling thread may use torch's threads now."""
        is_owner = (os.getpid(), threading.get_ident()) == self._owner and torch.get_num_threads() > 1
        return is_owner and time.monotonic() > self._busy_until

    def note(self, nbytes: int, seconds: float) -> None:
        """Note how long a copy of this many bytes took; after a slow one, torch's threads are not free for a while."""
        if seconds > nbytes * SLOW:
            self._busy_until = time.monotonic() + ALONE_SECONDS


def _began_by_fork() -> bool:
    """Return whether this process was forked and has loaded no other program since."""
    try:
        flags = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[6])
    except (OSError, ValueError, IndexError):  # not Linux: a child of multiprocessing can still tell
        return multiprocessing.parent_process() is not None
    return bool(flags & FORKED_NO_EXEC)


_threads = _Threads()
MEMORY = Memory()


class Pool:
    """Memory for batches as tensors, reused when the last tensor on it is gone, views included.

    torch's storage owns a numpy array that was made for it alone. When that array dies, its memory is free.

    Args:
        pinned: page-locked memory of any size, from which copies to a GPU run in the background. It comes from torch's
            own pool, which also waits for copies that are under way when the tensor is dropped.
        keep: free pieces to keep, at most; the oldest are dropped.
    """

    def __init__(self, pinned: bool = False, keep: int = KEEP) -> None:
        self.pinned = pinned
        self._keep = keep
        # Memory comes back whenever garbage is collected, in any thread, even in one that is in here already. A lock
        # could block that thread forever, so there is none: each call on a deque is safe by itself.
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=keep)
        self._lent: dict[int, tuple[object, NDArray[np.uint8]]] = {}
        self._give_back = _make_give_back(self._free, self._lent)

    def __reduce__(self) -> tuple[type[Pool], tuple[bool, int]]:
        return Pool, (self.pinned, self._keep)

    def pays(self, nbytes: float) -> bool:
        """Return whether to read this many bytes into memory of the pool.

        For few bytes the system's allocator is faster, and reuses memory by itself.
        """
        return self.pinned or nbytes >= LARGE_BYTES

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return `nbytes` of writable memory, uint8 (nbytes,), not initialised."""
        if self.pinned:
            return torch.empty(nbytes, dtype=torch.uint8, device=CPU, pin_memory=True)
        if not self.pays(nbytes):
            return fresh(nbytes)
        memory = self._take_fitting(nbytes)
        if memory is None:
            memory = np.empty(_round_up(nbytes), np.uint8)
        # The view keeps `memory` alive, as its base; the view itself dies with the storage.
        view = memory[:nbytes]
        # A plain reference, since weakref.finalize costs more.
        reference = weakref.ref(view, self._give_back)
        self._lent[id(reference)] = reference, memory
        return torch.from_numpy(view)

    def _take_fitting(self, nbytes: int) -> NDArray[np.uint8] | None:
        """Return free memory that is large enough and not twice too large; None if there is none."""
        for _ in range(len(self._free)):
            try:
                memory = self._free.pop()
            except IndexError:  # another thread was faster
                return None
            if nbytes <= len(memory) <= 2 * nbytes:
                return memory
            self._free.appendleft(memory)
        return None


def _round_up(nbytes: int) -> int:
    """Return `nbytes` rounded up to a quarter of a power of two, so that ragged batches reuse each other's memory."""
    step = 1 << max(nbytes.bit_length() - 3, 12)
    return -(-nbytes // step) * step


def _make_give_back(
    free: deque[NDArray[np.uint8]], lent: dict[int, tuple[object, NDArray[np.uint8]]]
) -> Callable[[object], None]:
    """Return the callback for views that died; it does not keep the pool alive."""

    def give_back(reference: object) -> None:
        free.append(lent.pop(id(reference))[1])

    return give_back
