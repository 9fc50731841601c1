"""What `trainjob convert` prints: scripts stay readable, and every reader of YAML reads them as they were."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from support.golden import Golden
from support.world.tfjobs import build_claim_mount, build_replicas, build_tfjob
from trainjob.api import read_documents
from trainjob.cli import main


def convert(text: str) -> Result:
    return CliRunner().invoke(main, ["convert", "-"], input=text)


def with_script(script: str) -> dict[str, Any]:
    mount = build_claim_mount()
    container = {**mount["container"], "command": ["bash", "-c"], "args": [script]}
    return build_tfjob({"Worker": build_replicas(container=container, pod=mount["pod"])})


def args_of(manifest: dict[str, Any]) -> list[str]:
    args: list[str] = manifest["spec"]["template"]["spec"]["containers"][0]["args"]
    return args


def test_a_script_is_a_block_of_lines() -> None:
    printed = convert(json.dumps(with_script("set -e\n\nexec python train.py \\\n  --epochs 3\n"))).stdout
    block = """
        args:
        - |
          set -e

          exec python train.py \\
            --epochs 3
"""
    assert block in printed


@pytest.mark.parametrize(
    ("script", "is_block"),
    [
        ("one\ntwo\n", True),
        ("one\ntwo\nthree", True),
        ("one\ntwo\n\n\n", True),
        ("# no comment\n--- no document\n", True),
        ("key: value\n- item\n", True),
        ("one\n\n\n  two\n", True),
        ("grüße\n世界\n", True),
        ("one\n", False),
        (" indented\ntwo\n", False),
        ("\none\ntwo\n", False),
        ("one \ntwo\n", False),
        ("one\n\ttab\n", False),
        ("one\r\ntwo\r\n", False),
        ("bell \a\ntwo\n", False),
        ("line\u2028separator\ntwo\n", False),
    ],
)
def test_a_script_is_read_as_it_was(script: str, is_block: bool) -> None:
    result = convert(json.dumps(with_script(script)))
    assert result.exit_code == 0, result.stderr
    assert args_of(yaml.safe_load(result.stdout)) == [script]
    (document,) = read_documents(result.stdout, source="stdout")
    assert args_of(document.raw) == [script]
    assert ("- |" in result.stdout) == is_block


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n---\n---\n"])
def test_of_nothing_it_says_what_it_expects(text: str, golden: Golden) -> None:
    result = convert(text)
    assert (result.exit_code, result.stdout) == (1, "")
    golden(result.stderr)
