"""Kubeconfigs that are none, and API servers that aren't there: one sentence each, and exit code 4."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from trainjob.cli import main

NO_PROGRAM = {
    "exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "no-such-program",
        "interactiveMode": "Never",
    }
}


def kubeconfig(server: str = "https://127.0.0.1:1", user: dict[str, Any] | None = None) -> str:
    context = {"name": "main", "context": {"cluster": "c", "user": "u"}}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "contexts": [context],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user or {"token": "secret"}}],
    }
    return yaml.safe_dump(config)


def get(folder: Path, text: str, *options: str) -> tuple[int, str]:
    file = folder / "kubeconfig"
    file.write_text(text)
    result = CliRunner().invoke(main, ["get", "--kubeconfig", str(file), *options])
    assert result.stdout == ""
    return result.exit_code, result.stderr.replace(str(file), "FILE")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("just words", "the kubeconfig FILE can't be used: it doesn't have the form of one\n"),
        ("- a list", "the kubeconfig FILE can't be used: it doesn't have the form of one\n"),
        ("", "file is empty\n"),
        ("{}", "Expected key current-context in FILE\n"),
        ("a: [", "while parsing a flow node"),
        (kubeconfig(user=NO_PROGRAM), "No such file or directory: 'no-such-program'\n"),
    ],
)
def test_a_file_that_is_no_kubeconfig(text: str, told: str, tmp_path: Path) -> None:
    code, said = get(tmp_path, text)
    assert code == 4
    assert said.startswith("the kubeconfig FILE can't be used: ")
    assert told in said
    assert said.count("\n") == 1


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["get", "--kubeconfig", str(tmp_path / "none")])
    assert (result.exit_code, result.stdout) == (4, "")
    assert "name one by --kubeconfig or KUBECONFIG" in result.stderr


def test_a_context_that_is_not_there(tmp_path: Path) -> None:
    code, said = get(tmp_path, kubeconfig(), "--context", "other")
    assert (code, said) == (4, "there is no context 'other' in the kubeconfig FILE; it has main\n")


def test_a_refused_connection_is_called_so(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"https://127.0.0.1:{taken.getsockname()[1]}"
        code, said = get(tmp_path, kubeconfig(address))
    assert (code, said) == (4, f"the API server {address} can't be reached: Connection refused\n")
