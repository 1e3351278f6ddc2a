"""Draw the pictures of the book that show figures: `python scripts/pictures.py` writes them into docs/img anew.

Figures come from the tables of docs/, which say how they were measured. docs/img/dataset.svg is drawn by hand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
FOLDER = DOCS / "img"
BLUE, INK = "#2a78c2", "#24292f"
#: Read on white and on black alike.
WORDS, OTHERS, OURS = "#7d8590", "#a5adb8", "#2f81f7"
#: The systems that the first page shows.
CHOSEN = ("loose files", "LMDB, lz4 + pickle", "FFCV", "packer, auto", "packer, lz4", "packer, none")


def main() -> None:
    """Write every picture."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (FOLDER / name).write_text(text)


def pictures() -> dict[str, str]:
    """Return the text of every picture, by the name of its file."""
    page = DOCS / "compare.md"
    return {"codecs.svg": codecs(), "compare.svg": bars(page, CHOSEN), "compare-all.svg": bars(page)}


def codecs() -> str:
    """Draw what each codec saves of photographs against how fast it is decoded."""
    _, *rows = _table(DOCS / "want" / "smaller.md", "| codec | photographs, stored | decoded at, GB/s |")
    parts = [
        '<path d="M60 10 V270 H700" fill="none" stroke="#24292f"/>',
        _text(560, 300, "decoded at, GB/s", 12),
        _text(70, 18, "share of the bytes that is stored", 12),
    ]
    parts += [_text(28, 274 - 250 * (at - 0.3) / 0.75, f"{at:.1f}", 11) for at in (0.4, 0.6, 0.8, 1.0)]
    parts += [_text(57 + 120 * at, 286, str(at), 11) for at in (1, 2, 3, 4, 5)]
    for name, share, speed in rows:
        x, y = 60 + 120 * float(speed), 270 - 250 * (float(share) - 0.3) / 0.75
        parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="6" fill="{BLUE}"/>')
        parts.append(_text(x + 10, y + 4, name.replace("`", ""), 12))
    white = '<rect x="-4" y="-4" width="768" height="318" fill="white"/>'
    return _svg(760, 310, [white, *parts])


def bars(page: Path, names: Sequence[str] = ()) -> str:
    """Draw samples a second as bars, two panels side by side, one for each workload and batch size.

    Args:
        page: holds the table of scripts/compare.
        names: which systems; those that were not measured are left out. All if there is none.
    """
    (_, *titles), *rows = _table(page, "| thousand samples a second |")
    rows = [row for row in rows if not names or row[0] in names]
    left = 8 + 13 * max(len(name) for name, *_ in rows) // 2  # where bars begin: names stand before them
    tall = 40 + 20 * len(rows)
    heading = "Thousand samples a second, shuffled, files in memory: longer is better"
    parts = [_text(400, 14, heading, 12, WORDS, 'text-anchor="middle"')]
    for column, title in enumerate(titles):
        x, y = 400 * (column % 2) + left, tall * (column // 2) + 52
        parts.append(_text(x, y - 10, title, 12, WORDS, 'font-weight="bold"'))
        figures = [row[1 + column].strip("*") for row in rows]
        rates = [float(figure.replace(",", "") or 0) for figure in figures]
        for number, (name, *_) in enumerate(rows):
            top, width = y + 20 * number, (400 - left - 48) * rates[number] / max(rates)
            colour = OURS if name.startswith("packer") else OTHERS
            parts.append(_text(x - 6, top + 12, name, 12, WORDS, 'text-anchor="end"'))
            parts.append(f'<rect x="{x}" y="{top}" width="{width:.1f}" height="15" fill="{colour}"/>')
            parts.append(_text(x + width + 5, top + 12, figures[number] or "fixed shapes only", 11, WORDS))
    return _svg(800, 26 + tall * -(-len(titles) // 2), parts)


def _table(page: Path, head: str) -> list[list[str]]:
    """Return the cells of the table that begins with `head`, its first row included."""
    first, _, *rows = (head + page.read_text().partition(head)[2].partition("\n\n")[0]).splitlines()
    return [[re.sub(r"\s+", " ", cell.strip()) for cell in row[1:-1].split("|")] for row in (first, *rows)]


def _text(x: float, y: float, words: str, size: int, colour: str = INK, more: str = "") -> str:
    more = f" {more}" if more else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{colour}"{more}>{words}</text>'


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    width, height = width + 8, height + 8
    size = f'width="{width}" height="{height}" viewBox="-4 -4 {width} {height}"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    return "\n".join([start, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    main()
