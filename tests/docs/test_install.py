"""What docs/install.md names is there: settings, metrics, files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from trainjob.cluster.kube.calls import Call
from trainjob.operator.metrics import Metrics

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


def test_metrics() -> None:
    metrics = Metrics()
    metrics.count_call(Call("get", "", "pods", 200, 0.1))
    metrics.count_restart("pods")
    metrics.show_jobs(lambda: [{"status": {"state": "Running"}}])
    served = metrics.render().decode()
    for name, labels in re.findall(r"^\| `(trainjob_\w+)(?:\{([\w,]+)\})?` \|", PAGE, re.MULTILINE):
        assert f"# TYPE {name} " in served, name
        line = next(line for line in served.splitlines() if line.startswith(name))
        assert all(f'{label}="' in line for label in labels.split(",") if label), line
    told = set(re.findall(r"# TYPE (trainjob_\w+?) ", served))
    shown = set(re.findall(r"`(trainjob_\w+)", PAGE))
    assert {name for name in told if not name.endswith("_created")} <= shown


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#:]+)\)", PAGE))))
def test_links(link: str) -> None:
    assert (ROOT / "docs" / link).exists()


@pytest.mark.parametrize("path", sorted(set(re.findall(r"(?:charts|manifests)/[\w./-]*\w", PAGE))))
def test_paths(path: str) -> None:
    assert (ROOT / path).exists()
