"""All pages: each is in the site's navigation, its links lead somewhere, and what it shows is there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from support.cli.program import CONTEXT
from support.pages import commands
from trainjob.cli import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TEXTS = {str(page.relative_to(DOCS)): page.read_text() for page in sorted(DOCS.rglob("*.md"))}
SITE = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]


def entries(nav: Any) -> Iterator[str]:
    """The pages of a navigation, at any depth."""
    for item in nav:
        for target in item.values():
            yield from [target] if isinstance(target, str) else entries(target)


def named(name: str) -> list[tuple[str, str]]:
    return [(page, command) for page, text in TEXTS.items() for command in commands(text, name)]


def test_every_page_is_in_the_navigation_once() -> None:
    decisions = {page for page in TEXTS if re.match(r"adr/\d", page)}
    assert sorted(entries(SITE["nav"])) == sorted(set(TEXTS) - decisions)


def test_the_site_is_checked() -> None:
    """`make check` builds the site, which checks links to pages; links to other files are checked here."""
    assert SITE["validation"] == {"invalid_links": True, "invalid_link_anchors": True}
    check = re.search(r"^check:.*\n(\t.*\n)+", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert check is not None
    assert "docs\n" in check[0]


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page: str) -> None:
    prose = re.sub(r"^```.*?^```", "", TEXTS[page], flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose)
    missing = [
        link for link in links if "://" not in link and not (DOCS / page).parent.joinpath(link).exists()
    ]
    assert missing == []


PYTHON = [
    (page, text)
    for page, whole in TEXTS.items()
    for text in re.findall(r"^```python\n(.*?)^```", whole, re.DOTALL | re.MULTILINE)
    if page not in ("notebook.md", "first-steps.md")  # written from the notebook, which is run
    if page != "python.md" or text.startswith("#")  # test_python.py holds its calls against the classes
]


def example_code(name: str) -> str:
    """The code of a script, or of a notebook's cells."""
    text = (ROOT / name).read_text()
    if not name.endswith(".ipynb"):
        return text
    return "\n".join(
        "".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"
    )


@pytest.mark.parametrize(("page", "text"), PYTHON, ids=[page for page, _ in PYTHON])
def test_code_is_an_examples(page: str, text: str) -> None:
    """Its first line names an example, which tests run; the other lines are of that file, in its order."""
    first, _, rest = text.partition("\n")
    name = re.fullmatch(r"# (examples/\w+\.(?:py|ipynb))", first)
    assert name is not None, f"{page}: {first}"
    remaining = iter(example_code(name[1]).splitlines())
    shown = [line for line in rest.splitlines() if line.strip()]
    assert shown
    for line in shown:
        assert line in remaining, line


def test_the_guides_show_code() -> None:
    guides = {"your-script.md", "train-and-evaluate.md", "custom-loop.md", "data.md", "precision.md"}
    assert guides <= {page for page, _ in PYTHON}


OURS = [(page, command) for page, command in named("trainjob") if page != "cli.md"]  # that has test_cli.py


@pytest.mark.parametrize(("page", "command"), OURS)
def test_our_commands_are_understood(page: str, command: str) -> None:
    _, name, *arguments = shlex.split(re.split(r" (?:\|\|?|&&|>) ?", command, maxsplit=1)[0])
    known = main.get_command(CONTEXT, name)
    assert isinstance(known, click.Command), f"{page}: {command}"
    known.make_context(name, arguments, parent=CONTEXT)


@pytest.mark.parametrize("command", sorted({command for _, command in OURS}))
def test_the_examples_that_commands_name_are_there(command: str) -> None:
    assert all((ROOT / file).exists() for file in re.findall(r"examples/\S+", command))


def test_validate_prints_what_the_quickstart_shows() -> None:
    command, _, output = re.findall(r"^\$ (trainjob validate .*?)^```", TEXTS["quickstart.md"], re.S | re.M)[
        0
    ].partition("\n")
    done = subprocess.run(
        [str(Path(sys.executable).parent / "trainjob"), *command.split()[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == output


def test_images_are_built_as_on_their_page() -> None:
    """The cluster's page repeats commands of the page about images, and no others."""
    built = {command for page, command in named("docker") if page == "images.md"}
    assert {c for page, c in named("docker") if page == "cluster.md"} <= built
