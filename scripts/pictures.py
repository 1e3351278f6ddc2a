"""Draw the bars of the book as SVG: `python scripts/pictures.py` writes rates.svg and codecs.svg of docs/img anew.

Figures come from the tables of docs/, which say how they were measured.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "img"
BLUE, GRAY, INK = "#2a78c2", "#9aa4ad", "#24292f"


def pictures() -> dict[str, str]:
    """Return the text of every picture, by the name of its file."""
    return {"rates.svg": rates(), "codecs.svg": codecs()}


def rates() -> str:
    """Draw samples a second of each input of the demo, from the files and packed, with bars in powers of ten."""
    rows = _table(ROOT / "docs" / "benchmark.md", "| input | batch | packed | files | times |")
    parts, top = [_text(520, 16, "samples a second, bars in powers of ten", 11, GRAY)], 30
    for name, _, packed, files, times in rows:
        parts.append(_text(0, top + 20, name.replace("`", ""), 12))
        for number, (words, rate, colour) in enumerate((("packed", packed, BLUE), ("files", files, GRAY))):
            value = float(rate.replace(",", ""))
            width, y = 42 * (len(str(int(value))) - 1 + value / 10 ** len(str(int(value)))), top + 16 * number
            parts.append(f'<rect x="380" y="{y}" width="{width:.0f}" height="13" fill="{colour}"/>')
            more = f", {times} times" if words == "packed" else ""
            parts.append(_text(386 + width, y + 11, f"{words} {rate}{more}", 11))
        top += 44
    return _svg(860, top, parts)


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


def _table(page: Path, head: str) -> list[list[str]]:
    rows = page.read_text().partition(head)[2].partition("\n\n")[0].splitlines()[2:]
    return [[re.sub(r"\s+", " ", cell.strip()) for cell in row.strip("| ").split("|")] for row in rows]


def _text(x: float, y: float, words: str, size: int, colour: str = INK) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{colour}">{words}</text>'


def _svg(width: int, height: int, parts: list[str]) -> str:
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 -4 {width + 8} {height + 8}" font-family="sans-serif">'
    )
    white = f'<rect x="-4" y="-4" width="{width + 8}" height="{height + 8}" fill="white"/>'
    return "\n".join([start, white, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    for name, text in pictures().items():
        (FOLDER / name).write_text(text)
