"""What `ds[...]` takes, one sample or many, by number or by name; and which sample each number means.

A number means a sample of the dataset, one of a split or of chosen samples, a window, or a sample of which one window
is drawn. All other modules work with the numbers of samples in the whole dataset, and with an anchor step for each
window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from packer.errors import MissingNameError, SampleIndexError, UsageError
from packer.format import Numbers, starts_of
from readers.draws import ANCHORS, Asked, Visits, draw_below, draw_words
from readers.order import digest

LookUp = Callable[[Sequence[str]], Numbers]


def is_single(index: Any) -> bool:
    """Return whether `index` asks for one sample: an int, a str, or a tensor or array without axes."""
    return isinstance(index, (int, str, np.integer)) or getattr(index, "ndim", None) == 0


def resolve_number(index: Any, samples: int, look_up: LookUp) -> int:
    """Return the number of the one sample asked for.

    Raises:
        SampleIndexError: outside the dataset.
        MissingNameError: no sample has that name.
        TypeError: neither a number nor a name.
    """
    value = index.item() if getattr(index, "shape", None) == () else index
    if isinstance(value, str):
        return int(look_up([value])[0])
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"an index of {type(value).__name__}; an integer or a name is expected")
    if not -samples <= value < samples:
        raise _outside_error(value, samples)
    return value + samples if value < 0 else value


def resolve_numbers(index: Any, samples: int, look_up: LookUp) -> Numbers:
    """Return the numbers (n,) of the samples asked for, in the order asked.

    Args:
        index: a slice, a range, a sequence of int or of str, an array or tensor of them, or a mask of bool (samples,).

    Raises:
        SampleIndexError: a number outside the dataset, or a mask of another length.
        MissingNameError: no sample has one of the names.
        TypeError: anything else.
    """
    if isinstance(index, slice):
        return np.arange(*index.indices(samples), dtype=np.int64)
    if isinstance(index, range):
        if not index:
            return np.zeros(0, np.int64)
        for end in (index[0], index[-1]):  # before anything of that length is made
            if not -samples <= end < samples:
                raise _outside_error(end, samples)
        index = np.arange(index.start, index.stop, index.step, dtype=np.int64)
    array: NDArray[Any] = index.numpy(force=True) if isinstance(index, torch.Tensor) else _as_array(index)
    if array.ndim != 1:
        raise TypeError(f"an index has one axis, not {array.ndim}")
    kind = array.dtype.kind
    if kind in "iu":
        return _check_within(array, samples)
    if kind == "b":
        if len(array) != samples:
            raise SampleIndexError(f"a mask of {len(array)} values for {samples} samples; one for each is expected")
        return np.flatnonzero(array)
    if kind not in "UTO":
        raise TypeError(f"an index holds integers, names or a mask, not {array.dtype}")
    items = array.tolist()
    are_names = {isinstance(item, str) for item in items}
    if are_names == {True}:
        return look_up(items)
    if are_names == {True, False}:
        raise TypeError("names and numbers cannot be mixed in one index")
    return np.array([resolve_number(item, samples, look_up) for item in items], np.int64)


def _as_array(index: Any) -> NDArray[Any]:
    """Return an index as an array; items of a sequence other than integers and bool become objects, checked later."""
    if hasattr(index, "__array__"):
        return np.asarray(index)
    if type(index) is not list and not isinstance(index, Sequence):  # lists first: to ask for Sequence takes long
        raise TypeError(
            "a dataset is indexed by int, str, slice, or a sequence, array or tensor of them, "
            f"not {type(index).__name__}"
        )
    if not len(index):
        return np.zeros(0, np.int64)
    if not isinstance(index[0], str):
        try:
            array = np.asarray(index)
        except ValueError as error:  # rows of different lengths
            raise TypeError(f"an index has one axis: {error}") from None
        if array.dtype.kind in "biu":
            return array
    # By default numpy makes text of 3 next to a name, and a float of 2**64 - 1.
    return np.array(index, dtype=object)


def _check_within(array: NDArray[Any], samples: int) -> Numbers:
    """Return numbers counted from the start, after checking that they lie within the dataset."""
    # Viewed as unsigned, negative numbers are huge, and so are those that int64 cannot hold: if the largest is below
    # `samples`, all are right. argmax is faster than max.
    numbers = np.ascontiguousarray(array, np.int64)
    unsigned = numbers.view(np.uint64)
    if not len(numbers) or unsigned.item(unsigned.argmax()) < samples:
        return numbers
    wrong = (array < -samples) | (array >= samples)
    if wrong.any():
        raise _outside_error(int(array[wrong][0]), samples)
    return np.where(numbers < 0, numbers + samples, numbers)


def _outside_error(number: int, samples: int) -> SampleIndexError:
    if not samples:
        return SampleIndexError(f"sample {number}: there are no samples to index")
    return SampleIndexError(f"sample {number} of {samples}: numbers go from {-samples} to {samples - 1}")


class Anchors(NamedTuple):
    """The anchor steps of some samples: `first`, `first + stride`, ...

    Attributes:
        first: of each sample, (n,).
        counts: how many each sample has, (n,).
        one: whether one of them is drawn at each visit of a sample, instead of one after another being read.
    """

    first: Numbers
    counts: Numbers
    stride: int
    one: bool


class Chosen:
    """Some samples of a dataset, as ranges of numbers: a split, which may have billions.

    Args:
        ranges: [start, stop), (r, 2), ascending.
    """

    is_ascending = True

    def __init__(self, ranges: ArrayLike) -> None:
        self._starts, stops = np.array(ranges, np.int64).reshape(-1, 2).T.copy()
        self._before = starts_of(stops - self._starts)

    def __len__(self) -> int:
        return int(self._before[-1])

    @property
    def digest(self) -> str:
        """Return a short text that differs for other samples."""
        return digest(np.concatenate([self._starts, self._before]))

    def in_whole(self, samples: Numbers) -> Numbers:
        """Return the numbers in the whole dataset of the samples (n,) by their place among the chosen ones."""
        if len(self._starts) == 1:
            return samples + self._starts
        place = self._before[1:].searchsorted(samples, side="right")
        return samples + (self._starts - self._before[:-1])[place]

    def before(self, samples: Numbers) -> Numbers:
        """Return how many chosen samples come before each of some samples (n,) of the whole dataset."""
        place = self._starts.searchsorted(samples)  # ranges that begin before
        if not len(self):
            return np.zeros_like(samples)
        within = samples - self._starts[place - 1] + self._before[place - 1]
        return np.where(place > 0, np.minimum(within, self._before[place]), 0)

    def in_chosen(self, samples: Numbers) -> Numbers:
        """Return the places among the chosen of samples (n,) of the whole dataset; -1 if one is not chosen."""
        place = self.before(samples)
        return np.where(place < self.before(samples + 1), place, -1)


class Listed(Chosen):
    """Some samples of a dataset, as an array of numbers in any order.

    Args:
        numbers: (n,), none twice.

    Raises:
        UsageError: a number comes twice.
    """

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self.is_ascending = bool((np.diff(numbers) > 0).all())
        if not self.is_ascending:
            ascending = np.sort(numbers)
            twice = ascending[1:][np.diff(ascending) == 0]
            if len(twice):
                raise UsageError(
                    f"samples: number {twice[0]} comes twice; give each once, or Loader(..., sampler=numbers)"
                )

    def __len__(self) -> int:
        return len(self._numbers)

    @cached_property
    def _ascending(self) -> tuple[Numbers, Numbers]:
        """Return the numbers in ascending order, (n,), and the place of each among those given, (n,)."""
        places = np.arange(len(self)) if self.is_ascending else self._numbers.argsort()
        return self._numbers[places], places

    @property
    def digest(self) -> str:
        """Return a short text that differs for other samples, or for another order."""
        return digest(self._numbers)

    def in_whole(self, samples: Numbers) -> Numbers:
        """Return the numbers in the whole dataset of the samples (n,) by their place among the chosen ones."""
        return self._numbers[samples]

    def before(self, samples: Numbers) -> Numbers:
        """Return how many chosen samples come before each of some samples (n,) of the whole dataset."""
        return self._ascending[0].searchsorted(samples)

    def in_chosen(self, samples: Numbers) -> Numbers:
        """Return the places among the chosen of samples (n,) of the whole dataset; -1 if one is not chosen."""
        numbers, places = self._ascending
        if not len(numbers):
            return np.full_like(samples, -1)
        positions = numbers.searchsorted(samples)
        return np.where(numbers.take(positions, mode="clip") == samples, places.take(positions, mode="clip"), -1)


class Items:
    """The items of a dataset, which numbers ask for: its samples, some of them, or their windows.

    Args:
        total: samples of the whole dataset.
        chosen: the samples that are read, such as a split; all if None.
        anchors: of the windows of the chosen samples; None if whole samples are asked for.
    """

    def __init__(self, total: int, chosen: Chosen | None = None, anchors: Anchors | None = None) -> None:
        self.total = total
        self._chosen = chosen
        self._anchors = anchors
        self._samples = total if chosen is None else len(chosen)
        self.is_ascending = chosen is None or chosen.is_ascending
        self._are_samples = anchors is None or anchors.one
        if anchors is not None and not anchors.one:
            self._ends: Numbers = anchors.counts.cumsum()
            self._starts = self._ends - anchors.counts

    def __len__(self) -> int:
        if self._are_samples:
            return self._samples
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def digest(self) -> str:
        """Return a short text that differs for other items of datasets with as many samples."""
        chosen = "" if self._chosen is None else self._chosen.digest
        if self._anchors is None:
            return f"{self.total} {chosen}"
        first, counts, stride, one = self._anchors
        return f"{self.total} {chosen} {digest(np.concatenate([first, counts, [stride, one]]))}"

    def in_windows(self, anchors: Anchors) -> Items:
        """Return the windows of these samples."""
        return Items(self.total, self._chosen, anchors)

    def resolve(self, numbers: Numbers, visits: Visits | None) -> Asked:
        """Return the samples of items (n,), and their anchor steps if they are windows.

        Args:
            visits: of the items, (n,); needed if one window of each sample is drawn.
        """
        if self._anchors is None:
            return Asked(self.in_whole(numbers), visits)
        if self._anchors.one:
            assert visits is not None, "the window of a sample is drawn by its visit"
            window = draw_below(draw_words(visits, 0, ANCHORS, 1)[:, 0], self._anchors.counts[numbers])
            return Asked(self.in_whole(numbers), visits, self._anchors.first[numbers] + window * self._anchors.stride)
        sample = self._ends.searchsorted(numbers, side="right")
        within = numbers - self._starts[sample]
        return Asked(self.in_whole(sample), visits, self._anchors.first[sample] + within * self._anchors.stride)

    def samples_of(self, numbers: Numbers) -> Numbers:
        """Return the sample of each item (n,), by its number in the whole dataset."""
        return self.in_whole(numbers if self._are_samples else self._ends.searchsorted(numbers, side="right"))

    def in_whole(self, samples: Numbers) -> Numbers:
        """Return the numbers in the whole dataset of the samples (n,) that are read."""
        return samples if self._chosen is None else self._chosen.in_whole(samples)

    def in_split(self, samples: Numbers) -> Numbers:
        """Return the numbers among those read of samples of the whole dataset (n,); -1 if one is not read."""
        return samples if self._chosen is None else self._chosen.in_chosen(samples)

    def before(self, samples: Numbers) -> Numbers:
        """Return how many items lie in samples before each of `samples` (n,), numbers in the whole dataset.

        The samples that are read must ascend.
        """
        place = samples if self._chosen is None else self._chosen.before(samples)
        return place if self._are_samples else np.append(0, self._ends)[place]


class SampleNames(Sequence[str]):
    """Names of the samples of a dataset, or of its split, by number; each is looked up when it is asked for.

    Args:
        samples: which these are.
        name_of: gives the name of a sample of the whole dataset by its number.
        look_up: gives the numbers of samples by their names; raises MissingNameError if no sample has a name.
    """

    def __init__(self, samples: Items, name_of: Callable[[int], str], look_up: LookUp) -> None:
        self._samples = samples
        self._name_of = name_of
        self._look_up = look_up

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        if is_single(index):
            return self._names(np.array([resolve_number(index, len(self), self._look_up)]))[0]
        return self._names(resolve_numbers(index, len(self), self._look_up))

    def _names(self, numbers: Numbers) -> list[str]:
        return list(map(self._name_of, self._samples.in_whole(numbers).tolist()))

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and len(self._look_up([name])) == 1
        except MissingNameError:
            return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        shown = ", ".join(repr(name) for name in self[:3])
        return f"<{len(self):,} names: {shown}{', ...' if len(self) > 3 else ''}>"

    def index(self, value: str, start: int = 0, stop: int | None = None) -> int:
        """Return the number of the sample of a name; ValueError if none has it."""
        if value in self:
            number = int(self._look_up([value])[0])
            if start <= number < (len(self) if stop is None else stop):
                return number
        raise ValueError(f"no sample is named {value!r}")
