"""Reads packed datasets at the speed of memory: `PackedDataset`, `Loader`, and what goes with them.

A batch passes these modules from top to bottom:

    dataset     names and numbers in, batches out; `indexing` says which samples are meant
    loader      the epochs: `order` says what is read when, and which of it is this rank's share; `arguments` chooses it
    mix         several datasets as one, by weight, which the loader reads like a dataset, also by `joined`
    stream      the batches of one epoch, by threads or inline; `readahead` asks the kernel for what comes next,
                `streamed` fetches shards ahead and lets go of them, in the order of `shard_order`
    opened      what reads each field of a dataset, with checksums if `verify=True`
    shards      its mapped shards, each opened, and fetched from a URL, when a sample of it is first located
    gather      the shards as one stretch of memory, copies of records out of it, and memory for batches
    fields      reads whole samples of one field: by `gather`, or decoded, with frames that are kept for the next batch
    parts       which parts of samples are read, if not whole ones: those of `crop`, `windows`, `points` and `voxels`
    resized     crops of photographs, resized to one size
    rows        reads some rows of samples, for all but `voxels`, and for regions; `draws` makes the random numbers
    batch       what is handed out: `cutting` makes samples of it for functions of the caller's own, `joining` makes a
                batch of samples; `data_loader` is what torch's gets, `tv_tensors` types of torchvision; `device` moves
                it there, `monitor` times the wait

Counts, seeds and names of fields that callers give are checked by `valid`. `basicsr` gives packed pairs in the shape of
BasicSR's own dataset; nothing here imports it.
"""

from readers.batch import Ragged
from readers.crop import Crop
from readers.dataset import PackedDataset
from readers.device import to_device
from readers.loader import Loader
from readers.mix import Mix
from readers.monitor import DataTimeMonitor
from readers.points import PointSample
from readers.resized import ResizedCrop
from readers.tv_tensors import as_tv_tensors
from readers.voxels import VoxelSample
from readers.windows import Windows

__all__ = [
    "Crop",
    "DataTimeMonitor",
    "Loader",
    "Mix",
    "PackedDataset",
    "PointSample",
    "Ragged",
    "ResizedCrop",
    "VoxelSample",
    "Windows",
    "as_tv_tensors",
    "to_device",
]
