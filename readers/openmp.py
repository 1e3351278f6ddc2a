"""How many of torch's threads the calling thread uses, without a word to any other.

`torch.set_num_threads` is for the whole process: a thread that first asks torch for its number of threads while it is 1
keeps 1 for life, and so would one that the user starts while a loader reads. What torch asks in the end is OpenMP,
whose setting belongs to the thread that makes it. It is looked up in whichever OpenMP torch was built with.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch


def _setter() -> Callable[[int], None] | None:
    try:
        # PyDLL keeps the interpreter's lock: to get it back from a busy thread may take 5 ms, the call takes 0.2 us.
        found = ctypes.PyDLL(torch._C.__file__).omp_set_num_threads
    except (OSError, AttributeError):  # torch was built without it, or the system looks in no library's libraries
        return None
    found.argtypes, found.restype = [ctypes.c_int], None
    threads = torch.get_num_threads()
    found(threads + 1)
    heard = torch.get_num_threads() == threads + 1
    found(threads)
    return found if heard else None


#: Sets the number of torch's threads for the calling thread alone; None where there is no such way.
set_own_threads = _setter()
