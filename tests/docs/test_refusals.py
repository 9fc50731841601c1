"""What the page of refusals says, in the words of the trainer."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import trainjob_trainer
from trainjob_trainer.contract.exits import ExitCode

PAGE = Path(__file__).parents[2] / "docs" / "refusals.md"
TEXT = PAGE.read_text()
ROWS = re.findall(r"^\| ([^|]+) \| `([^`]+)` \| (\d+) \|$", TEXT, re.MULTILINE)
LEAST_WORDS = 2


def said_by_the_trainer() -> set[str]:
    """The constant parts of the sources' messages, if they are a few words long."""
    files = Path(trainjob_trainer.__file__).parent.rglob("*.py")
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text.strip() for text in texts if len(text.split()) >= LEAST_WORDS}


SAID = said_by_the_trainer()


def test_there_are_rows() -> None:
    assert len(ROWS) == TEXT.count("\n| ") - 2


@pytest.mark.parametrize(("what", "sentence", "code"), ROWS, ids=[row[0] for row in ROWS])
def test_a_refusal_has_the_documented_text(what: str, sentence: str, code: str) -> None:
    del what
    assert int(code) in list(ExitCode)
    words = sentence.replace("…", "").strip()
    assert any(said in words or words in said for said in SAID), words
