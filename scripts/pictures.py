"""Draw the picture of the book that shows figures of its own: `python scripts/pictures.py` writes docs/img/codecs.svg.

The figures come from a table of docs/want/smaller.md, which says how they were measured. docs/img/dataset.svg is drawn
by hand, and the others are drawn by scripts/compare.
"""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
CODECS = DOCS / "img" / "codecs.svg"


def codecs() -> str:
    """Return a picture of what each codec saves of photographs against how fast it is decoded."""
    table = (
        (DOCS / "want" / "smaller.md").read_text().partition("| codec | photographs, stored | decoded at, GB/s |")[2]
    )
    rows = [row.strip("| ").split("|") for row in table.partition("\n\n")[0].splitlines()[2:]]
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 -4 768 318" font-family="sans-serif">',
        '<rect x="-4" y="-4" width="768" height="318" fill="white"/>',
        '<path d="M60 10 V270 H700" fill="none" stroke="#24292f"/>',
        _text(560, 300, "decoded at, GB/s", 12),
        _text(70, 18, "share of the bytes that is stored", 12),
    ]
    parts += [_text(28, 274 - 250 * (at - 0.3) / 0.75, f"{at:.1f}", 11) for at in (0.4, 0.6, 0.8, 1.0)]
    parts += [_text(57 + 120 * at, 286, str(at), 11) for at in (1, 2, 3, 4, 5)]
    for name, share, speed in rows:
        x, y = 60 + 120 * float(speed), 270 - 250 * (float(share) - 0.3) / 0.75
        parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="6" fill="#2a78c2"/>')
        parts.append(_text(x + 10, y + 4, name.replace("`", "").strip(), 12))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, words: str, size: int) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="#24292f">{words}</text>'


if __name__ == "__main__":
    CODECS.write_text(codecs())
