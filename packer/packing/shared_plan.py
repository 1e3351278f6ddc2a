"""The plan that an array of jobs shares: one part makes it, the others read it and look at their own files alone.

    unfinished/RUN.plan            the plan: fields, shards, and digests of what follows
    unfinished/RUN-00000.plan      the samples of a shard: paths and sizes, as `encode_source` writes them
    unfinished/RUN-all.plan        all samples, for the call that publishes

The note of a run says all that decides its bytes, but to write it a part must have read all headers. The digest of the
command is known before: by it the parts find the plan, and agree on the one that makes it (`claims.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import xxhash

import packer
from packer.errors import SourceError, UsageError, as_text
from packer.format import MANIFEST, UNFINISHED, Field, clear_errors, removed_if_stopped
from packer.packing.claims import claim_plan
from packer.packing.commit import Change
from packer.packing.cutting import ShardPlan
from packer.packing.inputs import input_texts
from packer.packing.job import Job, plan_splits
from packer.packing.note import UNNAMED_CHANGE, Note, differs_error
from packer.packing.options import ConvertOptions, reading_limits
from packer.packing.places import Place, place_of
from packer.packing.plan import Plan
from packer.packing.source_files import SeenFiles, SourceFiles, source_files
from packer.packing.tasks import Make, ShardReport
from packer.remote import Lease, RemoteFile, default_cache, fetch_files, inputs_here, list_urls, url_in
from packer.sources import Source, decode_source, encode_source, list_files, named_paths

_log = logging.getLogger(__name__)

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


class PlanSharing:
    """Finds, reads and writes the plan that the calls of one command share.

    Args:
        sources, options: of the command, as for `convert`.
        place: of the dataset.
    """

    def __init__(self, sources: Any, options: ConvertOptions, place: Place) -> None:
        inputs = input_texts(sources)
        self._inputs, self._options, self._place = inputs or [], options, place
        #: Digest of the command; empty if its calls share no plan.
        self._command = _command_digest(inputs, options)
        #: What was fetched stays in the cache as long as this object.
        self._leases: list[Lease] = []

    @cached_property
    def change(self) -> Change:
        """Return the dataset at the place; its run is that of the plan, once that has begun."""
        return Change(self._place, has_lock=False)

    @cached_property
    def _named(self) -> list[str]:
        """Return the files and folders that the command names, as absolute paths: a plan says which files it opens."""
        return named_paths(inputs_here(self._inputs), self._options.source)

    def claim(self) -> contextlib.AbstractContextManager[SharedPlan | None]:
        """Give the plan that another part makes or has made; or None to the one part that is to make it in the block.

        Raises:
            UsageError: the part that made the plan while this one waited has failed.
            WriteError: the claim cannot be written.
        """
        return claim_plan(self._place, self._command, self._find)

    def _find(self) -> SharedPlan | None:
        """Return the plan that another part has written; None if there is none, or it is for another run."""
        for name in self._place.files():
            if match := re.fullmatch(rf"{UNFINISHED}/([0-9a-f]{{8}})\.plan", name):
                with contextlib.suppress(msgspec.DecodeError):
                    plan = msgspec.json.decode(self._place.read(name) or b"", type=SharedPlan)
                    if plan.command == self._command and self.change.run_of(plan.note) == match[1]:
                        return plan
        return None

    def makes(self, plan: SharedPlan, numbers: Sequence[int], is_strict: bool) -> list[Make] | None:
        """Return how some shards are packed. Of sources at a URL, their files are fetched.

        None if their samples were lost, or a file has changed since the plan was made.

        Args:
            is_strict: whether a change is an error.

        Raises:
            UsageError: a file has changed, and `is_strict`; or the plan has files that the command does not name.
            SourceError: a file is gone.
        """
        sources = {}
        for number in numbers:
            source = self._read_samples(plan, number)
            if source is None:
                return None
            sources[number] = source
        paths = [path for source in sources.values() for path in source.files()]
        self._leases += fetch_files(self._inputs, paths, self._options.watcher)
        makes = list[Make]()
        for number, source in sources.items():
            seen, paths = SeenFiles(), source.files()
            files, _ = source_files(paths, seen=seen)
            if files != plan.files[number]:
                if is_strict:
                    raise differs_error(self._place, plan.files[number].difference(files) or UNNAMED_CHANGE)
                return None
            stamps = seen.stamps(paths) if source.has_files_of_slices else None
            makes.append(Make(source, plan.shards[number], self._options.on_error == "skip", stamps=stamps))
        return makes

    def find_job(self) -> Job | None:
        """Return the job whose plan a part has written; None if there is none, or a file was added or has changed.

        No source file is opened. Of sources at a URL, the files of unfinished shards are fetched.

        Raises:
            UsageError: the plan has files that the command does not name.
        """
        shared_plan = self._find() if self._command else None
        if shared_plan is None or not shared_plan.listing:
            return None
        at_urls = list_urls(self._inputs)
        if shared_plan.listing != _list_digest(self._inputs, at_urls, self._options):
            return None
        self.change.run = self.change.run_of(shared_plan.note)
        source = self._read_samples(shared_plan, None)
        if source is None:
            return None
        seen = SeenFiles()
        try:
            files, source_bytes = source_files(source.files(), at_urls, seen)
        except SourceError:  # a file is gone
            return None
        if files != shared_plan.note.files:
            return None
        if at_urls:
            finished = self.change.files.reports(ShardReport)
            missing = [shard.number for shard in shared_plan.shards if shard.number not in finished]
            if self.makes(shared_plan, missing, is_strict=False) is None:
                return None
            weakref.finalize(source, self._leases.clear)
        _log.info("no source file has changed since a part made the plan, so it holds")
        plan = Plan(
            source, shared_plan.origin, shared_plan.fields, shared_plan.shards, shared_plan.raw_bytes, shared_plan.exact
        )
        limits, splits = reading_limits(self._options), plan_splits(plan, self._options, lenient=False)
        return Job(source, plan, self._options, files, source_bytes, limits, seen, splits)

    def list_files(self) -> str:
        """Return a digest of the names of all files that are there to be packed; empty if names do not tell all."""
        return _list_digest(self._inputs, list_urls(self._inputs), self._options) if self._command else ""

    def write(self, note: Note, plan: Plan, listing: str) -> None:
        """Write the plan of a run that has begun, unless it has files that the command does not name.

        Args:
            listing: as in `SharedPlan`; if it is empty, all samples are not written.

        Raises:
            WriteError: it cannot be written.
            SourceError: a file is gone.
        """
        if not self._command or any(_files_elsewhere(plan.source.files(), self._named)):
            return
        try:
            files, digests = self._write_samples(plan, is_all=bool(listing))
        except UnicodeEncodeError:  # the name of a file is no UTF-8: then each part makes its own plan
            return
        shared_plan = SharedPlan(
            self._command,
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
        self._place.write(f"{UNFINISHED}/{self.change.run}.plan", msgspec.json.encode(shared_plan))

    def _write_samples(self, plan: Plan, is_all: bool) -> tuple[list[SourceFiles], list[str]]:
        """Write the samples of each shard, and then all; return the files of each shard, and the digests of both."""
        place, files, digests = self._place, list[SourceFiles](), list[str]()

        def write_draft(source: Source, shard: int | None) -> tuple[Path, str]:
            name = _samples_file(self.change.run, shard)
            data, draft = encode_source(source), place.draft(name)
            drafts.enter_context(removed_if_stopped(draft))
            with clear_errors(draft):
                draft.write_bytes(data)  # not synced: if a power cut takes it, another part makes the plan again
            digests.append(xxhash.xxh3_128_hexdigest(data))
            return draft, name

        def write_drafts() -> Iterator[tuple[Path, str]]:
            for shard in plan.shards:
                source = plan.source.slice(shard.start, shard.stop)
                files.append(source_files(source.files())[0])
                yield write_draft(source, shard.number)
            if is_all:
                yield write_draft(plan.source, None)

        with contextlib.ExitStack() as drafts, ThreadPoolExecutor(_PUT_THREADS) as pool:
            for _ in pool.map(lambda draft: place.put_draft(*draft), write_drafts()):
                pass
        return files, digests

    def _read_samples(self, plan: SharedPlan, shard: int | None) -> Source | None:
        """Return the samples of a shard, or all; None if they were lost.

        Raises:
            UsageError: they have a file that the command does not name.
        """
        run = self.change.run
        data = self._place.read(_samples_file(run, shard))
        if data is None or xxhash.xxh3_128_hexdigest(data) != plan.digests[-1 if shard is None else shard]:
            return None
        try:
            source = decode_source(data)
        except SourceError:  # of another version of numpy, say
            return None
        if path := next(_files_elsewhere(source.files(), self._named), ""):
            raise UsageError(
                f"{self._place}: its plan {UNFINISHED}/{run}.plan has the file {path}, which this command does not "
                f"name; no part opens it: remove {UNFINISHED}, and see who writes there"
            )
        return source


def _samples_file(run: str, shard: int | None) -> str:
    """Return the path of the samples of a shard, or of all."""
    return f"{UNFINISHED}/{run}-{'all' if shard is None else f'{shard:05d}'}.plan"


def _files_elsewhere(paths: Iterable[str], named: Sequence[str]) -> Iterator[str]:
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


def _list_digest(inputs: Sequence[str], at_urls: Mapping[str, RemoteFile], options: ConvertOptions) -> str:
    """Return a digest of the names of all files that are there to be packed; empty if names do not tell all.

    Args:
        at_urls: those at URLs.
    """
    paths = list_files([text for text in inputs if not url_in(text)], options.source, options.watcher)
    if paths is None or any(path.endswith(".mdb") for path in at_urls):  # whose keys are samples
        return ""
    digest = xxhash.xxh3_128()
    for path in chain(paths, sorted(at_urls)):
        digest.update(os.fsencode(path) + b"\0")
    return digest.hexdigest()


def _command_digest(inputs: Sequence[str] | None, options: ConvertOptions) -> str:
    """Return a digest of all that decides the plan of a conversion, but for the files themselves.

    It is empty if parts cannot share a plan. Files at a URL are fetched, so the path of the cache counts, too.
    """
    if inputs is None:
        return ""
    paths = [Path(text.partition("=")[2] or text) for text in inputs if not url_in(text)]
    folder = "" if all(path.is_absolute() for path in paths) else os.getcwd()  # noqa: PTH109
    if any(map(url_in, inputs)):
        folder += f"\0{default_cache()}"
    like = None if options.like is None else place_of(options.like).read(MANIFEST)
    settings = options.codec, options.shard_size, options.source, options.on_error, like
    return xxhash.xxh3_64_hexdigest(
        msgspec.json.encode((packer.__version__, as_text(repr((inputs, folder))), settings))
    )
