"""The worker group's rules with agents that keep to the protocol; the test delivers their messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainjob_trainer.agent.messages import QUIET, Beat, Event, Failed, Join, Leaving, Lost, Send, Tick
from trainjob_trainer.agent.rendezvous import LeaderSettings
from trainjob_trainer.agent.worker_group import WorkerGroup
from trainjob_trainer.contract.exits import meaning_of
from trainjob_trainer.contract.reports import FINISHED, IDLE, RUNNING, STOPPING, Failure
from trainjob_trainer.contract.restarts import RestartCounts
from trainjob_trainer.contract.targets import Target

LEADER = "worker-0"
OWN_LINK = 0


class SimulatedAgent:
    """One replica's agent in one pod, as `replica_agent` is, without processes and network."""

    def __init__(self, replica: str, incarnation: int) -> None:
        self.replica = replica
        self.incarnation = incarnation
        self.pod = f"pod-{replica}-{incarnation}"
        self.link: int | None = None
        self.child = IDLE
        self.attempt = 0
        self.counts = RestartCounts()
        self.leaving = False
        self.code: int | None = None
        self.report: dict[str, Any] | None = None
        self.age: float | None = None
        self.starts: list[dict[str, Any]] = []
        self.graceful: bool | None = None
        self.stacks = False
        self.inbox: deque[Mapping[str, Any]] = deque()
        self.outbox: deque[Event] = deque()

    @property
    def is_there(self) -> bool:
        return self.code is None

    def connect(self, link: int) -> None:
        assert self.is_there
        self.link = link
        self.inbox.clear()
        self.outbox.clear()
        address = f"10.0.0.{self.incarnation}:2222"
        self.outbox.append(
            Join(
                link, self.replica, self.incarnation, self.pod, address, self.child, self.attempt, self.counts
            )
        )

    def beat(self) -> None:
        if self.link is not None:
            self.outbox.append(Beat(self.link, self.child, self.attempt, self.report, self.age))

    def handle(self, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        if kind == "start" and self.child in QUIET and message["attempt"] > self.attempt and not self.leaving:
            self.attempt = message["attempt"]
            self.counts = self.counts.merge(RestartCounts.from_json(message["restarts"]))
            self.starts.append(dict(message))
            self.report = None
            self._become(RUNNING)
        elif kind == "stop" and message["attempt"] >= self.attempt and self.child == RUNNING:
            self.graceful, self.stacks = message["graceful"], message["stacks"]
            self._become(STOPPING)
        elif kind == "end":
            self.child = IDLE
            self.code = message["code"]

    def end_child(self, code: int, step: int | None = None, reason: str = "") -> None:
        """The training process ends, by itself or because it was asked to."""
        if self.child == RUNNING and code != 0 and self.link is not None:
            self.outbox.append(Failed(self.link, self.attempt, self.failure(code, step, reason)))
        elif self.child == STOPPING and self.stacks and self.link is not None:
            stall = replace(self.failure(88), exit_code=None, log_tail=f"the stack of {self.replica}")
            self.outbox.append(Failed(self.link, self.attempt, stall))
        if self.child in (RUNNING, STOPPING):
            self._become(FINISHED if code == 0 and self.child == RUNNING else IDLE)
        if self.leaving or code == 89:
            self.code = code

    def failure(self, code: int, step: int | None = None, reason: str = "") -> Failure:
        return Failure(
            self.replica,
            self.pod,
            self.incarnation,
            self.attempt,
            reason or meaning_of(code).name,
            code,
            step=step,
            counted=meaning_of(code).counted,
            permanent=meaning_of(code).permanent,
        )

    def cut_off(self) -> None:
        """It notices that the connection has ended."""
        self.link = None
        if self.child == RUNNING:
            self.child = STOPPING

    def leave(self) -> None:
        self.leaving = True
        if self.link is not None:
            self.outbox.append(Leaving(self.link))
        if self.child in QUIET:
            self.code = 86

    def _become(self, state: str) -> None:
        self.child = state
        self.beat()


class Simulation:
    """The leading agent's rules, agents, and the messages between them."""

    def __init__(
        self,
        world: Mapping[str, int],
        *,
        max_restarts: int = 3,
        counts: RestartCounts | None = None,
        leader: str = LEADER,
        stall_timeout: float | None = None,
        memory_grows: bool = False,
    ) -> None:
        self.leader = leader
        cluster = {role: [f"{role}-{i}:2222" for i in range(count)] for role, count in world.items()}
        self.now = 0.0
        settings = LeaderSettings(leader, 1, cluster, OWN_LINK)
        first = Target(max_restarts=max_restarts, stall_timeout=stall_timeout, memory_grows=memory_grows)
        self.group = WorkerGroup(settings, counts or RestartCounts(), first, self.now)
        self.agents: list[SimulatedAgent] = []
        self.links: dict[int, SimulatedAgent] = {}
        self.sent: list[Send] = []
        self._next_link = OWN_LINK + 1
        self._own: deque[Event] = deque()
        self._busy = False
        self.own = self.spawn(leader)
        self.connect(self.own)

    def spawn(self, replica: str) -> SimulatedAgent:
        incarnation = 1 + max((a.incarnation for a in self.agents if a.replica == replica), default=0)
        agent = SimulatedAgent(replica, incarnation)
        self.agents.append(agent)
        return agent

    def newest(self, replica: str) -> SimulatedAgent | None:
        return next((a for a in reversed(self.agents) if a.replica == replica), None)

    def connect(self, agent: SimulatedAgent) -> None:
        link = OWN_LINK if agent.replica == self.leader else self._next_link
        self._next_link += 1
        agent.connect(link)
        self.links[link] = agent
        if agent.replica == self.leader:
            self.flush_own()

    def lose(self, link: int) -> None:
        """The leading agent notices that a connection has ended."""
        agent = self.links.pop(link, None)
        if agent is not None and agent.link == link:
            agent.outbox.clear()
        self.handle(Lost(link))

    def deliver_up(self, agent: SimulatedAgent) -> None:
        """One message of an agent arrives."""
        if agent.outbox and agent.link in self.links:
            self.handle(agent.outbox.popleft())

    def deliver_down(self, agent: SimulatedAgent) -> None:
        """One message to an agent arrives."""
        if agent.inbox and agent.is_there:
            agent.handle(agent.inbox.popleft())
        if agent.replica == self.leader:
            self.flush_own()

    def handle(self, event: Event) -> None:
        effects = self.group.handle(event, self.now)
        self.check(effects)
        for effect in effects:
            agent = self.links.get(effect.link)
            if isinstance(effect, Send):
                self.sent.append(effect)
                if agent is not None and agent.is_there and agent.link == effect.link:
                    agent.inbox.append(effect.message)
            elif agent is not None:
                self.links.pop(effect.link)
                if agent.link == effect.link and not any(m["type"] == "end" for m in agent.inbox):
                    agent.cut_off()
        self.flush_own()

    def flush_own(self) -> None:
        """The leading agent's own replica exchanges messages without a network."""
        if self._busy:
            return
        self._busy = True
        while self.own.inbox or self.own.outbox:
            if self.own.outbox:
                self.handle(self.own.outbox.popleft())
            elif self.own.is_there:
                self.own.handle(self.own.inbox.popleft())
            else:
                self.own.inbox.clear()
        self._busy = False

    def check(self, effects: Any) -> None:
        """Invariants; a hook for tests."""

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.handle(Tick())

    def settle(self) -> None:
        """Deliver everything, and let what was asked to stop end."""
        for _ in range(20):
            busy = False
            for agent in self.agents:
                for _ in range(20):
                    if not agent.is_there or not (agent.inbox or (agent.outbox and agent.link in self.links)):
                        break
                    busy = True
                    self.deliver_down(agent)
                    self.deliver_up(agent)
                if agent.child == STOPPING:
                    busy = True
                    agent.end_child(137)
                    self.flush_own()
                if not agent.is_there and agent.link in self.links and agent is not self.own:
                    while agent.outbox and agent.link in self.links:
                        self.deliver_up(agent)
                    self.lose(agent.link)
                    busy = True
            if not busy:
                return
        latest = [(s.link, s.message["type"], s.message.get("attempt")) for s in self.sent[-12:]]
        raise AssertionError(f"the messages never come to an end: {latest}")

    # the steps of tests

    def gather(self, *replicas: str) -> None:
        """Connect all replicas of the world, or these, and settle."""
        for replica in replicas or self.group.meeting.replicas:
            if replica != self.leader:
                self.connect(self.spawn(replica))
        self.settle()

    def end_child(self, replica: str, code: int, step: int | None = None, reason: str = "") -> None:
        agent = self.newest(replica)
        assert agent is not None
        agent.end_child(code, step, reason)
        self.settle()

    def progress(self, replica: str, age: float | None = None, **report: Any) -> None:
        agent = self.newest(replica)
        assert agent is not None
        agent.age = age
        agent.report = {"state": "training", **report}
        agent.beat()
        self.settle()

    def vanish(self, replica: str) -> None:
        """The replica's pod is gone."""
        agent = self.newest(replica)
        assert agent is not None
        agent.child, agent.code = IDLE, 137
        if agent.link in self.links:
            self.lose(agent.link)
        self.settle()

    def set_target(self, **target: Any) -> None:
        self.handle(Target(**target))
        self.settle()

    @property
    def codes(self) -> dict[str, int | None]:
        """Exit codes of the newest agents by replica."""
        return {agent.replica: agent.code for agent in self.agents}

    @property
    def attempts(self) -> list[int]:
        return list(dict.fromkeys(s.message["attempt"] for s in self.sent if s.message["type"] == "start"))
