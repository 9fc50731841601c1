"""A worker of a parameter-server job restarts alone; everybody else takes all along."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_gang import SimulatedAgent, Simulation

from trainjob_trainer.agent.failure import Failure
from trainjob_trainer.agent.messages import Beat
from trainjob_trainer.agent.rendezvous import lone_seats


def coordinated(**settings: Any) -> Simulation:
    """A chief, two workers and a server that train."""
    simulation = Simulation({"chief": 1, "worker": 2, "ps": 1}, leader="chief-0", **settings)
    simulation.gather()
    simulation.progress("chief-0", step=10, stepSeconds=0.1)
    for seat in ("worker-0", "worker-1", "ps-0"):
        simulation.progress(seat)
    assert simulation.gang.phase == "running"
    return simulation


def agent_of(simulation: Simulation, seat: str) -> SimulatedAgent:
    agent = simulation.newest(seat)
    assert agent is not None
    return agent


def failure_of(simulation: Simulation) -> Failure:
    assert simulation.gang.failure is not None
    return simulation.gang.failure


def starts(simulation: Simulation) -> dict[str, list[int]]:
    """The numbers of every seat's starts."""
    return {agent.seat: [start["attempt"] for start in agent.starts] for agent in simulation.agents}


@pytest.mark.parametrize(
    ("seats", "alone"),
    [
        (["chief-0", "worker-0", "worker-1", "ps-0"], {"worker-0", "worker-1"}),
        (["chief-0", "worker-0", "worker-1"], set()),
        (["worker-0", "worker-1"], set()),
        (["worker-0", "ps-0"], set()),
    ],
)
def test_who_restarts_alone(seats: list[str], alone: set[str]) -> None:
    assert lone_seats(seats) == alone


def test_a_dead_worker_is_started_again_alone() -> None:
    simulation = coordinated()
    simulation.end_child("worker-1", 137)
    assert starts(simulation) == {"chief-0": [1], "worker-0": [1], "worker-1": [1, 2], "ps-0": [1]}
    first, again = agent_of(simulation, "worker-1").starts
    assert (again["tfConfig"], again["epoch"]) == (first["tfConfig"], first["epoch"])
    assert simulation.gang.phase == "running"
    failure = failure_of(simulation)
    assert (failure.seat, failure.reason, failure.alone, failure.step) == ("worker-1", "Killed", True, 10)
    ledger = simulation.gang.budget.ledger
    assert (ledger.attempt, ledger.charged, ledger.uncharged) == (2, 1, 0)


@pytest.mark.parametrize("seat", ["chief-0", "ps-0"])
def test_the_chief_or_a_server_takes_all_along(seat: str) -> None:
    simulation = coordinated()
    simulation.end_child("worker-1", 137)
    simulation.end_child(seat, 137)
    simulation.tick(1)
    simulation.settle()
    assert simulation.gang.phase == "running"
    assert starts(simulation) == {
        "chief-0": [1, 3],
        "worker-0": [1, 3],
        "worker-1": [1, 2, 3],
        "ps-0": [1, 3],
    }
    assert (failure_of(simulation).seat, failure_of(simulation).alone) == (seat, False)


def test_training_ends_with_the_chief_whatever_was_restarted() -> None:
    simulation = coordinated()
    simulation.end_child("worker-0", 137)
    simulation.end_child("chief-0", 0)
    assert simulation.gang.phase == "finished"
    assert set(simulation.codes.values()) == {0}


def test_everybody_is_told_to_stop_who_was_restarted_too() -> None:
    simulation = coordinated()
    simulation.end_child("worker-1", 137)
    simulation.order(world={"chief": 1, "worker": 1, "ps": 1})
    assert simulation.codes["worker-1"] == 0
    assert starts(simulation)["chief-0"] == [1, 3]


def test_a_worker_that_never_comes_to_serve_is_given_up() -> None:
    simulation = coordinated(max_restarts=10)
    for _ in range(4):  # the first time it had served
        assert simulation.gang.phase == "running"
        simulation.end_child("worker-1", 1)
        simulation.progress("chief-0", step=int(simulation.now) + 20, stepSeconds=0.1)
        simulation.tick(5)
        simulation.settle()
    assert simulation.gang.phase == "failed"
    assert failure_of(simulation).repeated
    assert not failure_of(simulation).alone
    assert simulation.codes == {"chief-0": 85, "worker-0": 85, "worker-1": 1, "ps-0": 85}


def test_one_that_serves_is_restarted_as_often_as_checkpoints_come() -> None:
    simulation = coordinated(max_restarts=1)
    for step in range(20, 120, 20):
        simulation.end_child("worker-1", 137)
        simulation.tick(5)
        simulation.settle()
        simulation.progress("worker-1")
        simulation.progress("chief-0", step=step, checkpointStep=step, stepSeconds=0.1)
    assert simulation.gang.phase == "running"
    assert simulation.gang.budget.ledger.charged == 5


@pytest.mark.parametrize(("code", "restarts"), [(137, 2), (1, 2), (80, 0)])
def test_restarts_alone_count(code: int, restarts: int) -> None:
    simulation = coordinated(max_restarts=2)
    while simulation.gang.phase == "running":
        simulation.end_child("worker-1", code)
        simulation.progress("worker-1")
        simulation.progress("chief-0", step=20 + int(simulation.now), stepSeconds=0.1)
        simulation.tick(5)
        simulation.settle()
    assert simulation.gang.phase == "failed"
    assert simulation.gang.budget.ledger.charged == restarts


def test_it_waits_longer_each_time() -> None:
    simulation = coordinated(max_restarts=20)
    waits = []
    for number in range(4):
        began = simulation.now
        simulation.end_child("worker-1", number + 1)
        while agent_of(simulation, "worker-1").child != "running":
            assert simulation.gang.wake_at is not None
            simulation.tick(simulation.gang.wake_at - simulation.now)
            simulation.settle()
        waits.append(simulation.now - began)
        simulation.progress("worker-1")
    assert waits == [0, 1, 2, 4]


def test_a_worker_whose_pod_is_lost_is_waited_for_by_nobody() -> None:
    simulation = coordinated()
    simulation.vanish("worker-1")
    assert simulation.gang.phase == "running"
    simulation.gather("worker-1")
    new = agent_of(simulation, "worker-1")
    assert [start["attempt"] for start in new.starts] == [2]
    assert starts(simulation)["chief-0"] == [1]
    cluster = new.starts[0]["tfConfig"]["cluster"]
    assert cluster["worker"] == ["worker-0:2222", "worker-1:2222"]
    assert cluster["ps"] == ["10.0.0.1:2222"]
    ledger = simulation.gang.budget.ledger
    assert (ledger.charged, ledger.uncharged) == (0, 0)


def test_a_connection_that_was_lost_is_the_agents_to_count() -> None:
    simulation = coordinated()
    agent = agent_of(simulation, "worker-1")
    assert agent.link is not None
    simulation.lose(agent.link)
    agent.cut_off()
    simulation.settle()
    simulation.connect(agent)
    simulation.settle()
    assert [start["attempt"] for start in agent.starts] == [1, 2]
    ledger = simulation.gang.budget.ledger
    assert (ledger.charged, ledger.uncharged) == (0, 1)
    assert (failure_of(simulation).reason, failure_of(simulation).alone) == ("Unreachable", True)


def test_a_worker_that_is_asked_to_leave_leaves_alone() -> None:
    simulation = coordinated()
    agent = agent_of(simulation, "worker-1")
    agent.leave()
    simulation.settle()
    assert simulation.gang.phase == "running"
    assert [agent.child for agent in simulation.agents] == ["running"] * 4


def test_a_worker_that_can_not_be_had_for_now_changes_nothing() -> None:
    simulation = coordinated()
    simulation.vanish("worker-1")
    simulation.order(world={"chief": 1, "worker": 2, "ps": 1}, without=frozenset(["worker-1"]))
    assert simulation.gang.phase == "running"


def stall(simulation: Simulation, stopped: str | None) -> None:
    """Nothing moves any more; perhaps because this process is stopped."""
    if stopped is not None:
        agent = agent_of(simulation, stopped)
        assert agent.link is not None
        simulation.handle(Beat(agent.link, "running", agent.attempt, agent.report, stopped=True))
    simulation.tick(61)
    simulation.settle()


def test_a_stopped_worker_is_started_again_alone() -> None:
    simulation = coordinated(stall_timeout=60)
    stall(simulation, "worker-1")
    assert starts(simulation) == {"chief-0": [1], "worker-0": [1], "worker-1": [1, 2], "ps-0": [1]}
    failure = failure_of(simulation)
    assert (failure.seat, failure.reason, failure.alone) == ("worker-1", "Stalled", True)
    assert failure.log_tail == "the stack of worker-1"
    assert simulation.gang.budget.ledger.charged == 1


@pytest.mark.parametrize(("stopped", "blamed"), [(None, "chief-0"), ("ps-0", "ps-0")])
def test_those_that_serve_are_not_behind(stopped: str | None, blamed: str) -> None:
    simulation = coordinated(stall_timeout=60)
    stall(simulation, stopped)
    assert (failure_of(simulation).seat, failure_of(simulation).alone) == (blamed, False)
    assert starts(simulation)["chief-0"] == [1, 2]


def test_those_that_serve_never_stall() -> None:
    simulation = coordinated(stall_timeout=60)
    for step in range(11, 20):
        simulation.tick(30)
        simulation.progress("chief-0", step=step, stepSeconds=30.0)
    assert simulation.gang.phase == "running"
    assert simulation.gang.failure is None


SEATS = st.sampled_from(["chief-0", "worker-0", "worker-1", "ps-0"])
MEMBERS = st.sampled_from(["worker-0", "worker-1", "ps-0"])
EVENTS = st.one_of(
    st.tuples(st.just("end"), SEATS, st.sampled_from([0, 1, 85, 86, 137])),
    st.tuples(st.just("vanish"), MEMBERS, st.just(0)),
    st.tuples(st.just("cut"), MEMBERS, st.just(0)),
    st.tuples(st.just("leave"), MEMBERS, st.just(0)),
    st.tuples(st.just("tick"), SEATS, st.integers(1, 90)),
    st.tuples(st.just("step"), SEATS, st.integers(1, 50)),
)


def happen(simulation: Simulation, kind: str, seat: str, number: int) -> None:
    agent = agent_of(simulation, seat)
    if kind == "tick":
        simulation.tick(number)
    elif kind == "step" and agent.child == "running":
        simulation.progress("chief-0", step=number, checkpointStep=number, stepSeconds=0.1)
    elif not agent.is_there or agent.link is None:
        return
    elif kind == "end":
        simulation.end_child(seat, number)
    elif kind == "vanish":
        simulation.vanish(seat)
    elif kind == "cut":
        simulation.lose(agent.link)
        agent.cut_off()
    elif kind == "leave":
        agent.leave()
    simulation.settle()


def come_back(simulation: Simulation) -> None:
    """Who is cut off joins again, and the controller replaces who is gone."""
    for seat in ("worker-0", "worker-1", "ps-0"):
        agent = agent_of(simulation, seat)
        if agent.leaving:
            agent.end_child(143)
            agent.code = agent.code or 86
            if agent.link in simulation.links:
                simulation.lose(agent.link)
        if not agent.is_there:
            agent = simulation.spawn(seat)
        if agent.link not in simulation.links:
            simulation.connect(agent)
    simulation.settle()


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=25))
def test_whatever_happens_all_train_again_or_the_job_is_over(events: list[tuple[str, str, int]]) -> None:
    simulation = coordinated(max_restarts=4)
    for event in events:
        if simulation.gang.is_over:
            break
        happen(simulation, *event)
    for _ in range(4):
        if not simulation.gang.is_over:
            come_back(simulation)
            simulation.tick(61)
            simulation.settle()
    numbers = [s.message["attempt"] for s in simulation.sent if s.message["type"] == "start"]
    assert numbers == sorted(numbers)
    assert simulation.gang.budget.ledger.used <= 4
    if simulation.gang.is_over:
        return
    assert simulation.gang.phase == "running"
    for seat in ("chief-0", "worker-0", "worker-1", "ps-0"):
        agent = agent_of(simulation, seat)
        finished = simulation.gang.attempt is not None and seat in simulation.gang.attempt.done
        assert agent.child == "running" or finished, seat
