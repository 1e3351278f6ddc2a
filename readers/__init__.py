"""Reads packed datasets at the speed of memory: `PackedDataset`, `Loader`, and what goes with them."""

from readers.batch import Ragged
from readers.crop import Crop
from readers.dataset import PackedDataset
from readers.device import to_device
from readers.loader import Loader
from readers.monitor import DataTimeMonitor
from readers.points import PointSample

__all__ = ["Crop", "DataTimeMonitor", "Loader", "PackedDataset", "PointSample", "Ragged", "to_device"]
