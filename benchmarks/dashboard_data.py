"""What a Prometheus answers to queries after a controller has had a fleet: for pictures of the dashboards.

    PYTHONPATH=testbed python benchmarks/dashboard_data.py [--seconds N] [--every SECONDS] < queries > answers

Starts a control plane of its own, nodes that kwok plays, a leader and a standby. Jobs of a fleet come and go
in the namespace `batch`; those of `research` train on, with failures. Queries are a list in JSON; the answers
are by query, from the first job to the end, as Prometheus' API has them. Progress goes to stderr.
"""

from __future__ import annotations

import sys

# This folder comes first on the path, and operator.py in it has the name of a standard library's module.
sys.path.append(sys.path.pop(0))

import argparse
import asyncio
import base64
import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from fleet_figures import WELL, fate_of
from fleet_pods import FleetPods, fleet_cluster, fleet_job, node_name
from measuring import Manifest, say, turn_of
from played_pods import Answer, honest_answer, job_of
from replicas import OPERATOR, Controllers
from testbed.cluster import Cluster
from testbed.places import state
from testbed.prometheus import run_prometheus

from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.resources import SECRETS, TRAINJOBS
from trainjob.core.names import LABEL_INDEX, LABEL_JOB, LABEL_ROLE

NODES = 8
WORKERS = 2
RATE = 0.4
"""Jobs of the fleet a second."""

SEED = 1
"""Of their fates."""

CLAIM: Manifest = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "training"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}
"""The one that jobs name. With Debian's etcd, a watch of claims is silent until one of them changes."""


@dataclass
class Training:
    """A played training: what its agents report.

    Attributes:
        speed: steps a second.
        batch: examples of a step.
        saves: steps between two checkpoints.
        starts: seconds from the start of its processes to their first step.
        restart_at: the controller's call that finds a process killed; 0 for none.
        slow: worker 1 needs so many times as long as worker 0 for its part of a step.
        lifetime: seconds until its pods end; None for ever.
        suspended: it is created so.
    """

    speed: float
    batch: int
    saves: int
    starts: float
    restart_at: int = 0
    slow: float = 1.0
    lifetime: float | None = None
    suspended: bool = False

    def __post_init__(self) -> None:
        self._step = self._at = 0.0
        self._attempt = 0
        self._lost: Manifest = {}

    def answer(self, honest: Answer) -> Answer:
        """Return an honest agent's answer with this training's figures in it."""
        return lambda order: json.dumps(self._with_figures(json.loads(honest(order)))).encode()

    def _with_figures(self, report: Manifest) -> Manifest:
        now, saved = time.monotonic(), int(self._step) // self.saves * self.saves
        if report["attempt"] != self._attempt:  # it begins, or goes back to the checkpoint
            self._lost = {"step": int(self._step), "checkpointStep": saved}
            self._attempt, self._step, self._at = report["attempt"], saved, now + self.starts
        if now < self._at:
            report["phase"] = "meeting"
        elif report["phase"] == "running":
            self._step, self._at = self._step + self.speed * (now - self._at), now
        if report["failure"]:
            report["failure"] |= self._lost
        for name, member in report["members"].items():
            share = self.slow if name == "worker-1" else 1.0
            member["report"] = {
                "state": "training",
                "step": int(self._step),
                "totalSteps": 100_000,
                "checkpointStep": int(self._step) // self.saves * self.saves or None,
                "examplesPerSecond": self.batch * self.speed * random.uniform(0.95, 1.05),  # noqa: S311
                "stepSeconds": 1 / self.speed,
                "workSeconds": share / self.slow / self.speed,
            }
        return report


RESEARCH: Mapping[str, Training] = {
    "digits": Training(14.0, 64, 250, 4.0, restart_at=40),
    "resnet50": Training(4.2, 256, 200, 9.0),
    "segmentation": Training(6.5, 128, 150, 7.0, slow=2.4),
    "speech": Training(9.0, 96, 300, 5.0, suspended=True),
    "translation": Training(11.0, 80, 400, 6.0, lifetime=110),
}
EVENTS: Sequence[tuple[float, tuple[str, ...]]] = (
    (0.3, ("patch", "trainjob", "speech", "--type=merge", '--patch={"spec":{"suspend":false}}')),
    (
        0.6,
        ("delete", "pod", "--wait=false", "-l", f"{LABEL_JOB}=resnet50,{LABEL_ROLE}=worker,{LABEL_INDEX}=1"),
    ),
)
"""What is done to them by kubectl, after these parts of the time."""


class Research(FleetPods):
    """The pods of the jobs in `RESEARCH`."""

    def answer_of(self, pod: Manifest) -> Answer:
        """See `FleetPods`."""
        training = RESEARCH[job_of(pod)]
        return training.answer(honest_answer(self, job_of(pod), restart_at=training.restart_at))


async def live(api: ApiClient, cluster: Cluster, options: argparse.Namespace) -> None:
    """Create the jobs, and let them live so long."""
    for number, (name, training) in enumerate(RESEARCH.items()):
        node, lifetime = node_name(number), training.lifetime
        job = fleet_job("research", name, WORKERS, node, WELL, lifetime, suspend=training.suspended)
        await api.create(TRAINJOBS, job)
    begin, events = time.perf_counter(), list(EVENTS)
    for number in range(int(options.seconds * RATE)):
        await turn_of(number, RATE, begin)
        node, lifetime = node_name(number % NODES), random.uniform(20, 60)  # noqa: S311
        fate = fate_of(SEED, number)
        await api.create(TRAINJOBS, fleet_job("batch", f"job-{number}", WORKERS, node, fate, lifetime))
        while events and number / RATE > events[0][0] * options.seconds:
            await asyncio.to_thread(cluster.kubectl, "-n", "research", *events.pop(0)[1])
        if number and not number % 10:
            say(f"{number} jobs in {time.perf_counter() - begin:.0f} s")


async def run(queries: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Return the answers."""
    name = f"dashboards-{os.getpid()}"
    async with (
        fleet_cluster(name, NODES, 100 + os.getpid() % 100) as (cluster, api),
        AsyncExitStack() as stack,
    ):
        for namespace in ("batch", "research"):
            cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        controllers = Controllers(cluster, state() / name / "account")
        stack.push_async_callback(controllers.close)
        leader = await controllers.start()
        await leader.says("At work")
        standby = await controllers.start()
        await standby.ready()
        cluster.apply(CLAIM, namespace="research")
        targets = [f"127.0.0.1:{(await each.says('on port ')).split()[-1]}" for each in (leader, standby)]
        folder = state() / name / "prometheus"
        folder.mkdir()
        prometheus = stack.enter_context(run_prometheus(folder, *targets, seconds=options.every))
        key = base64.b64decode((await api.get(SECRETS, OPERATOR, "trainjob-agent-key"))["data"]["key"])
        for fleet in (FleetPods(api, "batch", key), Research(api, "research", key)):
            stack.push_async_callback(fleet.close)
            watching = asyncio.ensure_future(fleet.run())
            stack.callback(watching.cancel)
        await asyncio.sleep(3 * options.every)  # the series are there before the first event
        begin = time.time()
        await live(api, cluster, options)
        times = (begin, time.time(), options.every)
        return {query: await prometheus.history(query, *times) for query in queries}


def read_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=180, metavar="N", help="of the fleet's life")
    parser.add_argument("--every", type=int, default=2, metavar="SECONDS", help="between two scrapes")
    return parser.parse_args()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(json.load(sys.stdin), read_options()))))
