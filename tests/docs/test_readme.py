"""What the README shows is true: commands print what it says, code is that of examples that are run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
CI = (ROOT / ".ci" / "run").read_text()


def shown_commands() -> list[tuple[str, str]]:
    """Every command of a console block, with the output that the block shows for it."""
    found = []
    for language, text in BLOCKS:
        if language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                found.append((command, output))
    return found


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    assert {language for language, _ in BLOCKS} == {"console", "yaml", "python"}


@pytest.mark.parametrize(
    ("command", "output"), [(c, o) for c, o in shown_commands() if c.startswith("trainjob ")]
)
def test_a_command_prints_what_is_shown(command: str, output: str) -> None:
    arguments = command.split()[1:]
    done = subprocess.run(
        [str(Path(sys.executable).parent / "trainjob"), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == output


def test_the_two_commands_are_the_ones_that_are_run() -> None:
    """`make test` is what CI runs, and `make run` is run whole by tests/multiprocess."""
    assert [c for c, _ in shown_commands() if c.startswith("make")] == ["make run", "make test"]
    assert "\nmake test\n" in CI


def test_the_job_is_the_example() -> None:
    shown = next(text for language, text in BLOCKS if language == "yaml")
    name, _, job = shown.partition("\n")
    example = (ROOT / name.removeprefix("# ")).read_text()
    assert job == re.sub(r"^#.*\n", "", example, flags=re.MULTILINE)


def test_the_code_is_the_examples() -> None:
    for text in (text for language, text in BLOCKS if language == "python"):
        name = re.match(r"# (examples/\w+\.py)\n", text)
        lines = {line.strip() for line in text.splitlines()[bool(name) :] if line.strip()}
        example = ROOT / (name[1] if name else "examples/digits.py")
        assert lines <= {line.strip() for line in example.read_text().splitlines()}


def test_the_site_begins_with_the_same_script() -> None:
    (script,) = [text for language, text in BLOCKS if language == "python" and "examples/train.py" in text]
    assert script in (ROOT / "docs" / "index.md").read_text()


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", README))
def test_links_lead_somewhere(target: str) -> None:
    assert target.startswith("https://") or (ROOT / target).exists()
