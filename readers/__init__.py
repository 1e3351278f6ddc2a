"""Reads packed datasets at the speed of memory: `PackedDataset`, `Loader`, and what goes with them."""

from readers.dataset import PackedDataset
from readers.device import to_device
from readers.loader import Loader
from readers.monitor import DataTimeMonitor
from readers.ragged import Ragged

__all__ = ["DataTimeMonitor", "Loader", "PackedDataset", "Ragged", "to_device"]
