"""Draw the pictures of the book that show figures: `python scripts/pictures.py` writes them into docs/img anew.

Figures come from the tables of docs/, which say how they were measured. docs/img/dataset.svg is drawn by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "img"
BLUE, INK = "#2a78c2", "#24292f"


def main() -> None:
    """Write every picture."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (FOLDER / name).write_text(text)


def pictures() -> dict[str, str]:
    """Return the text of every picture, by the name of its file."""
    return {"codecs.svg": codecs()}


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


def _text(x: float, y: float, words: str, size: int) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{INK}">{words}</text>'


def _svg(width: int, height: int, parts: list[str]) -> str:
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 -4 {width + 8} {height + 8}" font-family="sans-serif">'
    )
    white = f'<rect x="-4" y="-4" width="{width + 8}" height="{height + 8}" fill="white"/>'
    return "\n".join([start, white, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    main()
