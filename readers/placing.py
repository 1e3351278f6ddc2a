"""Where the crops of a batch lie in their samples, and which way they are turned: the same for all cropped fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer.errors import UsageError
from packer.format import Numbers
from readers.draws import CROPS, PLACES, Visits, Words, draw_below, draw_words
from readers.fields import Describe, LastResult, Places
from readers.indexing import Items

#: Names of the axes that can be cropped, for messages.
AXES = "slice", "row", "column"
#: What functions that place crops returned or raised, by visit, while batches may be located again.
_ANSWERS: ContextVar[dict[int, Any]] = ContextVar("_ANSWERS")


class PlaceRules(NamedTuple):
    """What a crop says of where it lies.

    Attributes:
        of: name of the field in whose pixels places are.
        shape: height and width of the crops; of volumes three sides.
        step: places are its multiples.
        at: see `Crop`.
        given: the places in `at`, (axes,) or (samples, axes); None if there are none.
        draws: whether visits of a sample may differ.
        seed, flips, turns, outside: see `Crop`.
        is_padded: whether samples may be smaller than a crop.
    """

    of: str
    shape: tuple[int, ...]
    step: int
    at: Any
    given: Numbers | None
    draws: bool
    seed: int
    flips: bool
    turns: bool
    outside: bool
    is_padded: bool


class Placing:
    """Where crops lie, in pixels of the field `rules.of`; worked out once a batch.

    Args:
        rules: of the crop; an attribute, too.
        places: where the samples of that field lie; an attribute, too.
        first: its first axis that is cropped; an attribute, too.
        describe: gives a sample in words, by its number.
        samples: those of the dataset, or of its split; an array of places is indexed by their numbers.
    """

    def __init__(self, rules: PlaceRules, places: Places, first: int, describe: Describe, samples: Items) -> None:
        self.rules = rules
        self.describe = describe
        self.places, self.first, self._samples = places, first, samples
        self.place = LastResult(self._place)

    def sizes(self, numbers: Numbers) -> Numbers:
        """Return the lengths of the cropped axes of samples (n,), (n, axes)."""
        return self.places.locate(numbers).shape[:, self.first : self.first + len(self.rules.shape)]

    def _place(self, numbers: Numbers, visits: Visits | None) -> tuple[Numbers, Numbers, Numbers]:
        """Place the crops of samples (n,).

        Returns:
            Lengths of the cropped axes of the samples, (n, axes); first pixels of the crops, (n, axes), below 0 where
            something lies before a sample; their orientations, (n,), see `orient`.

        Raises:
            UsageError: a sample is smaller than a crop; or a given place does not lie within its sample, or not on
                whole pixels of the others.
        """
        sizes = self.sizes(numbers)
        self._check_sizes(numbers, sizes)
        words = None
        if self.rules.draws:
            assert visits is not None, "random crops are drawn by their visits"
            words = draw_words(visits, self.rules.seed, CROPS, 2 * len(self.rules.shape))
        places = self._choose_places(numbers, visits, sizes, words)
        return sizes, places, self._draw_ways(words, len(numbers))

    def _check_sizes(self, numbers: Numbers, sizes: Numbers) -> None:
        """Raise UsageError if a sample is smaller than a crop, and may not be."""
        rules = self.rules
        small = (sizes == 0 if rules.is_padded else sizes < rules.shape).any(axis=1)
        if small.any():
            item = int(small.argmax())
            raise UsageError(
                f"{self.describe(int(numbers[item]))}: field {rules.of!r} has {size_text(sizes[item])} pixels, less "
                f"than a crop of {size_text(rules.shape)}; take smaller crops, leave the sample out, or give pad='zero'"
            )

    def _choose_places(self, numbers: Numbers, visits: Visits | None, sizes: Numbers, words: Words | None) -> Numbers:
        """Return the first pixels of crops, (n, axes): given, drawn or in the middle.

        Raises:
            UsageError: a given place does not lie within its sample, or not on whole pixels of the other fields.
        """
        rules, axes = self.rules, len(self.rules.shape)
        step, slack, fixed_places = rules.step, sizes - rules.shape, rules.given
        if callable(rules.at) and visits is not None:
            places = self._call_placing(rules.at, numbers, visits)
        elif fixed_places is not None:
            of_each = fixed_places if fixed_places.ndim == 1 else fixed_places[self._samples.in_split(numbers)]
            places = np.broadcast_to(of_each, sizes.shape)
        elif rules.at is None and words is not None:
            places = draw_below(words[:, :axes], np.maximum(slack, 0) // step + 1) * step
        else:
            places = slack // 2 // step * step
        if rules.outside:  # a pixel of the sample is in the crop
            first, last = np.broadcast_to(1 - np.array(rules.shape), sizes.shape), sizes - 1
        else:
            first, last = np.minimum(slack, 0), np.maximum(slack, 0)
            places = np.where(slack < 0, -(-slack // 2 // step * step), places)
        wrong = ((places < first) | (places > last) | (places % step != 0)).any(axis=1)
        if wrong.any():
            item = int(wrong.argmax())
            limits = zip(AXES[-axes:], first[item].tolist(), last[item].tolist(), strict=True)
            ranges = [f"{name}s {low} to {high}" for name, low, high in limits]
            raise UsageError(
                f"{self.describe(int(numbers[item]))}: no crop can begin at {places[item].tolist()}; "
                f"{' and '.join(ranges)} are expected, in multiples of {step}"
            )
        return places

    def _draw_ways(self, words: Words | None, count: int) -> Numbers:
        """Return the orientations of `count` crops, see `orient`, by their random words."""
        rules, axes, ways = self.rules, len(self.rules.shape), np.zeros(count, np.int64)
        if rules.turns and words is not None:
            ways += draw_below(words[:, 3], np.full(count, 4))
        if rules.flips and words is not None:
            mirrored = words[:, axes : 2 * axes - (axes == 2)]  # of images left to right alone
            ways += draw_below(mirrored, np.full(mirrored.shape, 2)) @ np.array([4] if axes == 2 else [1, 2, 4])
        return ways

    def _call_placing(self, function: Callable[..., Any], numbers: Numbers, visits: Visits) -> Numbers:
        """Return the places that a function of the caller gives, (n, axes): each visit has a generator of its own."""
        seeds = draw_words(visits, self.rules.seed, PLACES, 1)[:, 0].tolist()
        sample_numbers = self._samples.in_split(numbers)
        places = np.zeros((len(numbers), len(self.rules.shape)), np.int64)
        answers = _ANSWERS.get({})
        for number, (visit, seed) in enumerate(zip(visits.tolist(), seeds, strict=True)):
            if visit not in answers:
                generator = np.random.Generator(np.random.PCG64(seed))
                try:
                    answers[visit] = as_places(
                        function(sample_numbers[number : number + 1], generator), len(self.rules.shape)
                    )
                except Exception as error:
                    answers[visit] = error
            if isinstance(answers[visit], Exception):
                raise answers[visit]
            places[number] = answers[visit]
        return places


@contextmanager
def call_once_a_visit(answers: dict[int, Any]) -> Iterator[None]:
    """Let functions that place crops be called once a visit here, also where the same batches are located again.

    Args:
        answers: keeps what they returned or raised, by visit.
    """
    token = _ANSWERS.set(answers)
    try:
        yield
    finally:
        _ANSWERS.reset(token)


def size_text(size: NDArray[np.int64] | tuple[int, ...]) -> str:
    """Return a height and width in words, for messages."""
    return " x ".join(map(str, size))


def as_places(given: ArrayLike, axes: int) -> Numbers:
    """Return a caller's places as int64, (axes,) or (samples, axes); raises UsageError if they are no places."""
    places = np.asarray(given)
    if places.dtype.kind not in "iu" or places.ndim not in (1, 2) or places.shape[-1] != axes:
        words = f"({', '.join(AXES[-axes:])})"
        raise UsageError(f"crop: at is a {words} of int, or an array of them of shape (samples, {axes})")
    return places.astype(np.int64)
