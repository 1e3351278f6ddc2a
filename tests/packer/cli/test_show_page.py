"""The page of `packer show -o page.html`: what it holds, and what it does in a browser."""

from __future__ import annotations

import base64
import io
import json
import re

import numpy as np
import pytest
from jpeg_files import photograph
from PIL import Image

from packer.cli import show_page
from packer.cli.show_page import measure_spread
from packer.convert import convert
from packer.format import FieldSpec
from packer.split import split
from packer.writer import DatasetWriter
from readers import PackedDataset


def data_of(page):
    """What the page was given to draw."""
    (text,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page.read_text("utf-8"))
    return json.loads(text)


def array_of(png):
    """The pixels of a picture in the page."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(png))))


@pytest.fixture
def page(packer, tmp_path):
    """The page of two samples of every kind of field."""
    rng = np.random.default_rng(0)
    with DatasetWriter(tmp_path / "d", codec="wave=none") as writer:
        for n, name in enumerate(("first <b>&", "the second")):
            sample = {
                "xyz": rng.normal(size=(200 + n, 3)).astype(np.float32),
                "rgb": rng.integers(0, 200, (200 + n, 3), dtype=np.uint8),
                "small": np.full((4, 6, 3), [10, 20, 30 + n], np.uint8),
                "picture": np.full((8, 12, 3), [200, 20, 30 + n], np.uint8),
                "clip": np.arange(5 * 4 * 6, dtype=np.uint8).reshape(5, 4, 6, 1),
                "wave": np.array([0.0, np.nan, *range(40)]),
                "map": rng.normal(size=(5, 5)),
                "caption": "a < b </script> & 漢字",
                "level": n,
                "nothing": np.zeros((0, 3, 1), np.uint8),
            }
            writer.add(sample, name)
    split(tmp_path / "d", {"train": "first*"})
    result = packer("show", tmp_path / "d", "-o", tmp_path / "page.html")
    assert result.stderr == ""
    assert re.fullmatch(rf"{tmp_path / 'page.html'}: 2 samples, [\d.]+ kB\n", result.stdout)
    return tmp_path / "page.html"


def test_the_page_holds_the_samples(page):
    """Pictures to the pixel, all points, all frames; names, texts and splits as they are, codecs with their ratios."""
    data = data_of(page)
    assert [(item["number"], item["name"]) for item in data["items"]] == [(0, "first <b>&"), (1, "the second")]
    assert [[data["splits"][at] for at in item["splits"]] for item in data["items"]] == [["train"], []]
    places = {view["field"]: at for at, view in enumerate(data["views"])}
    for n, item in enumerate(data["items"]):
        cells = {field: item["cells"][at] for field, at in places.items()}
        assert (array_of(cells["picture"]["png"]) == [200, 20, 30 + n]).all()
        assert array_of(cells["clip"]["png"])[:, :, 0].tolist() == np.arange(120).reshape(20, 6).tolist()
        assert len(base64.b64decode(cells["cloud" if "cloud" in cells else "xyz"]["points"])) == (200 + n) * 6
        assert (
            np.isnan(np.frombuffer(base64.b64decode(cells["wave"]["values"]), "<f4")).tolist()
            == [False, True] + [False] * 40
        )
        assert cells["caption"]["letters"] == "a < b </script> & 漢字"
        assert cells["level"] == str(n)
        assert cells["nothing"] == {"text": "0 x 3 x 1"}
    rows = {row["cells"][0]: row for row in data["fields"]}
    assert rows["wave"]["cells"][4] == "none"
    assert rows["wave"]["cells"][-1] == "2"  # the two NaN
    assert [sum(counts) for counts in rows["picture"]["counts"]] == [192, 192, 192]
    assert dict(data["facts"])["origin kind"] == "writer"
    assert data["shards"][0][1] == "2"


def test_frames_that_are_jpeg_files_play(packer, tmp_path):
    """All of them are in the page, as readers give them."""
    clip = np.stack([photograph(40, 56, step) for step in range(5)])
    convert([{"clip": clip}], tmp_path / "d", codec="jpeg:90")
    packer("show", tmp_path / "d", "-o", tmp_path / "page.html")
    (cell,) = data_of(tmp_path / "page.html")["items"][0]["cells"]
    assert cell["frames"] == 5
    assert np.array_equal(array_of(cell["png"]), PackedDataset(tmp_path / "d")[0]["clip"].reshape(200, 56, 3))


def test_odd_values_are_drawn_without_a_word(packer, tmp_path):
    """Empty samples, NaN, complex numbers, odd names; there is nothing to draw of a cloud or curve without a row."""
    with DatasetWriter(tmp_path / "d") as writer:
        for n in range(3):
            sample = {
                "xyz": np.full((70 * n, 3), np.nan if n == 1 else n, np.float32),
                "wave": np.sin(np.arange(50 * n) / 5),
                "map": np.full((6, 9), np.nan) if n else np.zeros((6, 9)),
                "volume": np.zeros((0, 4, 4)) if n else np.zeros((2, 4, 4)),
                "picture": np.zeros((5 * n, 4, 1), np.uint16),
                "clip": np.zeros((n, 4, 4, 3), np.uint8),
                "z": np.full(60, 1j),
                "caption": "漢字 $x^ \x07 " * 40 * n,
                "label": "a text",
            }
            writer.add(sample, f"${n}_^")
    result = packer("show", tmp_path / "d", "-o", tmp_path / "page.html")
    assert result.stderr == ""
    data = data_of(tmp_path / "page.html")
    at = {view["field"]: place for place, view in enumerate(data["views"])}
    assert [item["cells"][at["xyz"]]["text"] for item in data["items"]] == ["0 points", "70 points", "140 points"]
    assert ["points" in item["cells"][at["xyz"]] for item in data["items"]] == [False, False, True]
    assert [item["cells"][at["wave"]]["text"] for item in data["items"]] == ["0", "50", "100"]


def test_nothing_of_the_dataset_is_html(page):
    """No tag of a name or text stands in the page, and no address: it opens without a network."""
    text = page.read_text("utf-8")
    assert "<b>&" not in text
    assert text.count("</script>") == 2
    assert not re.search(r"https?:|@import|<link|src=\"(?!data:)", text)


def test_classes_are_told(packer, opened, tmp_path):
    """The class of a sample stands in the page once, by its name, where field `label` is its number."""
    for at, name in enumerate(("cat/a", "dog/b", "dog/c")):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (3, 2), at).save(tmp_path / "in" / f"{name}.png")
    packer("convert", tmp_path / "in", tmp_path / "d", "--label", "folder", "-q")
    packer("show", tmp_path / "d", "-o", tmp_path / "page.html", "-q")
    data = data_of(tmp_path / "page.html")
    assert data["classes"] == ["cat", "dog"]
    assert [item["class"] for item in data["items"]] == [0, 1, 1]
    titles = opened(tmp_path / "page.html").locator(".card .title").all_text_contents()
    assert titles == ["cat/a#0cat", "dog/b#1dog", "dog/c#2dog"]


def test_samples_that_do_not_fit_are_left_out(packer, tmp_path):
    """As many as the size has room for, in their order, from everywhere; the command and the page say so."""
    with DatasetWriter(tmp_path / "d") as writer:
        for number in range(64):
            writer.add({"x": np.zeros(30) + number})
    whole = packer("show", tmp_path / "d", "-o", tmp_path / "whole.html")
    assert ": 64 samples, " in whole.stdout
    each = len(json.dumps(data_of(tmp_path / "whole.html")["items"][0], separators=(",", ":")))
    part = packer("show", tmp_path / "d", "-o", tmp_path / "part.html", "--page-size", 17 * each)
    numbers = [item["number"] for item in data_of(tmp_path / "part.html")["items"]]
    assert re.search(rf": {len(numbers)} of 64 samples, .*; --page-size makes room for more\n", part.stdout)
    assert 15 <= len(numbers) <= 17
    assert numbers == sorted(numbers)
    assert len({number // 16 for number in numbers}) == 4
    assert f"{len(numbers)} of them are in this page" in data_of(tmp_path / "part.html")["about"]
    assert ": 1 of 64 samples" in packer("show", tmp_path / "d", "-o", tmp_path / "one.html", "--page-size", 1).stdout


def test_spreads():
    """Counts by equal steps and channel, NaN and infinities apart, sizes of ragged axes, far extremes."""
    field = FieldSpec(name="x", dtype="float64", shape=(None,))

    def of(*values, field=field):
        return measure_spread(field, [{"x": np.array(value, field.np_dtype)} for value in values])

    found = of([0, 48], [1.5, np.nan, np.inf])
    assert (found.low, found.high, found.mean, found.not_finite, found.sizes) == (0, 48, 16.5, 2, ((2, 3),))
    (counts,) = found.counts
    assert sum(counts) == 3
    assert [n for n, count in enumerate(counts) if count] == [0, 1, 47]
    assert of([7, 7]).counts == of([]).counts == ()
    assert of([-1.7e308, 1.7e308]).mean == 0
    assert of([np.nan]).low is None
    labels = FieldSpec(name="x", dtype="int64")
    assert of(3, 5, 5, field=labels).counts == ((1, 0, 2),)
    pixels = FieldSpec(name="x", dtype="uint8", shape=(1, None, 2))
    assert of([[[0, 1], [0, 1]]], [[[0, 2]]], field=pixels).counts == ((3, 0, 0), (0, 2, 1))
    text = FieldSpec(name="x", dtype="uint8", kind="text", shape=(None,))
    assert measure_spread(text, [{"x": "ä"}, {"x": ""}]).sizes == ((0, 2),)


def test_spreads_are_of_more_than_is_shown(packer, tmp_path, monkeypatch):
    """Of all samples if they are few, else of some from everywhere; the page says which."""
    with DatasetWriter(tmp_path / "d") as writer:
        for number in range(50):
            writer.add({"x": np.float64(number)})

    def page():
        packer("show", tmp_path / "d", "-o", tmp_path / "page.html", "--samples", "2")
        return data_of(tmp_path / "page.html")

    data = page()
    assert len(data["items"]) == 2
    assert data["measured"] == "all samples"
    assert "24.5" in data["fields"][0]["cells"]
    monkeypatch.setattr(show_page, "_SAMPLES", 5)
    data = page()
    assert data["measured"] == "5 samples, evenly chosen"
    assert "49" in data["fields"][0]["cells"]


@pytest.fixture
def opened(browser):
    """A function that opens a page, and demands at the end that it complained of nothing and asked for nothing."""
    wrong = []
    context = browser.new_context(viewport={"width": 1200, "height": 800})

    def open_page(path):
        tab = context.new_page()
        tab.on("console", lambda message: wrong.append(message.text))
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        asked = [path.as_uri()]
        tab.on("request", lambda r: None if r.url.startswith("data:") or r.url in asked else wrong.append(r.url))
        tab.goto(path.as_uri())
        return tab

    yield open_page
    context.close()
    assert wrong == []


def pixels_of(tab, selector):
    """The pixels of a canvas: a text that differs if they do."""
    return tab.locator(selector).evaluate("canvas => canvas.toDataURL()")


def until(tab, condition):
    """Wait for something that takes the page some time."""
    for _ in range(200):
        if condition():
            return
        tab.wait_for_timeout(20)
    assert condition()


def test_a_page_fits_its_window(packer, opened, tmp_path):
    """The table is not cut off, cards fill all rows but the last, and a large page says how to get a smaller one."""
    rng, fields = np.random.default_rng(0), ("picture_of_the_left_camera", "picture_of_the_right_camera")
    for field in fields:
        (tmp_path / field).mkdir()
        for number, width in enumerate(rng.integers(100, 400, 30)):
            image = Image.fromarray(rng.integers(0, 255, (300, width, 3), np.uint8))
            image.save(tmp_path / field / f"{number:02}.jpg", quality=40)
    sources = [f"{field}={tmp_path / field}" for field in fields]
    packer("convert", *sources, tmp_path / "d", "--codec", "jpeg")
    assert "fewer --samples" in packer("show", tmp_path / "d", "-o", tmp_path / "page.html").stdout
    tab = opened(tmp_path / "page.html")
    tab.set_viewport_size({"width": 1300, "height": 900})
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.locator(".scroll").first.evaluate("box => box.scrollWidth <= box.clientWidth")
    boxes = tab.locator(".card").evaluate_all("cards => cards.map(c => [c.offsetTop, c.offsetLeft + c.offsetWidth])")
    rows = {top: max(right for at, right in boxes if at == top) for top, _ in boxes}
    assert len(rows) > 3
    assert all(right > 1200 for right in list(rows.values())[:-1])


def test_a_sample_large_in_a_browser(page, opened):
    """Pictures flicker at one place and zoom to their values, a cloud turns while the mouse is held, a clip plays."""
    tab = opened(page)
    assert tab.locator(".card").count() == 2
    assert tab.locator(".card b").all_text_contents() == ["first <b>&", "the second"]
    assert tab.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
    assert tab.locator("#fields canvas").count() > 5
    tab.locator(".card").nth(1).click(position={"x": 4, "y": 4})
    picture = ".panel canvas.picture"
    until(tab, lambda: tab.locator(".panel .spread").evaluate("canvas => canvas.width") > 300)
    box = tab.locator(picture).bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2 + 1, box["y"] + box["height"] / 2 + 1)
    assert tab.locator("#under").text_content() == "row 4, column 6: 200 20 31"
    tab.get_by_role("button", name="small").click()
    tab.mouse.move(box["x"] + box["width"] / 2 + 1, box["y"] + box["height"] / 2 + 1)
    assert tab.locator("#under").text_content() == "row 2, column 3: 10 20 31"
    before = pixels_of(tab, picture)
    tab.locator("#closer").click()
    assert pixels_of(tab, picture) != before
    tab.keyboard.press("f")
    assert "on" in tab.locator("#flicker").get_attribute("class")
    for field in ("picture", "map", "small"):
        until(tab, lambda field=field: tab.locator(".panel button.on").first.text_content() == field)

    cloud = ".panel canvas.cloud"
    tab.locator(cloud).scroll_into_view_if_needed()
    before = pixels_of(tab, cloud)
    box = tab.locator(cloud).bounding_box()
    tab.mouse.move(box["x"] + 50, box["y"] + 50)
    assert pixels_of(tab, cloud) == before
    tab.mouse.down()
    tab.mouse.move(box["x"] + 150, box["y"] + 90)
    tab.mouse.up()
    turned = pixels_of(tab, cloud)
    assert turned != before
    tab.mouse.move(box["x"] + 10, box["y"] + 10)
    assert pixels_of(tab, cloud) == turned

    slider = tab.locator(".panel input[type=range]")
    seen = slider.input_value()
    until(tab, lambda: slider.input_value() != seen)
    tab.keyboard.press("Escape")
    assert not tab.locator("#large").is_visible()


def test_paging_and_search_in_a_browser(packer, opened, tmp_path):
    """Sixty samples a page; a name, a number or a split finds its samples."""
    with DatasetWriter(tmp_path / "d") as writer:
        for number in range(150):
            writer.add({"x": np.arange(9.0) * number}, f"name{number:03}")
    split(tmp_path / "d", {"odd": "*1"})
    packer("show", tmp_path / "d", "-o", tmp_path / "page.html")
    tab = opened(tmp_path / "page.html")
    names = lambda: tab.locator(".card b").all_text_contents()  # noqa: E731
    assert names() == [f"name{n:03}" for n in range(60)]
    tab.locator("#next").click()
    tab.keyboard.press("ArrowRight")
    assert names() == [f"name{n:03}" for n in range(120, 150)]
    assert tab.locator("#page").text_content() == "page 3 of 3"
    assert tab.locator("#next").is_disabled()
    tab.locator("#search").fill("NAME14")
    assert names() == [f"name{n}" for n in range(140, 150)]
    tab.locator("#split").select_option(label="odd")
    assert names() == ["name141"]
    assert tab.locator("#found").text_content() == "1 found"
    tab.locator("#search").fill("#11")
    assert names() == ["name011"]
