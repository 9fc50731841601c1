"""A fleet's pods: kwok plays their kubelets, and this process the agents that would be in them.

kwok gives pods addresses and runs them through their states, by stages; it serves nothing at those addresses.
They are addresses of loopback here, at which the leading agents listen.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from fleet_figures import Fate
from measuring import Manifest, build_job, say
from played_pods import Agent, Answer, Pods, honest_answer, job_of
from replicas import ROOT
from testbed import plain_tier
from testbed.places import state
from testbed.plain_tier import PlainCluster
from testbed.programs import program

from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.config import from_kubeconfig
from trainjob.cluster.kube.resources import Resource
from trainjob.core.agent import job_token
from trainjob.core.names import LABEL_INCARNATION, LABEL_INDEX, LABEL_ROLE
from trainjob.installation.crd_update import install_crd

CRD = ROOT / "manifests" / "crd" / "crd.yaml"
POSTS = 16
"""Objects that are created at once."""

NODES = Resource("", "v1", "nodes", "Node")
FATE = "benchmark/fate"
LIFETIME = "benchmark/lifetime"
"""Annotations of pods: what happens to them, and how long they run, such as `60s`; for ever without it."""

_FATE_OF_POD = (
    f'.metadata | select(.labels["{LABEL_ROLE}"] == "worker" and .labels["{LABEL_INDEX}"] == "1"'
    f' and .labels["{LABEL_INCARNATION}"] == "1") | .annotations["{FATE}"]'
)
"""In kwok's words, the fate of the pod that it happens to: the first one of worker 1."""

CALL_OF_RESTART = 3
"""The call at which the agents of a job report a restart in place, if that is its fate."""

_DELETED = ".metadata.deletionTimestamp"
_READY = """\
conditions:
- type: Ready
  status: "True"
"""
_STATUS = """\
metadata:
  resourceVersion: {{{{ .metadata.resourceVersion | Quote }}}}
status:
  phase: {phase}
  reason: {reason}
  conditions:
  - type: PodScheduled
    status: "True"
  - type: Ready
    status: "{condition}"
  containerStatuses:
  - name: trainer
    image: example.com/none:1
    imageID: ""
    ready: {ready}
    restartCount: 0
    state:
      {state}
"""
"""When kwok is busy it plays a stage once more, for an older state of the pod, and would give a running pod
another address. By the resourceVersion the API server refuses that.
"""

_RUNNING = """running:
        startedAt: {{ Now | Quote }}
  {{ $ip := PodIPWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace -}}
  podIP: {{ $ip | Quote }}
  podIPs:
  - ip: {{ $ip | Quote }}
"""
_ENDED = """terminated:
        exitCode: {code}
        reason: {reason}
        startedAt: {{{{ (index .status.containerStatuses 0).state.running.startedAt | Quote }}}}
        finishedAt: {{{{ Now | Quote }}}}
"""


def stages() -> list[Manifest]:
    """Return kwok's stages: of each pod, exactly one fits at any time."""
    fates = {"killed": (137, '""'), "evicted": (137, "Evicted"), "invalid": (80, '""')}
    lives = _expression(f'.metadata.annotations["{LIFETIME}"]', "Exists")
    lifetime = {"durationFrom": {"expressionFrom": f'.metadata.annotations["{LIFETIME}"]'}}
    soon = {"durationMilliseconds": 1000, "jitterDurationMilliseconds": 5000}
    return [
        _stage("node-ready", "Node", [], {"statusTemplate": _READY}),
        _stage("pod-deleted", "Pod", [_expression(_DELETED, "Exists")], {"delete": True}),
        _pod_stage("pod-runs", "Pending", [], _status("Running", _RUNNING, "true")),
        _pod_stage(
            "pod-succeeds", "Running", [lives, _expression(_FATE_OF_POD, "NotIn", *fates)],
            _status("Succeeded", _ENDED.format(code=0, reason="Completed")), lifetime,
        ),
        *(
            _pod_stage(
                f"pod-{fate}", "Running", [_expression(_FATE_OF_POD, "In", fate)],
                _status("Failed", _ENDED.format(code=code, reason="Error"), reason=reason), soon,
            )
            for fate, (code, reason) in fates.items()
        ),
    ]  # fmt: skip


def _status(phase: str, state: str, ready: str = "false", *, reason: str = '""') -> str:
    condition = ready.capitalize()
    return _STATUS.format(phase=phase, reason=reason, condition=condition, ready=ready, state=state)


def _pod_stage(
    name: str, phase: str, more: list[Manifest], status: str, delay: Mapping[str, Any] | None = None
) -> Manifest:
    alive = _expression(_DELETED, "DoesNotExist")
    expressions = [alive, _expression(".status.phase", "In", phase), *more]
    made = _stage(name, "Pod", expressions, {"patches": [{"subresource": "status", "template": status}]})
    made["spec"] |= {"delay": delay} if delay else {}
    return made


def _expression(key: str, operator: str, *values: str) -> Manifest:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def _stage(name: str, kind: str, expressions: list[Manifest], then: Manifest) -> Manifest:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": expressions},
            "next": then,
        },
    }


@asynccontextmanager
async def fleet_cluster(name: str, nodes: int, network: int) -> AsyncIterator[tuple[PlainCluster, ApiClient]]:
    """Start a control plane that ends with the context, with nodes that kwok plays.

    Args:
        name: of its folder, below `places.state()`.
        nodes: how many.
        network: pods are below `127.<network>`.
    """
    say("start a control plane")
    cluster = await asyncio.to_thread(plain_tier.start, name, die_with_us=True)
    try:
        async with AsyncExitStack() as stack:
            api = await stack.enter_async_context(
                ApiClient(from_kubeconfig(cluster.kubeconfig), connections=POSTS + 4)
            )
            await install_crd(api, yaml.safe_load(CRD.read_text()), say=say)
            await create_nodes(api, nodes)
            await stack.enter_async_context(kwok(cluster.kubeconfig, state() / name, f"127.{network}.0.0/16"))
            yield cluster, api
    finally:
        await asyncio.to_thread(plain_tier.stop, name)


@asynccontextmanager
async def kwok(kubeconfig: Path, folder: Path, network: str) -> AsyncIterator[None]:
    """Run kwok while in the context.

    Args:
        kubeconfig: of the cluster whose nodes are all kwok's.
        folder: for its stages and its log.
        network: of the pods' addresses, such as `127.100.0.0/16`.
    """
    config, log = folder / "kwok.yaml", folder / "kwok.log"
    config.write_text("\n---\n".join(map(json.dumps, stages())))
    words = (f"--kubeconfig={kubeconfig}", f"--config={config}", f"--cidr={network}", "--manage-all-nodes")
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(program("kwok"), *words, stdout=file, stderr=file)
    watching = asyncio.ensure_future(_stay(process, log))
    try:
        yield
    finally:
        watching.cancel()
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _stay(process: asyncio.subprocess.Process, log: Path) -> None:
    await process.wait()
    raise SystemExit(f"kwok has ended: see {log}")


async def create_nodes(api: ApiClient, count: int) -> None:
    """Create nodes that are kwok's."""
    for number in range(count):
        await api.create(
            NODES,
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": node_name(number), "namespace": None},
                "status": {"capacity": {"cpu": "1k", "memory": "1Ti", "pods": "1M"}},
            },
        )


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"node-{number}"


def fleet_job(
    namespace: str, name: str, workers: int, node: str, fate: Fate, lifetime: float | None, **spec: Any
) -> Manifest:
    """Return a job whose pods run on this node for so many seconds; for ever without a lifetime."""
    job = build_job(namespace, name, workers, **spec)
    template = job["spec"]["template"]
    template["spec"]["nodeName"] = node  # no scheduler runs
    annotations = {FATE: fate.name, **({LIFETIME: f"{lifetime:.3f}s"} if lifetime is not None else {})}
    template["metadata"] = {"annotations": annotations}
    return job


class FleetPods(Pods):
    """The pods of one namespace; while the pod of a job's leading agent runs, the agent listens.

    Args:
        api: may watch them.
        namespace: whose pods.
        key: the controller's, of which the jobs' tokens are derived.

    Attributes:
        agents: the leading ones, by job.
    """

    def __init__(self, api: ApiClient, namespace: str, key: bytes) -> None:
        super().__init__(api, namespace)
        self._key = key
        self._listening: dict[str, AsyncExitStack] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.agents: dict[str, Agent] = {}

    def see(self, kind: str, thing: Manifest) -> None:
        """See `Mirror`."""
        super().see(kind, thing)
        meta = thing["metadata"]
        if (meta["labels"][LABEL_ROLE], meta["labels"][LABEL_INDEX]) != ("worker", "0"):
            return
        runs = kind != "DELETED" and thing["status"].get("phase") == "Running"
        if runs and meta["uid"] not in self._listening:
            self._listening[meta["uid"]] = AsyncExitStack()
            self._start(self._listen(thing))
        elif not runs and meta["uid"] in self._listening:
            self._start(self._listening.pop(meta["uid"]).aclose())
        if kind == "DELETED":
            self.agents.pop(job_of(thing), None)

    def all_called(self, since: float, *, times: int) -> bool:
        """Return whether each agent that listens was asked so often after this moment."""
        calls = (agent.called_at for job, agent in self.agents.items() if self._running(job))
        return all(len(called) >= times and called[-times] > since for called in calls)

    def has_restarted(self, job: str) -> bool:
        """Return whether the job's agents have reported a restart in place."""
        return job in self.agents and self.agents[job].answered >= CALL_OF_RESTART

    def answer_of(self, pod: Manifest) -> Answer:
        """Return what the leading agent of a job says; this is its pod."""
        annotations = pod["metadata"].get("annotations") or {}
        restarts = CALL_OF_RESTART if annotations.get(FATE) == "in-place" else 0
        return honest_answer(self, job_of(pod), moves=LIFETIME in annotations, restart_at=restarts)

    async def close(self) -> None:
        """Let no agent listen any more."""
        for stack in self._listening.values():
            await stack.aclose()

    async def _listen(self, pod: Manifest) -> None:
        meta = pod["metadata"]
        token = job_token(self._key, meta["ownerReferences"][0]["uid"])
        agent = self.agents[job_of(pod)] = Agent(self.answer_of(pod), token)
        await self._listening[meta["uid"]].enter_async_context(agent.listen(pod["status"]["podIP"]))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
