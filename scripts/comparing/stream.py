"""Epochs over a bucket that is larger than the cache: packed datasets, MosaicML Streaming (MDS) and LitData, in turn.

    $ scripts/compare --only stream
    $ python -m comparing.stream --megabytes 600 --shard 16 --cache 200 --only packer     # a part, from scripts/

Pairs of images, 13 kB each, lie in an S3 server of this machine (moto), behind a proxy of fixed bandwidth and delay.
Each system reads two epochs in a process of its own, with an empty cache and a limit; packed datasets also by two nodes
with a cache of their own each, which share the bandwidth. Two rows say what is possible: the same dataset in a folder,
and the bytes of its files, fetched by s3fs in as many requests at a time, and read by nobody.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from socket import create_connection, create_server, socket
from typing import Any

import fsspec
import numpy as np

from packer.remote import BLOCK_BYTES, STREAMS
from packer.writer import DatasetWriter
from readers import Loader, PackedDataset

NAME = "stream"
BATCH, WORKERS, SAMPLE = 64, 2, 16 * 16 * 3 + 64 * 64 * 3
MEGABYTES, SHARD = 4000, 64
#: Limits of the cache, as a share of the dataset: all, a third, a quarter.
CACHES = (1.2, 1 / 3, 1 / 4)
#: Workers of the others: what was set up before they were forked holds in them, too.
FORKED: dict[str, Any] = {"num_workers": WORKERS, "multiprocessing_context": "fork"}
#: Bytes a second, and seconds before each piece of a request arrives.
BANDWIDTH, DELAY = 100e6, 0.02
#: Seconds that a link catches up after a thread of it woke too late, else it would give less than its bandwidth.
SLACK = 0.02
_PIECE = 2**17
#: What MDS imports and needs no part of here.
_CLASSES = {
    "torchvision.datasets": ["VisionDataset"],
    "torchvision.transforms.functional": ["to_tensor"],
    "transformers.feature_extraction_utils": ["BatchFeature"],
    "transformers.tokenization_utils_base": ["BatchEncoding"],
    "transformers.models.auto.tokenization_auto": ["AutoTokenizer"],
}
#: An epoch that takes so many times as long as the link needs is given up: MDS may hang where its cache is small.
PATIENCE = 3


class Link:
    """Passes connections on to `port`: answers with fixed bandwidth, shared by all, and requests with a delay.

    Attributes:
        nbytes: that were answered.
    """

    def __init__(self, port: int) -> None:
        self._target, self._lock, self._free, self.nbytes = port, threading.Lock(), 0.0, 0
        self._server = create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._server.getsockname()[1]

    def serve(self) -> None:
        """Accept connections for ever."""
        while True:
            client, _ = self._server.accept()
            server = create_connection(("127.0.0.1", self._target))
            threading.Thread(target=self._pass, args=(client, server, self._wait), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, self._queue), daemon=True).start()

    def _pass(self, one: socket, other: socket, pause: Callable[[int], None]) -> None:
        try:
            while data := one.recv(_PIECE):
                pause(len(data))
                other.sendall(data)
            other.shutdown(1)
        except OSError:
            one.close()
            other.close()

    def _wait(self, nbytes: int) -> None:
        time.sleep(DELAY)

    def _queue(self, nbytes: int) -> None:
        with self._lock:
            self.nbytes += nbytes
            now = time.monotonic()
            self._free = max(self._free, now - SLACK) + nbytes / BANDWIDTH
            rest = self._free - now
        time.sleep(max(rest, 0))


def _link(port: int, pipe: Any) -> None:
    """Serve in a process of its own; answer everything that is sent with the bytes that passed."""
    link = Link(port)
    threading.Thread(target=link.serve, daemon=True).start()
    pipe.send(link.port)
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        pipe.send(link.nbytes)


@contextmanager
def server() -> Iterator[tuple[int, int, Callable[[], int]]]:
    """Start moto and a link before it; yield both ports, and a function that gives the bytes that passed."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        port = next(int(match[1]) for line in process.stderr if (match := re.search(r"127\.0\.0\.1:(\d+)", line)))
        threading.Thread(target=process.stderr.read, daemon=True).start()
        context = get_context("spawn")
        own, other = context.Pipe()
        link = context.Process(target=_link, args=(port, other), daemon=True)
        link.start()

        def passed() -> int:
            own.send(None)
            return int(own.recv())

        try:
            yield port, own.recv(), passed
        finally:
            link.kill()
            process.terminate()


# ---------------------------------------------------------------- writing


def _sample(number: int) -> dict[str, Any]:
    values = np.random.default_rng(number).integers(0, 256, SAMPLE, np.uint8)
    return {"lr": values[:768].reshape(16, 16, 3), "hr": values[768:].reshape(64, 64, 3)}


def write_packed(folder: Path, count: int, shard: int) -> None:
    with DatasetWriter(folder, codec="none", shard_size=shard) as writer:
        for number in range(count):
            writer.add(_sample(number))


def write_mds(folder: Path, count: int, shard: int) -> None:
    _stub_imports()
    from streaming import MDSWriter

    columns = {"lr": "ndarray:uint8:16,16,3", "hr": "ndarray:uint8:64,64,3"}
    with MDSWriter(out=str(folder), columns=columns, size_limit=shard) as writer:
        for number in range(count):
            writer.write(_sample(number))


def write_litdata(folder: Path, count: int, shard: int) -> None:
    import litdata

    options = {"num_workers": WORKERS, "start_method": "fork"}
    litdata.optimize(_sample, list(range(count)), str(folder), chunk_bytes=shard, **options)


def _stub_imports() -> None:
    """Let MDS be imported without torchvision and transformers: it derives from their classes, or asks for them."""
    for name, classes in _CLASSES.items():
        try:
            importlib.import_module(name)
        except ImportError:
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
            vars(sys.modules[name]).update({called: type(called, (), {}) for called in classes})


# ---------------------------------------------------------------- reading


def read_packed(url: str, cache: Path, limit: int) -> Callable[[], Iterable[Any]]:
    loader = Loader(PackedDataset(url, cache=cache, cache_bytes=limit), BATCH, shuffle="shards")
    return lambda: loader


def read_nodes(url: str, cache: Path, limit: int) -> Callable[[], Iterable[Any]]:
    loaders = [
        Loader(
            PackedDataset(url, cache=cache / str(node), cache_bytes=limit),
            BATCH,
            shuffle="shards",
            rank=node,
            world_size=2,
            nodes=2,
        )
        for node in range(2)
    ]

    def epoch() -> Iterator[Any]:
        loops = [iter(loader) for loader in loaders]
        with ThreadPoolExecutor(len(loops)) as pool:
            while None not in (batches := list(pool.map(lambda loop: next(loop, None), loops))):
                yield from batches

    return epoch


def read_folder(folder: str, cache: Path, limit: int) -> Callable[[], Iterable[Any]]:
    loader = Loader(PackedDataset(folder), BATCH, shuffle="shards")
    return lambda: loader


def read_bytes(url: str, cache: Path, limit: int) -> Callable[[], Iterable[Any]]:
    """Fetch the files of the dataset in as many requests as `packer` does, and do nothing with them."""
    fs = fsspec.filesystem("s3")
    blocks = [
        (path, start, min(start + BLOCK_BYTES, size))
        for path, size in fs.du(f"{url}/shards", total=False).items()
        for start in range(0, size, BLOCK_BYTES)
    ]

    def epoch() -> Iterator[Any]:
        with ThreadPoolExecutor(STREAMS) as pool:
            for block in pool.map(lambda block: fs.cat_file(block[0], start=block[1], end=block[2]), blocks):
                yield {"lr": range(round(len(block) / SAMPLE))}

    return epoch


def read_mds(url: str, cache: Path, limit: int) -> Callable[[], Iterable[Any]]:
    _stub_imports()
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    options = {"shuffle": True, "shuffle_algo": "py1br", "shuffle_block_size": 16_384, "cache_limit": limit}
    dataset = StreamingDataset(remote=url, local=str(cache), batch_size=BATCH, num_canonical_nodes=1, **options)
    loader: DataLoader[Any] = DataLoader(dataset, BATCH, **FORKED)
    return lambda: loader


def read_litdata(url: str, cache: Path, limit: int) -> Callable[[], Iterable[Any]]:
    import litdata
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # the server has no TLS
    dataset = litdata.StreamingDataset(url, cache_dir=str(cache), shuffle=True, max_cache_size=limit)
    loader = litdata.StreamingDataLoader(dataset, batch_size=BATCH, **FORKED)
    return lambda: loader


Read = Callable[[str, Path, int], Callable[[], Iterable[Any]]]
#: How each system writes the pairs, and by row of the table how it reads them.
SYSTEMS: dict[str, tuple[Callable[[Path, int, int], None], dict[str, Read]]] = {
    "packer": (
        write_packed,
        {
            "packer": read_packed,
            "packer, 2 nodes": read_nodes,
            "packer, a folder": read_folder,
            "s3fs, bytes alone": read_bytes,
        },
    ),
    "LitData": (write_litdata, {"LitData": read_litdata}),
    "MDS": (write_mds, {"MDS": read_mds}),
}
#: Rows that need no cache.
WITHOUT_CACHE = (read_folder, read_bytes)


def _size(folder: Path) -> int:
    """Return the bytes that the files of a cache take now; those set aside count with what was written."""
    sizes = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                info = (Path(parent) / name).stat()
                sizes[info.st_ino] = info.st_blocks * 512  # once, also a file that gets its name meanwhile
    return sum(sizes.values())


def measure(read: Read, url: str, cache: Path, limit: int, pipe: Any) -> None:
    """Read two epochs in this process; send seconds to the first batch and of each epoch, and the most on disk."""
    most, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            most[0] = max(most[0], _size(cache))

    cache.mkdir(parents=True)
    threading.Thread(target=watch, daemon=True).start()
    began = time.perf_counter()
    begin = read(url, cache, limit)
    row: dict[str, Any] = {"epochs": []}
    for _ in range(2):
        samples, start = 0, time.perf_counter()
        for batch in begin():
            row.setdefault("first batch", time.perf_counter() - began)
            samples += len(batch["lr"])
        row["epochs"].append(time.perf_counter() - start)
        pipe.send(None)
        row.setdefault("samples", []).append(samples)
    row["most"] = most[0]
    stop.set()
    pipe.send(row)
    pipe.recv()


def cells_of(row: Read, url: str, cache: Path, limit: int, seconds: float, passed: Callable[[], int]) -> list[str]:
    """Read two epochs in another process; return the cells of a row, or why there are none.

    Args:
        seconds: that an epoch may take.
    """
    context = get_context("spawn")
    own, other = context.Pipe()
    process = context.Process(target=measure, args=(row, url, cache, limit, other))
    before = [passed()]
    process.start()
    other.close()
    try:
        for _ in range(2):
            if not own.poll(seconds):
                return [f"hangs: no epoch in {seconds:.0f} s"]
            own.recv()
            before.append(passed())
        result = own.recv()
        own.send(None)
    except EOFError:
        return ["fails"]
    finally:
        process.terminate()
        process.join()
        shutil.rmtree(cache, ignore_errors=True)
    print(f"compare: {json.dumps(result)}", file=sys.stderr)
    rates = [f"{n / s:,.0f}" for n, s in zip(result["samples"], result["epochs"], strict=True)]
    fetched = [f"{nbytes / 1e6:,.0f}" for nbytes in np.diff(before).tolist()]
    return [f"{result['first batch']:.2f}", rates[0], fetched[0], rates[1], fetched[1], f"{result['most'] / 1e6:,.0f}"]


def compare(
    folder: Path, megabytes: int = MEGABYTES, shard: int = SHARD, caches: Sequence[int] = (), only: Sequence[str] = ()
) -> str:
    """Write and upload the pairs by all systems, read two epochs by each, and return a table.

    Args:
        caches: limits in MB; by default as `CACHES`.
        only: names of systems; all by default.
    """
    count = megabytes * 1_000_000 // SAMPLE
    lines = [
        "| pairs from a bucket | cache, MB | first batch, s | epoch 1, samples a second | fetched, MB | epoch 2 "
        "| fetched, MB | most on disk, MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    with server() as (port, slow, passed), tempfile.TemporaryDirectory(dir=folder) as scratch:
        keys = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_DEFAULT_REGION": "us-east-1"}
        endpoint = f"http://127.0.0.1:{slow}"
        os.environ.update(keys, AWS_ENDPOINT_URL=endpoint, S3_ENDPOINT_URL=endpoint, AWS_EC2_METADATA_DISABLED="true")
        fs = fsspec.filesystem("s3", client_kwargs={"endpoint_url": f"http://127.0.0.1:{port}"})
        fs.mkdir("bucket")
        for name, (write, rows) in SYSTEMS.items():
            if only and name not in only:
                continue
            place = folder / f"{name}-{megabytes}-{shard}"
            if not (place / "done").exists():
                shutil.rmtree(place, ignore_errors=True)
                try:
                    write(place / "data", count, shard * 1_000_000)
                except ImportError as error:
                    print(f"compare: {name} is left out: {error}", file=sys.stderr)
                    continue
                (place / "done").touch()
            fs.put(str(place / "data"), f"bucket/{name}", recursive=True)
            for row, read in rows.items():
                source = str(place / "data") if read is read_folder else f"s3://bucket/{name}"
                limits = caches or [round(share * megabytes) for share in CACHES]
                for cache in [0] if read in WITHOUT_CACHE else limits:
                    seconds = PATIENCE * count * SAMPLE / BANDWIDTH + 30
                    cells = cells_of(read, source, Path(scratch) / "cache", cache * 1_000_000, seconds, passed)
                    lines.append(
                        f"| {row} | {f'{cache:,}' if cache else ''} | {' | '.join(cells + [''] * (6 - len(cells)))} |"
                    )
                    print(lines[-1], file=sys.stderr)
            fs.rm(f"bucket/{name}", recursive=True)
    most = BANDWIDTH / SAMPLE
    return "\n".join(
        [
            *lines,
            "",
            f"- {count:,} pairs, {count * SAMPLE / 1e6:,.0f} MB, in shards of {shard} MB; batches of {BATCH}; "
            f"{BANDWIDTH / 1e6:.0f} MB/s, {DELAY * 1000:.0f} ms: {most:,.0f} samples a second at most.",
        ]
    )


def main() -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES)
    parser.add_argument("--shard", type=int, default=SHARD)
    parser.add_argument("--cache", type=int, action="append", default=[], help="in MB; by default three shares")
    parser.add_argument("--only", choices=list(SYSTEMS), action="append", default=[])
    parser.add_argument("--data", type=Path, default=Path.home() / ".cache/lmdb-packer/compare-data/stream")
    options = parser.parse_args()
    options.data.mkdir(parents=True, exist_ok=True)
    print(compare(options.data, options.megabytes, options.shard, options.cache, options.only))


if __name__ == "__main__":
    main()
