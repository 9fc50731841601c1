"""The page of the command line names what there is, and its commands are understood."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from support.cli.program import CONTEXT
from trainjob.cli import main
from trainjob.cli.ending import Exit

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "cli.md").read_text()
SHOWN = [
    shlex.split(line.partition(" ||")[0]) for line in re.findall(r"^    trainjob (.*)$", PAGE, re.MULTILINE)
]


def command_of(name: str) -> click.Command:
    command = main.get_command(CONTEXT, name)
    assert command is not None, name
    return command


def test_every_command_is_in_the_table() -> None:
    table = re.findall(r"^\| `(\w+)[^`]*` \|", PAGE, re.MULTILINE)
    assert table == main.list_commands(CONTEXT)


def test_there_are_commands() -> None:
    own = {"render", "convert", "controller"}  # pages of their own, or a sentence
    assert {words[0] for words in SHOWN} == set(main.list_commands(CONTEXT)) - own


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_a_command_is_understood(words: list[str]) -> None:
    name, *arguments = words
    command_of(name).make_context(name, arguments, parent=CONTEXT)


def test_every_option_that_is_named_exists() -> None:
    known = {
        word
        for name in main.list_commands(CONTEXT)
        for parameter in command_of(name).params
        for word in (*parameter.opts, *parameter.secondary_opts)
    }
    named = {word for code in re.findall(r"`([^`]+)`", PAGE) if not code.startswith("kubectl")
             for word in re.findall(r"(?<!\S)--?[a-z][a-z-]*", code)}  # fmt: skip
    assert named - known <= {"--help"}
    assert {"--cluster", "--previous", "-n", "-o"} <= named


def test_the_exit_codes_are_the_programs() -> None:
    section = PAGE.partition("## Exit codes")[2].partition("\n## ")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)] == sorted(Exit)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#:]+)[)#]", PAGE))))
def test_links_lead_somewhere(target: str) -> None:
    assert (DOCS / target).exists()
