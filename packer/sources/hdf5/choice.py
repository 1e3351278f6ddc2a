"""Chooses which datasets of a file become fields, or says why none can."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace

import msgspec

from packer.errors import SourceError
from packer.format import check_count
from packer.sources.hdf5.types import Column, Listed
from packer.sources.options import SourceOptions, naming
from packer.sources.units import upwards

#: Datasets of a sparse matrix: numbers of columns, values, and where each row starts.
SPARSE_PARTS = ("indices", "data", "indptr")
_MAX_LINES = 10


def takes(options: SourceOptions, entry: Listed) -> bool:
    """Return whether an entry becomes a field if it can; none does by itself if some are picked by name."""
    return not options.pick and not naming(entry.name, (*options.skip, *options.once, *options.sparse))


def picked_paths(options: SourceOptions) -> list[str]:
    """Return the paths of all that is packed, if it is picked by name."""
    sparse = [f"{group.strip('/')}/{part}" for group in options.sparse for part in SPARSE_PARTS]
    return [*options.pick.values(), *sparse] if options.pick and not options.skip else []


def chosen(
    entries: Sequence[Listed], options: SourceOptions, path: str
) -> tuple[tuple[Column, ...], int | None, list[str]]:
    """Return the fields of a file or unit that are packed: those in `pick`, or else all that are not skipped.

    Also the number of samples, which is None if all is one sample, and what is not stored as it is in the file.

    Args:
        entries: everything the file holds.
        path: the file, for messages.

    Raises:
        UsageError: there are more than a dataset may have.
        SourceError: a wanted one is missing or cannot be stored, or the sample axes differ.
    """
    wanted: dict[str, Listed] = {}
    if options.pick:
        for name, where in options.pick.items():
            wanted.update(_picked(entries, name, where, path))
    else:
        wanted = _all([e for e in entries if not e.aside and takes(options, e)], path)
    for group in options.sparse:
        wanted.update(_sparse(entries, group.strip("/"), path))
    check_count(len(wanted))
    columns = []
    for name, entry in wanted.items():
        assert entry.spec is not None  # what cannot be a field was refused above
        try:
            spec = msgspec.structs.replace(entry.spec, name=name)
        except ValueError as error:
            raise SourceError(f"{entry.path}: {error}; name it with --field NAME=/path", path) from None
        columns.append(Column(spec, entry.dataset, entry.members, starts=entry.starts))
    samples = _samples(entries, wanted.values(), path)
    notes = [f"dataset {name} {note}" for name, note in {e.dataset: e.note for e in wanted.values()}.items() if note]
    return tuple(columns), samples, notes


def _picked(entries: Sequence[Listed], name: str, where: str, path: str) -> dict[str, Listed]:
    asked = "/" + where.strip("/")
    hits = [e for e in entries if asked in (e.path, e.dataset)]
    if not hits:
        raise SourceError(f"has no dataset {asked} for field {name}; {_listing(entries)}", path)
    for entry in hits:
        if entry.spec is None:
            raise SourceError(f"field {name}: {entry.path} {entry.problem or entry.aside}", path)
    if len(hits) == 1 and hits[0].path == asked:
        return {name: hits[0]}
    return {".".join((name, *entry.members)): entry for entry in hits}


def _all(left: Sequence[Listed], path: str) -> dict[str, Listed]:
    """Return all that is left to be a field. Raises SourceError if one cannot be, or if two would have one name."""
    wanted: dict[str, Listed] = {}
    for entry in left:
        twin = wanted.setdefault(entry.name, entry)
        if twin is not entry:
            raise SourceError(
                f"{twin.path} and {entry.path} would both be field {entry.name}; pick with --field NAME=/path",
                path,
            )
    bad = [e for e in left if e.problem]
    if not bad:
        return wanted
    what = "; ".join(f"{e.path or 'it'} {e.problem}" for e in bad[:5])
    if len(bad) == len(left):
        raise SourceError(f"holds nothing that can be packed: {what}", path)
    more = f"; and {len(bad) - 5:,} more" if len(bad) > 5 else ""
    skips = " ".join(f"--skip {shlex.quote(name)}" for name in _skipping(bad, left))
    raise SourceError(f"{what}{more}. Leave out with {skips}, or pick fields with --field NAME=/path", path)


def _skipping(bad: Sequence[Listed], entries: Sequence[Listed]) -> list[str]:
    """Return what leaves out all of `bad`: the highest group each lies in that holds nothing that can be a field."""
    busy = {place for entry in entries if not entry.problem for place in upwards(entry.path)}
    tops = ([place for place in upwards(entry.path) if place not in busy] for entry in bad)
    return list(
        dict.fromkeys(
            (some[-1] if some else e.path).strip("/").replace("/", ".") or e.name
            for some, e in zip(tops, bad, strict=True)
        )
    )


def _sparse(entries: Sequence[Listed], group: str, path: str) -> dict[str, Listed]:
    """Return the two fields that a sparse matrix becomes: of each row the numbers of its columns, and its values.

    Raises:
        SourceError: the group holds no such matrix.
    """
    held = {e.path: e for e in entries if e.spec is not None and e.spec.kind == "array" and not e.spec.shape}
    parts = {name: held.get(f"/{group}/{name}") for name in SPARSE_PARTS}
    starts = parts.pop("indptr")
    if starts is None or None in parts.values():
        raise SourceError(
            f"--sparse {group}: a group with the datasets data, indices and indptr, each of one axis, is expected; "
            f"{_listing(entries)}",
            path,
        )
    rows = (starts.samples or 1) - 1
    return {
        f"{group.replace('/', '.')}.{name}": replace(
            entry, spec=msgspec.structs.replace(entry.spec, shape=(None,)), samples=rows, starts=starts.dataset
        )
        for name, entry in parts.items()
        if entry is not None and entry.spec is not None
    }


def _samples(entries: Sequence[Listed], wanted: Collection[Listed], path: str) -> int | None:
    """Return the length that all have along the sample axis. Raises SourceError if they differ, or there are none."""
    if not wanted:
        reason = "holds no dataset with a sample axis" if entries else "holds no datasets"
        raise SourceError(f"{reason}{'; ' + _listing(entries) if entries else ''}", path)
    lengths = {e.samples for e in wanted}
    if len(lengths) > 1:
        numbers = ", ".join(f"{n:,}" for n in sorted(n or 0 for n in lengths))
        raise SourceError(
            f"the datasets have no common sample axis (lengths {numbers}): "
            "pick those that belong together with --field NAME=/path, or leave some out with --skip FIELD; if rows are "
            f"not samples, try --samples groups, --samples files or --samples datasets. {_listing(entries, 'It')}",
            path,
        )
    return lengths.pop()


def _listing(entries: Sequence[Listed], it: str = "it") -> str:
    lines = [f"  {e.path}  {e.looks}" + (f"  ({e.problem or e.aside})" if e.spec is None else "") for e in entries]
    more = [f"  and {len(lines) - _MAX_LINES:,} more"] if len(lines) > _MAX_LINES else []
    return f"{it} holds:\n" + "\n".join(lines[:_MAX_LINES] + more)
