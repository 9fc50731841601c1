"""What docs/install.md names is there: settings, metrics, files."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from testbed.programs import program

from support.kube.chart import KUBERNETES, kustomize

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/install.md").read_text()
SCHEMA = json.loads((ROOT / "charts/trainjob/values.schema.json").read_text())

SETTINGS = sorted(
    {*re.findall(r"--set ([\w.]+)=", PAGE), *re.findall(r"`([a-z]\w+(?:\.\w+)+)(?:=\w+)?`", PAGE)}
    - {"pods.exec"}
)


@pytest.mark.parametrize("setting", [s for s in SETTINGS if not s.endswith(".trainjob.dev")])
def test_settings(setting: str) -> None:
    part = SCHEMA
    for word in setting.split("."):
        part = part["properties"][word]


def test_there_are_settings() -> None:
    assert {"watch.namespace", "crd.install", "serviceMonitor.enabled", "networkPolicy.from"} <= set(SETTINGS)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#:]+)\)", PAGE))))
def test_links(link: str) -> None:
    assert (ROOT / "docs" / link).exists()


@pytest.mark.parametrize("path", sorted(set(re.findall(r"(?:charts|manifests)/[\w./-]*\w", PAGE))))
def test_paths(path: str) -> None:
    assert (ROOT / path).exists()


# tests/e2e installs the same for real. What `helm template` doesn't know is left out.
COMMANDS = "\n".join(
    [PAGE, *((ROOT / page).read_text() for page in ("README.md", "charts/trainjob/README.md"))]
)
INSTALLING = {"--create-namespace", "--take-ownership"}
VERBS = r"helm (?:upgrade --install|upgrade|install)"
HELM = re.findall(rf"{VERBS} ([\w-]+) (charts/trainjob [^`\n]*)", COMMANDS.replace("\\\n", " "))


def test_there_are_helm_commands() -> None:
    assert len(HELM) >= 8


@pytest.mark.parametrize(("release", "rest"), HELM)
def test_helm_understands(release: str, rest: str) -> None:
    words = [word for word in shlex.split(rest) if word not in INSTALLING]
    command = [program("helm"), "template", release, *words, "--kube-version", KUBERNETES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("folder", re.findall(r"kubectl apply --server-side -k (\S+)", PAGE))
def test_kubectl_builds(folder: str) -> None:
    assert kustomize(folder).one("Deployment")
