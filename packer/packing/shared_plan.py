"""The plan that an array of jobs shares: one part makes it, the others read it and look at their own files alone.

    unfinished/RUN.plan            the plan: fields, shards, and digests of what follows
    unfinished/RUN-00000.plan      the samples of a shard: paths and sizes, as `encode_source` writes them
    unfinished/RUN-all.plan        all samples, for the call that publishes
    unfinished/COMMAND.claim       says which part makes the plan now; COMMAND is a digest of the command

The note of a run says all that decides its bytes, but to write it a part must have read all headers. The digest of the
command is known before. A claim needs no lock, and so works at a URL: the last one to write it makes the plan, the
others wait as long as the claim changes. If two parts make the plan after all, both make the same one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from packer.errors import PackerError, SourceError, UsageError, WriteError
from packer.format import UNFINISHED, Field, clear_errors
from packer.packing.commit import Change
from packer.packing.cutting import ShardPlan
from packer.packing.note import UNNAMED_CHANGE, Note, differs_error
from packer.packing.places import Place, RemotePlace
from packer.packing.plan import Plan
from packer.packing.source_files import SeenFiles, SourceFiles, Stamps, source_files
from packer.remote import RemoteFile
from packer.sources import Source, decode_source, encode_source

_log = logging.getLogger(__name__)

#: Seconds between two changes of a claim, and after which one that did not change is taken over.
BEAT, LOST = 2.0, 20.0
#: Seconds between two looks for a plan.
POLL = 1.0
#: Seconds to wait after writing a claim, before reading it back to see whether another part wrote one too: in a folder,
#: and at a URL.
SETTLED, SETTLED_REMOTELY = 0.1, 1.0
#: Files that are put in place at one time: a bucket takes a while for each. One thread computes what is in them.
_PUT_THREADS = 8


class SharedPlan(msgspec.Struct, frozen=True):
    """A plan without its samples.

    Attributes:
        command: digest of the command that it is for.
        note: of the run, without where that starts from.
        files: those of each shard.
        digests: of the samples of each shard, encoded, and of all samples.
        listing: digest of the names of all files that the command names, packed or not; empty if names, sizes and times
            of files do not decide what the samples are.
        raw_bytes, exact: as in `Plan`.
    """

    command: str
    note: Note
    fields: tuple[Field, ...]
    origin: dict[str, Any]
    shards: tuple[ShardPlan, ...]
    files: tuple[SourceFiles, ...]
    digests: tuple[str, ...]
    listing: str
    raw_bytes: dict[str, int]
    exact: bool

    def sources(
        self,
        place: Place,
        run: str,
        numbers: Sequence[int],
        is_strict: bool,
        named: Sequence[str],
        fetch: Callable[[Sequence[str]], object],
    ) -> dict[int, tuple[Source, Stamps | None]] | None:
        """Return the samples of some shards and the stamps of their files, by number.

        None if they were lost, or a file has changed meanwhile.

        Args:
            is_strict: whether a change is an error.
            named: as for `files_elsewhere`.
            fetch: called with the paths of their files, before these are looked at.

        Raises:
            UsageError: a file has changed since the plan was made, and `is_strict`; or the plan has files that the
                command does not name.
            SourceError: a file is gone.
        """
        sources = {}
        for number in numbers:
            source = _read_samples(place, _samples_file(run, number), self.digests[number])
            if source is None:
                return None
            _check_named(place, run, source, named)
            sources[number] = source
        fetch([path for source in sources.values() for path in source.files()])
        parts: dict[int, tuple[Source, Stamps | None]] = {}
        for number, source in sources.items():
            seen, paths = SeenFiles(), source.files()
            files, _ = source_files(paths, seen=seen)
            if files != self.files[number]:
                if is_strict:
                    raise differs_error(place, self.files[number].difference(files) or UNNAMED_CHANGE)
                return None
            parts[number] = source, seen.stamps(paths) if source.has_files_of_slices else None
        return parts

    def plan(
        self, place: Place, run: str, named: Sequence[str], at_urls: Mapping[str, RemoteFile], seen: SeenFiles
    ) -> tuple[Plan, int] | None:
        """Return the plan with its samples, and the bytes of all source files; no source file is opened.

        None if the samples were lost, or a file has changed since the plan was made.

        Args:
            named: as for `files_elsewhere`.
            at_urls, seen: as for `source_files`.

        Raises:
            UsageError: the plan has files that the command does not name.
        """
        source = _read_samples(place, _samples_file(run, None), self.digests[-1])
        if source is None:
            return None
        _check_named(place, run, source, named)
        try:
            files, nbytes = source_files(source.files(), at_urls, seen)
        except SourceError:  # a file is gone
            return None
        plan = Plan(source, self.origin, self.fields, self.shards, self.raw_bytes, self.exact)
        return (plan, nbytes) if files == self.note.files else None


class _Claim(msgspec.Struct, frozen=True):
    """Which part makes the plan, how often it has said so, and why it failed."""

    token: str
    beats: int = 0
    error: str = ""


def find_plan(change: Change, command: str) -> SharedPlan | None:
    """Return the plan that another part of a command has written; None if there is none, or it is for another run."""
    for name in change.place.files():
        if match := re.fullmatch(rf"{UNFINISHED}/([0-9a-f]{{8}})\.plan", name):
            with contextlib.suppress(msgspec.DecodeError):
                plan = msgspec.json.decode(change.place.read(name) or b"", type=SharedPlan)
                if plan.command == command and change.run_of(plan.note) == match[1]:
                    return plan
    return None


def write_plan(change: Change, command: str, note: Note, plan: Plan, listing: str) -> None:
    """Write the plan of a run that has begun: the samples of each shard, all samples, and then the plan itself.

    Args:
        listing: as in `SharedPlan`; if it is empty, all samples are not written.

    Raises:
        WriteError: it cannot be written.
        SourceError: a file is gone.
    """
    place, files, digests = change.place, list[SourceFiles](), list[str]()

    def write_draft(source: Source, shard: int | None) -> tuple[Path, str]:
        name = _samples_file(change.run, shard)
        data, draft = encode_source(source), place.draft(name)
        with clear_errors(draft):
            draft.write_bytes(data)  # not synced: if a power cut takes it, another part makes the plan again
        digests.append(xxhash.xxh3_128_hexdigest(data))
        return draft, name

    def write_drafts() -> Iterator[tuple[Path, str]]:
        for shard in plan.shards:
            source = plan.source.slice(shard.start, shard.stop)
            files.append(source_files(source.files())[0])
            yield write_draft(source, shard.number)
        if listing:
            yield write_draft(plan.source, None)

    with ThreadPoolExecutor(_PUT_THREADS) as pool:
        for _ in pool.map(lambda draft: place.put_draft(*draft), write_drafts()):
            pass
    shared_plan = SharedPlan(
        command,
        note,
        plan.fields,
        plan.origin,
        plan.shards,
        tuple(files),
        tuple(digests),
        listing,
        plan.raw_bytes,
        plan.exact,
    )
    place.write(f"{UNFINISHED}/{change.run}.plan", msgspec.json.encode(shared_plan))


def files_elsewhere(paths: Iterable[str], named: Sequence[str]) -> Iterator[str]:
    """Yield those of some files that a command does not name: a plan says which files the next part opens.

    Args:
        named: files, and folders with all that is below, as absolute paths.
    """

    def is_named(path: str) -> bool:
        full_path = os.path.abspath(path)  # noqa: PTH100 - without a Path: there may be millions
        return any(f"{full_path}/".startswith(f"{name.rstrip('/')}/") for name in named)

    folders: dict[str, bool] = {}
    for path in paths:
        folder = path[: path.rfind("/") + 1]
        if folder not in folders:
            folders[folder] = is_named(folder)
        if not folders[folder] and not is_named(path):
            yield path


def _check_named(place: Place, run: str, source: Source, named: Sequence[str]) -> None:
    if path := next(files_elsewhere(source.files(), named), ""):
        raise UsageError(
            f"{place}: its plan {UNFINISHED}/{run}.plan has the file {path}, which this command does not name; no part "
            f"opens it: remove {UNFINISHED}, and see who writes there"
        )


def _samples_file(run: str, number: int | None) -> str:
    """Return the path of the samples of a shard, or of all."""
    return f"{UNFINISHED}/{run}-{'all' if number is None else f'{number:05d}'}.plan"


def _read_samples(place: Place, name: str, digest: str) -> Source | None:
    """Return the samples that `write_plan` has written; None if they were lost."""
    data = place.read(name)
    if data is None or xxhash.xxh3_128_hexdigest(data) != digest:
        return None
    with contextlib.suppress(SourceError):  # of another version of numpy, say
        return decode_source(data)
    return None


@contextlib.contextmanager
def claim_plan(place: Place, command: str, find: Callable[[], SharedPlan | None]) -> Iterator[SharedPlan | None]:
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
