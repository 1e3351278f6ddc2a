"""Sentences that propose another command: for images with the texts beside them, or as pairs; for tables of files."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from packer.errors import SourceError
from packer.sources.files import TEXT, FileSet, decode_text, join, suffix_of
from packer.sources.finding import BOXES
from packer.sources.kinds import suffixes
from packer.sources.pairing import stem
from packer.sources.source import TableSource

#: Numbers in a line of boxes, as YOLO has them: class, middle, width and height.
_BOX = 5
#: Folders of images are taken for fields of pairs if there are no more.
_MOST_FIELDS = 4
_LONGEST_NAME = 256


def text_proposal(name: str, file_set: FileSet) -> str:
    """Return a sentence with the command that packs texts or boxes beside images; empty if there are none."""
    stems = {stem(file).rpartition("/")[2] for file in file_set.files}
    texts = [file for file in file_set.texts if stem(file).rpartition("/")[2] in stems]
    if 2 * len(texts) <= len(file_set.texts):
        return ""
    pattern = join(file_set.folder, f"*{TEXT}" if all("/" not in file for file in texts) else f"**/*{TEXT}")
    with contextlib.suppress(OSError, ValueError, StopIteration):
        first = next(text for file in texts if (text := decode_text(Path(file_set.path(file)).read_bytes()).strip()))
        numbers = list(map(float, first.splitlines()[0].split()))
        names = ",".join(f"column{n}" for n in range(len(numbers)))
        columns = "" if len(numbers) == _BOX else f" --columns boxes={names}:float32"
        return _proposal(name, file_set, texts, f"{BOXES}={shlex.quote(pattern)}{columns}")
    return _proposal(name, file_set, texts, f"caption={shlex.quote(pattern)}")


def _proposal(name: str, file_set: FileSet, texts: Sequence[str], words: str) -> str:
    return (
        f"{len(texts):,} {TEXT} are named like images; to pack them as well: packer convert "
        f"{name or 'image'}={shlex.quote(file_set.text)} {words} OUT"
    )


def files_proposal(table: TableSource) -> list[str]:
    """Return a sentence for a column of CSV or JSON whose first value is the path of a file that can be packed."""
    from packer.sources.tables import CSV, JSON  # here, since images need no tables

    path, proposals = Path(table.table.row(0).path), list[str]()
    names = [spec.name for spec in table.fields if spec.kind == "text"]
    with contextlib.suppress(SourceError):
        first = next(table.slice(0, 1).only(names).read()) if names and suffix_of(path.name) in CSV + JSON else {}
        for name, (value,) in first.items():
            file = path.parent / str(value).strip()
            if len(str(value)) < _LONGEST_NAME and suffix_of(file.name) in suffixes() and file.is_file():
                words = f"packer convert {shlex.quote(str(path))} OUT --files {shlex.quote(name)}"
                proposals.append(f"{name} names files, and is packed as text; to pack what they hold: {words}")
    return proposals


def pairs_proposal(file_set: FileSet) -> str:
    """Return a sentence with the command that packs pairs if a few folders hold files of the same names; else empty."""
    stems: dict[str, set[str]] = {}
    for file in file_set.files:
        folder, _, rest = file.rpartition("/") if "/" not in file else file.partition("/")
        stems.setdefault(folder, set()).add(stem(rest))
    first, *others = stems.values()
    if 0 < len(others) < 2 * _MOST_FIELDS and any(other != first for other in others):
        return _marked_proposal(file_set, stems)
    if not 0 < len(others) < _MOST_FIELDS:
        return ""
    fields = " ".join(shlex.quote(f"{folder}={join(file_set.folder, folder)}") for folder in stems)
    return (
        f"the folders {', '.join(stems)} hold files of the same names, and each file is a sample; if they are pairs: "
        f"packer convert {fields} OUT"
    )


def _marked_proposal(file_set: FileSet, stems: Mapping[str, set[str]]) -> str:
    """Return the sentence for folders such as train, trainannot, val and valannot, or empty text for others."""
    pairs = [
        (folder, other)
        for folder in stems
        for other in stems
        if other != folder and other.startswith(folder) and stems[other] == stems[folder]
    ]
    if 2 * len(pairs) != len(stems) or len({folder for pair in pairs for folder in pair}) < len(stems):
        return ""
    if len({other.removeprefix(folder) for folder, other in pairs}) > 1:
        return ""
    image, mask = (shlex.quote(join(file_set.folder, folder)) for folder in pairs[0])
    return (
        f"the folders {' and '.join(pairs[0])} hold files of the same names, and each file is a sample; if they are "
        f"pairs: packer convert image={image} mask={mask} OUT"
        + "".join(f", and apart from them {' and '.join(pair)}; packer merge joins both" for pair in pairs[1:2])
    )
