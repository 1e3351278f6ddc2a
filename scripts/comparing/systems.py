"""The systems: how each writes what it reads, and reads an epoch of it in random order.

docs/compare.md says why each is set up as it is. Libraries are imported by the methods that use them: one that is
missing leaves out its own system alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from benchmark.apart import apart, pack
from benchmark.inputs import write_samples
from benchmark.loops import shuffled
from file_datasets import Files, lmdb_samples
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from comparing.inputs import Loose, Sample
from readers import Loader, PackedDataset

#: Ways to read an epoch by name; the quickest of them is what a system is shown with.
Epochs = dict[str, Callable[[], Iterable[Any]]]
WORKERS = 2
#: Bytes of a chunk of zarr, as its guide recommends at least, and how many of them are shuffled among themselves.
ZARR_CHUNK, ZARR_CHUNKS = 2**20, 16
#: Bytes of a chunk of TensorStore, which keeps chunks in memory: small ones are copied from sooner.
TENSORSTORE_CHUNK, TENSORSTORE_CACHE = 2**17, 2**31
SHARDS = 8


class System:
    """One of the systems.

    Attributes:
        takes_ragged: whether it reads samples of different shapes.
    """

    name: str
    takes_ragged = True

    def write(self, loose: Loose, path: Path) -> None:
        """Convert the loose files, into the file or folder `path`."""
        raise NotImplementedError

    def epochs(self, loose: Loose, path: Path, batch: int) -> Epochs:
        """Return what begins an epoch in batches of `batch` samples."""
        raise NotImplementedError


class LooseFiles(System):
    """The loose files themselves."""

    name = "loose files"

    def epochs(self, loose: Loose, path: Path, batch: int) -> Epochs:
        return _data_loaders(loose, loose.dataset, batch)


class Lmdb(System):
    """The usual recipe: a key a sample, whose value is LZ4 of a pickled dict of arrays."""

    name = "LMDB, lz4 + pickle"

    def write(self, loose: Loose, path: Path) -> None:
        write_samples(path, loose)

    def epochs(self, loose: Loose, path: Path, batch: int) -> Epochs:
        return _data_loaders(loose, lmdb_samples(path), batch)


class Ffcv(System):
    name = "FFCV"
    takes_ragged = False
    #: Loaders are kept until the end: numba would warn that it no longer finds the code it compiled for them.
    kept: ClassVar[list[Any]] = []

    def write(self, loose: Loose, path: Path) -> None:
        from ffcv.fields import NDArrayField
        from ffcv.writer import DatasetWriter

        fields = {name: NDArrayField(values.dtype, values.shape or (1,)) for name, values in loose.first.items()}
        tuples = Files(range(len(loose)), partial(_as_tuple, loose))
        DatasetWriter(str(path), fields, num_workers=WORKERS).from_indexed_dataset(tuples)

    def epochs(self, loose: Loose, path: Path, batch: int) -> Epochs:
        return ffcv_epochs(path, batch)


def ffcv_epochs(path: Path, batch: int, make_pipelines: Callable[[], dict[str, list[Any]]] = dict) -> Epochs:
    """Return what begins an epoch of a file of FFCV, by one thread and by several; its loops are compiled.

    Args:
        make_pipelines: makes the operations of each field, for one loader; by default values come as they are stored.
    """
    import numba
    from ffcv.loader import Loader as FfcvLoader
    from ffcv.loader import OrderOption

    def begin(threads: int) -> Any:
        options = {"os_cache": True, "order": OrderOption.RANDOM, "drop_last": False, "pipelines": make_pipelines()}
        loader = FfcvLoader(str(path), batch_size=batch, num_workers=threads, **options)
        for _ in loader:  # compiled in the first epoch
            pass
        return loader

    # FFCV makes numba's type of writable bytes, which the whole process shares, read-only. No other compiled code works
    # after that, so it is changed back.
    shared = numba.uint8[::1]
    loaders = {f"{threads} threads": begin(threads) for threads in (1, WORKERS)}
    shared.mutable = True
    Ffcv.kept.extend(loaders.values())
    return {name: loader.__iter__ for name, loader in loaders.items()}


class MemoryMap(System):
    name = "TensorDict, memory map"
    takes_ragged = False

    def write(self, loose: Loose, path: Path) -> None:
        from tensordict import TensorDict

        first = {name: torch.from_numpy(values) for name, values in loose.first.items()}
        mapped = TensorDict(first, batch_size=[]).expand(len(loose)).memmap_like(str(path))
        for place, block in loose.blocks(256):
            for name, values in block.items():
                mapped[name][place] = torch.from_numpy(values)

    def epochs(self, loose: Loose, path: Path, batch: int) -> Epochs:
        from tensordict import TensorDict

        mapped: Any = TensorDict.load_memmap(str(path))
        return {
            "td[indices]": lambda: (mapped[numbers] for numbers in shuffled(len(loose), batch)),
            "DataLoader": lambda: DataLoader(mapped, batch, shuffle=True, collate_fn=_same),
        }


class Arrow(System):
    """Fields as bytes: columns of nested lists are read far more slowly."""

    name = "HF datasets, Arrow"

    def write(self, loose: Loose, path: Path) -> None:
        from datasets import Dataset, Features, Value

        features = Features({name: Value("binary") for name in loose.first})
        made = path.with_suffix(".cache")
        options = {"num_proc": WORKERS, "cache_dir": str(made), "features": features}
        numbers = {"numbers": list(range(len(loose)))}  # each process takes a part of the list
        table = Dataset.from_generator(partial(_as_bytes, loose), gen_kwargs=numbers, **options)
        table.save_to_disk(str(path))
        shutil.rmtree(made)

    def epochs(self, loose: Loose, path: Path, batch: int) -> Epochs:
        from datasets import load_from_disk

        table = load_from_disk(str(path))

        def batches() -> Iterator[dict[str, Any]]:
            for numbers in shuffled(len(loose), batch):
                values = table[numbers.tolist()]
                yield {name: self._arrays(loose, first, values[name]) for name, first in loose.first.items()}

        return {"table[indices]": batches}

    def _arrays(self, loose: Loose, first: NDArray[Any], values: list[bytes]) -> Any:
        if loose.workload.is_ragged:
            return [torch.frombuffer(bytearray(one), dtype=_torch(first)).view(-1, *first.shape[1:]) for one in values]
        return torch.frombuffer(bytearray().join(values), dtype=_torch(first)).view(-1, *first.shape)


class Zarr(System):
    """Chunks in random order, and the samples of some of them: whole chunks are read whatever is asked for."""

    name = "zarr, shuffled by chunks"
    takes_ragged = False

    def write(self, loose: Loose, path: Path) -> None:
        import zarr

        group, chunk = zarr.open_group(str(path), mode="w"), self._chunk(loose)
        arrays = {
            name: group.create_array(
                name,
                shape=(len(loose), *first.shape),
                chunks=(chunk, *first.shape),
                dtype=first.dtype,
                compressors=None,
            )
            for name, first in loose.first.items()
        }
        for place, block in loose.blocks(chunk):
            for name, values in block.items():
                arrays[name][place] = values

    def epochs(self, loose: Loose, path: Path, batch: int) -> Epochs:
        import zarr

        group, chunk = zarr.open_group(str(path), mode="r"), self._chunk(loose)
        arrays: dict[str, Any] = {name: group[name] for name in loose.first}

        def batches() -> Iterator[Sample]:
            for chunks in shuffled(-(-len(loose) // chunk), ZARR_CHUNKS):
                read = {
                    name: np.concatenate([array[start : start + chunk] for start in (chunks * chunk).tolist()])
                    for name, array in arrays.items()
                }
                for numbers in shuffled(len(next(iter(read.values()))), batch):
                    yield {name: values[numbers.numpy()] for name, values in read.items()}

        return {f"{ZARR_CHUNKS} chunks at a time": batches}

    def _chunk(self, loose: Loose) -> int:
        return max(1, ZARR_CHUNK // loose.nbytes)


class TensorStore(System):
    name = "TensorStore"
    takes_ragged = False

    def write(self, loose: Loose, path: Path) -> None:
        chunk = max(1, TENSORSTORE_CHUNK // loose.nbytes)
        stores = {}
        for name, first in loose.first.items():
            layout = {"read_chunk": {"shape": [chunk, *first.shape]}, "write_chunk": {"shape": [chunk, *first.shape]}}
            options = {"dtype": first.dtype, "shape": [len(loose), *first.shape], "create": True}
            stores[name] = self._open(path / name, {"schema": {"chunk_layout": layout}}, **options)
        for place, block in loose.blocks(max(chunk, 256 // chunk * chunk)):
            for write in [stores[name][place].write(values) for name, values in block.items()]:
                write.result()

    def epochs(self, loose: Loose, path: Path, batch: int) -> Epochs:
        stores = {name: self._open(path / name, {"recheck_cached_data": "open"}, read=True) for name in loose.first}

        def batches() -> Iterator[Sample]:
            for numbers in shuffled(len(loose), batch):
                reads = {name: store[numbers.numpy()].read() for name, store in stores.items()}
                yield {name: read.result() for name, read in reads.items()}

        return {"store[indices]": batches}

    def _open(self, path: Path, spec: dict[str, Any], **options: Any) -> Any:
        import tensorstore

        context = tensorstore.Context({"cache_pool": {"total_bytes_limit": TENSORSTORE_CACHE}})
        spec |= {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
        return tensorstore.open(spec, context=context, **options).result()


class WebDataset(System):
    """Shards in random order, and a buffer of 1,000 samples that are shuffled: it has no random access."""

    name = "WebDataset, buffer of 1,000"

    def write(self, loose: Loose, path: Path) -> None:
        from webdataset import ShardWriter

        path.mkdir()
        with ShardWriter(str(path / "%04d.tar"), maxcount=-(-len(loose) // SHARDS), verbose=0) as writer:
            for number, sample in enumerate(loose):
                fields = {f"{name}.npy": values for name, values in sample.items()}
                writer.write({"__key__": f"{number:08d}", **fields})

    def epochs(self, loose: Loose, path: Path, batch: int) -> Epochs:
        import webdataset

        shards = sorted(map(str, path.glob("*.tar")))
        collate = {"collation_fn": list} if loose.workload.is_ragged else {}
        names = [f"{name}.npy" for name in loose.first]
        read = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(1_000).decode()
        samples = read.to_tuple(*names).batched(batch, **collate)

        def begin(workers: int) -> Any:
            return webdataset.WebLoader(samples, batch_size=None, num_workers=workers, persistent_workers=workers > 0)

        return {f"{workers} workers": begin(workers).__iter__ for workers in (0, WORKERS)}


class Ours(System):
    """Packed by `packer convert`, read by `Loader`."""

    def __init__(self, codec: str) -> None:
        self.codec, self.name = codec, f"packer, {codec}"

    def write(self, loose: Loose, path: Path) -> None:
        apart(pack, loose.sources, path, codec=self.codec, workers=WORKERS)

    def epochs(self, loose: Loose, path: Path, batch: int) -> Epochs:
        return {"Loader": Loader(PackedDataset(path), batch, shuffle=True).__iter__}


SYSTEMS: tuple[System, ...] = (
    LooseFiles(),
    Lmdb(),
    WebDataset(),
    Zarr(),
    TensorStore(),
    Arrow(),
    MemoryMap(),
    Ffcv(),
    Ours("auto"),
    Ours("lz4"),
    Ours("none"),
)


def _data_loaders(loose: Loose, dataset: Any, batch: int) -> Epochs:
    options: dict[str, Any] = {"collate_fn": _same} if loose.workload.is_ragged else {}
    options["sampler"] = torch.utils.data.RandomSampler(range(len(loose)))

    def begin(workers: int) -> DataLoader[Any]:
        return DataLoader(dataset, batch, num_workers=workers, persistent_workers=workers > 0, **options)

    return {f"{workers} workers": begin(workers).__iter__ for workers in (0, WORKERS)}


def _same(batch: Any) -> Any:
    return batch


def _as_tuple(loose: Loose, number: int) -> tuple[NDArray[Any], ...]:
    return tuple(loose[number].values())


def _as_bytes(loose: Loose, numbers: list[int]) -> Iterator[dict[str, bytes]]:
    for number in numbers:
        yield {name: values.tobytes() for name, values in loose[number].items()}


def _torch(values: NDArray[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, values.dtype)).dtype
