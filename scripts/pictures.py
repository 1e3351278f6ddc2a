"""Draw the pictures of the book that scripts/compare does not draw: `python scripts/pictures.py` writes docs/img anew.

Figures come from the tables of docs/, which say how they were measured.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "img"
BLUE, GRAY, INK, PALE = "#2a78c2", "#9aa4ad", "#24292f", "#e8f0f8"


def main() -> None:
    """Write every picture."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (FOLDER / name).write_text(text)


def pictures() -> dict[str, str]:
    """Return the text of every picture, by the name of its file."""
    return {"codecs.svg": codecs(), "dataset.svg": dataset()}


def codecs() -> str:
    """Draw what each codec saves of photographs against how fast it is decoded."""
    rows = _table(ROOT / "docs" / "want" / "smaller.md", "| codec | photographs, stored | decoded at, GB/s |")
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
    return _svg(760, 310, parts)


def dataset() -> str:
    """Draw a packed dataset: the folder, a shard in it, its columns, frames and chunks."""
    parts = [
        *_box(0, 0, 800, 330, "div2k.packed/", "white"),
        *_box(20, 40, 180, 40, "manifest.json", PALE),
        *_box(20, 100, 180, 40, "names.lmdb", PALE),
        *_box(20, 160, 180, 40, "shards/00000.lmdb", PALE),
        *_box(20, 220, 180, 40, "shards/00001.lmdb", PALE),
        _text(20, 296, "fields, shards, digests: manifest;", 11, GRAY),
        _text(20, 312, "name to number and back: names", 11, GRAY),
        f'<path d="M200 180 L250 60 M200 180 L250 300" stroke="{GRAY}" fill="none"/>',
        *_box(250, 40, 530, 270, "one shard: samples 0 to 999", "white"),
    ]
    for number, (field, widths) in enumerate((("lr", (60, 60, 60, 60)), ("hr", (110, 75, 120, 95)))):
        top = 80 + 110 * number
        parts += [_text(262, top + 20, f"column {field}", 12), _text(262, top + 36, "frames", 11, GRAY)]
        left = 350
        for width in widths:
            parts.append(f'<rect x="{left}" y="{top}" width="{width - 4}" height="34" fill="{BLUE}"/>')
            left += width
        half = 350 + sum(widths[:2])
        parts.append(_text(262, top + 62, "chunks", 11, GRAY))
        for start, stop in ((350, half), (half, left)):
            chunk = f'x="{start}" y="{top + 44}" width="{stop - start - 4}" height="28"'
            parts.append(f'<rect {chunk} fill="{PALE}" stroke="{INK}"/>')
    parts.append(
        _text(262, 298, "a frame: compressed and checksummed as one; a chunk: frames in one piece of the file", 11)
    )
    return _svg(802, 332, parts)


def _table(page: Path, head: str) -> list[list[str]]:
    rows = page.read_text().partition(head)[2].partition("\n\n")[0].splitlines()[2:]
    return [[re.sub(r"\s+", " ", cell.strip()) for cell in row.strip("| ").split("|")] for row in rows]


def _box(x: int, y: int, width: int, height: int, words: str, fill: str) -> list[str]:
    rect = f'<rect x="{x + 1}" y="{y + 1}" width="{width}" height="{height}" fill="{fill}" stroke="{INK}"/>'
    return [rect, _text(x + 10, y + 24, words, 13)]


def _text(x: float, y: float, words: str, size: int, colour: str = INK) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{colour}">{words}</text>'


def _svg(width: int, height: int, parts: list[str]) -> str:
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 -4 {width + 8} {height + 8}" font-family="sans-serif">'
    )
    white = f'<rect x="-4" y="-4" width="{width + 8}" height="{height + 8}" fill="white"/>'
    return "\n".join([start, white, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    main()
