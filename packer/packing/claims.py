"""Which part of an array of jobs makes the plan: it claims that, and the others wait as long as the claim changes.

    unfinished/COMMAND.claim       says which part makes the plan now; COMMAND is a digest of the command

A claim needs no lock, and so works at a URL: the last one to write it makes the plan. If two parts make the plan after
all, both make the same one.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from packer.errors import PackerError, UsageError, WriteError
from packer.format import UNFINISHED
from packer.packing.places import Place, RemotePlace

_log = logging.getLogger(__name__)

Plan = TypeVar("Plan")

#: Seconds between two changes of a claim, and after which one that did not change is taken over.
BEAT, LOST = 2.0, 20.0
#: Seconds between two looks for a plan.
POLL = 1.0
#: Seconds to wait after writing a claim, before reading it back to see whether another part wrote one too: in a folder,
#: and at a URL.
SETTLED, SETTLED_REMOTELY = 0.1, 1.0


class _Claim(msgspec.Struct, frozen=True):
    """Which part makes the plan, how often it has said so, and why it failed."""

    token: str
    beats: int = 0
    error: str = ""


@contextlib.contextmanager
def claim_plan(place: Place, command: str, find: Callable[[], Plan | None]) -> Iterator[Plan | None]:
    """Yield the plan that another part makes or has made; or None to the one part that is to make it in the block.

    Args:
        command: its digest; empty if it shares no plan.
        find: returns the plan if it is there.

    Raises:
        UsageError: the part that made the plan while this one waited has failed.
        WriteError: the claim cannot be written.
    """
    plan = find() if command else None
    if plan or not command:
        yield plan
        return
    own_claim = _Claim(secrets.token_hex(8))
    place.prepare()
    name = f"{UNFINISHED}/{command}.claim"
    last_data: bytes | None = None
    change_time, awaited_token = time.monotonic(), ""
    while True:
        data = place.read(name)
        if data != last_data:
            last_data, change_time = data, time.monotonic()
        claim = None
        with contextlib.suppress(msgspec.DecodeError):
            claim = msgspec.json.decode(data, type=_Claim) if data else None
        if claim and claim.error and claim.token == awaited_token:
            raise UsageError(f"another part made the plan, and failed: {claim.error}")
        if claim is None or claim.error or time.monotonic() - change_time > LOST:
            place.write(name, msgspec.json.encode(own_claim))
            time.sleep(SETTLED_REMOTELY if isinstance(place, RemotePlace) else SETTLED)
            if place.read(name) == msgspec.json.encode(own_claim):
                break
            continue
        if not awaited_token:
            _log.info("another part makes the plan; this one waits for it")
        awaited_token = claim.token
        time.sleep(POLL)
        if plan := find():
            yield plan
            return
    if plan := find():  # written since the first look
        place.remove([name])
        yield plan
        return
    with _keep_alive(place, name, own_claim):
        yield None


@contextlib.contextmanager
def _keep_alive(place: Place, name: str, claim: _Claim) -> Iterator[None]:
    """Keep a claim alive during the block; then remove it, or leave the error of the block in it."""
    is_done = threading.Event()

    def beat() -> None:
        beats = 0
        while not is_done.wait(BEAT):
            beats += 1
            with contextlib.suppress(WriteError):
                place.write(name, msgspec.json.encode(msgspec.structs.replace(claim, beats=beats)))

    thread = threading.Thread(target=beat, name="packer-claim", daemon=True)
    thread.start()
    error = ""
    try:
        yield
    except PackerError as failure:
        error = str(failure)
        raise
    finally:
        is_done.set()
        thread.join()
        if error:
            place.write(name, msgspec.json.encode(msgspec.structs.replace(claim, error=error)))
        else:
            place.remove([name])
