"""The rules of the leading agent under random schedules: what never happens, and that it comes to an end."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support_gang import LEADER, SimulatedAgent, Simulation

from trainjob_trainer.agent.budget import Ledger
from trainjob_trainer.agent.messages import (
    FINISHED,
    IDLE,
    QUIET,
    RUNNING,
    STOPPING,
    Lost,
    Order,
    Send,
)

MAX_RESTARTS = 2
SEATS = st.sampled_from(["worker-0", "worker-1", "worker-2"])
MEMBERS = st.sampled_from(["worker-1", "worker-2"])
CODES = st.sampled_from([0, 0, 0, 1, 1, 2, 85, 86, 137])
RARE_CODES = st.sampled_from([87, 89])
CALM = st.booleans()
"""Whether all messages arrive before anything else happens."""


class Checked(Simulation):
    """Refuses what must never be said."""

    def check(self, effects: Any) -> None:
        starts = [e for e in effects if isinstance(e, Send) and e.message["type"] == "start"]
        if starts:
            self._check_start(starts)
        for effect in effects:
            if isinstance(effect, Send) and effect.message["type"] == "stop" and effect.message["graceful"]:
                agent = self.links[effect.link]
                assert agent.seat == LEADER or self.own.child in QUIET or not self.own.is_there

    def _check_start(self, starts: list[Send]) -> None:
        gang = self.gang
        number = starts[0].message["attempt"]
        assert [s for s in starts if s.message["attempt"] != number] == []
        assert number > max(self.attempts, default=0)
        agents = [self.links[start.link] for start in starts]
        assert sorted(agent.seat for agent in agents) == sorted(gang.meeting.seats)
        for agent in agents:
            assert agent.child in QUIET or agent.leaving or not agent.is_there
            assert agent.incarnation >= gang.meeting.order.incarnations.get(agent.seat, 0)
            assert number >= agent.incarnation
        for agent in self.links.values():
            member = gang.meeting.roster.on(agent.link) if agent.link is not None else None
            if member is not None and gang.meeting.is_wanted(member):
                assert agent.child in QUIET or not agent.is_there, f"{agent.seat} still runs"


class Schedules(RuleBasedStateMachine):
    """Everything that can happen to three agents and their connections, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.sim = Checked({"worker": 2}, max_restarts=MAX_RESTARTS)
        self.ledger = Ledger()
        self.is_over = False
        self.broken: list[int] = []

    def _agents(self, seat: str) -> list[SimulatedAgent]:
        return [agent for agent in self.sim.agents if agent.seat == seat and agent.is_there]

    def _settle(self, calm: bool) -> None:
        self.sim.flush_own()
        if calm and not self.broken:
            self.sim.settle()

    @initialize(size=st.integers(1, 3), calm=CALM)
    def all_come(self, size: int, calm: bool) -> None:
        self.sim.handle(Order({"worker": size}, max_restarts=MAX_RESTARTS))
        for index in range(1, size):
            self.sim.connect(self.sim.spawn(f"worker-{index}"))
        self._settle(calm)

    @rule(seat=MEMBERS, calm=CALM)
    def a_new_pod_comes(self, seat: str, calm: bool) -> None:
        if sum(agent.seat == seat for agent in self.sim.agents) < 5:
            self.sim.connect(self.sim.spawn(seat))
            self._settle(calm)

    @rule(seat=SEATS, code=CODES, step=st.none() | st.integers(0, 3), calm=CALM)
    def a_training_process_ends(self, seat: str, code: int, step: int | None, calm: bool) -> None:
        for agent in self._agents(seat)[-1:]:
            if agent.child == RUNNING:
                agent.end_child(code, step)
                self._settle(calm)

    @precondition(lambda self: len(self.sim.attempts) > 2)
    @rule(seat=SEATS, code=RARE_CODES)
    def a_training_process_ends_for_good(self, seat: str, code: int) -> None:
        self.a_training_process_ends(seat, code, None, calm=False)

    @rule()
    def what_was_stopped_ends(self) -> None:
        for agent in self.sim.agents:
            if agent.child == STOPPING:
                agent.end_child(137)
        self.sim.flush_own()

    @precondition(lambda self: self.sim.gang.phase == "meeting")
    @rule()
    def who_is_missing_comes(self) -> None:
        """A controller that does its work."""
        for seat in self.sim.gang.meeting.missing:
            newest = self.sim.newest(seat)
            if newest is not None and newest.is_there and newest.link is None:
                self.sim.connect(newest)
            elif seat != LEADER:
                self.sim.connect(self.sim.spawn(seat))

    @rule(seat=SEATS)
    def messages_arrive(self, seat: str) -> None:
        for agent in self._agents(seat):
            self.sim.deliver_down(agent)
            self.sim.deliver_up(agent)

    @rule()
    def all_messages_arrive(self) -> None:
        for agent in list(self.sim.agents):
            while agent.is_there and agent.inbox:
                self.sim.deliver_down(agent)
            while agent.outbox and agent.link in self.sim.links:
                self.sim.deliver_up(agent)

    @rule(seat=MEMBERS, first=st.booleans())
    def a_connection_breaks(self, seat: str, first: bool) -> None:
        """The leading agent, or the member, notices it first; the other one later."""
        for agent in self._agents(seat)[-1:]:
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

    @rule(seat=MEMBERS)
    def a_member_connects_again(self, seat: str) -> None:
        for agent in self._agents(seat):
            if agent.link is None:
                self.sim.connect(agent)

    @rule(seat=MEMBERS)
    def a_pod_vanishes(self, seat: str) -> None:
        for agent in self._agents(seat)[-1:]:
            agent.child, agent.code = IDLE, 137
            if agent.link in self.sim.links:
                assert agent.link is not None
                self.broken.append(agent.link)

    @rule(seat=MEMBERS)
    def somebody_is_asked_to_leave(self, seat: str) -> None:
        for agent in self._agents(seat)[-1:]:
            agent.leave()

    @rule(size=st.integers(1, 3), newest=st.booleans(), without=st.sets(MEMBERS, max_size=1))
    def the_controller_orders(self, size: int, newest: bool, without: set[str]) -> None:
        wanted = {a.seat: a.incarnation for a in self.sim.agents} if newest else {}
        self.sim.handle(Order({"worker": size}, frozenset(without), wanted, MAX_RESTARTS))

    @rule(seat=SEATS, step=st.integers(0, 5), saved=st.booleans())
    def there_is_progress(self, seat: str, step: int, saved: bool) -> None:
        for agent in self._agents(seat)[-1:]:
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
        ledger = self.sim.gang.budget.ledger
        assert ledger.used <= MAX_RESTARTS
        for key in ("attempt", "charged", "uncharged", "refunded"):
            assert getattr(ledger, key) >= getattr(self.ledger, key)
        assert (ledger.furthest_step or 0) >= (self.ledger.furthest_step or 0)
        self.ledger = ledger

    @invariant()
    def the_end_is_the_end(self) -> None:
        assert self.sim.gang.is_over or not self.is_over
        self.is_over = self.sim.gang.is_over

    def teardown(self) -> None:
        """Once nothing more happens, training runs, is over, or waits for somebody who is not there."""
        for link in self.broken:
            self.sim.handle(Lost(link))
        for agent in self.sim.agents:
            if agent.is_there and agent.link is None:
                self.sim.connect(agent)
        for _ in range(3):
            self.sim.settle()
            self.sim.tick(70.0)
        self.sim.settle()
        gang = self.sim.gang
        if not self.sim.own.is_there:
            return  # nobody leads any more
        if gang.phase == "meeting":
            missing = gang.meeting.missing
            assert missing
            for seat in missing:
                newest = self.sim.newest(seat)
                wanted = gang.meeting.order.incarnations.get(seat, 0)
                assert newest is None or not newest.is_there or newest.leaving or newest.incarnation < wanted
        elif gang.phase == "running":
            running = {a.seat for a in self.sim.agents if a.child in (RUNNING, FINISHED) and a.is_there}
            assert set(gang.meeting.seats) <= running | gang.attempt.done | {LEADER}
        else:
            assert gang.is_over


Schedules.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
TestSchedules = Schedules.TestCase
