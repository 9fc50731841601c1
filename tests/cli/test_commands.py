import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from support.cli.server import CliServer
from trainjob.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples/digits.yaml"
COMMANDS = [
    "run",
    "init",
    "validate",
    "render",
    "submit",
    "list",
    "get",
    "compare",
    "logs",
    "wait",
    "suspend",
    "resume",
    "scale",
    "delete",
    "cp",
    "tensorboard",
    "doctor",
    "ui",
    "convert",
    "controller",
]
ANY_PROGRAM = """
apiVersion: trainjob.dev/v1alpha1
kind: TrainJob
metadata: {name: any}
spec:
  worker: {replicas: 1}
  evaluator: {replicas: 0}
  output: {claim: {claimName: training}}
  template: {spec: {containers: [{name: trainer, image: any, command: ["true"]}]}}
"""


def test_help_names_every_command_and_cuts_no_sentence() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0, result.output
    rows = [line.split(maxsplit=1) for line in result.stdout.partition("Commands:\n")[2].splitlines()]
    assert [name for name, _ in rows] == COMMANDS
    assert all(told.endswith(".") and not told.endswith("...") for _, told in rows)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(main, [command, "-h"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.stdout


@pytest.mark.parametrize("command", [["--version"], ["render", EXAMPLE]])
def test_output_that_can_not_be_written_ends_in_a_sentence(command: list[str | Path]) -> None:
    program = Path(sys.executable).with_name("trainjob")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [program, *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    told = "the output can't be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, told)


def test_complaints_that_can_not_be_written_keep_the_exit_code() -> None:
    program = Path(sys.executable).with_name("trainjob")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([program, "validate", "missing.yaml"], stderr=full, check=False)
    assert done.returncode == 2


def test_without_the_kubernetes_client_a_sentence_says_so(
    api: CliServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    for name in [name for name in sys.modules if name.startswith("kubernetes.")]:
        monkeypatch.delitem(sys.modules, name)
    result = CliRunner().invoke(main, ["get"])
    assert result.exit_code == 4
    assert "the package `kubernetes`" in result.stderr


def test_an_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["train"])
    assert result.exit_code == 2
    assert "No such command 'train'" in result.stderr


def test_the_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).exit_code == 0


def test_no_command_waits_for_the_official_client_and_only_the_controller_needs_its_packages(
    tmp_path: Path,
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(ANY_PROGRAM)
    code = """
import sys
sys.modules["kopf"] = sys.modules["prometheus_client"] = None
from trainjob.cli import commands
for name in commands._MODULES:
    commands.main.get_command(None, name)
assert "kubernetes" not in sys.modules
commands.main(["run", "job.yaml", "--plain"])
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "any is complete" in done.stdout
