from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from support.cli.program import CONTEXT
from support.kube.controller import write_kubeconfig
from trainjob.cli.controller import controller, read_settings
from trainjob.cluster.kube.informer import Timeouts
from trainjob.controller.election import Election
from trainjob.controller.process_settings import OperatorSettings
from trainjob.core.settings import Isolation

POD = {"POD_NAME": "controller-0", "POD_NAMESPACE": "trainjob"}
RULES = [{"from": [{"namespaceSelector": {}}]}]


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    return write_kubeconfig(tmp_path, "https://api.example.com")


def read(kubeconfig: Path, *arguments: str, environment: dict[str, str] | None = None) -> OperatorSettings:
    given = [f"--kubeconfig={kubeconfig}", *arguments]
    context = controller.make_context("controller", given, parent=CONTEXT)
    return read_settings(context.params, POD if environment is None else environment)


def test_what_holds_without_options(kubeconfig: Path) -> None:
    settings = read(kubeconfig)
    assert settings.access.server == "https://api.example.com"
    assert settings.identity.startswith("controller-0_")
    assert settings.namespace is None
    assert settings.election == Election("trainjob", "trainjob-controller")
    assert (settings.key_namespace, settings.key_name) == ("trainjob", "trainjob-agent-key")
    assert (settings.host, settings.port, settings.workers) == ("0.0.0.0", 8080, 16)  # noqa: S104
    assert settings.plan.isolation == Isolation("trainjob", ())


def test_two_processes_of_one_pod_have_different_identities(kubeconfig: Path) -> None:
    assert read(kubeconfig).identity != read(kubeconfig).identity


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--namespace=team"], {"namespace": "team"}),
        (["--namespace="], {"namespace": None}),  # as an environment variable that is set to nothing
        (["--no-leader-elect"], {"election": None}),
        (["--lease-name=l", "--lease-namespace=n"], {"election": Election("n", "l")}),
        (["--agent-key=k"], {"key_namespace": "trainjob", "key_name": "k"}),
        (["--agent-key=k", "--lease-namespace=n"], {"key_namespace": "n", "key_name": "k"}),
        (["--http-address=127.0.0.1:0"], {"host": "127.0.0.1", "port": 0}),
        (["--http-address=[::]:9090"], {"host": "::", "port": 9090}),
        (["--http-address=:9090"], {"host": "0.0.0.0", "port": 9090}),  # noqa: S104
        (["--workers=3"], {"workers": 3}),
        (["--watch-silence=5"], {"timeouts": Timeouts(inactivity=5.0)}),
    ],
)
def test_options(kubeconfig: Path, arguments: list[str], expected: dict[str, Any]) -> None:
    settings = read(kubeconfig, *arguments)
    assert {name: getattr(settings, name) for name in expected} == expected


def test_rules_from_text_and_from_a_file(kubeconfig: Path, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("- from:\n  - namespaceSelector: {}\n")
    for given in (json.dumps(RULES), str(file)):
        isolation = read(kubeconfig, f"--extra-ingress={given}").plan.isolation
        assert isolation == Isolation("trainjob", tuple(RULES))
    assert read(kubeconfig, "--extra-ingress=").plan.isolation == Isolation("trainjob", ())
    assert read(kubeconfig, "--no-network-policy", f"--extra-ingress={file}").plan.isolation is None


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--extra-ingress=/missing", "can't be read"),
        ("--extra-ingress=[", "can't be read"),
        ("--extra-ingress=[1]", "must be a list of ingress rules"),
        ("--http-address=8080", "'8080' is no HOST:PORT"),
        ("--http-address=host:port", "is no HOST:PORT"),
        ("--http-address=host:70000", "is no HOST:PORT"),
        ("--workers=0", "0 is not in the range"),
        ("--log-format=xml", "'xml' is not one of"),
        ("--context=other", "other"),
        ("--kubeconfig=/missing/kubeconfig", "/missing/kubeconfig can't be used"),
    ],
)
def test_mistakes(kubeconfig: Path, argument: str, message: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        read(kubeconfig, argument)
    assert message in caught.value.format_message()


def test_a_lease_needs_a_namespace(kubeconfig: Path) -> None:
    with pytest.raises(click.UsageError, match="--lease-namespace"):
        read(kubeconfig, environment={})
    alone = read(kubeconfig, "--no-leader-elect", environment={})
    assert alone.plan.isolation == Isolation(None, ())
    assert alone.key_namespace == "default"  # the kubeconfig's namespace


def test_outside_a_pod_a_kubeconfig_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    result = CliRunner().invoke(controller, ["--no-leader-elect"])
    assert result.exit_code == 2
    assert "name a kubeconfig" in result.stderr


def test_the_whole_controller_does_without_the_official_client() -> None:
    # As in its image, where that isn't installed.
    code = """
import sys
sys.modules["kubernetes"] = sys.modules["websocket"] = None
from trainjob.controller.operator import Operator
from trainjob.installation.__main__ import main
"""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("package", ["kopf", "prometheus_client"])
def test_without_its_extra_a_sentence_says_what_to_install(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = CliRunner().invoke(controller, [])
    assert result.exit_code == 1
    assert f"({package}): pip install 'trainjob[controller]'" in result.stderr
