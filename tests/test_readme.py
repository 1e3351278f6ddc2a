"""What README.md and the book in docs/ say is so."""

from __future__ import annotations

import gc
import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pictures
import public
import pytest
import readme
from environment import HAS_FRAMEWORKS
from here import in_this_process

import readers
from packer.cli import COMMANDS
from packer.codecs import NAMED
from packer.export import KINDS
from packer.sources import SourceOptions, all_kinds, flag_of
from readers import Loader, PackedDataset

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ARCHITECTURE = DOCS / "architecture.md"
RUN = [page for page in readme.PAGES if readme.BLOCK.search(page.read_text())]
NOT_RUN = [
    (page, block["code"])
    for page in readme.PAGES
    for block in readme.BLOCK.finditer(page.read_text())
    if (block["note"] or "").startswith("not run") and block["kind"] == "python"
]
#: Words of other languages and programs that codespell takes for English ones.
WORDS = "trainner"
#: Older versions of numcodecs pack some pictures into other sizes, and pages import frameworks.
from_3_11 = pytest.mark.skipif(
    not HAS_FRAMEWORKS, reason="the pages are written with the packages of requirements.lock for Python 3.11 and later"
)


def _page(page: Path) -> object:
    """Return the page as a parameter; packages that it imports next to ours may warn, or hold on to datasets."""
    packages = "accelerate|albumentations|grain|ignite|kornia|lightning|monai|torchdata|transformers|webdataset|zarr"
    others = re.search(rf"^(?:import|from) (?:{packages})", page.read_text(), re.MULTILINE)
    marks = [pytest.mark.filterwarnings("ignore"), pytest.mark.keeps_open] if others else []
    return pytest.param(page, marks=marks, id=str(page.relative_to(ROOT)))


@from_3_11
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", [_page(page) for page in RUN])
def test_a_page_does_what_it_shows(page: Path, demo_data: Path) -> None:
    """Every command and every block of Python runs, in the order of the page, and prints what stands below it.

    That of `docs/want/faster.md` takes 11 s: it measures with the figures that `packer bench` takes for users. That of
    `docs/have/datasets.md` takes 12 s for its forty commands, several times as long on a busy machine.
    """
    text = page.read_text()
    with in_this_process():
        assert readme.refreshed(text, demo_data) == text
    gc.collect()  # what a package left open warns here, and not in the next test
    gc.freeze()  # what it imported is not gone through again


@pytest.mark.parametrize("page", readme.PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_are_run(page: Path) -> None:
    """A block of Python, or of commands with their output, is none that nothing looks at."""
    text = page.read_text()
    known = [block for block in readme.BLOCK.finditer(text) if block["kind"]]
    assert len(re.findall(r"^```(?:python|console)$", text, re.MULTILINE)) == len(known)


@pytest.mark.parametrize("number", range(len(NOT_RUN)), ids=lambda number: NOT_RUN[number][0].name)
def test_what_cannot_be_run_can_be_pasted(number: int) -> None:
    """Such a block imports every name that it uses, and what it imports of ours is there."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "E9,F", "-"]
    checked = subprocess.run(command, input=NOT_RUN[number][1], capture_output=True, text=True, timeout=100)
    assert checked.returncode == 0, checked.stdout
    ours = re.findall(r"^from (?:packer|readers).*", NOT_RUN[number][1], re.MULTILINE)
    assert ours
    exec("\n".join(ours), {})


def test_the_readme_takes_half_a_minute() -> None:
    """It has at most 120 lines."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("name", pictures.pictures())
def test_pictures_show_the_figures_of_the_pages(name: str) -> None:
    """`python scripts/pictures.py` draws them anew from the tables."""
    assert pictures.pictures()[name] == (pictures.FOLDER / name).read_text()


def listed(page: str, head: str) -> list[str]:
    """Return the names in the first column of the tables of a page that begin with this line, in their order."""
    tables = (DOCS / page).read_text().split(f"\n{head}\n")[1:]
    rows = [row for table in tables for row in table.partition("\n\n")[0].splitlines()[1:]]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]


@pytest.mark.parametrize(
    ("page", "head", "names"),
    [
        ("reference/commands.md", "| command | does |", [f"packer {command}" for command in COMMANDS]),
        ("want/smaller.md", "| codec | for | ratio | decodes at |", [*NAMED, "jpeg:90", "h264:18"]),
        ("want/changing.md", "| `--to` | writes |", list(KINDS)),
    ],
    ids=["commands", "codecs", "exports"],
)
def test_tables_list_what_there_is(page: str, head: str, names: list[str]) -> None:
    """Commands, codecs and kinds of exports have their lines in the book, and nothing else does."""
    assert sorted(listed(page, head)) == sorted(names)


def test_the_table_of_exports_says_what_the_help_says() -> None:
    """Each kind of files has its line, word for word."""
    page = (DOCS / "want/changing.md").read_text()
    assert [kind for name, kind in KINDS.items() if f"| `{name}` | {kind.writes} |" not in page] == []


def test_options_of_sources_are_told_of() -> None:
    """The page of sources names every option, every unit and the files of every kind."""
    page = (DOCS / "reference/sources.md").read_text()
    assert [flag for flag in map(flag_of, fields(SourceOptions)) if f"`{flag}" not in page] == []
    assert [unit for kind in all_kinds().values() for unit in kind.units if not re.search(rf"`{unit}[:`]", page)] == []


def test_the_pages_of_python_lack_nothing() -> None:
    """All public names stand on the page of Python; features and parameters of reading on that of reading in short."""
    page, short = ((DOCS / "reference" / f"{name}.md").read_text() for name in ("python", "reading"))
    documented = re.findall(r"^::: (\S+)", page, re.MULTILINE)
    assert set(public.things()) <= set(documented)
    members = [
        name
        for names in re.findall(r"^::: readers.*\n.*\n +members: \[(.*)\]", page, re.MULTILINE)
        for name in names.split(", ")
    ]
    classes = PackedDataset, Loader
    parameters = [name for thing in classes for name in inspect.signature(thing).parameters if name != "others"]
    lacking = [name for name in (*parameters, *readers.__all__) if not re.search(rf"`[^`]*\b{name}\b[^`]*`", short)]
    assert lacking == []
    assert [name for name in members if not re.search(rf"\b{name}\b", short)] == []


@pytest.mark.parametrize(("page", "least"), [("compare.md", 4), ("how/guarantees.md", 24)])
def test_tests_that_a_page_names_are_there(page: str, least: int) -> None:
    """Each promise names the tests that hold it."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", (DOCS / page).read_text())
    assert len(named) >= least
    assert [name for file, name in named if f"\ndef {name}(" not in (ROOT / file).read_text()] == []


@pytest.mark.parametrize("page", readme.PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link is to a file of the project, and if it names a heading, to one of that page."""
    for target, heading in re.findall(r"\]\(([^)#:]*)(#[^)]*)?\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)", file.read_text(), re.MULTILINE)
            assert heading[1:] in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The book, built as scripts/docs does it; that warned of nothing."""
    if not HAS_FRAMEWORKS:
        pytest.skip("what builds the book is not installed here")
    folder = tmp_path_factory.mktemp("book")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    assert "not included in the" not in built.stderr
    return folder


def test_the_book_is_whole(book: Path) -> None:
    """It is built without a warning, has the help of every command, and asks no network for anything."""
    text = (book / "reference" / "commands.html").read_text()
    assert [command for command in COMMANDS if f"packer {command} [OPTIONS]" not in text] == []
    for page in book.rglob("*.html"):
        assert re.findall(r"<(?:script|link|img)[^>]* (?:src|href)=\"https?:[^>]*", page.read_text()) == [], page


def test_pages_lie_there_as_markdown(book: Path) -> None:
    """Next to every page is its text, with what was made for it; llms.txt lists each of them once."""
    pages = {page.relative_to(book).with_suffix(".md").as_posix() for page in book.rglob("*.html")} - {"404.md"}
    listed = re.findall(r"^- \[[^\]]+\]\((.*)\)$", (book / "llms.txt").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(pages)
    assert "packer convert [OPTIONS]" in (book / "reference" / "commands.md").read_text()
    text = (book / "reference" / "python.md").read_text()
    assert "sample_transform: called with each sample" in text
    assert "### load_state_dict(self, state" in text
    assert [page for page in pages if re.search(r"^:::|<!--", (book / page).read_text(), re.MULTILINE)] == []


def test_the_book_is_searched_from_a_file(book: Path, browser: Any) -> None:
    """Opened without a server, in a browser, the search finds the class that a word stands for."""
    tab = browser.new_page()
    wrong: list[str] = []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.goto((book / "how" / "dataset.html").as_uri())
    tab.click("input.md-search__input")
    tab.keyboard.type("voxel")
    tab.wait_for_selector(".md-search-result__item", timeout=20_000)
    assert "VoxelSample" in tab.inner_text(".md-search-result__list")
    tab.close()
    assert wrong == []


def test_words_are_spelt_right() -> None:
    """codespell finds nothing in the pages, the changelog and the specification."""
    pages = [*readme.PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "packer" / "format" / "FORMAT.md"]
    command = [sys.executable, "-m", "codespell_lib", "-L", WORDS, *map(str, pages)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert checked.returncode == 0, checked.stdout


def test_the_map_names_files_that_are_there() -> None:
    """Every path, room and name in the code that the map of the house gives is one of the project."""
    text = ARCHITECTURE.read_text()
    named = re.findall(r"`((?:packer|readers|tests|docs|scripts)/[\w./*]*)`", text)
    assert len(named) > 30
    assert [path for path in named if not list(ROOT.glob(path.rstrip("/")))] == []
    code = "".join(path.read_text() for room in ("packer", "readers", "tests") for path in ROOT.glob(f"{room}/**/*.py"))
    names = set(re.findall(r"`(\w*_\w*)`", text))
    assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []
    rooms = {path.name for path in (ROOT / "packer").iterdir() if (path / "__init__.py").exists()}
    assert [room for room in rooms if f"| `packer/{room}/` |" not in text] == []


def test_every_extra_is_told_of() -> None:
    """The table of extras has those that can be installed, and no message names another."""
    section = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = set(re.findall(r"^(\w+) = \[", section, re.MULTILINE))
    table = (DOCS / "install.md").read_text().partition("| extra | for |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines()[2:]))) == extras
    for path in (ROOT / "packer").rglob("*.py"):
        named = re.findall(r"pip install '\.\[(\w+)\]'", path.read_text())
        assert set(named) <= extras, path
