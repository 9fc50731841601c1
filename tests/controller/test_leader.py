from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainjob.controller.election import (
    Acquire,
    Candidacy,
    Election,
    Lease,
    Lost,
    Observe,
    Sighting,
    Wait,
    elect,
    see,
)

TERMS = Election("trainjob")
OTHERS = Lease("other", 15, renewed="r1", version="1")


@pytest.mark.parametrize(
    ("lease", "since", "closed", "now", "wait"),
    [
        (None, 0, 0, 0, 0),  # the first replica ever
        (None, 100, 15, 105, 10),  # deleted under a leader that may continue until its deadline
        (Lease("me", 15), 0, 15, 1, 0),  # the own one
        (Lease("", 1), 100, 0, 100, 0),  # released
        (OTHERS, 100, 15, 100, 15),
        (OTHERS, 100, 15, 114.5, 0.5),
        (OTHERS, 100, 15, 115, 0),
        (OTHERS, 100, 15, 1e9, 0),
        (Lease("other", 60), 100, 60, 115, 45),  # the holder's own word counts, not ours
    ],
)
def test_who_may_claim_when(
    lease: Lease | None, since: float, closed: float, now: float, wait: float
) -> None:
    assert elect(Sighting(lease, since, closed), "me", now) == wait


@pytest.mark.parametrize(
    ("before", "lease", "since"),
    [
        (None, OTHERS, 110),
        (Sighting(OTHERS, 100, 15), OTHERS, 100),
        (Sighting(OTHERS, 100, 15), replace(OTHERS, version="2"), 100),  # another client has set a label
        (Sighting(OTHERS, 100, 15), replace(OTHERS, renewed="r2", version="2"), 110),
        (Sighting(OTHERS, 100, 15), replace(OTHERS, holder="third", version="2"), 110),
        (Sighting(OTHERS, 100, 15), None, 110),
        (Sighting(None, 100, 15), None, 100),
    ],
)
def test_the_time_counts_from_the_last_change_that_was_seen(
    before: Sighting | None, lease: Lease | None, since: float
) -> None:
    assert see(lease, 110, before).since == since


def test_a_deleted_lease_is_left_alone_as_long_as_the_one_that_was_there() -> None:
    seen = see(None, 110, see(OTHERS, 100))
    assert elect(seen, "me", 124.9) > 0
    assert elect(seen, "me", 125) == 0


def test_the_first_replica_creates_the_lease() -> None:
    candidacy = Candidacy("me", TERMS)
    assert candidacy.step(0) == Observe()
    candidacy.saw(None, 0.1)
    assert candidacy.step(0.1) == Acquire(None)
    assert candidacy.leads_until is None
    candidacy.claimed(Lease("me", 15, version="1"), sent=0.1, now=0.4)
    assert candidacy.leads_until == 10.1


def test_a_leader_renews_without_looking() -> None:
    candidacy, held = _lead(now=0)
    assert candidacy.step(1) == Wait(1)
    assert candidacy.step(2) == Acquire(held)


def test_a_standby_looks_again_and_again() -> None:
    candidacy = Candidacy("me", TERMS)
    candidacy.saw(OTHERS, 0)
    assert candidacy.step(0) == Wait(2)
    assert candidacy.step(2) == Observe()
    candidacy.saw(OTHERS, 14)
    assert candidacy.step(14) == Wait(1)  # no longer than the lease
    candidacy.saw(OTHERS, 15)
    assert candidacy.step(15) == Acquire(OTHERS)


def test_a_released_lease_is_claimed_at_once() -> None:
    candidacy = Candidacy("me", TERMS)
    candidacy.saw(OTHERS, 0)
    released = Lease("", 1, renewed="r2", version="2")
    candidacy.saw(released, 2)
    assert candidacy.step(2) == Acquire(released)


def test_a_leader_that_gets_no_answer_tries_on_and_then_gives_up() -> None:
    candidacy, held = _lead(now=0)
    now = 2.0
    assert candidacy.step(now) == Acquire(held)
    attempts = 0
    while not isinstance(step := candidacy.step(now), Lost):
        if isinstance(step, Wait):
            now += step.seconds
        else:
            attempts += 1
            candidacy.failed(now)
    assert now == 10
    assert attempts > 10
    assert "no renewal for 10 s" in step.why


def test_a_leader_whose_response_was_lost_continues() -> None:
    candidacy, _ = _lead(now=0)
    candidacy.failed(2)
    stored = Lease("me", 15, renewed="later", version="7")
    assert candidacy.step(2.5) == Observe()
    candidacy.saw(stored, 2.6)
    assert candidacy.step(2.6) == Acquire(stored)


def test_a_leader_that_sees_another_one_stops() -> None:
    candidacy, _ = _lead(now=0)
    candidacy.failed(2)
    candidacy.saw(OTHERS, 3)
    assert candidacy.step(3) == Lost("other has taken it over")


def _lead(now: float) -> tuple[Candidacy, Lease]:
    candidacy = Candidacy("me", TERMS)
    candidacy.saw(None, now)
    held = Lease("me", 15, renewed="r", version="1")
    candidacy.claimed(held, sent=now, now=now)
    return candidacy, held


# -- never two leaders --------------------------------------------------------------------------------------


@dataclass
class Server:
    """Keeps the Lease; a write counts when it arrives, whether or not its answer does."""

    lease: Lease | None = None
    version: int = 0

    def write(self, claim: Acquire, identity: str, stamp: str) -> Lease | None:
        expected = claim.instead_of.version if claim.instead_of else None
        if (self.lease.version if self.lease else None) != expected:
            return None
        self.version += 1
        before = self.lease or Lease("", 0)
        self.lease = Lease(
            identity,
            TERMS.lease_seconds,
            renewed=stamp,
            transitions=before.transitions + (before.holder != identity),
            version=str(self.version),
        )
        return self.lease


@dataclass
class Replica:
    """One process, with a clock that is wrong by an offset and runs at a rate of its own."""

    identity: str
    offset: float
    rate: float
    candidacy: Candidacy = field(init=False)
    dead_at: float = float("inf")

    def __post_init__(self) -> None:
        self.candidacy = Candidacy(self.identity, TERMS)

    def clock(self, now: float) -> float:
        return self.offset + self.rate * now

    def leads(self, now: float) -> bool:
        until = self.candidacy.leads_until
        return until is not None and self.clock(now) < until and now < self.dead_at


class World:
    """Replicas and a server with true time, delays, lost messages and processes that stand still."""

    def __init__(self, seed: int, rates: list[float], *, loss: float) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a simulation
        self.server = Server()
        self.loss = loss
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = 0
        self.replicas = [
            Replica(f"r{i}", self.random.uniform(-1e6, 1e6), rate) for i, rate in enumerate(rates)
        ]
        self.takeovers = 0
        for replica in self.replicas:
            self.after(self.random.uniform(0, 3), lambda replica=replica: self.act(replica))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.events, (self.now + seconds, self.order, call))

    def delay(self) -> float:
        return self.random.choice([0.001, 0.01, 0.1, 1.0, 12.0]) * self.random.random()

    def run(self, until: float) -> None:
        while self.events and self.events[0][0] < until:
            self.now, _, call = heapq.heappop(self.events)
            call()
            self.check()

    def check(self) -> None:
        leaders = [replica.identity for replica in self.replicas if replica.leads(self.now)]
        assert len(leaders) <= 1, f"at {self.now}: {leaders}"

    def act(self, replica: Replica) -> None:
        if self.now >= replica.dead_at:
            return
        if self.random.random() < 0.02:  # the machine stands still for a while
            self.after(self.random.uniform(0, 30), lambda: self.act(replica))
            return
        step = replica.candidacy.step(replica.clock(self.now))
        if isinstance(step, Lost):
            self.restart(replica)
            return
        if isinstance(step, Wait):
            self.after(step.seconds / replica.rate + 1e-6, lambda: self.act(replica))
            return
        self.send(replica, step)

    def restart(self, replica: Replica) -> None:
        """The process ends, and another one begins in its place."""
        replica.dead_at = self.now
        successor = Replica(f"{replica.identity}'", replica.offset, replica.rate)
        self.replicas[self.replicas.index(replica)] = successor
        self.after(self.random.uniform(0, 3), lambda: self.act(successor))

    def send(self, replica: Replica, step: Observe | Acquire) -> None:
        sent = replica.clock(self.now)
        if self.random.random() < self.loss:
            self.after(5 / replica.rate, lambda: self.fail(replica))
            return
        self.after(self.delay(), lambda: self.arrive(replica, step, sent))

    def arrive(self, replica: Replica, step: Observe | Acquire, sent: float) -> None:
        before = self.server.lease
        if isinstance(step, Observe):
            answer: Lease | None = before
        else:
            answer = self.server.write(step, replica.identity, repr(sent))
            changed = answer is not None and before is not None and before.holder != replica.identity
            self.takeovers += changed
        is_known = isinstance(step, Observe) or answer is not None
        if not is_known or self.random.random() < self.loss:
            self.after(self.delay(), lambda: self.fail(replica))
        else:
            self.after(self.delay(), lambda: self.get(replica, step, answer, sent))

    def get(self, replica: Replica, step: Observe | Acquire, answer: Lease | None, sent: float) -> None:
        now = replica.clock(self.now)
        if isinstance(step, Observe):
            replica.candidacy.saw(answer, now)
        elif answer is not None:
            replica.candidacy.claimed(answer, sent, now)
        self.act(replica)

    def fail(self, replica: Replica) -> None:
        replica.candidacy.failed(replica.clock(self.now))
        self.act(replica)


_RATES = st.lists(st.floats(0.85, 1.2), min_size=2, max_size=4)


@settings(max_examples=settings().max_examples)
@given(st.integers(0, 2**32), _RATES, st.sampled_from([0.0, 0.1, 0.4]))
def test_there_are_never_two_leaders(seed: int, rates: list[float], loss: float) -> None:
    World(seed, rates, loss=loss).run(400)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), _RATES)
def test_a_killed_leader_has_a_successor_within_twenty_seconds(seed: int, rates: list[float]) -> None:
    world = World(seed, [1.0 for _ in rates], loss=0.0)
    world.delay = lambda: 0.02 * world.random.random()  # type: ignore[method-assign]
    world.random.random = lambda draw=world.random.random: max(0.05, draw())  # type: ignore[method-assign,misc]
    world.run(60 + seed % 7)
    (leader,) = [replica for replica in world.replicas if replica.leads(world.now)]
    leader.dead_at = world.now
    world.run(world.now + 20)
    assert any(replica.leads(world.now) for replica in world.replicas)


def test_the_simulation_finds_two_leaders_where_there_are_some() -> None:
    """A clock that runs four times as fast as the leader's doesn't wait for long enough."""
    worlds = [World(seed, [0.5, 2.0], loss=0.4) for seed in range(200)]
    with pytest.raises(AssertionError, match="at "):
        _run_all(worlds, 400)


def _run_all(worlds: list[World], seconds: float) -> None:
    for world in worlds:
        world.run(seconds)


def test_the_simulation_has_leaders_come_and_go() -> None:
    world = World(1, [1.0, 1.0, 1.0], loss=0.4)
    world.run(4000)
    assert world.takeovers > 5
