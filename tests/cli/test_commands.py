import pytest
from click.testing import CliRunner

from trainjob.cli import main


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert [word for word in ("run", "validate", "render") if f"  {word} " in result.stdout] == [
        "run",
        "validate",
        "render",
    ]


@pytest.mark.parametrize("command", ["run", "validate", "render"])
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(main, [command, "-h"])
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


def test_an_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["train"])
    assert result.exit_code == 2
    assert "No such command 'train'" in result.stderr


def test_the_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).exit_code == 0
