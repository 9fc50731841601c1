"""What the page about TFJobs shows is true: its commands are run on its own files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainjob.convert import PLACEHOLDER_CLAIM
from trainjob.convert.policies import DEFAULT_RESTARTS, RunPolicy
from trainjob.convert.replica_specs import ROLES

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "migrating-from-tfjob.md").read_text()
FILES = dict(re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
CONSOLE = "".join(re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
COMMANDS = [part.partition("\n")[::2] for part in re.split(r"^\$ ", CONSOLE, flags=re.MULTILINE)[1:]]


def test_the_commands_print_what_is_shown(tmp_path: Path) -> None:
    """Those of kubectl are run by tests/e2e/control_plane/test_docs.py."""
    (tmp_path / "tfjob.yaml").write_text(f"# tfjob.yaml\n{FILES['tfjob.yaml']}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ours = [(command, output) for command, output in COMMANDS if command.startswith("trainjob ")]
    assert len(ours) == 2
    for command, output in ours:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=True,
        )
        assert done.stdout == output
    made = (tmp_path / "trainjob.yaml").read_text()
    assert re.sub(r"^(#.*|---)\n", "", made, flags=re.MULTILINE) == FILES["trainjob.yaml"]


def test_there_are_no_other_commands() -> None:
    assert {command.split()[0] for command, _ in COMMANDS} == {"trainjob", "kubectl"}


@pytest.mark.parametrize("field", sorted(RunPolicy.FIELDS))
def test_every_field_of_the_run_policy_is_in_the_table(field: str) -> None:
    table = PAGE[PAGE.index("## Field by field") : PAGE.index("## What is different")]
    assert re.search(rf"`(runPolicy\.)?{field}[.`]", table)


@pytest.mark.parametrize("role", sorted(ROLES))
def test_every_replica_type_is_in_the_table(role: str) -> None:
    assert re.search(rf"`(tfReplicaSpecs\.)?{role}`", PAGE, re.IGNORECASE)


def test_numbers_and_names_are_the_programs() -> None:
    assert f"`{PLACEHOLDER_CLAIM}`" in PAGE
    assert f"the limit, {DEFAULT_RESTARTS} without one" in PAGE


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", PAGE))
def test_links_lead_somewhere(target: str) -> None:
    assert (DOCS / target).exists()
