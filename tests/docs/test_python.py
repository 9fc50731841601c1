"""The page about Python names what there is."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from trainjob import Job, Trainer

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
REFERENCE = PAGE.partition("## Reference")[2]
OWNERS = {"job": Job, "Job": Job, "trainer": Trainer}


@pytest.mark.parametrize("block", BLOCKS)
def test_its_code_calls_what_there_is(block: str) -> None:
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in OWNERS:
            assert hasattr(OWNERS[node.value.id], node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Trainer":
            given = {keyword.arg: None for keyword in node.keywords if keyword.arg}
            inspect.signature(Trainer).bind(*node.args, **given)


def test_its_reference_has_every_argument_of_a_trainer() -> None:
    named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?`) \|", REFERENCE, re.MULTILINE))))
    assert set(inspect.signature(Trainer).parameters) - {"train"} == named


def test_its_reference_has_every_call_with_its_arguments() -> None:
    shown = re.findall(r"`(?:(job|Job|trainer)\.)(\w+)(?:\((.*?)\))?`", REFERENCE)
    for owner, name, arguments in shown:
        call = getattr(OWNERS[owner], name)
        if not isinstance(call, property):
            names = re.findall(r"(\w+)(?:=\w+)?", arguments.replace("=None", "").replace("=False", ""))
            assert [n for n in names if not n.isdigit()] == [
                name for name in inspect.signature(call).parameters if name != "self"
            ][: len(names)]
    public = {name for name, _ in inspect.getmembers(Job) if not name.startswith("_")}
    assert {name for owner, name, _ in shown if owner != "trainer"} >= public - {"aio", "all", "name"}
