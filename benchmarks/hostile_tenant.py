"""A tenant that attacks the controller: the process that benchmarks/tenants.py runs beside an honest tenant.

It says `ready` on stdout when its silent and lying agents listen, attacks from the first line on stdin to
the second, and prints then as JSON what has come of each of its jobs. All that it does is seeded and bounded.
"""

from __future__ import annotations

import sys

# This folder comes first on the path, and operator.py in it has the name of a standard library's module.
sys.path.append(sys.path.pop(0))

import argparse
import asyncio
import base64
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from lies import LIES
from measuring import GUARD_SECONDS, add_cluster_options, build_job
from played_pods import Addresses, Agent, Kubelet, Manifest, a_black_hole, honest_answer
from tenant_figures import unclean

from trainjob.cluster import ClusterError
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.config import from_kubeconfig
from trainjob.cluster.kube.resources import (
    EVENTS,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICES,
    TRAINJOBS,
    Resource,
)
from trainjob.core.agent import job_token
from trainjob.core.names import LABEL_INCARNATION, LABEL_INDEX, LABEL_JOB, LABEL_LIVE, LABEL_ROLE

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
ATTACKS = ("silent", "liars", "giant", "twice", "affinity", "hoard", "wrong", "planted", "storm")
AFFINITY_BYTES = 1_300_000
FULL_TEMPLATE_BYTES = 60_000
"""Just under what a template may have."""

ANNOTATION_BYTES = 250_000
"""Just under what the API server takes."""

DEEPEST = 4000
"""Levels of a template: the API server takes more."""

RECURSION = 3 * DEEPEST
"""Enough to write such a template, and to read what the API server notes of its fields."""

TOLD_SECONDS = 120.0
"""How long it may take, before and after the attack, until each job runs or was told something."""

SLUGGISH_SECONDS = 2.5
"""How long an agent thinks that answers rightly: just less than it is waited for."""


@dataclass
class Records:
    """What was done, and what came of it.

    Attributes:
        refused: the API server's words, by job.
        over_a_limit: jobs that no controller should take.
        planted: uids of objects that hold names which jobs need.
        deeds: how often what was done.
        effects: planted objects that were taken for a job's own.
    """

    refused: dict[str, str] = field(default_factory=dict)
    over_a_limit: set[str] = field(default_factory=set)
    planted: dict[tuple[str, str, str], str] = field(default_factory=dict)
    deeds: Counter[str] = field(default_factory=Counter)
    effects: list[str] = field(default_factory=list)


class HostileTenant:
    """All attacks, in one namespace.

    Args:
        api: may do everything.
        options: of the command line.
        key: the controller's: from it come the tokens that the jobs' own pods are given.
        stack: holds what listens.
    """

    def __init__(
        self, api: ApiClient, options: argparse.Namespace, key: bytes, stack: AsyncExitStack
    ) -> None:
        self._api = api
        self._options = options
        self._namespace: str = options.namespace
        self._key = key
        self._stack = stack
        self._random = random.Random(options.seed)  # noqa: S311 - it must come out the same each time
        self._addresses = Addresses(options.network)
        self.kubelet = Kubelet(api, self._namespace, self._addresses, self._start_pod)
        self._listening: set[str] = set()
        self._owner_uids: dict[str, str] = {}
        self._strangers: dict[str, Agent] = {}
        self.records = Records()

    # -- before the attack ------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Have the jobs run whose agents are silent or lie, and plant what is found by name."""
        names = [f"silent-{number}" for number in range(self._options.silent)] if self._does("silent") else []
        if self._does("liars"):
            names += [
                f"liar-{lie}-{number}" for lie in self._options.lies for number in range(self._options.liars)
            ]
        if self._does("planted"):
            await self._plant_by_name()
            names.append("planted-pods")
        for name in names:
            await self._submit(build_job(self._namespace, name, 1, evaluator={"replicas": 0}))
        with suppress(TimeoutError):
            async with asyncio.timeout(TOLD_SECONDS):
                for name in names:
                    await self.kubelet.runs(name, 1)
        if self._does("planted"):
            await self._plant_pod("planted-pods")

    async def _start_pod(self, pod: Manifest) -> bool:
        """Have somebody, or nobody, listen at a pod before it runs; see `Kubelet`."""
        meta = pod["metadata"]
        job = (meta.get("labels") or {}).get(LABEL_JOB, "")
        kind = job.partition("-")[0]
        if kind not in ("silent", "liar", "planted") or job in ("planted-service", "planted-policy"):
            return False
        if meta["uid"] in self._listening:
            return True
        self._listening.add(meta["uid"])
        listening = self._listen(pod, job, self._addresses.of(pod))
        await self._stack.enter_async_context(listening)
        return True

    def _listen(self, pod: Manifest, job: str, host: str) -> AbstractAsyncContextManager[None]:
        """Return what listens at a pod of this job."""
        if "ownerReferences" not in pod["metadata"]:
            agent = self._strangers[job] = Agent(None)
            return agent.listen(host)
        token = job_token(self._key, pod["metadata"]["ownerReferences"][0]["uid"])
        kind, _, rest = job.partition("-")
        if kind == "silent":
            sluggish = Agent(honest_answer(self.kubelet, job), token, delay=SLUGGISH_SECONDS)
            return _silence(int(rest), host, sluggish)
        if kind == "liar":
            return Agent(LIES[rest.partition("-")[0]](pod["metadata"]["name"]), token).listen(host)
        return Agent(honest_answer(self.kubelet, job), token).listen(host)

    # -- the attack -------------------------------------------------------------------------------------

    async def attack(self, over: asyncio.Event) -> None:
        """Do everything at once; the storm lasts until it is over, the rest until it is done."""
        attacks: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "giant": self._submit_giant,
            "twice": self._submit_twice,
            "affinity": self._submit_affinity,
            "hoard": self._hoard,
            "wrong": self._submit_wrong,
        }
        async with asyncio.TaskGroup() as group:
            storm = group.create_task(self._storm()) if self._does("storm") else None
            for name, attack in attacks.items():
                if self._does(name):
                    group.create_task(attack())
            await over.wait()
            if storm is not None:
                storm.cancel()

    async def _submit_giant(self) -> None:
        await self._submit(build_job(self._namespace, "giant", self._options.giant))

    async def _submit_twice(self) -> None:
        servers = {"ps": {"replicas": 1000}, "chief": {}}
        await self._submit(build_job(self._namespace, "twice", 1000, **servers), over_a_limit=True)

    async def _submit_affinity(self) -> None:
        job = _with_affinity(build_job(self._namespace, "affinity", 40), AFFINITY_BYTES)
        await self._submit(job, over_a_limit=True)
        job = _with_affinity(build_job(self._namespace, "template", 40), FULL_TEMPLATE_BYTES)
        await self._submit(job)

    async def _hoard(self) -> None:
        """Store much that belongs to no running job: it is cached all the same."""
        for number in range(self._options.hoarded):
            job = build_job(self._namespace, f"hoard-{number}", 1, suspend=True)
            await self._submit(_with_affinity(job, AFFINITY_BYTES), over_a_limit=True)
            meta = {
                "name": f"hoard-{number}",
                "namespace": self._namespace,
                "labels": {LABEL_JOB: "nobodys"},
                "annotations": {"a": "x" * ANNOTATION_BYTES},
            }
            await self._create(NETWORK_POLICIES, {"metadata": meta, "spec": {"podSelector": {}}})

    async def _submit_wrong(self) -> None:
        for number, change in zip(range(self._options.wrong), _wrongs(), strict=False):
            job = build_job(self._namespace, f"wrong-{number}", 1)
            change(job["spec"])
            await self._submit(job)

    async def _storm(self) -> None:
        """Create, change, label and delete small jobs, so many times a second."""
        alive: list[str] = []
        deeds = (
            self._add,
            self._add,
            self._drop,
            self._scale,
            self._annotate,
            self._annotate,
            self._label_pod,
        )
        loop = asyncio.get_running_loop()
        began, number = loop.time(), 0
        while True:
            number += 1
            await asyncio.sleep(max(0.0, began + number / self._options.storm_rate - loop.time()))
            with suppress(ClusterError):  # it was too fast for itself
                await self._random.choice(deeds)(alive)

    async def _add(self, alive: list[str]) -> None:
        if len(alive) >= self._options.storm_jobs:
            await self._drop(alive)
            return
        name = f"storm-{self.records.deeds['add']}"
        self.records.deeds["add"] += 1
        await self._submit(build_job(self._namespace, name, 2))
        alive.append(name)

    async def _drop(self, alive: list[str]) -> None:
        if alive:
            self.records.deeds["drop"] += 1
            name = alive.pop(self._random.randrange(len(alive)))
            uid = self._owner_uids.pop(name)
            await self._api.delete(TRAINJOBS, self._namespace, name, uid=uid)

    async def _scale(self, alive: list[str]) -> None:
        if alive:
            self.records.deeds["scale"] += 1
            change = {"spec": {"worker": {"replicas": self._random.randint(1, 3)}}}
            await self._api.patch(TRAINJOBS, self._namespace, self._random.choice(alive), change)

    async def _annotate(self, alive: list[str]) -> None:
        if alive:
            self.records.deeds["annotate"] += 1
            text = f"{self.records.deeds['annotate']} " + "x" * self._random.randrange(10_000)
            change = {"metadata": {"annotations": {"storm": text}}}
            await self._api.patch(TRAINJOBS, self._namespace, self._random.choice(alive), change)

    async def _label_pod(self, _alive: list[str]) -> None:
        if self.kubelet.objects:
            self.records.deeds["label"] += 1
            name = self._random.choice(sorted(self.kubelet.objects))
            change = {"metadata": {"labels": {"storm": str(self.records.deeds["label"])}}}
            await self._api.patch(PODS, self._namespace, name, change)

    # -- what is planted --------------------------------------------------------------------------------

    async def _plant_by_name(self) -> None:
        place = {"namespace": self._namespace}
        port = {"ports": [{"port": 2222}], "selector": {"mine": "true"}}
        await self._plant(SERVICES, {"metadata": {**place, "name": "planted-service"}, "spec": port})
        await self._plant(
            NETWORK_POLICIES, {"metadata": {**place, "name": "planted-policy"}, "spec": {"podSelector": {}}}
        )
        for name in ("planted-service", "planted-policy"):
            await self._submit(build_job(self._namespace, name, 1, evaluator={"replicas": 0}))
        await self._plant_secret("planted-secret")
        for name in self._options.plant:
            await self._plant_bundle(self._options.victim, name)
        job = build_job(self._options.victim, "victim", 1, evaluator={"replicas": 0})
        await self._create(TRAINJOBS, job)

    async def _plant_secret(self, name: str) -> None:
        """Plant the Secret of a suspended job, by the name that it had before the key went into it."""
        await self._submit(build_job(self._namespace, name, 1, evaluator={"replicas": 0}, suspend=True))
        digest = hashlib.sha256(self._owner_uids[name].encode()).hexdigest()[:8]
        await self._plant_bundle(self._namespace, f"{name}-agent-{digest}")
        await self._api.patch(TRAINJOBS, self._namespace, name, {"spec": {"suspend": False}})

    async def _plant_bundle(self, namespace: str, name: str) -> None:
        meta = {"namespace": namespace, "name": name}
        evil = base64.b64encode(b"evil").decode()
        data = {"trainjob.pyz": evil, "token": evil}
        await self._plant(SECRETS, {"metadata": meta, "immutable": True, "data": data})
        await self._plant(CONFIG_MAPS, {"metadata": meta, "immutable": True, "binaryData": data})

    async def _plant_pod(self, job: str) -> None:
        """Make a pod with the labels of another's leading one, and of a later incarnation."""
        labels = {
            LABEL_JOB: job,
            LABEL_ROLE: "worker",
            LABEL_INDEX: "0",
            LABEL_INCARNATION: "7",
            LABEL_LIVE: "true",
        }
        container = {"name": "trainer", "image": "example.com/none:1"}
        spec = {"schedulerName": "no-such-scheduler", "containers": [container]}
        meta = {"namespace": self._namespace, "name": "stranger", "labels": labels}
        await self._plant(PODS, {"metadata": meta, "spec": spec})

    async def _plant(self, resource: Resource, manifest: Manifest) -> None:
        made = await self._create(resource, manifest)
        if made is not None:
            meta = made["metadata"]
            self.records.planted[resource.kind, meta["namespace"], meta["name"]] = meta["uid"]

    # -- afterwards -------------------------------------------------------------------------------------

    async def look(self) -> dict[str, Any]:
        """Return what has come of it all, once each job was told something or time is over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + TOLD_SECONDS
        while True:
            places = (self._namespace, self._options.victim)
            jobs = [job for place in places for job in (await self._api.list(TRAINJOBS, place))["items"]]
            untold = [job for job in jobs if not _is_told(job)]
            if not untold or loop.time() > until:
                break
            await asyncio.sleep(2)  # some of them are large
        events = (await self._api.list(EVENTS, self._namespace))["items"]
        told = [(job["metadata"]["name"], job.get("status") or {}) for job in jobs]
        texts = [text for name, status in told for text in unclean(name, status)]
        texts += [text for event in events for text in unclean("event", _event_words(event))]
        await self._look_for_effects()
        return {
            "deeds": dict(self.records.deeds),
            "refused": self.records.refused,
            "jobs": {name: self._describe(name, status) for name, status in told},
            "largest_status": max((len(json.dumps(status)) for _, status in told), default=0),
            "unclean": sorted(set(texts))[:20],
            "effects": self.records.effects,
        }

    def _describe(self, name: str, status: Mapping[str, Any]) -> dict[str, Any]:
        over = name in self.records.over_a_limit
        return {"state": status.get("state"), "message": status.get("message"), "refusable": over}

    async def _look_for_effects(self) -> None:
        for namespace in {self._namespace, self._options.victim}:
            for pod in (await self._api.list(PODS, namespace))["items"]:
                for kind, name in mounted(pod):
                    if (kind, namespace, name) in self.records.planted and not _is_checked(pod, name):
                        self.records.effects.append(f"pod {pod['metadata']['name']} mounts {kind} {name}")
                job = (pod["metadata"].get("labels") or {}).get(LABEL_JOB)
                if job in ("planted-service", "planted-policy"):
                    self.records.effects.append(
                        f"pod {pod['metadata']['name']} runs behind the planted object"
                    )
        for job, agent in self._strangers.items():
            if agent.called_at:
                times = len(agent.called_at)
                self.records.effects.append(f"a pod that {job} doesn't own was asked {times} times")

    # -- small parts ------------------------------------------------------------------------------------

    def _does(self, attack: str) -> bool:
        return attack in self._options.attacks

    async def _submit(self, job: Manifest, *, over_a_limit: bool = False) -> None:
        name = job["metadata"]["name"]
        if over_a_limit:
            self.records.over_a_limit.add(name)
        made = await self._create(TRAINJOBS, job)
        if made is not None:
            self._owner_uids[name] = made["metadata"]["uid"]

    async def _create(self, resource: Resource, manifest: Manifest) -> Manifest | None:
        self.records.deeds[resource.plural] += 1
        full = {"apiVersion": resource.api_version, "kind": resource.kind, **manifest}
        try:
            return await self._api.create(resource, full)
        except ClusterError as error:
            self.records.refused[f"{resource.kind} {manifest['metadata']['name']}"] = str(error)[:300]
            return None


def mounted(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Give kind and name of each Secret and ConfigMap that a pod mounts."""
    for volume in pod["spec"].get("volumes") or ():
        sources = [volume, *(volume.get("projected") or {}).get("sources", ())]
        for source in sources:
            if "secret" in source:
                secret = source["secret"]
                yield "Secret", secret.get("secretName") or secret["name"]
            if "configMap" in source:
                yield "ConfigMap", source["configMap"]["name"]


def _is_checked(pod: Mapping[str, Any], name: str) -> bool:
    """Tell whether a pod holds what it mounts against the digest that is its name, before it runs it."""
    digest = name.rpartition("-")[2]
    return len(digest) == hashlib.sha256().digest_size * 2 and any(
        digest in (container.get("command") or ()) for container in pod["spec"]["containers"]
    )


def _with_affinity(job: Manifest, size: int) -> Manifest:
    """Return the job with an affinity of so many bytes, which is as valid as a small one."""
    expression = {"key": "example.com/node-label", "operator": "Exists"}
    expressions = [expression] * (size // len(json.dumps(expression, separators=(",", ":")) + ","))
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    job["spec"]["template"]["spec"]["affinity"] = affinity
    return job


def _wrongs() -> Iterator[Callable[[Manifest], None]]:
    """Give changes of a spec that are wrong in turns, for ever."""

    def deep(spec: Manifest) -> None:
        for _ in range(DEEPEST):
            inner = spec["template"]["spec"].get("deep", {})
            spec["template"]["spec"]["deep"] = {"a": inner}

    def of_trainer(**fields: Any) -> Callable[[Manifest], None]:
        return lambda spec: spec["template"]["spec"]["containers"][0].update(fields)

    changes: tuple[Callable[[Manifest], None], ...] = (
        of_trainer(command=7),
        of_trainer(args=[1, {"a": "\x1b[31m"}]),
        of_trainer(env=[{"value": 1}, None]),
        of_trainer(ports=[{"containerPort": "80"}]),
        of_trainer(imagePullPolicy="\x1b[2J\nAlways"),
        of_trainer(**{"\x1b[31mfield": 1}),
        deep,
        lambda spec: spec["template"]["spec"].update(volumes="x"),
        lambda spec: spec["template"].update(metadata=[]),
        lambda spec: spec["worker"].update(replicas=10**6),
        lambda spec: spec["worker"].update(nodeSelector={"a\nb": "c"}),
        lambda spec: spec.update(output={}),
        lambda spec: spec.update(unknown=1),
    )
    while True:
        yield from changes


def _silence(number: int, host: str, sluggish: Agent) -> AbstractAsyncContextManager[None]:
    """Return what keeps whoever asks waiting: one of four ways, by turns."""
    ways: tuple[Callable[[], AbstractAsyncContextManager[None]], ...] = (
        lambda: Agent(None).listen(host),
        lambda: a_black_hole(host),
        lambda: Agent(None, trickles=True).listen(host),
        lambda: sluggish.listen(host),
    )
    return ways[number % len(ways)]()


def _is_told(job: Mapping[str, Any]) -> bool:
    status = job.get("status") or {}
    return bool(status.get("state") and status.get("message"))


def _event_words(event: Mapping[str, Any]) -> dict[str, Any]:
    return {key: event.get(key) for key in ("reason", "message", "type")}


async def run(options: argparse.Namespace) -> None:
    """Attack between two lines on stdin."""
    sys.setrecursionlimit(RECURSION)
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    key = base64.b64decode(await lines.readline())
    async with (
        ApiClient(
            from_kubeconfig(options.kubeconfig, options.context), timeout=GUARD_SECONDS, connections=24
        ) as api,
        AsyncExitStack() as stack,
    ):
        tenant = HostileTenant(api, options, key, stack)
        kubelet = asyncio.ensure_future(tenant.kubelet.run())
        try:
            await tenant.prepare()
            print("ready", flush=True)
            await lines.readline()
            over = asyncio.Event()
            attack = asyncio.ensure_future(tenant.attack(over))
            await lines.readline()
            over.set()
            await attack
            print(json.dumps(await tenant.look()), flush=True)
        finally:
            kubelet.cancel()


def read_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_cluster_options(parser)
    add_attack_options(parser)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--victim", required=True, help="a namespace for objects with foreseen names")
    parser.add_argument("--plant", nargs="*", default=[], help="names that are foreseen")
    parser.add_argument("--network", type=int, required=True, help="of its pods: below 127.NETWORK")
    return parser.parse_args()


def add_attack_options(parser: argparse.ArgumentParser) -> None:
    """Add those that say what is done and how much of it."""
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS), metavar="ATTACK")
    parser.add_argument("--lies", nargs="+", choices=LIES, default=list(LIES), metavar="LIE")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--silent", type=int, default=200, metavar="JOBS")
    parser.add_argument("--liars", type=int, default=4, metavar="JOBS", help="of each kind of lie")
    parser.add_argument("--giant", type=int, default=1000, metavar="WORKERS")
    parser.add_argument("--wrong", type=int, default=50, metavar="JOBS")
    parser.add_argument("--hoarded", type=int, default=20, metavar="JOBS")
    parser.add_argument("--storm-rate", type=float, default=20.0, metavar="DEEDS_A_SECOND")
    parser.add_argument("--storm-jobs", type=int, default=10, metavar="JOBS")


if __name__ == "__main__":
    asyncio.run(run(read_options()))
