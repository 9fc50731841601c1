"""A real Prometheus scrapes a real controller, and has data for every panel, variable and alert."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from boards import fill
from testbed import Cluster
from testbed.prometheus import Prometheus, run_prometheus

from support.kube.chart import ALERTS, CONTROLLER_RULES, DASHBOARDS, OWN_RULES, alerts, panels
from support.kube.controller import ControllerProcess, run_controller
from support.kube.fake_agents import FakeAgent, build_report
from support.kube.kube_cluster import running
from support.kube.real_kube import ACCOUNT, RealKubelet, eventually, grant, states
from support.world.jobs import build_job
from trainjob.api import AGENT_PORT
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.resources import PODS, SECRETS, SERVICES, TRAINJOBS
from trainjob.core.agent import job_token
from trainjob.core.names import LABEL_JOB

Report = dict[str, Any]

HOST = "127.78.0.1"
"""Where the only agent listens; no other test's pods have addresses of this network."""

pytestmark = pytest.mark.usefixtures("crd")


@asynccontextmanager
async def run_agent(admin: ApiClient, namespace: str) -> AsyncIterator[FakeAgent]:
    """Listen as the agent of the job `digits`, whose only pod has come."""
    ask = partial(admin.list, PODS, namespace, selector=f"{LABEL_JOB}=digits")
    await eventually(ask, lambda pods: pods["items"])
    (pod,) = (await ask())["items"]
    secret = await admin.get(SECRETS, namespace, "trainjob-agent-key")
    token = job_token(base64.b64decode(secret["data"]["key"]), pod["metadata"]["ownerReferences"][0]["uid"])
    agent = FakeAgent(token, report_of(pod["metadata"]["name"]))
    async with agent.serve(HOST, AGENT_PORT):
        yield agent


def report_of(pod: str, phase: str = "running", attempt: int = 1) -> Report:
    """Return what the agent says of the training of one worker, which has failed in each attempt before."""
    progress = {"state": "training", "step": 10 * attempt, "examplesPerSecond": 64.0, "checkpointStep": 5}
    state = "running" if phase == "running" else "idle"
    member = {"pod": pod, "incarnation": 1, "state": state, "seconds": 1.0, "report": progress}
    failures = attempt - (phase == "running")
    failure = {"replica": "worker-0", "pod": pod, "reason": "Crashed", "exitCode": 1, "counted": True}
    return build_report(
        phase,
        attempt=attempt,
        world={"worker": 1},
        restarts={"attempt": attempt, "counted": failures},
        failure=failure if failures else None,
        members={"worker-0": member},
    )


async def live(admin: ApiClient, namespace: str, agent: FakeAgent) -> None:
    """Let the job `digits` train, restart in place after a failure, and train on; `waiting` waits."""

    async def until_it_is(state: str) -> None:
        wanted = {"digits": state, "waiting": "Pending"}
        await eventually(lambda: states(admin, namespace), lambda found: found == wanted)

    async def job() -> Any:
        return await admin.get(TRAINJOBS, namespace, "digits")

    pod = agent.report["members"]["worker-0"]["pod"]
    await until_it_is("Running")
    await eventually(job, lambda job: "firstStepTime" in job["status"])
    agent.report = report_of(pod, "meeting")
    await until_it_is("Restarting")
    agent.report = report_of(pod, attempt=2)
    await until_it_is("Running")


async def submit(admin: ApiClient, namespace: str) -> None:
    """Create `digits`, and `waiting`, which can't start: a Service of its name exists."""
    service = {"metadata": {"name": "waiting", "namespace": namespace}, "spec": {"ports": [{"port": 80}]}}
    await admin.create(SERVICES, {"apiVersion": "v1", "kind": "Service", **service})
    for name in ("digits", "waiting"):
        job = build_job(name=name, namespace=namespace, workers=1, evaluator=False)
        await admin.create(TRAINJOBS, job)


def queries() -> dict[str, str]:
    """Return every query by where it stands; variables of Grafana have values, and alerts no threshold."""
    found = {
        f"{dashboard.stem}: {panel['title']} {target['refId']}": target["expr"]
        for dashboard in DASHBOARDS
        for panel in panels(dashboard)
        for target in panel["targets"]
    }
    found = {place: fill(query, rate_interval="1m") for place, query in found.items()}
    # With `bool` a comparison has a result for each pair of series, whether it holds or not.
    return found | {rule["alert"]: re.sub(r" ([<>]) ", r" \1 bool ", rule["expr"]) for rule in alerts()}


def variables() -> Iterator[tuple[str, str]]:
    """Yield series and label of each variable of the dashboards."""
    for dashboard in DASHBOARDS:
        for variable in json.loads(dashboard.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                series, _, label = variable["query"][len("label_values(") : -1].rpartition(", ")
                yield fill(series), label


@asynccontextmanager
async def observed(
    controller: ControllerProcess, folder: Path, admin: ApiClient, namespace: str
) -> AsyncIterator[Prometheus]:
    """Two jobs that are scraped; first of all the series that are there before any event."""
    line = await controller.says("on port ")
    await controller.says("At work")
    with run_prometheus(folder, f"127.0.0.1:{line.split()[-1]}", rules=[ALERTS]) as prometheus:
        answered = 'trainjob_agent_calls_total{outcome="answered"}'
        await eventually(lambda: prometheus.values(answered), bool)
        await submit(admin, namespace)
        kubelet = RealKubelet(admin, namespace, lambda _pod: None, host=HOST)
        async with running(kubelet.run()), run_agent(admin, namespace) as agent:
            await live(admin, namespace, agent)
            yield prometheus


async def test_prometheus_has_data_for_every_panel_and_alert(
    control_plane: Cluster, admin: ApiClient, namespace: str, tmp_path: Path
) -> None:
    grant(control_plane, namespace, tmp_path, CONTROLLER_RULES + OWN_RULES)
    kubeconfig = tmp_path / f"{namespace}-{ACCOUNT}.kubeconfig"
    options = (f"--namespace={namespace}", f"--lease-namespace={namespace}")
    async with (
        run_controller(kubeconfig, *options) as controller,
        observed(controller, tmp_path, admin, namespace) as prometheus,
    ):
        await check(prometheus, namespace)


async def check(prometheus: Prometheus, namespace: str) -> None:
    """Ask for everything; what has no data yet is asked for again."""
    for place, query in queries().items():
        try:
            await eventually(lambda asked=query: prometheus.values(asked), bool, guard=30)
        except AssertionError as error:
            raise AssertionError(f"{place} has no data: {query}") from error
    for series, label in variables():
        assert await prometheus.get(f"label/{label}/values", **{"match[]": series}), (series, label)
    jobs = await prometheus.values("trainjob_job_state_seconds")
    found = {(labels["namespace"], labels["name"], labels["state"]) for labels, _ in jobs}
    assert found == {(namespace, "digits", "Running"), (namespace, "waiting", "Pending")}
    groups = (await prometheus.get("rules"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"]: rule["health"] for rule in rules} == {rule["alert"]: "ok" for rule in alerts()}
    firing = await prometheus.values('ALERTS{alertstate="firing"}')
    assert not firing
