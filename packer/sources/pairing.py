"""Partners by name: which files of several fields make one sample.

The rule, with names that are paths without their suffix:

1. Names are compared as they are, and then in the normal form NFC of Unicode, since macOS writes accents in another
   way. Equal names are partners.
2. If some have no partner, what most names of a field share at an end comes off, word by word: at the end `x4` or
   `_LR`, then at the beginning `img_`, and whole folders. A scale such as `x4` is one word whatever its value, and an
   end such as `t1` or `t2w`, letters with one digit, is one. A number comes off only inside of what all names of a
   field share, three or more, as in `_leftImg8bit` or `_B02`, and never next to what stays: it is part of the name, and
   so is what all fields share.
3. One file for each field is one sample, whatever their names are, and has the name of the first.

A file that is left over is an error that names it. The only file opened here is a list of samples (`--list`).
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple, TypeVar

from packer.errors import SourceError, UsageError, first_few
from packer.sources.files import TEXT, FileSet, decode_text, join, natural_order
from packer.sources.units import folder_of, unit_name, upwards
from packer.watcher import Watcher

Entry = TypeVar("Entry")
#: By field, the name of every file.
Names = Mapping[str, Sequence[str]]

#: What messages call a source for which no field is named.
UNNAMED = "the source without FIELD="
#: Names that must share a number, if it is to be no part of them: of two, it may be the same by chance.
_LEAST_NUMBERED = 3
#: Samples that an error names.
NAMED = 5

_SCALE = r"[xX](?:[23468]|16)(?!\d)|(?<![^\W_])[23468][xX](?![^\W_])"
#: A scale, an end such as `t1`, a number, letters, or one separator.
_WORD = re.compile(rf"{_SCALE}|(?<=[\W_])[^\W\d_]{{1,3}}\d[^\W\d_]*$|\d+|(?:(?!{_SCALE})[^\W\d_])+|[\W_]")
_IS_SCALE = re.compile(_SCALE)
_SEPARATOR = re.compile(r"[\W_]")


class Pairing(NamedTuple):
    """Samples in natural order of their names.

    Attributes:
        names: name of every sample.
        files: by field, the file of every sample.
        taken: by field, what came off its names, as `'x4' at the end`; only fields whose names became shorter.
        orphans: by field, files that some other field has no partner for.
        doubles: field, first file, second file and the one name that both would have; the second is skipped.
        is_by_count: whether there is one file for each field, and their names differ.
    """

    names: list[str]
    files: dict[str, list[str]]
    taken: dict[str, str]
    orphans: dict[str, list[str]]
    doubles: list[tuple[str, str, str, str]]
    is_by_count: bool = False

    @property
    def is_whole(self) -> bool:
        """Return whether every file has its partners."""
        return not any(self.orphans.values())


def stem(file: str) -> str:
    """Return the path without its last suffix."""
    return file[: file.rindex(".")] if "." in file.rpartition("/")[2] else file


def partners(
    file_sets: Mapping[str, FileSet], watcher: Watcher, names: Names | None = None, listed: str | None = None
) -> tuple[Pairing, list[str]]:
    """Return the samples that files of one or more fields make, and sentences for the plan.

    Args:
        watcher: its `bad` is called with every file without a partner and with every second file of one name.
        names: as for `pair`.
        listed: a file that lists the samples to take, in their order; see `_chosen`.
    """
    paired = pair({field: file_set.files for field, file_set in file_sets.items()}, names)
    notes: list[str] = []
    if listed is not None:
        paired, notes = _chosen(paired, listed)
    _report(paired, file_sets, watcher)
    for field, text in paired.taken.items():
        notes.append(f"{field and f'field {field}: '}most names have {text}; samples are named without it")
    if paired.is_by_count:
        files = " and ".join(f"{file} as {field or 'its samples'}" for field, (file,) in paired.files.items())
        notes.append(f"there is one file for each field: {files} are taken for one sample, {paired.names[0]!r}")
    return paired, notes


def names_by_folder(file_sets: Mapping[str, FileSet]) -> dict[str, list[str]]:
    """Return by field the name of every file, if partners lie in one folder: the name of that folder."""
    root = next(iter(file_sets.values())).folder
    return {
        field: [unit_name(root, folder_of(file)) for file in file_set.files] for field, file_set in file_sets.items()
    }


def pair(files: Mapping[str, Sequence[str]], names: Names | None = None) -> Pairing:
    """Pair relative paths (with suffix, slashes between folders) of one or more fields, by the rule above.

    Args:
        names: by field, the name of every file; None for its path without suffix.
    """
    names = names or _stems(files)
    plain = _matched(files, names, {})
    if not plain.is_whole:
        names = {
            field: [unicodedata.normalize("NFC", name) for name in own_names] for field, own_names in names.items()
        }
        plain = _matched(files, names, {})
    if plain.is_whole:
        return plain
    split = {field: [name.rpartition("/") for name in own_names] for field, own_names in names.items()}
    folders = {field: [path.split("/") if path else [] for path, _, _ in parts] for field, parts in split.items()}
    words = {field: [_WORD.findall(last) for _, _, last in parts] for field, parts in split.items()}
    folders, above = _without_shared(folders, str, least=0)
    words, ends = _without_shared(words, _as_word, least=1)
    cut = {
        field: ["/".join([*path, "".join(ending)]) for path, ending in zip(folders[field], words[field], strict=True)]
        for field in files
    }
    taken = {field: " and ".join(above[field] + ends[field]) for field in files if above[field] or ends[field]}
    best = _matched(files, cut, taken)
    if not best.is_whole and all(len(paths) == 1 for paths in files.values()):
        return _matched(files, dict.fromkeys(files, next(iter(names.values()))), {})._replace(is_by_count=True)
    return best if len(best.names) >= len(plain.names) else plain


def _stems(files: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return by field the paths without suffix; fields that have the same ones share them: there may be millions."""
    stems: dict[str, list[str]] = {}
    for field, paths in files.items():
        of_field = list(map(stem, paths))
        stems[field] = next((other for other in stems.values() if other == of_field), of_field)
    return stems


def _as_word(text: str) -> str:
    """Return the word as which a word is compared: all scales are one word."""
    return "x4" if _IS_SCALE.fullmatch(text) else text


def _without_shared(
    fields: Mapping[str, list[list[str]]], word_of: Callable[[str], str], least: int
) -> tuple[dict[str, list[list[str]]], dict[str, list[str]]]:
    """Take off what most lists of a field share, first at their end, then at their beginning.

    Args:
        fields: by field, the words or the folders of every name.
        word_of: returns what a word is compared as.
        least: how many words must be left of a list.

    Returns:
        the lists; and by field what came off, as `'x4' at the end`, or of folders as `the folder 'X4'`.
    """
    left, taken = dict(fields), {field: list[str]() for field in fields}
    for step, place in ((-1, "end"), (1, "beginning")):
        turned = {field: [words[::step] for words in lists] for field, lists in left.items()}
        shared = {field: _shared(lists, word_of, least) for field, lists in turned.items()}
        cuts: dict[str, list[int]] = {}
        texts: dict[str, Counter[tuple[str, ...]]] = {}
        for field, head in shared.items():
            size = len(head)
            carry = [len(w) >= size + least and [*map(word_of, w[:size])] == head for w in turned[field]]
            cuts[field] = [size * int(carries) for carries in carry]
            texts[field] = Counter(tuple(w[:size]) for w, carries in zip(turned[field], carry, strict=True) if carries)
        if all(carried.keys() == next(iter(texts.values())).keys() for carried in texts.values()):
            continue  # what all fields share is part of the name
        for field, head in shared.items():
            left[field] = [words[cut:][::step] for words, cut in zip(turned[field], cuts[field], strict=True)]
            if head:
                ((most, _),) = texts[field].most_common(1)
                text = most[::step]
                taken[field].append(f"{''.join(text)!r} at the {place}" if least else f"the folder {'/'.join(text)!r}")
    return left, taken


def _shared(lists: Sequence[Sequence[str]], word_of: Callable[[str], str], least: int) -> list[str]:
    """Return the words that more than half of the lists begin with; a number stands only inside, and in all lists."""
    words: list[str] = []
    agreeing = lists
    while True:
        at = len(words)
        agreeing = [words_of_one for words_of_one in agreeing if len(words_of_one) > at + least]
        most_common = Counter(word_of(words_of_one[at]) for words_of_one in agreeing).most_common(1)
        word, times = most_common[0] if most_common else ("", 0)
        if 2 * times <= len(lists) or (word.isdigit() and times < max(len(lists), _LEAST_NUMBERED)):
            break
        words.append(word)
        agreeing = [words_of_one for words_of_one in agreeing if word_of(words_of_one[at]) == word]
    while words and (words[-1].isdigit() or (words[-2:-1] and words[-2].isdigit() and _SEPARATOR.fullmatch(words[-1]))):
        words.pop()
    return words


def _matched(files: Mapping[str, Sequence[str]], names: Names, taken: dict[str, str]) -> Pairing:
    """Pair files by these names of theirs."""
    first = next(iter(names.values()))
    are_equal = all(own_names == first for own_names in names.values()) and len(set(first)) == len(first)
    if are_equal and natural_order(sorted(first)) == first:  # mostly so, and it needs no table of a million names
        chosen = {field: list(paths) for field, paths in files.items()}
        return Pairing(list(first), chosen, taken, {field: [] for field in files}, [])
    named: dict[str, dict[str, str]] = {}
    doubles = []
    for field, paths in files.items():
        by_name = named[field] = {}
        for file, name in zip(paths, names[field], strict=True):
            if by_name.setdefault(name, file) is not file:
                doubles.append((field, by_name[name], file, name))
    common = set.intersection(*(set(by_name) for by_name in named.values()))
    # Sorted twice: natural order holds `01` and `1` equal, and the order must be the same every time.
    ordered = natural_order(sorted(common))
    orphans = {
        field: [file for name, file in by_name.items() if name not in common] for field, by_name in named.items()
    }
    chosen = {field: [by_name[name] for name in ordered] for field, by_name in named.items()}
    return Pairing(ordered, chosen, taken, orphans, doubles)


def _chosen(paired: Pairing, path: str) -> tuple[Pairing, list[str]]:
    """Return the samples that a text file lists, in its order, and a sentence on what that skips.

    Each line names a sample (see `entry_of`), or a folder of samples: the lists of BasicSR have lines such as
    `0001_s001.png (480,480,3)`. What is not listed is not looked at.

    Raises:
        UsageError: the list cannot be read, or names something that is no sample, or a sample twice.
    """
    numbers: dict[str, list[int]] = {}
    for number, name in enumerate(paired.names):
        for place in upwards(name):
            numbers.setdefault(place, []).append(number)
    order, unknown = list[int](), list[str]()
    for line in read_lines(path, f"--list {path}"):
        listed_numbers = entry_of(line, numbers)
        order += listed_numbers or []
        unknown += [] if listed_numbers else [line.split()[0]]
    if unknown or not order:
        problem = (
            f"lists what is not a sample, or lacks a partner: {first_few(unknown)}" if unknown else "lists no sample"
        )
        raise UsageError(f"--list {path} {problem}; there are samples such as {', '.join(paired.names[:NAMED])}")
    if len(set(order)) < len(order):
        ((twice, _),) = Counter(order).most_common(1)
        raise UsageError(f"--list {path} names {paired.names[twice]} twice; remove one of the lines")
    left = len(paired.names) - len(order)
    note = f"{left:,} {'sample is' if left == 1 else 'samples are'} not in --list {path}, and not packed"
    names = [paired.names[number] for number in order]
    taken = set(names)
    listed = paired._replace(
        names=names,
        files={field: [paths[number] for number in order] for field, paths in paired.files.items()},
        orphans={field: [] for field in paired.orphans},
        doubles=[double for double in paired.doubles if double[3] in taken],
    )
    return listed, [note] if left else []


def read_lines(path: str, subject: str) -> list[str]:
    """Return the lines of a text file that are not blank. Raises UsageError, which begins with `subject`."""
    try:
        lines = decode_text(Path(path).read_bytes()).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{subject} cannot be read: {reason}") from None
    return [line.strip() for line in lines if line.strip()]


def entry_of(line: str, entries: Mapping[str, Entry]) -> Entry | None:
    """Return the entry that a line of a list names: all of it, or its first word, with or without a file's suffix.

    A first word without a suffix is no name where the line ends in one: `dog 7.png` is a file, and not `dog`.
    """
    first, *others = line.split() or [""]
    is_one_name = bool(others) and stem(first) == first and stem(others[-1]) != others[-1]
    words = (line,) if is_one_name else (line, first)
    return next((entries[text] for word in words for text in (word, stem(word)) if text in entries), None)


def _report(paired: Pairing, file_sets: Mapping[str, FileSet], watcher: Watcher) -> None:
    """Call `watcher.bad` with every file without a partner and with every second file of one name."""
    for field, first, second, name in paired.doubles:
        reason = f"this file and {first} would both be sample {name!r} of {field_in_words(field)}"
        watcher.bad(SourceError(f"{reason}; rename one or move it away", file_sets[field].path(second)))
    count = sum(map(len, paired.orphans.values()))
    lists = [f"{field or UNNAMED}: {first_few(files)}" for field, files in paired.orphans.items() if files]
    # The first error lists them all: if it stops the conversion, nobody sees the others.
    more = f"; {count:,} files have no partner ({'; '.join(lists)})" if count > 1 else ""
    if paired.taken:
        off = "; ".join(f"{field or UNNAMED}: {text}" for field, text in paired.taken.items())
        more += f"; names were compared without the part that most files of a field share ({off})"
    for field, files in paired.orphans.items():
        others = " and ".join(repr(other) if other else UNNAMED for other in paired.orphans if other != field)
        for file in files:
            reason = f"{field_in_words(field)} has this file, but there is no partner of that name in {others}{more}"
            advice = "add the partner, move the file away, or leave out such files with --on-error skip"
            watcher.bad(SourceError(f"{reason}; {advice}", file_sets[field].path(file)))
            more = ""


def field_in_words(field: str) -> str:
    """Return what a message calls a field; it has no name where FIELD= was not given."""
    return f"field {field!r}" if field else UNNAMED


def share_out(file_sets: dict[str, FileSet]) -> list[str]:
    """Take the files of one field out of another that has all of them and more; return sentences that say so.

    In `lr='d/*x4.png' hr='d/*.png'`, `hr` means the other images of the folder.

    Raises:
        UsageError: two fields are the same files.
    """
    notes = []
    folders = {field: os.path.realpath(file_set.folder) for field, file_set in file_sets.items()}
    sets = {
        field: {join(folders[field], file) for file in file_set.files} or {folders[field]}
        for field, file_set in file_sets.items()
    }
    for first, second in combinations(sets, 2):
        if sets[first] == sets[second]:
            advice = "name other files for one of them"
            if file_sets[second].texts:
                advice = f"for the texts there, write {second}='{join(file_sets[second].folder, f'*{TEXT}')}'"
            raise UsageError(f"fields {first!r} and {second!r} are the same files; {advice}")
    for field, mine in sets.items():
        taken = {other: theirs for other, theirs in sets.items() if theirs < mine}
        if taken:
            file_set = file_sets[field]
            rest = mine.difference(*taken.values())
            file_sets[field] = file_set._replace(
                files=[file for file in file_set.files if join(folders[field], file) in rest]
            )
            where = field and f"field {field}: "
            notes.append(f"{where}{len(mine) - len(rest):,} files also fit {' and '.join(taken)}, and go there")
    return notes
