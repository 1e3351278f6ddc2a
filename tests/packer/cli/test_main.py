"""`packer` itself: its commands, their help, and what ends it."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click import shell_completion

import packer as package
from packer.cli import COMMANDS, main
from packer.cli.logs import set_up
from packer.codecs import NAMED
from packer.convert import convert
from packer.verify import verify
from packer.writer import DatasetWriter

ROOT = Path(package.__file__).parents[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(packer, name):
    """The help of every command shows a line that can be run, and says what each option is for."""
    result = packer(name, "--help")
    assert re.search(rf"^\s+\$ packer {name} \S", result.stdout, re.MULTILINE)
    options = [each for each in main.get_command(click.Context(main), name).params if isinstance(each, click.Option)]
    assert {"verbose", "quiet"} <= {option.name for option in options}
    assert not [option.name for option in options if not option.help]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_a_place_that_is_not_there(packer, refused, tmp_path, monkeypatch, name):
    """It is wrong usage, told by one sentence on stderr that names it; nothing is printed, and nothing made."""
    monkeypatch.chdir(tmp_path)
    params = main.get_command(click.Context(main), name).params
    given = [param for param in params if param.required] or [p for p in params if isinstance(p, click.Argument)]
    words = [word for param in given for word in (*param.opts[:1], "none") if word.startswith(("-", "none"))]
    refused(2, [name, *words], "none")
    assert packer(name, *words, status=2).stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_speaks_of_what_is_written_alone(packer, name):
    """Files of rejected samples are told of by the commands that write them."""
    assert ("left-out-*" in packer(name, "--help").stdout) == (name in ("convert", "append"))


def test_help_names_every_codec(packer):
    """A codec that has a name can be found."""
    words = set(re.split(r"[,\s]+", packer("convert", "--help").stdout))
    assert set(NAMED) <= words


def test_verbose_says_more(packer, rows, tmp_path):
    """Versions and time, and the shards of a conversion; without it none of them."""
    said = packer("convert", rows.path, tmp_path / "a", "--workers", 0, "-v").stderr.splitlines()
    assert said[0].startswith(f"packer: version {package.__version__}, Python 3.")
    assert any(re.match(r"packer: shard 0: samples 0 to 399, .* map of ", line) for line in said)
    assert re.fullmatch(r"packer: ended after [\d.]+ s", said[-1])
    assert packer("convert", rows.path, tmp_path / "b", "--workers", 0).stderr == ""


def test_help_lists_all_commands(packer):
    """`packer --help` names every command by what it is for; without arguments the same is shown as wrong usage."""
    result = packer("--help")
    for name, text in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(text)}", result.stdout, re.MULTILINE)
    assert re.findall(r"^(\w+):$", result.stdout, re.MULTILINE) == ["Options", "Make", "Look", "Change"]
    nothing = packer(status=2)
    assert (nothing.stderr, nothing.stdout) == (result.stdout, "")


def test_version(packer):
    """--version says the version of the package."""
    assert packer("--version").stdout == f"packer {package.__version__}\n"


@pytest.mark.skipif(not Path("/bin/sh").exists(), reason="closes files by a shell")
def test_closed_streams(rows, tmp_path):
    """Nobody has to listen: services start programs with stdout and stderr closed."""
    command = [sys.executable, "-m", "packer.cli", "convert", str(rows.path), str(tmp_path / "out")]
    subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *command], cwd=ROOT, check=True)
    assert not verify(tmp_path / "out").damages


@pytest.mark.parametrize(("arguments", "status"), [(["info", "OUT"], 0), (["info", "none"], 2)])
def test_a_program_ends_with_its_command(rows, tmp_path, arguments, status):
    """Functions of atexit are called, and no more: a kill then would make a finished append look unfinished."""
    out = str(convert(rows.sources, tmp_path / "out", workers=0).path)
    code = """
import atexit
from packer.cli.main import run
class Watch:
    def __del__(self): print("taken apart")
watch = Watch()
atexit.register(print, "at the end")
run()
"""
    command = [sys.executable, "-c", code, *(out if text == "OUT" else text for text in arguments)]
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert ended.returncode == status
    assert ("samples" in ended.stdout) == (status == 0)
    assert ("packer: error: " in ended.stderr) == (status != 0)
    assert "at the end" in ended.stdout
    assert "taken apart" not in ended.stdout


def test_nothing_is_left_to_be_cleaned_up(rows, tmp_path):
    """Where processes are not made by fork, as from Python 3.14 on, the semaphore of numcodecs is given back."""
    code = "import multiprocessing as m; m.set_start_method('spawn'); from packer.cli.main import run; run()"
    arguments = ["convert", str(rows.path), str(tmp_path / "new"), "--codec", "bitshuffle", "--workers", "0"]
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert "leaked" not in ended.stderr


def test_character_sets_without_a_letter(tmp_path):
    """What a terminal cannot show stands there as escapes."""
    with DatasetWriter(tmp_path / "out") as writer:
        writer.add({"x": np.zeros(3)}, name="\u65e5")
    command = [sys.executable, "-m", "packer.cli", "info", str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1:strict"}
    told = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    assert rb"\u65e5" in told.stdout


def test_wrong_usage(refused):
    """An unknown command or option, and a missing argument, end with 2 and point to the help."""
    refused(2, ["pack"], "pack", "packer --help")
    refused(2, ["info"], "DATASET", "packer info --help")
    refused(2, ["info", "x", "--jsn"], "--jsn")
    refused(2, ["info", "x", "-v", "-q"], "exclude each other")


def test_a_misspelt_command_is_told_what_is_alike(refused):
    """The commands that are written almost so; nothing where none is."""
    refused(2, ["convrt"], "No such command 'convrt'; did you mean convert?")
    refused(2, ["xyz"], "No such command 'xyz' (see")


def test_what_is_logged_cannot_move_the_cursor(packer, capsys):
    """File names stand in notes and warnings too."""
    set_up(logging.INFO)
    logging.getLogger("packer.x").warning("b\u00e4d  \x1b[2J.png: skipped\nas it is")
    assert capsys.readouterr().err == "packer: warning: b\u00e4d  \\x1b[2J.png: skipped\nas it is\n"


def test_a_shell_can_complete_commands_and_options():
    """As the book says; commands that are loaded late among them."""
    shell = shell_completion.get_completion_class("bash")
    found = shell(main, {}, "packer", "_PACKER_COMPLETE").get_completions(["convert"], "--over")
    assert [item.value for item in found] == ["--overwrite"]
    names = [item.value for item in shell(main, {}, "packer", "_PACKER_COMPLETE").get_completions([], "")]
    assert set(names) == set(COMMANDS)
