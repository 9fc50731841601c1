"""docs/monitoring.md has every metric, panel and alert, and what it names is there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from testbed.programs import program

from support.kube.chart import DASHBOARDS, KUBERNETES, alerts, panels
from trainjob.cluster.kube.transport import Call
from trainjob.controller.metrics import Metrics

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/monitoring.md").read_text()
SECTIONS = dict(re.findall(r"^##+ (.*?)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
CHARTS = ("serviceMonitor", "prometheusRule", "dashboards", "networkPolicy", "rbac")
SETTINGS = sorted(set(re.findall(rf"(?<![./\w])((?:{'|'.join(CHARTS)})\.\w+)", PAGE)))
SCHEMA = json.loads((ROOT / "charts/trainjob/values.schema.json").read_text())


async def test_metrics() -> None:
    metrics = Metrics()
    metrics.count_call(Call("get", "", "pods", 200, 0.1))
    status = {
        "state": "Running",
        "startTime": "2026-01-01T00:00:10Z",
        "firstStepTime": "2026-01-01T00:00:20Z",
        "progress": {"step": 1, "examplesPerSecond": 2.5},
        "restarts": {"counted": 1, "stepsLost": 3},
        "stateSeconds": {"training": 9},
    }
    meta = {"namespace": "ml", "name": "digits", "creationTimestamp": "2026-01-01T00:00:00Z"}
    metrics.jobs = lambda: [{"metadata": meta, "status": status}]
    served = (await metrics.render()).decode()
    for name, labels in re.findall(r"^\| `(trainjob_\w+)(?:\{([\w,]+)\})?` \|", PAGE, re.MULTILINE):
        assert f"# TYPE {name} " in served, name
        line = next(line for line in served.splitlines() if line.startswith(name))
        assert all(f'{label}="' in line for label in labels.split(",") if label), line
    told = set(re.findall(r"# TYPE (trainjob_\w+?) ", served))
    shown = set(re.findall(r"^\| `(trainjob_\w+)", PAGE, re.MULTILINE))
    assert told == shown


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_panels(dashboard: Path) -> None:
    section = SECTIONS[json.loads(dashboard.read_text())["title"]]
    listed = re.findall(r"^\| [^|]*\| ([^|]+?) \|", section, re.MULTILINE)[1:]
    assert listed == [panel["title"] for panel in panels(dashboard)]


@pytest.mark.parametrize("alert", alerts(), ids=lambda rule: rule["alert"])
def test_every_alert_has_a_runbook_that_its_link_leads_to(alert: dict[str, object]) -> None:
    assert len(SECTIONS[str(alert["alert"])].split()) > 20
    annotations = alert["annotations"]
    assert isinstance(annotations, dict)
    page, _, anchor = annotations["runbook_url"].partition("#")
    assert page.endswith("/docs/monitoring.md")
    assert anchor == str(alert["alert"]).lower()


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^):]+)\)", PAGE))))
def test_links(link: str) -> None:
    path, _, anchor = link.partition("#")
    page = ROOT / "docs" / (path or "monitoring.md")
    assert page.exists()
    if anchor:
        titles = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings(setting: str) -> None:
    part = SCHEMA
    for word in setting.split("."):
        part = part["properties"][word]


@pytest.mark.parametrize("path", sorted(set(re.findall(r"charts/trainjob/[\w./-]*\w", PAGE))))
def test_paths(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.cluster
@pytest.mark.parametrize("command", re.findall(r"helm template ((?:[^\n]*\\\n)*[^\n]*)", PAGE))
def test_helm_prints_the_objects(command: str) -> None:
    words = shlex.split(command.replace("\\\n", " "))
    done = subprocess.run(
        [program("helm"), "template", *words, "--kube-version", KUBERNETES],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kinds = [document["kind"] for document in yaml.safe_load_all(done.stdout) if document]
    assert sorted(kinds) == ["ConfigMap", "PrometheusRule", "ServiceMonitor"]
