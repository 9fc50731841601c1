"""The lives of jobs: a schedule is a list of things that happen.

After each, what holds at every moment is checked; at the end all faults stop, time passes, processes do their
work, and the job must end in a state that is allowed.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from support.world.agents import Agents
from support.world.jobs import build_job, build_plain_job
from support.world.world import World
from trainjob.cluster import ClusterError, Unavailable
from trainjob.core.conditions import is_finished, is_true

LIVE = "trainjob.dev/live"
MAX_RESTARTS = 1

KINDS = [
    *["crash", "crash", "succeed-all", "let-go", "run-all"],
    *[
        "break",
        "run",
        "fail",
        "succeed",
        "lose-peer",
        "evict",
        "delete",
        "end-deleted",
        "vanish",
        "report",
        "suspend",
        "resize",
        "wait",
    ],
    *["crash-controller", "cut-write", "lose-answer", "reconcile"],
]

AGENT_KINDS = ["meet", "meet", "meet", "child-fails", "child-fails", "lose", "silence", "tell"]

Schedule = list[tuple[str, int, bool]]


def schedules(kinds: list[str]) -> st.SearchStrategy[Schedule]:
    """Return lists of things, each with a number and whether the controller hears of it in time."""
    things = st.tuples(st.sampled_from(kinds), st.integers(0, 40), st.sampled_from([True, True, True, False]))
    return st.lists(things, max_size=30)


@dataclass
class Life:
    world: World
    agents: Agents | None = None
    names: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    terminal: dict[str, Any] | None = None

    async def happen(self, thing: str, number: int) -> None:
        world = self.world
        pods = [p for p in world.pods if p.get("status", {}).get("phase") in ("Pending", "Running")]
        pod = pods[number % len(pods)] if pods else None
        if thing in AGENT_KINDS:
            self.act(thing, number)
        elif thing == "reconcile":
            await self.reconcile_once()
        elif thing == "crash-controller":
            world.restart_controller()
        elif thing in ("suspend", "resize"):
            edits = {"suspend": bool(number % 2)}, {"worker": {"replicas": 1 + number % 3}}
            world.edit(**edits[thing == "resize"])
        elif thing == "let-go":
            world.let_go()
        elif thing == "run-all":
            world.each(lambda p: self.touch(p, "run", number))
        elif thing == "crash":
            world.let_go()
            await world.settle()
            world.each(lambda p: self.touch(p, "run", number))
            await world.settle()
            if world.pods:
                self.touch(world.pods[number % len(world.pods)], "fail", number)
        elif thing == "succeed-all":
            world.each(lambda p: self.touch(p, "succeed", number))
        elif thing == "wait":
            await world.pass_time(number)
        elif thing in ("cut-write", "lose-answer"):
            await self.disturb(thing, number % 5)
        elif pod is not None:
            self.touch(pod, thing, number)

    def act(self, thing: str, number: int) -> None:
        """The job's agents do something."""
        agents = self.agents
        assert agents is not None
        target = self.world.cluster.targets.get(self.world.key) or {}
        agents.counted = max(agents.counted, target.get("restarts", {}).get("counted", 0))
        trainees = [p for p in self.training if p["metadata"]["labels"].get(LIVE)]
        running = [p for p in trainees if p["status"]["phase"] == "Running"]
        if thing == "meet" and running and len(running) == len(trainees):
            agents.lost.clear()
            agents.unreachable, agents.witness = 0.0, None
            agents.meet()
        elif thing == "child-fails" and agents.phase == "running" and running:
            self.fail_child(agents, running[number % len(running)])
        elif thing == "lose" and running:
            labels = running[number % len(running)]["metadata"]["labels"]
            self.lost.add(running[number % len(running)]["spec"].get("nodeName", ""))
            agents.lost[f"worker-{labels['trainjob.dev/index']}"] = float(number)
            agents.phase = "meeting"
            agents.tell()
        elif thing == "silence":
            self.lost |= {p["spec"].get("nodeName", "") for p in running if _index(p) == 0}
            agents.unreachable, agents.witness = float(number), {"leaderLostSeconds": float(number)}
            agents.tell()
        else:
            agents.tell()

    def fail_child(self, agents: Agents, pod: dict[str, Any]) -> None:
        """A training process crashes; the agents restart all, or give up."""
        replica = f"worker-{pod['metadata']['labels']['trainjob.dev/index']}"
        if agents.counted < MAX_RESTARTS:
            agents.fail(replica, message="ValueError: boom")
            return
        spent = agents.counted
        agents.fail(replica, message="ValueError: boom")
        agents.counted = spent
        for each in self.training:
            if each["status"]["phase"] == "Running":
                self.world.cluster.end_pod(each, 85, message=json.dumps(agents.words()))

    @property
    def training(self) -> list[dict[str, Any]]:
        """The pods of workers."""
        return [p for p in self.world.pods if p["metadata"]["labels"]["trainjob.dev/role"] == "worker"]

    def touch(self, pod: dict[str, Any], thing: str, number: int) -> None:
        cluster = self.world.cluster
        phase = pod["status"]["phase"]
        running = phase == "Running"
        if thing == "run" and phase == "Pending":
            cluster.run_pod(cluster.at_node(pod, f"node-{number % 3}"))
        elif thing == "succeed" and running:
            cluster.end_pod(pod, 0)
        elif thing == "fail" and running:
            cluster.end_pod(pod, 1, message="ValueError: boom")
        elif thing == "break" and running:
            cluster.end_pod(pod, 80, message="no such option")
        elif thing == "lose-peer" and running:
            cluster.end_pod(pod, 85)
        elif thing == "evict" and "deletionTimestamp" not in pod["metadata"]:
            cluster.evict_pod(pod)
        elif thing == "delete":
            pod["metadata"]["deletionTimestamp"] = self.world.now.isoformat()
        elif thing == "end-deleted" and running:
            # The kubelet reports how it ended before the name is free.
            cluster.end_pod(pod, number % 2)
            pod["metadata"]["deletionTimestamp"] = self.world.now.isoformat()
        elif thing == "vanish":
            cluster.remove(pod)
        elif thing == "report":
            progress = {"step": number, "totalSteps": 40, "checkpointStep": number // 10 * 10}
            cluster.report(pod, {**progress, "stepSeconds": 0.4, "workSeconds": number / 100})

    async def disturb(self, thing: str, after: int) -> None:
        """Let one pass go wrong at its n-th write: before it is done, or after, with the answer lost."""
        left = [after]

        def fault(_operation: str, _manifest: dict[str, Any]) -> Exception | None:
            left[0] -= 1
            return Unavailable("the network is gone") if left[0] < 0 else None

        attribute = "fault" if thing == "cut-write" else "fault_after"
        setattr(self.world.cluster, attribute, fault)
        await self.reconcile_once()
        setattr(self.world.cluster, attribute, lambda _operation, _manifest: None)

    async def reconcile_once(self) -> None:
        try:
            await self.world.reconciler.reconcile(self.world.key)
        except ClusterError:
            return

    def check(self) -> None:
        """The rules that hold at every moment."""
        world = self.world
        status, live = world.status, [p for p in world.pods if p["metadata"]["labels"].get(LIVE)]
        assert _most_of_one_replica(live) <= 1, "two live pods in one replica"
        able_to_run = [
            p
            for p in self.training
            if p["status"]["phase"] in ("Pending", "Running")
            and (self.agents is None or not self.is_given_up(p))
        ]
        assert _most_of_one_replica(able_to_run) <= 1, "two worker processes in one replica"
        assert status.restarts.counted <= MAX_RESTARTS
        assert {each.replica for each in status.stragglers} <= set(status.stragglers_reported)
        if self.terminal is not None:
            assert is_finished(status), "a terminal state was left"
            assert status.completion_time == self.terminal["time"]
        elif is_finished(status):
            running = [
                p
                for p in world.pods
                if p["status"]["phase"] in ("Pending", "Running")
                and (self.agents is None or not self.is_given_up(p))
            ]
            assert not running, "a job ended while a pod of it could run"
            self.terminal = {"time": status.completion_time}
        assert not (is_true(status, "Complete") and is_true(status, "Failed"))

    def is_given_up(self, pod: dict[str, Any]) -> bool:
        """Return whether the pod's node is gone: its grace period is long over, or nobody reaches it."""
        due = pod["metadata"].get("deletionTimestamp")
        if due is None:
            return False
        is_overdue = self.world.now > datetime.fromisoformat(due) + timedelta(seconds=9)
        return is_overdue or pod["spec"].get("nodeName") in self.lost

    async def end(self) -> None:
        """Nothing goes wrong any more: processes of every pod run and end well."""
        self.world.edit(suspend=False)
        for _ in range(60):
            await self.world.pass_time(61)
            self.world.let_go()
            for pod in self.world.pods:
                if pod["status"]["phase"] == "Pending":
                    self.world.cluster.run_pod(pod)
            if self.agents is not None:
                self.act("meet", 0)
            await self.world.settle()
            self.check()
            if is_finished(self.world.status):
                return
            for pod in self.world.pods:
                if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]:
                    self.world.cluster.end_pod(pod, 0)
            await self.world.settle()
            self.check()
        raise AssertionError(f"never ended: {self.world.status.state}: {self.world.status.message}")


def _index(pod: dict[str, Any]) -> int:
    return int(pod["metadata"]["labels"]["trainjob.dev/index"])


def _most_of_one_replica(pods: list[dict[str, Any]]) -> int:
    labels = [p["metadata"]["labels"] for p in pods]
    replicas = Counter((each["trainjob.dev/role"], each["trainjob.dev/index"]) for each in labels)
    return max(replicas.values(), default=0)


async def live(schedule: Schedule, *, in_place: bool) -> Life:
    build = build_job if in_place else build_plain_job
    world = World(build(maxRestarts=MAX_RESTARTS))
    life = Life(world, Agents(world) if in_place else None)
    for thing, number, heard in schedule:
        await life.happen(thing, number)
        life.check()
        if heard:
            await life.world.settle()
            life.check()
    return life


async def live_to_the_end(schedule: Schedule, *, in_place: bool) -> Life:
    """Live through a schedule, and on to the job's end."""
    life = await live(schedule, in_place=in_place)
    await life.end()
    return life
