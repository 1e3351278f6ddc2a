"""Shares samples out into splits: by fraction, by lists of names, by patterns over names.

    "train": 0.9                   a share of the samples that no other split names: seeded, the same on every machine
    "train": "@list.txt"           a file with one name on each line; or a list of names in Python
    "valid": "val/*"               all names that fit the pattern; * matches / as well
    "demo": "0001"                 the sample of exactly this name, if there is one: a fraction in text has a point

Samples without names are listed by number. Splits of fractions are disjoint; others may share samples.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import translate
from operator import index
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import UsageError, first_few
from packer.format import Manifest, Splits, number_ranges, range_numbers
from packer.packing.origin import levels
from packer.sources import entry_of, read_lines

#: Names of samples, or their numbers.
Listed = Sequence[str] | Sequence[int] | NDArray[np.int64]
#: Which samples a split takes: a share, `@FILE` or a pattern, or samples one by one.
Rule = float | str | Listed

#: How a split is given on the command line.
SPLIT = "NAME=FRACTION|@FILE|PATTERN"

_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)(e-?\d+)?")
#: What to write where digits are neither a fraction nor the name of a sample.
_NUMBER_HINT = "a fraction has a point, such as 0.9 or 1.0, and a name is written in full, such as 0001"
#: The row and column that end the name of a patch which was cut from an image.
_PATCH_END = re.compile(r"_\d+_\d+$")
#: Of more samples than this, runs of neighbours are shared out, so that a split takes a moderate number of ranges.
_MOST_UNITS = 2**20
#: Ranges of a dataset's splits, all together: more would fill its manifest.
_MOST_RANGES = 2**21


class Samples(NamedTuple):
    """The samples of a dataset, as far as splits go.

    Attributes:
        names: of all samples; None if they have none.
        origin: as the manifest has it.
        shifting: whether some may still be skipped as bad, so that numbers are not settled.
    """

    total: int
    names: Sequence[str] | None
    origin: Mapping[str, Any]
    shifting: bool = False


def parse_rules(rules: Mapping[str, Rule]) -> dict[str, Rule]:
    """Return the rules with numbers for fractions, and lists of lines for files.

    Raises:
        UsageError: a split has no name, a fraction is not between 0 and 1, they exceed 1 together, or a file cannot
            be read.
    """
    parsed = {name: _parse_rule(name, rule) for name, rule in rules.items()}
    fractions = {name: rule for name, rule in parsed.items() if isinstance(rule, float)}
    if "" in parsed:
        raise UsageError(f"a split has no name; {SPLIT} is expected")
    for name, fraction in fractions.items():
        if not 0 < fraction <= 1:
            raise UsageError(f"split {name}={fraction:g}: a fraction lies between 0 and 1")
    if sum(fractions.values()) > 1 + 1e-9:
        sum_in_words = " + ".join(f"{fraction:g}" for fraction in fractions.values())
        raise UsageError(f"the fractions of {', '.join(fractions)} are {sum_in_words}, more than 1 together")
    return parsed


def _parse_rule(name: str, rule: Rule) -> Rule:
    if not isinstance(rule, str):
        return float(rule) if isinstance(rule, (int, float)) else rule
    if not rule:
        raise UsageError(f"split {name!r} has no rule; a fraction, @FILE or a pattern over names is expected")
    if "." in rule and _NUMBER.fullmatch(rule):
        return float(rule)
    return read_lines(rule[1:], f"split {name!r}: the list {rule[1:]}") if rule.startswith("@") else rule


def share_out(
    rules: Mapping[str, Rule],
    samples: Samples,
    *,
    by: str = "name",
    seed: int = 0,
    others: Splits | None = None,
    lenient: bool = False,
) -> Splits:
    """Return the splits that rules make, after those that are held already.

    Args:
        rules: as `parse_rules` gives them.
        by: what fractions keep together: `name`, the patches of one image; `folder`, all samples of one folder.
        seed: of the order in which fractions are taken.
        others: splits of other names, which stay.
        lenient: whether lists may name samples that are not there, and splits may be empty, since some samples have
            been skipped as bad.

    Raises:
        UsageError: a list names something that is no sample, a rule needs names and samples have none, a split would
            hold no sample, or the splits are in millions of pieces.
    """
    if by not in ("name", "folder"):
        raise UsageError(f"by={by!r}; name or folder is expected")
    if not 0 <= seed < 2**64:
        raise UsageError(f"the seed is {seed}; 0 to 2^64 - 1 is expected")
    old_splits = others or {}
    fractions = {name: rule for name, rule in rules.items() if isinstance(rule, float)}
    named = {
        name: _find_named(name, rule, samples, lenient) for name, rule in rules.items() if not isinstance(rule, float)
    }
    free_numbers, shares = np.empty(0, np.int64), {}
    if fractions:  # only then: it takes a byte a sample
        is_free = np.ones(samples.total, bool)
        for numbers in (*map(range_numbers, old_splits.values()), *named.values()):
            is_free[numbers] = False
        free_numbers = np.flatnonzero(is_free)
        shares = _share_fractions(fractions, free_numbers, _unit_keys(samples, by, seed))
    new_splits = {name: named[name] if name in named else shares[name] for name in rules}
    for name, numbers in new_splits.items():
        if not len(numbers) and not lenient:
            raise _empty_error(name, rules[name], len(free_numbers), by)
    splits = old_splits | {name: number_ranges(numbers) for name, numbers in new_splits.items()}
    if sum(map(len, splits.values())) > _MOST_RANGES:
        raise UsageError("the splits are scattered over the samples in millions of pieces; pack a dataset for each")
    return splits


def make_splits(
    samples: Samples,
    rules: Mapping[str, Rule] | None,
    source_splits: Mapping[str, Sequence[str] | NDArray[np.int64]],
    lenient: bool,
) -> Splits:
    """Return the splits of samples that are packed.

    Args:
        rules: what the user asked for; None takes what the source knows, as far as those samples are there.
        source_splits: lists of the source, see `Source.splits`.
        lenient: see `share_out`.

    Raises:
        UsageError: as `parse_rules` and `share_out`.
    """
    if rules is None:
        return share_out(source_splits, samples._replace(shifting=False), lenient=True)
    return share_out(parse_rules(rules), samples, lenient=lenient)


def join_splits(manifests: Sequence[Manifest]) -> Splits:
    """Return the splits of the samples of several datasets, one after another; splits of one name are joined."""
    joined: dict[str, list[tuple[int, int]]] = {}
    first = 0
    for manifest in manifests:
        for name, ranges in manifest.splits.items():
            joined.setdefault(name, []).extend((start + first, stop + first) for start, stop in ranges)
        first += manifest.samples
    return {name: tuple(ranges) for name, ranges in joined.items()}


def split_text(splits: Splits, samples: int) -> str:
    """Return how many of all samples each split holds, and how many are in none or in several, in one line."""
    ranges = np.array([bounds for own_ranges in splits.values() for bounds in own_ranges], np.int64).reshape(-1, 2)
    edges = np.concatenate([[0], ranges[:, 0], ranges[:, 1], [samples]])
    steps = np.repeat([0, 1, -1, 0], [1, len(ranges), len(ranges), 1])
    order = np.argsort(edges)
    # From each edge to the next, how many samples there are and in how many splits they lie.
    lengths, times = np.diff(edges[order]), np.cumsum(steps[order])[:-1]
    parts = [f"{name} {sum(stop - start for start, stop in own_ranges):,}" for name, own_ranges in splits.items()]
    for label, number in (("in none", lengths[times == 0].sum()), ("in several", lengths[times > 1].sum())):
        parts += [f"{number:,} {label}"] if number else []
    return ", ".join(parts)


def _find_named(split: str, rule: str | Listed, samples: Samples, lenient: bool) -> NDArray[np.int64]:
    """Return the numbers of the samples that a list or a pattern names, ascending, (n,).

    Raises:
        UsageError: the list names something that is no sample, or samples have no names.
    """
    names = samples.names
    if isinstance(rule, str):
        if names is None:
            raise UsageError(
                f"split {split}={rule}: the samples have no names; give a fraction with a point, such as 0.9 or 1.0, "
                "or @FILE with a number a line"
            )
        if rule in names:  # a name may look like a pattern: as a pattern, `a[1]` fits only `a1`
            return np.array([names.index(rule)], np.int64)
        fits = re.compile(translate(rule)).match
        return np.array([n for n, name in enumerate(names) if fits(name)], np.int64)
    entries: list[Any] = rule.tolist() if hasattr(rule, "tolist") else list(rule)
    if samples.shifting and any(names is None or not isinstance(entry, str) for entry in entries):
        raise UsageError(
            f"split {split!r}: its list holds numbers, and these shift when bad samples are skipped; "
            "make the split afterwards, with `packer split`"
        )
    numbers = find_listed(entries, names, samples.total)
    is_there = numbers >= 0
    if not is_there.all() and not lenient:
        unknown = [repr(entries[index]) for index in np.flatnonzero(~is_there)]
        numbering = f"samples have the numbers 0 to {samples.total - 1} and no names"
        numbering = numbering if names is None else f"samples have names such as {names[0]!r}"
        raise UsageError(
            f"split {split!r}: {len(unknown):,} in its list are not samples: {first_few(unknown)}; {numbering}"
        )
    is_named = np.zeros(samples.total, bool)
    is_named[numbers[is_there]] = True
    return np.flatnonzero(is_named)


def find_listed(entries: Sequence[Any], names: Sequence[str] | None, total: int) -> NDArray[np.int64]:
    """Return the numbers of the samples that the entries of a list name, (n,); -1 where there is no such sample.

    An integer is the number of a sample; so is a text of digits, if samples have no names. For names see `entry_of`.

    Args:
        names: of all samples; None if they have none.
        total: how many samples there are.
    """
    number_of = None if names is None else {name: number for number, name in enumerate(names)}
    numbers = [_find_number(entry, number_of) for entry in entries]
    return np.array([number if 0 <= number < total else -1 for number in numbers], np.int64)


def _find_number(entry: Any, number_of: Mapping[str, int] | None) -> int:
    """Return the number that an entry of a list means, of a sample or outside of all."""
    if isinstance(entry, str):
        if number_of is None:
            return int(entry) if entry.isdecimal() and len(entry) < 19 else -1
        number = entry_of(entry, number_of)
        return -1 if number is None else number
    # What a comparison gives is a mask, whose True would be 1.
    with suppress(TypeError):
        return -1 if np.asarray(entry).dtype == np.bool_ else index(entry)
    return -1


def _unit_keys(samples: Samples, by: str, seed: int) -> NDArray[np.uint64]:
    """Return one random number per sample, (n,); samples that must stay together share it."""
    names = samples.names
    if by == "folder":
        if names is None:
            raise UsageError(
                "by folder: the samples have no names, so their folders are not known; leave --by folder out"
            )
        return _hash_names([name.rpartition("/")[0] for name in names], seed)
    if names is not None and any("patch" in level for level in levels(dict(samples.origin), samples.total)):
        return _hash_names([_PATCH_END.sub("", name) for name in names], seed)
    unit_samples = max(-(-samples.total // _MOST_UNITS), 1)
    if names is not None:
        keys = _hash_names(names[::unit_samples], seed)
    else:
        keys = np.random.PCG64(seed).random_raw(-(-samples.total // unit_samples))
    return np.repeat(keys, unit_samples)[: samples.total]


def _hash_names(names: Sequence[str], seed: int) -> NDArray[np.uint64]:
    return np.array([xxhash.xxh3_64_intdigest(name.encode(), seed) for name in names], np.uint64)


def _share_fractions(
    fractions: Mapping[str, float], free_numbers: NDArray[np.int64], units: NDArray[np.uint64]
) -> dict[str, NDArray[np.int64]]:
    """Return which of the free samples each fraction takes: whole units, in the order of their random numbers."""
    _, unit, sizes = np.unique(units[free_numbers], return_inverse=True, return_counts=True)
    # A unit goes to the split in whose share its middle lies.
    middles = (np.cumsum(sizes) - sizes / 2) / max(len(free_numbers), 1)
    split = np.searchsorted(np.cumsum(list(fractions.values())), middles, side="right")[unit]
    return {name: free_numbers[split == number] for number, name in enumerate(fractions)}


def _empty_error(name: str, rule: Rule, free_samples: int, by: str) -> UsageError:
    """Return the error of a split that would hold no sample."""
    if isinstance(rule, float):
        condition = " that are in no other split" if by == "name" else " in folders that stay whole"
        reason = f"{rule:g} of {free_samples:,} samples{condition} rounds to none"
    elif isinstance(rule, str):
        reason = f"no name fits {rule!r}" + (f" ({_NUMBER_HINT})" if _NUMBER.fullmatch(rule) else "")
    else:
        reason = "its list names none"
    return UsageError(f"split {name!r} would hold no sample: {reason}; change it or leave it out")
