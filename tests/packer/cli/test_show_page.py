"""The page of `packer show -o page.html`: what it holds, and what it does in a browser."""

from __future__ import annotations

import base64
import io
import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

from packer.cli import show_page
from packer.cli.show_page import spread
from packer.cli.show_views import Sample
from packer.format.schema import FieldSpec
from packer.writer import DatasetWriter

CHROMIUM = shutil.which("chromium")

#: Run behind the page's own script: searches, turns a cloud, and leaves what came of it in the title.
PROBE = """<script>{
const canvas = document.querySelector("canvas"), context = canvas.getContext("2d");
const all = () => context.getImageData(0, 0, canvas.width, canvas.height).data;
const coloured = d => d.reduce((n, v, i) => n + (i % 4 < 3 && v !== 255), 0);
const before = all();
const at = (type, x) => canvas.dispatchEvent(new PointerEvent(type, { clientX: x, clientY: 5, pointerId: 1 }));
canvas.setPointerCapture = () => {};
at("pointerdown", 10); at("pointermove", 60); at("pointerup", 60);
const after = all();
at("pointermove", 200);
const still = all().every((v, i) => v === after[i]);
const search = document.getElementById("search");
search.value = "SECOND"; search.dispatchEvent(new Event("input"));
const left = [...document.querySelectorAll(".sample:not(.hidden)")].map(s => s.dataset.name);
const broken = [...document.images].filter(i => !i.naturalWidth).length;
document.title = JSON.stringify([coloured(before) > 100, before.some((v, i) => v !== after[i]), still, left,
  document.getElementById("found").textContent, broken]);
}</script>"""


@pytest.fixture
def page(packer, tmp_path):
    """The page of two samples of every kind of field."""
    rng = np.random.default_rng(0)
    with DatasetWriter(tmp_path / "d", codec="wave=none") as writer:
        for n, name in enumerate(("first <b>&", "the second")):
            sample = {
                "xyz": rng.normal(size=(200 + n, 3)).astype(np.float32),
                "rgb": rng.integers(0, 200, (200 + n, 3), dtype=np.uint8),
                "picture": np.full((4, 6, 3), [10, 20, 30 + n], np.uint8),
                "wave": np.array([0.0, np.nan, *range(40)]),
                "map": rng.normal(size=(5, 5)),
                "caption": "a < b </script> & 漢字",
                "label": n,
                "nothing": np.zeros((0, 3, 1), np.uint8),
            }
            writer.add(sample, name)
    result = packer("show", tmp_path / "d", "-o", tmp_path / "page.html")
    assert (result.exit_code, result.stderr) == (0, "")
    return tmp_path / "page.html"


def test_the_page_holds_the_samples(page):
    """Pictures to the pixel, points by number, texts and names escaped, codecs with their ratios."""
    text = page.read_text("utf-8")
    data = [base64.b64decode(found) for found in re.findall(r"data:image/png;base64,([^\"]*)", text)]
    pictures = [np.asarray(Image.open(io.BytesIO(png))) for png in data]
    assert [p.tolist() for p in pictures[::2]] == [np.full((4, 6, 3), [10, 20, 30 + n]).tolist() for n in range(2)]
    points = [len(base64.b64decode(found)) for found in re.findall(r'data-points="([^"]*)"', text)]
    assert points == [200 * 12, 201 * 12]
    assert 'data-name="first &lt;b&gt;&amp;"' in text
    assert "a &lt; b &lt;/script&gt; &amp; 漢字" in text
    assert text.count("</script>") == 1
    assert "<td>none</td>" in text
    assert '<td class="number">2</td>' in text  # the two NaN of wave


def test_the_page_asks_for_nothing(page):
    """No address stands in it: it opens without a network."""
    text = re.sub(r"base64,[^\"]*|data-(points|colours)=\"[^\"]*", "", page.read_text("utf-8"))
    assert not re.search(r"https?:|//\w|@import|<link|src=\"(?!data:)", text)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_the_page_in_a_browser(page):
    """Clouds are drawn, and turn while the mouse is held; the search hides other names; no picture is broken."""
    page.write_text(page.read_text("utf-8").replace("</body>", PROBE + "</body>"), "utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent / 'browser'}"]
    command = [CHROMIUM, *options, "--virtual-time-budget=2000", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    (title,) = re.findall(r"<title>(.*?)</title>", done.stdout)
    assert title == '[true,true,true,["the second"],"1 shown",0]'


def test_spreads():
    """Counts by equal steps, NaN and infinities apart, sizes of ragged axes, and extremes that have no distance."""
    field = FieldSpec(name="x", dtype="float64", shape=(None,))

    def of(*values):
        return spread(field, [Sample(n, None, {"x": np.array(v, np.float64)}) for n, v in enumerate(values)])

    found = of([0, 48], [1.5, np.nan, np.inf])
    assert (found.low, found.high, found.mean, found.odd, found.sizes) == (0, 48, 16.5, 2, ((2, 3),))
    assert sum(found.counts) == 3
    assert [n for n, count in enumerate(found.counts) if count] == [0, 1, 47]
    assert of([7, 7]).counts == of([]).counts == ()
    assert of([-1.7e308, 1.7e308]).mean == 0
    assert of([np.nan]).low is None
    text = FieldSpec(name="x", dtype="uint8", kind="text", shape=(None,))
    assert spread(text, [Sample(0, None, {"x": "ä"}), Sample(1, None, {"x": ""})]).sizes == ((0, 2),)


def test_spreads_are_of_more_than_is_shown(packer, tmp_path, monkeypatch):
    """Of all samples where they are few, else of some from everywhere; the page says which."""
    with DatasetWriter(tmp_path / "d") as writer:
        for number in range(50):
            writer.add({"x": np.float64(number)})

    def page():
        packer("show", tmp_path / "d", "-o", tmp_path / "page.html", "--samples", "2")
        return (tmp_path / "page.html").read_text("utf-8")

    text = page()
    assert "2 samples shown, spreads of all samples." in text
    assert '<td class="number">24.5</td>' in text
    monkeypatch.setattr(show_page, "_SAMPLES", 5)
    text = page()
    assert "spreads of 5 samples, evenly chosen" in text
    assert '<td class="number">49</td>' in text
