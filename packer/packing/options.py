"""How to convert: the options of `convert`, which the other verbs that pack samples take too."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from packer.codecs import parse_codec
from packer.errors import UsageError
from packer.format import FieldSpec
from packer.machine import processors, usual_memory
from packer.packing.framing import codec_texts
from packer.packing.splits import Rule, parse_rules
from packer.sources import SourceOptions
from packer.watcher import NOBODY, Watcher
from packer.workers import Limits, check_may_start


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """How to convert. The command line makes the help of its options from these lines, as far as `In Python`.

    Attributes:
        codec: auto, none, lz4, lz4hc, zstd, bitshuffle, shuffle+lz4, shuffle+zstd, decimal+lz4, decimal+zstd,
            photo+lz4, photo+zstd, jpeg, jpeg:QUALITY, h264:CRF, or a numcodecs config as JSON; for all fields or for
            one, repeated or with commas: --codec hr=zstd,label=none. All but jpeg:QUALITY, such as jpeg:90, and
            h264:CRF, such as h264:18, give back what went in.  [default: auto] In Python a mapping of field to codec,
            too.
        shard_size: About how many raw bytes a shard holds, such as 1GiB.  [default: 16 shards of 16 MiB to 1 GiB]
        workers: Processes; 0 packs in this one, without limits for reading.  [default: as many as processors] In Python
            the default for samples in memory is 0.
        on_error: Stop at the first bad file or sample, or skip it. In Python `stop` or `skip`; what is skipped is
            listed in left-out-*.jsonl.
        overwrite: Replace a dataset that is there, once the new one is done.
        map_limit: The LMDB map of a shard must not get larger than this.
        fields: schema of samples in memory; None infers it.
        names: fields of samples in memory that are tuples, as in ("image", "label").
        like: Pack as the samples of this dataset are: fields, codecs, frames, digits and classes, so that both can be
            merged.
        splits: A split of the samples: a fraction such as 0.9, a file with one name on each line, or a pattern over
            names. In Python a mapping of name to a fraction, `@FILE`, a pattern or names, as for `packer.split.split`;
            None takes the splits that the source has itself.
        source: options of the sources, such as `SourceOptions(mode="rgb")`.
        read_seconds: A sample whose reading takes longer is bad; 0 for no limit. In Python None is no limit. It holds
            for one sample (or a block of some MiB), and for the headers of one HDF5 file. A sample that crashes its
            reader is bad as well. With `workers` 0 there are no limits: a crash while reading ends this process.
        read_bytes: A sample whose reading takes more memory is bad; 0 for no limit.  [default: an eighth of
            what there is, but 1GiB at least and half of it at most] In Python None is no limit. Memory that the process
            holds anyway does not count. Linux only.
        executor: packs the shards instead of processes of our own: any `concurrent.futures.Executor`. There are no
            limits of reading there: a crash while reading ends the executor's process.
        watcher: a `packer.watcher.Watcher`, whose functions are called with bad files, each step, and the amount that
            is done. The step `packing` starts with the samples that an earlier run has packed.
    """

    codec: str | Mapping[str, str] = "auto"
    shard_size: int | None = None
    workers: int | None = None
    on_error: str = "stop"
    overwrite: bool = False
    map_limit: int | None = field(default=None, metadata={"flag": "--map-size"})
    fields: Sequence[FieldSpec] | None = None
    names: Sequence[str] = ()
    like: str | os.PathLike[str] | None = None
    splits: Mapping[str, Rule] | None = field(default=None, metadata={"flag": "--split"})
    source: SourceOptions = field(default_factory=SourceOptions)
    read_seconds: float | None = field(default=Limits.seconds, metadata={"flag": "--read-timeout"})
    read_bytes: int | None = field(default_factory=usual_memory, metadata={"flag": "--read-memory"})
    executor: Executor | None = None
    watcher: Watcher = NOBODY

    def __post_init__(self) -> None:
        if self.on_error not in ("stop", "skip"):
            raise UsageError(f"on_error is {self.on_error!r}; stop or skip are expected")
        if self.like is not None and (self.codec != "auto" or self.fields is not None):
            raise UsageError(f"--like {self.like}: codecs and fields are those of this dataset; give no others")
        if self.workers is not None and self.workers < 0:
            raise UsageError(f"{self.workers} workers; 0 or more are expected")
        if self.map_limit is not None and self.map_limit < 1:
            raise UsageError(f"a map of {self.map_limit} bytes; 1 or more are expected")
        _ = self.limits, parse_rules(self.splits or {})  # checks them
        for text in codec_texts(self.codec).values():
            if text != "auto":
                parse_codec(text)  # here, because a large source takes long to open

    @property
    def limits(self) -> Limits:
        """What reading one sample may take."""
        return Limits(self.read_seconds, self.read_bytes)


def reading_limits(options: ConvertOptions, in_memory: bool = False) -> Limits | None:
    """Return the limits of reading in other processes; None to read in this one.

    Raises:
        UsageError: this process may not start others.
    """
    if options.workers == 0 or (options.workers is None and in_memory):
        return None
    if options.executor is None:
        check_may_start()  # before anything is written
    return options.limits


def process_count(options: ConvertOptions) -> int:
    """Return how many processes pack; 0 is this one."""
    return processors() if options.workers is None else options.workers
