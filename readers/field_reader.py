"""What reads one field of a dataset: whole samples, crops of them, or subsets of their points."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from packer.format.schema import Field
from readers.draws import Visits
from readers.fixed import FixedRaw
from readers.gather import Allocate
from readers.places import Numbers


class FieldReader(Protocol):
    """Turns sample numbers into places, for as many batches as the caller likes, and places into values.

    Attributes:
        field: what `read` gives; its shape is that of a crop where crops are read.
    """

    @property
    def field(self) -> Field: ...

    def locate(self, numbers: Numbers, visits: Visits | None = None) -> Numbers:
        """Return the places of samples (n,): an array with one row a sample.

        Args:
            visits: (n,), by which random crops and points are drawn, see `draws.py`. Other readers need none.
        """

    def spans(self, located: Numbers) -> Numbers:
        """Address and size of the bytes that `read` will touch, (n, 2)."""

    def read(self, located: Numbers, allocate: Allocate | None = None) -> Any:
        """The values of the samples, in new memory or in what `allocate` gives."""


def locate_all(readers: Iterable[FieldReader], numbers: Numbers, visits: Visits | None = None) -> list[Numbers]:
    """Places of samples (n,) in several fields of one open dataset; those of uncompressed fields are found together.

    Args:
        visits: (n,), where random parts of samples are read.
    """
    addresses: Numbers | None = None
    found = []
    for reader in readers:
        if type(reader) is not FixedRaw:
            found.append(reader.locate(numbers, visits))
            continue
        if addresses is None:
            addresses = reader.addresses.of_all(numbers)
        found.append(addresses[reader.row])
    return found
