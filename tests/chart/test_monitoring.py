"""What the chart gives to Prometheus and Grafana: alerts and dashboards."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from testbed.debian import unpacked

from support.kube.chart import ALERTS, DASHBOARDS, alerts, panels, render
from trainjob.controller.metrics import Metrics

UNIT_TESTS = Path(__file__).with_name("alerts.test.yaml")
NOT_SHOWN = {"trainjob_tasks"}
"""Metrics that no panel shows: they are for those who look into the controller's event loop."""


def promtool(*words: str | Path) -> str:
    done = subprocess.run([unpacked("promtool"), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_alerts_fire_when_they_should_and_only_then() -> None:
    assert "SUCCESS" in promtool("test", "rules", UNIT_TESTS)


def test_every_alert_is_seen_to_fire_by_a_unit_test() -> None:
    tests = yaml.safe_load(UNIT_TESTS.read_text())["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", ())]
    fired = {case["alertname"] for case in cases if case["exp_alerts"]}
    queries = [case["expr"] for test in tests for case in test.get("promql_expr_test", ())]
    for rule in alerts():
        assert rule["alert"] in fired or any(rule["alert"] in query for query in queries), rule["alert"]


def test_alerts_and_dashboards_are_off_by_default() -> None:
    default = render().objects
    assert not default.kinds & {"PrometheusRule", "ServiceMonitor", "ConfigMap"}


def test_the_rule_has_the_alerts_of_the_file() -> None:
    release = render({"prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}}})
    rule = release.objects.one("PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert rule["spec"] == yaml.safe_load(ALERTS.read_text())


def test_runbooks_may_lie_elsewhere() -> None:
    page = "https://wiki.example.com/trainjob"
    rule = render({"prometheusRule": {"enabled": True, "runbookUrl": page}}).objects.one("PrometheusRule")
    urls = [each["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for each in group["rules"]]
    assert urls == [f"{page}#{each['alert'].lower()}" for each in alerts()]


def test_a_sidecar_of_grafana_finds_the_dashboards() -> None:
    values = {"enabled": True, "annotations": {"grafana_folder": "ML"}}
    found = render({"dashboards": values}).objects.one("ConfigMap")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["annotations"] == {"grafana_folder": "ML"}
    titles = {json.loads(text)["title"] for text in found["data"].values()}
    assert titles == {"TrainJob / Controller", "TrainJob / Jobs"}
    own = render({"dashboards": {"enabled": True, "labels": {"grafana_dashboard": None, "team": "ml"}}})
    labels = own.objects.one("ConfigMap")["metadata"]["labels"]
    assert labels["team"] == "ml"
    assert "grafana_dashboard" not in labels


async def test_panels_and_alerts_name_metrics_that_exist_and_panels_show_all_of_them() -> None:
    metrics = Metrics()
    metrics.jobs = list
    served = re.findall(r"^# TYPE (\w+) (\w+)", (await metrics.render()).decode(), re.MULTILINE)
    series = {
        name: {f"{name}_{part}" for part in ("bucket", "count", "sum")} if kind == "histogram" else {name}
        for name, kind in served
    }
    shown, alerted = (
        set(re.findall(r"\b(?:trainjob|process)_\w+", text))
        for text in (
            "".join(path.read_text() for path in DASHBOARDS),
            str([rule["expr"] for rule in alerts()]),
        )
    )
    assert shown | alerted <= set().union(*series.values())
    assert {n for n in series if n.startswith("trainjob_") and not series[n] & shown} == NOT_SHOWN


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_have_a_place_a_title_and_an_explanation_of_their_own(dashboard: Path) -> None:
    built = json.loads(dashboard.read_text())
    cells: set[tuple[int, int]] = set()
    for panel in built["panels"]:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        own = {(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & own, f"{panel['title']} lies on another panel"
        assert max(columns) < 24, panel["title"]
        cells |= own
    shown = panels(dashboard)
    assert len({panel["title"] for panel in shown}) == len({panel["id"] for panel in shown}) == len(shown)
    for panel in shown:
        assert panel["description"].endswith("."), panel["title"]
        assert all(target["expr"] for target in panel["targets"]), panel["title"]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_every_variable_of_a_query_is_one_of_the_dashboard(dashboard: Path) -> None:
    text = dashboard.read_text()
    variables = {each["name"] for each in json.loads(text)["templating"]["list"]}
    used = {word for word in variables if f"${word}" in text or f"${{{word}}}" in text}
    assert used == variables
    for panel in panels(dashboard):
        for target in panel["targets"]:
            names = [part.split('"')[0] for part in target["expr"].split('"$')[1:]]
            assert set(names) <= variables, target["expr"]
