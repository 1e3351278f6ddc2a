"""What the manifest keeps of PLY files, so that they can be written again as they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packer.sources.ply.header import Header
from packer.sources.ply.set import Choice, Member

#: More different headers than this are not kept: files with a comment of their own each (a date, a path)
#: would make the manifest as large as the data.
MAX_HEADERS = 1000


def origin_of(members: Sequence[Member], fields: Choice, cast: Mapping[str, str], triangulate: bool) -> dict[str, Any]:
    """The headers of a set, as JSON values.

    `headers` holds each different header once (the first is that of the first sample): format, comments,
    obj_info, and elements with their properties and the field each went into. `header_of` gives, by sample
    name, the number of the header of every sample whose header is not the first. Beyond `MAX_HEADERS` a
    sample's header is not kept; it counts as like the first.
    """
    numbers: dict[Header, int] = {}
    headers: list[dict[str, Any]] = []
    header_of: dict[str, int] = {}
    for member in members:
        key = _without_counts(member.header)
        if key not in numbers and len(numbers) < MAX_HEADERS:
            numbers[key] = len(headers)
            headers.append(_described(member))
        if numbers.get(key):
            header_of[member.name] = numbers[key]
    options: dict[str, Any] = {"fields": fields if isinstance(fields, str) else list(fields), "cast": dict(cast)}
    if triangulate:
        options["triangulate"] = True
    return {"options": options, "headers": headers, "header_of": header_of}


def _without_counts(header: Header) -> Header:
    elements = tuple(type(e)(e.name, 0, e.properties) for e in header.elements)
    return Header(header.format, elements, header.comments, header.obj_info, header.stray, 0)


def _described(member: Member) -> dict[str, Any]:
    field_of = {(r.element, i): name for name, r in member.rules.items() for i in r.properties}
    header = member.header
    return {
        "format": header.format,
        "comments": list(header.comments),
        "obj_info": list(header.obj_info),
        "elements": [
            {
                "name": e.name,
                "properties": [
                    {"name": p.name, "type": p.dtype, "count_type": p.count_dtype, "field": field_of[e.name, i]}
                    for i, p in enumerate(e.properties)
                ],
            }
            for e in header.elements
        ],
    }
