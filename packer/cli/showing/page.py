"""A page of samples in one file: fields with their codecs and spreads, pictures, clouds to turn, search by name."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from packer.cli.showing.cells import value_text
from packer.cli.showing.histograms import Spread, spread
from packer.cli.showing.page_cells import cell_html
from packer.cli.showing.page_template import SCRIPT, STYLE
from packer.cli.showing.samples import Sample
from packer.cli.showing.views import views
from packer.cli.summary import ratio_text, shape_text
from packer.cli.tables import counted
from packer.cli.units import size_text
from packer.codecs.configs import codec_name
from packer.format.manifest import Manifest
from packer.format.schema import Field

_HEADS = ("field", "kind", "dtype", "shape", "codec", "raw", "stored", "ratio", "min", "mean", "max", "not finite")
_BAR, _TALL = 4, 40


def write_page(
    path: Path, title: str, manifest: Manifest, samples: Sequence[Sample], measured: Sequence[Sample]
) -> None:
    """Writes the page: one file, which asks for no other. Spreads are of the samples `measured`."""
    head = f"<title>{escape(title)}</title><style>{STYLE}</style>"
    shards, size = counted(len(manifest.shards), "shard"), size_text(manifest.file_bytes)
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{counted(manifest.samples, 'sample')} in {shards}, {size}; {counted(len(samples), 'sample')} shown, ",
        f"spreads of {_share(len(measured), manifest.samples)}.</p>",
        _fields(manifest, measured),
        '<p><input id="search" type="search" placeholder="name"> ',
        f'<span id="found">{len(samples)} shown</span></p>',
        f'<div id="samples">{"".join(_samples(manifest, samples))}</div>',
        f"<script>{SCRIPT}</script>",
    ]
    start = f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">{head}</head>'
    # What is no text in a name or caption would stop the whole page from being written.
    text = f"{start}<body>{''.join(body)}</body></html>\n"
    path.write_text(text.encode(errors="backslashreplace").decode(), encoding="utf-8")


def _share(count: int, of: int) -> str:
    return "all samples" if count == of else f"{count:,} samples, evenly chosen (`packer stats` has all)"


def _fields(manifest: Manifest, samples: Sequence[Sample]) -> str:
    """The table of fields."""
    heads = "".join(f"<th>{head}</th>" for head in (*_HEADS, "spread"))
    rows = "".join(_field(manifest, field, spread(field, samples)) for field in manifest.fields)
    return f"<table><tr>{heads}</tr>{rows}</table>"


def _field(manifest: Manifest, field: Field, found: Spread) -> str:
    totals = manifest.columns[field.name]
    words = [field.name, field.kind, str(field.dtype), _shape(field, found), codec_name(field.codec)]
    numbers = [size_text(totals.raw), size_text(totals.stored), ratio_text(totals)]
    numbers += ["" if n is None else f"{n:.5g}" for n in (found.low, found.mean, found.high)]
    numbers.append(f"{found.odd:,}" if found.odd else "")
    cells = [f"<td>{escape(word)}</td>" for word in words]
    cells += [f'<td class="number">{number}</td>' for number in numbers]
    return f"<tr>{''.join(cells)}<td>{_bars(found)}</td></tr>"


def _shape(field: Field, found: Spread) -> str:
    sizes = ", ".join(f"{low} to {high}" for low, high in found.sizes)
    return f"{shape_text(field)} (any: {sizes})" if sizes else shape_text(field)


def _bars(found: Spread) -> str:
    most = max(found.counts, default=0)
    if not most:
        return ""
    bars = []
    for number, count in enumerate(found.counts):
        tall = count / most * _TALL
        bars.append(f'<rect x="{number * _BAR}" y="{_TALL - tall:.1f}" width="{_BAR - 1}" height="{tall:.1f}"/>')
    return f'<svg width="{len(bars) * _BAR}" height="{_TALL}" fill="#4477aa">{"".join(bars)}</svg>'


def _samples(manifest: Manifest, samples: Sequence[Sample]) -> list[str]:
    found = views(manifest.fields, samples)
    cards = []
    for sample in samples:
        values = [f"{v.field} {value_text(sample.values[v.field])}" for v in found if v.kind == "value"]
        cells = "".join(cell_html(view, sample) for view in found if view.kind != "value")
        title = escape("   ".join([sample.title, *values]))
        name = escape(sample.title)
        cards.append(f'<div class="sample" data-name="{name}"><h3>{title}</h3><div class="cells">{cells}</div></div>')
    return cards
