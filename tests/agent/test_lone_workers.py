"""A worker of a parameter-server job restarts alone; any other replica restarts all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.agents.worker_group import SimulatedAgent, Simulation
from trainjob_trainer.agent.messages import Beat
from trainjob_trainer.agent.rendezvous import lone_replicas
from trainjob_trainer.contract.reports import Failure


def coordinated(**settings: Any) -> Simulation:
    """A chief, two workers and a server that train."""
    simulation = Simulation({"chief": 1, "worker": 2, "ps": 1}, leader="chief-0", **settings)
    simulation.gather()
    simulation.progress("chief-0", step=10, stepSeconds=0.1)
    for replica in ("worker-0", "worker-1", "ps-0"):
        simulation.progress(replica)
    assert simulation.group.phase == "running"
    return simulation


def agent_of(simulation: Simulation, replica: str) -> SimulatedAgent:
    agent = simulation.newest(replica)
    assert agent is not None
    return agent


def failure_of(simulation: Simulation) -> Failure:
    assert simulation.group.failure is not None
    return simulation.group.failure


def starts(simulation: Simulation) -> dict[str, list[int]]:
    """The numbers of every replica's starts."""
    return {agent.replica: [start["attempt"] for start in agent.starts] for agent in simulation.agents}


@pytest.mark.parametrize(
    ("replicas", "alone"),
    [
        (["chief-0", "worker-0", "worker-1", "ps-0"], {"worker-0", "worker-1"}),
        (["chief-0", "worker-0", "worker-1"], set()),
        (["worker-0", "worker-1"], set()),
        (["worker-0", "ps-0"], set()),
    ],
)
def test_only_workers_beside_parameter_servers_restart_alone(replicas: list[str], alone: set[str]) -> None:
    assert lone_replicas(replicas) == alone


def test_a_dead_worker_is_started_again_alone() -> None:
    simulation = coordinated()
    simulation.end_child("worker-1", 137)
    assert starts(simulation) == {"chief-0": [1], "worker-0": [1], "worker-1": [1, 2], "ps-0": [1]}
    first, again = agent_of(simulation, "worker-1").starts
    assert (again["tfConfig"], again["epoch"]) == (first["tfConfig"], first["epoch"])
    assert simulation.group.phase == "running"
    failure = failure_of(simulation)
    assert (failure.replica, failure.reason, failure.alone, failure.step) == ("worker-1", "Killed", True, 10)
    counts = simulation.group.budget.counts
    assert (counts.attempt, counts.counted, counts.not_counted) == (2, 1, 0)


@pytest.mark.parametrize("replica", ["chief-0", "ps-0"])
def test_the_chief_or_a_server_restarts_all(replica: str) -> None:
    simulation = coordinated()
    simulation.end_child("worker-1", 137)
    simulation.end_child(replica, 137)
    simulation.tick(1)
    simulation.settle()
    assert simulation.group.phase == "running"
    assert starts(simulation) == {
        "chief-0": [1, 3],
        "worker-0": [1, 3],
        "worker-1": [1, 2, 3],
        "ps-0": [1, 3],
    }
    assert (failure_of(simulation).replica, failure_of(simulation).alone) == (replica, False)


def test_training_ends_with_the_chief_after_any_restart() -> None:
    simulation = coordinated()
    simulation.end_child("worker-0", 137)
    simulation.end_child("chief-0", 0)
    assert simulation.group.phase == "finished"
    assert set(simulation.codes.values()) == {0}


def test_a_restarted_worker_is_stopped_too() -> None:
    simulation = coordinated()
    simulation.end_child("worker-1", 137)
    simulation.set_target(world={"chief": 1, "worker": 1, "ps": 1})
    assert simulation.codes["worker-1"] == 0
    assert starts(simulation)["chief-0"] == [1, 3]


def test_a_worker_that_never_comes_to_serve_is_given_up() -> None:
    simulation = coordinated(max_restarts=10)
    for _ in range(4):  # the first time it had served
        assert simulation.group.phase == "running"
        simulation.end_child("worker-1", 1)
        simulation.progress("chief-0", step=int(simulation.now) + 20, stepSeconds=0.1)
        simulation.tick(5)
        simulation.settle()
    assert simulation.group.phase == "failed"
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
    assert simulation.group.phase == "running"
    assert simulation.group.budget.counts.counted == 5


@pytest.mark.parametrize(("code", "restarts"), [(137, 2), (1, 2), (80, 0)])
def test_restarts_alone_count(code: int, restarts: int) -> None:
    simulation = coordinated(max_restarts=2)
    while simulation.group.phase == "running":
        simulation.end_child("worker-1", code)
        simulation.progress("worker-1")
        simulation.progress("chief-0", step=20 + int(simulation.now), stepSeconds=0.1)
        simulation.tick(5)
        simulation.settle()
    assert simulation.group.phase == "failed"
    assert simulation.group.budget.counts.counted == restarts


def test_it_waits_longer_each_time() -> None:
    simulation = coordinated(max_restarts=20)
    waits = []
    for number in range(4):
        began = simulation.now
        simulation.end_child("worker-1", number + 1)
        while agent_of(simulation, "worker-1").child != "running":
            assert simulation.group.wake_at is not None
            simulation.tick(simulation.group.wake_at - simulation.now)
            simulation.settle()
        waits.append(simulation.now - began)
        simulation.progress("worker-1")
    assert waits == [0, 1, 2, 4]


def test_the_others_do_not_wait_for_a_worker_whose_pod_is_lost() -> None:
    simulation = coordinated()
    simulation.vanish("worker-1")
    assert simulation.group.phase == "running"
    simulation.gather("worker-1")
    new = agent_of(simulation, "worker-1")
    assert [start["attempt"] for start in new.starts] == [2]
    assert starts(simulation)["chief-0"] == [1]
    cluster = new.starts[0]["tfConfig"]["cluster"]
    assert cluster["worker"] == ["worker-0:2222", "worker-1:2222"]
    assert cluster["ps"] == ["10.0.0.1:2222"]
    counts = simulation.group.budget.counts
    assert (counts.counted, counts.not_counted) == (0, 0)


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
    counts = simulation.group.budget.counts
    assert (counts.counted, counts.not_counted) == (0, 1)
    assert (failure_of(simulation).reason, failure_of(simulation).alone) == ("Unreachable", True)


def test_a_worker_that_is_asked_to_leave_leaves_alone() -> None:
    simulation = coordinated()
    agent = agent_of(simulation, "worker-1")
    agent.leave()
    simulation.settle()
    assert simulation.group.phase == "running"
    assert [agent.child for agent in simulation.agents] == ["running"] * 4


def test_an_unavailable_worker_changes_nothing() -> None:
    simulation = coordinated()
    simulation.vanish("worker-1")
    simulation.set_target(world={"chief": 1, "worker": 2, "ps": 1}, without=frozenset(["worker-1"]))
    assert simulation.group.phase == "running"


def stall(simulation: Simulation, stopped: str | None) -> None:
    """Nothing makes progress; perhaps because this process is stopped."""
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
    assert (failure.replica, failure.reason, failure.alone) == ("worker-1", "Stalled", True)
    assert failure.log_tail == "the stack of worker-1"
    assert simulation.group.budget.counts.counted == 1


@pytest.mark.parametrize(("stopped", "blamed"), [(None, "chief-0"), ("ps-0", "ps-0")])
def test_those_that_serve_are_not_behind(stopped: str | None, blamed: str) -> None:
    simulation = coordinated(stall_timeout=60)
    stall(simulation, stopped)
    assert (failure_of(simulation).replica, failure_of(simulation).alone) == (blamed, False)
    assert starts(simulation)["chief-0"] == [1, 2]


def test_those_that_serve_never_stall() -> None:
    simulation = coordinated(stall_timeout=60)
    for step in range(11, 20):
        simulation.tick(30)
        simulation.progress("chief-0", step=step, stepSeconds=30.0)
    assert simulation.group.phase == "running"
    assert simulation.group.failure is None


REPLICAS = st.sampled_from(["chief-0", "worker-0", "worker-1", "ps-0"])
MEMBERS = st.sampled_from(["worker-0", "worker-1", "ps-0"])
EVENTS = st.one_of(
    st.tuples(st.just("end"), REPLICAS, st.sampled_from([0, 1, 85, 86, 137])),
    st.tuples(st.just("vanish"), MEMBERS, st.just(0)),
    st.tuples(st.just("cut"), MEMBERS, st.just(0)),
    st.tuples(st.just("leave"), MEMBERS, st.just(0)),
    st.tuples(st.just("tick"), REPLICAS, st.integers(1, 90)),
    st.tuples(st.just("step"), REPLICAS, st.integers(1, 50)),
)


def happen(simulation: Simulation, kind: str, replica: str, number: int) -> None:
    agent = agent_of(simulation, replica)
    if kind == "tick":
        simulation.tick(number)
    elif kind == "step" and agent.child == "running":
        simulation.progress("chief-0", step=number, checkpointStep=number, stepSeconds=0.1)
    elif not agent.is_there or agent.link is None:
        return
    elif kind == "end":
        simulation.end_child(replica, number)
    elif kind == "vanish":
        simulation.vanish(replica)
    elif kind == "cut":
        simulation.lose(agent.link)
        agent.cut_off()
    elif kind == "leave":
        agent.leave()
    simulation.settle()


def come_back(simulation: Simulation) -> None:
    """Disconnected agents join again, and the controller replaces those that have ended."""
    for replica in ("worker-0", "worker-1", "ps-0"):
        agent = agent_of(simulation, replica)
        if agent.leaving:
            agent.end_child(143)
            agent.code = agent.code or 86
            if agent.link in simulation.links:
                simulation.lose(agent.link)
        if not agent.is_there:
            agent = simulation.spawn(replica)
        if agent.link not in simulation.links:
            simulation.connect(agent)
    simulation.settle()


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=25))
def test_after_any_events_all_train_again_or_the_job_is_over(events: list[tuple[str, str, int]]) -> None:
    simulation = coordinated(max_restarts=4)
    for event in events:
        if simulation.group.is_over:
            break
        happen(simulation, *event)
    for _ in range(4):
        if not simulation.group.is_over:
            come_back(simulation)
            simulation.tick(61)
            simulation.settle()
    numbers = [s.message["attempt"] for s in simulation.sent if s.message["type"] == "start"]
    assert numbers == sorted(numbers)
    assert simulation.group.budget.counts.used <= 4
    if simulation.group.is_over:
        return
    assert simulation.group.phase == "running"
    for replica in ("chief-0", "worker-0", "worker-1", "ps-0"):
        agent = agent_of(simulation, replica)
        finished = simulation.group.attempt is not None and replica in simulation.group.attempt.done
        assert agent.child == "running" or finished, replica
