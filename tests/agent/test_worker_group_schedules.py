"""The rules of the leading agent under random schedules: what never happens, and that it comes to an end."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.agents.worker_group import LEADER, SimulatedAgent, Simulation
from trainjob_trainer.agent.messages import QUIET, Lost, Send
from trainjob_trainer.contract.reports import FINISHED, IDLE, RUNNING, STOPPING
from trainjob_trainer.contract.restarts import RestartCounts
from trainjob_trainer.contract.targets import Target

MAX_RESTARTS = 2
REPLICAS = st.sampled_from(["worker-0", "worker-1", "worker-2"])
MEMBERS = st.sampled_from(["worker-1", "worker-2"])
CODES = st.sampled_from([0, 0, 0, 1, 1, 2, 85, 86, 137])
RARE_CODES = st.sampled_from([87, 89])
CALM = st.booleans()
"""Whether all messages arrive before anything else happens."""


class Checked(Simulation):
    """Refuses messages that must never be sent."""

    def check(self, effects: Any) -> None:
        starts = [e for e in effects if isinstance(e, Send) and e.message["type"] == "start"]
        if starts:
            self._check_start(starts)
        for effect in effects:
            if isinstance(effect, Send) and effect.message["type"] == "stop" and effect.message["graceful"]:
                agent = self.links[effect.link]
                assert agent.replica == LEADER or self.own.child in QUIET or not self.own.is_there

    def _check_start(self, starts: list[Send]) -> None:
        group = self.group
        number = starts[0].message["attempt"]
        assert [s for s in starts if s.message["attempt"] != number] == []
        assert number > max(self.attempts, default=0)
        agents = [self.links[start.link] for start in starts]
        assert sorted(agent.replica for agent in agents) == sorted(group.meeting.replicas)
        for agent in agents:
            assert agent.child in QUIET or agent.leaving or not agent.is_there
            assert agent.incarnation >= group.meeting.target.incarnations.get(agent.replica, 0)
            assert number >= agent.incarnation
        for agent in self.links.values():
            member = group.meeting.roster.on(agent.link) if agent.link is not None else None
            if member is not None and group.meeting.is_wanted(member):
                assert agent.child in QUIET or not agent.is_there, f"{agent.replica} still runs"


class Schedules(RuleBasedStateMachine):
    """Everything that can happen to three agents and their connections, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.sim = Checked({"worker": 2}, max_restarts=MAX_RESTARTS)
        self.counts = RestartCounts()
        self.is_over = False
        self.broken: list[int] = []

    def _agents(self, replica: str) -> list[SimulatedAgent]:
        return [agent for agent in self.sim.agents if agent.replica == replica and agent.is_there]

    def _settle(self, calm: bool) -> None:
        self.sim.flush_own()
        if calm and not self.broken:
            self.sim.settle()

    @initialize(size=st.integers(1, 3), calm=CALM)
    def all_come(self, size: int, calm: bool) -> None:
        self.sim.handle(Target({"worker": size}, max_restarts=MAX_RESTARTS))
        for index in range(1, size):
            self.sim.connect(self.sim.spawn(f"worker-{index}"))
        self._settle(calm)

    @rule(replica=MEMBERS, calm=CALM)
    def a_new_pod_comes(self, replica: str, calm: bool) -> None:
        if sum(agent.replica == replica for agent in self.sim.agents) < 5:
            self.sim.connect(self.sim.spawn(replica))
            self._settle(calm)

    @rule(replica=REPLICAS, code=CODES, step=st.none() | st.integers(0, 3), calm=CALM)
    def a_training_process_ends(self, replica: str, code: int, step: int | None, calm: bool) -> None:
        for agent in self._agents(replica)[-1:]:
            if agent.child == RUNNING:
                agent.end_child(code, step)
                self._settle(calm)

    @precondition(lambda self: len(self.sim.attempts) > 2)
    @rule(replica=REPLICAS, code=RARE_CODES)
    def a_training_process_ends_for_good(self, replica: str, code: int) -> None:
        self.a_training_process_ends(replica, code, None, calm=False)

    @rule()
    def what_was_stopped_ends(self) -> None:
        for agent in self.sim.agents:
            if agent.child == STOPPING:
                agent.end_child(137)
        self.sim.flush_own()

    @precondition(lambda self: self.sim.group.phase == "meeting")
    @rule()
    def a_missing_agent_comes(self) -> None:
        """A controller that does its work."""
        for replica in self.sim.group.meeting.missing:
            newest = self.sim.newest(replica)
            if newest is not None and newest.is_there and newest.link is None:
                self.sim.connect(newest)
            elif replica != LEADER:
                self.sim.connect(self.sim.spawn(replica))

    @rule(replica=REPLICAS)
    def messages_arrive(self, replica: str) -> None:
        for agent in self._agents(replica):
            self.sim.deliver_down(agent)
            self.sim.deliver_up(agent)

    @rule()
    def all_messages_arrive(self) -> None:
        for agent in list(self.sim.agents):
            while agent.is_there and agent.inbox:
                self.sim.deliver_down(agent)
            while agent.outbox and agent.link in self.sim.links:
                self.sim.deliver_up(agent)

    @rule(replica=MEMBERS, first=st.booleans())
    def a_connection_breaks(self, replica: str, first: bool) -> None:
        """The leading agent, or the member, notices it first; the other one later."""
        for agent in self._agents(replica)[-1:]:
            link = agent.link
            if link is None or link not in self.sim.links:
                continue
            if first:
                self.sim.lose(link)
            else:
                self.broken.append(link)
            agent.outbox.clear()
            agent.cut_off()

    @precondition(lambda self: self.broken)
    @rule()
    def the_leading_agent_notices(self) -> None:
        self.sim.handle(Lost(self.broken.pop(0)))

    @rule(replica=MEMBERS)
    def a_member_connects_again(self, replica: str) -> None:
        for agent in self._agents(replica):
            if agent.link is None:
                self.sim.connect(agent)

    @rule(replica=MEMBERS)
    def a_pod_vanishes(self, replica: str) -> None:
        for agent in self._agents(replica)[-1:]:
            agent.child, agent.code = IDLE, 137
            if agent.link in self.sim.links:
                assert agent.link is not None
                self.broken.append(agent.link)

    @rule(replica=MEMBERS)
    def an_agent_is_asked_to_leave(self, replica: str) -> None:
        for agent in self._agents(replica)[-1:]:
            agent.leave()

    @rule(size=st.integers(1, 3), newest=st.booleans(), without=st.sets(MEMBERS, max_size=1))
    def the_controller_sends_a_target(self, size: int, newest: bool, without: set[str]) -> None:
        wanted = {a.replica: a.incarnation for a in self.sim.agents} if newest else {}
        self.sim.handle(Target({"worker": size}, frozenset(without), wanted, MAX_RESTARTS))

    @rule(replica=REPLICAS, step=st.integers(0, 5), saved=st.booleans())
    def there_is_progress(self, replica: str, step: int, saved: bool) -> None:
        for agent in self._agents(replica)[-1:]:
            if agent.child == RUNNING:
                agent.report = {
                    "state": "training",
                    "step": step,
                    **({"checkpointStep": step} if saved else {}),
                }
                agent.beat()
                self.sim.flush_own()

    @rule(seconds=st.sampled_from([0.0, 0.3, 0.5, 1.0, 4.0, 70.0]), calm=CALM)
    def time_passes(self, seconds: float, calm: bool) -> None:
        self.sim.tick(seconds)
        self._settle(calm)

    @invariant()
    def the_budget_holds(self) -> None:
        counts = self.sim.group.budget.counts
        assert counts.used <= MAX_RESTARTS
        for key in ("attempt", "counted", "not_counted", "reset"):
            assert getattr(counts, key) >= getattr(self.counts, key)
        assert (counts.furthest_step or 0) >= (self.counts.furthest_step or 0)
        self.counts = counts

    @invariant()
    def the_end_is_the_end(self) -> None:
        assert self.sim.group.is_over or not self.is_over
        self.is_over = self.sim.group.is_over

    def teardown(self) -> None:
        """Once nothing more happens, training runs, is over, or waits for a missing agent."""
        for link in self.broken:
            self.sim.handle(Lost(link))
        for agent in self.sim.agents:
            if agent.is_there and agent.link is None:
                self.sim.connect(agent)
        for _ in range(3):
            self.sim.settle()
            self.sim.tick(70.0)
        self.sim.settle()
        group = self.sim.group
        if not self.sim.own.is_there:
            return  # no agent leads any more
        if group.phase == "meeting":
            missing = group.meeting.missing
            assert missing
            for replica in missing:
                newest = self.sim.newest(replica)
                wanted = group.meeting.target.incarnations.get(replica, 0)
                assert newest is None or not newest.is_there or newest.leaving or newest.incarnation < wanted
        elif group.phase == "running":
            running = {a.replica for a in self.sim.agents if a.child in (RUNNING, FINISHED) and a.is_there}
            assert set(group.meeting.replicas) <= running | group.attempt.done | {LEADER}
        else:
            assert group.is_over


Schedules.TestCase.settings = settings(max_examples=settings().max_examples * 6 // 10, stateful_step_count=50)
TestSchedules = Schedules.TestCase
