"""The rules of the leading agent, one situation a test."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents.worker_group import LEADER, Simulation
from trainjob_trainer.agent.messages import Join, Send
from trainjob_trainer.agent.worker_group import build_report
from trainjob_trainer.contract.reports import OUT_OF_MEMORY
from trainjob_trainer.contract.restarts import RestartCounts


def running(workers: int = 2, **settings: Any) -> Simulation:
    simulation = Simulation({"worker": workers}, **settings)
    simulation.gather()
    assert simulation.group.phase == "running"
    return simulation


@pytest.mark.parametrize(
    ("counts", "incarnations", "attempt"),
    [
        ({}, 1, 1),
        ({}, 3, 3),
        ({"attempt": 4}, 2, 5),
        ({"attempt": 1}, 2, 2),
    ],
)
def test_which_attempt_it_is(counts: dict[str, int], incarnations: int, attempt: int) -> None:
    simulation = Simulation({"worker": 2}, counts=RestartCounts(**counts))
    for _ in range(incarnations - 1):
        simulation.spawn("worker-1")
    simulation.gather()
    assert simulation.attempts == [attempt]


def test_a_new_leading_agent_learns_from_the_members_where_training_stood() -> None:
    simulation = Simulation({"worker": 2})
    agent = simulation.spawn("worker-1")
    agent.attempt, agent.counts = 6, RestartCounts(attempt=6, counted=2, since_progress=1)
    simulation.connect(agent)
    simulation.settle()
    assert simulation.attempts == [7]
    assert simulation.group.budget.counts == RestartCounts(attempt=7, counted=2, since_progress=1)


def test_the_barrier_names_missing_replicas() -> None:
    simulation = Simulation({"worker": 3})
    assert simulation.group.meeting.missing == ["worker-1", "worker-2"]
    simulation.gather("worker-2")
    assert (simulation.group.phase, simulation.group.meeting.missing) == ("meeting", ["worker-1"])


def test_all_get_the_same_addresses() -> None:
    simulation = Simulation({"chief": 0, "worker": 2, "evaluator": 1})
    simulation.gather()
    cluster = {"worker": ["10.0.0.1:2222", "10.0.0.1:2222"], "evaluator": ["evaluator-0:2222"]}
    starts = [agent.starts[-1] for agent in simulation.agents]
    assert [start["tfConfig"]["cluster"] for start in starts] == [cluster, cluster]
    assert [start["epoch"] for start in starts] == ["1.1", "1.1"]


@pytest.mark.parametrize(
    ("ends", "replica", "code"),
    [
        ([("worker-1", 1)], "worker-1", 1),
        ([("worker-0", 1)], "worker-0", 1),
        ([("worker-0", 85), ("worker-1", 1)], "worker-1", 1),
        ([("worker-0", 85), ("worker-2", 86), ("worker-1", 137)], "worker-1", 137),
        ([("worker-0", 85), ("worker-2", 86)], "worker-2", 86),
        ([("worker-0", 85), ("worker-2", 85)], "worker-0", 85),
    ],
)
def test_the_first_failure_is_blamed(ends: list[tuple[str, int]], replica: str, code: int) -> None:
    simulation = running(3)
    for one, its_code in ends:
        simulation.end_child(one, its_code)
    simulation.tick(0.5)
    failure = simulation.group.failure
    assert failure is not None
    assert (failure.replica, failure.exit_code) == (replica, code)


def test_a_process_that_is_still_busy_dying_is_to_blame() -> None:
    simulation = running(2)
    error = {"reason": "ValueError", "message": "ValueError: boom"}
    simulation.progress("worker-1", state="failed", step=4, error=error)
    simulation.end_child("worker-0", 85)
    simulation.tick(0.5)
    failure = simulation.group.failure
    assert failure is not None
    assert (failure.replica, failure.reason, failure.exit_code, failure.step) == ("worker-1", "Crashed", 1, 4)
    assert failure.message == "ValueError: boom"


@pytest.mark.parametrize(
    ("code", "counted", "uncounted"), [(1, 1, 0), (137, 1, 0), (82, 1, 0), (85, 0, 1), (86, 0, 1), (89, 0, 1)]
)
def test_which_failures_are_counted(code: int, counted: int, uncounted: int) -> None:
    simulation = running()
    simulation.end_child("worker-1", code)
    simulation.tick(0.5)
    simulation.settle()
    counts = simulation.group.budget.counts
    assert (counts.counted, counts.not_counted) == (counted, uncounted)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([1, 2, 3, 4], {"worker-0": 85, "worker-1": 4}),
        ([87], {"worker-0": 85, "worker-1": 87}),
        ([81], {"worker-0": 85, "worker-1": 81}),
        ([1, 1, 1], {"worker-0": 85, "worker-1": 1}),
        ([1, 2, 1, 1], {"worker-0": 85, "worker-1": 1}),
    ],
)
def test_when_training_is_given_up(codes: list[int], expected: dict[str, int]) -> None:
    simulation = running()
    for code in codes:
        assert simulation.group.phase == "running"
        simulation.end_child("worker-1", code)
        simulation.tick(10)
        simulation.settle()
    assert (simulation.group.phase, simulation.codes) == ("failed", expected)


def test_a_failure_has_the_newest_checkpoint_that_was_reported_before_it() -> None:
    simulation = running()
    simulation.progress("worker-0", step=12, checkpointStep=10, resumedFrom=5)
    simulation.progress("worker-1", step=12, resumedFrom=5)
    simulation.end_child("worker-1", 1)
    simulation.tick(10)
    simulation.settle()
    assert simulation.group.failure is not None
    assert simulation.group.failure.checkpoint_step == 10


def test_failures_at_different_steps_are_not_the_same() -> None:
    simulation = running(max_restarts=5)
    for step in (10, 20, 30):
        simulation.end_child("worker-1", 1, step)
        simulation.tick(60)
        simulation.settle()
    assert simulation.group.phase == "running"


def test_failures_without_a_step_are_the_same_only_at_the_start() -> None:
    simulation = running(max_restarts=5)
    for _ in range(4):
        simulation.tick(61)
        simulation.end_child("worker-1", 1)
        simulation.tick(61)
        simulation.settle()
    assert simulation.group.phase == "running"


def test_the_back_off_grows_until_there_is_progress() -> None:
    simulation = running(max_restarts=20)
    waits = []
    for step in (5, 5, 4, 5, 6, 7):
        began = simulation.now
        simulation.progress("worker-1", step=step)
        simulation.end_child("worker-1", step)
        while simulation.group.phase != "running":
            simulation.tick(0.5)
            simulation.settle()
        waits.append(simulation.now - began)
    assert waits == [0, 1, 2, 4, 0, 0]


def test_a_checkpoint_beyond_every_failure_resets_the_count() -> None:
    simulation = running(max_restarts=1)
    simulation.progress("worker-0", step=10, checkpointStep=5)
    simulation.end_child("worker-0", 1, 10)
    assert simulation.group.budget.counts.used == 1
    simulation.progress("worker-0", step=5, checkpointStep=5, resumedFrom=5)
    simulation.progress("worker-0", step=15, checkpointStep=10, resumedFrom=5)
    assert simulation.group.budget.counts.used == 1
    simulation.progress("worker-0", step=15, checkpointStep=15, resumedFrom=5)
    assert simulation.group.budget.counts.used == 0


def test_an_old_checkpoint_resets_nothing() -> None:
    simulation = running(counts=RestartCounts(counted=1))
    simulation.progress("worker-0", step=200, checkpointStep=200, resumedFrom=200)
    assert simulation.group.budget.counts.reset == 0


@pytest.mark.parametrize("told", ["by its pod", "by a target"])
@pytest.mark.parametrize("grows", [True, False])
@pytest.mark.parametrize("replica", ["worker-1", "chief-0"])
def test_a_kill_for_memory_counts_unless_memory_grows(replica: str, grows: bool, told: str) -> None:
    """A leading agent whose pod is new may see the kill before the controller has reached it."""
    world = {"chief": 1, "worker": 2}
    simulation = Simulation(world, memory_grows=grows if told == "by its pod" else not grows)
    simulation.gather()
    if told == "by a target":
        simulation.set_target(world=world, memory_grows=grows)
    simulation.end_child(replica, 137, reason=OUT_OF_MEMORY)
    simulation.tick(0.5)
    simulation.settle()
    counts, is_free = simulation.group.budget.counts, grows and replica == "worker-1"
    assert (counts.counted, counts.not_counted) == (int(not is_free), int(is_free))


def test_a_lost_pod_is_not_the_agents_to_count() -> None:
    simulation = running()
    simulation.progress("worker-0", step=30)
    simulation.vanish("worker-1")
    assert simulation.group.phase == "meeting"
    simulation.gather("worker-1")
    counts = RestartCounts(attempt=2, since_progress=1, furthest_step=30)
    assert (simulation.attempts, simulation.group.budget.counts) == ([1, 2], counts)


def test_a_lost_connection_is_the_agents_to_count() -> None:
    simulation = running()
    agent = simulation.newest("worker-1")
    assert agent is not None
    assert agent.link is not None
    simulation.lose(agent.link)
    agent.cut_off()
    simulation.settle()
    simulation.connect(agent)
    simulation.settle()
    counts = simulation.group.budget.counts
    assert (simulation.attempts, counts.counted, counts.not_counted) == ([1, 2], 0, 1)


def test_a_member_that_comes_back_before_its_loss_is_noticed() -> None:
    simulation = running()
    agent = simulation.newest("worker-1")
    assert agent is not None
    agent.cut_off()
    simulation.connect(agent)
    simulation.settle()
    assert (simulation.attempts, simulation.group.budget.counts.not_counted) == ([1, 2], 1)


def test_a_newer_pod_takes_over_the_replica() -> None:
    simulation = running()
    old = simulation.newest("worker-1")
    simulation.gather("worker-1")
    assert old is not None
    assert (old.code, simulation.attempts) == (85, [1, 2])


def test_an_older_pod_is_dismissed() -> None:
    simulation = Simulation({"worker": 2})
    old, new = simulation.spawn("worker-1"), simulation.spawn("worker-1")
    simulation.connect(new)
    simulation.settle()
    simulation.connect(old)
    simulation.settle()
    assert (old.code, new.code, simulation.attempts) == (85, None, [2])


def test_no_other_agent_joins_as_the_leading_agents_replica() -> None:
    simulation = Simulation({"worker": 1})
    effects = simulation.group.handle(Join(9, LEADER, 7, "other", "10.9.9.9:2222"), 0.0)
    assert isinstance(effects[0], Send)
    assert (effects[0].link, effects[0].message["verdict"]) == (9, "dismissed")
    assert simulation.group.phase == "running"


@pytest.mark.parametrize("leaving", ["worker-0", "worker-2"])
def test_the_writer_stops_before_the_others(leaving: str) -> None:
    simulation = running(3)
    agent = simulation.newest(leaving)
    assert agent is not None
    agent.leave()
    simulation.flush_own()
    simulation.deliver_up(agent)
    stops = [send for send in simulation.sent if send.message["type"] == "stop"]
    assert [(s.link, s.message["graceful"]) for s in stops] == [(simulation.own.link, True)]
    simulation.settle()
    assert [a.graceful for a in simulation.agents] == [True, True, True]
    assert simulation.group.meeting.missing == [leaving]
    assert simulation.group.budget.counts.counted == 0


def test_a_late_agent_stands_by() -> None:
    simulation = running(2)
    simulation.gather("worker-5")
    assert simulation.attempts == [1]
    assert simulation.codes["worker-5"] is None


@pytest.mark.parametrize(("size", "codes"), [(1, [None, 0, 0]), (2, [None, None, 0])])
def test_a_smaller_world(size: int, codes: list[int | None]) -> None:
    simulation = running(3)
    simulation.set_target(world={"worker": size})
    assert (simulation.attempts, list(simulation.codes.values())) == ([1, 2], codes)
    assert [a.graceful for a in simulation.agents] == [True, True, True]
    assert simulation.group.budget.counts == RestartCounts(attempt=2)


def test_a_larger_world_waits_for_its_new_replicas() -> None:
    simulation = running(2)
    simulation.set_target(world={"worker": 3})
    assert simulation.group.meeting.missing == ["worker-2"]
    simulation.gather("worker-2")
    assert simulation.attempts == [1, 2]


def test_training_continues_without_an_unavailable_worker_until_it_returns() -> None:
    simulation = running(4)
    simulation.vanish("worker-1")
    simulation.set_target(world={"worker": 4}, without=frozenset(["worker-1"]))
    starts = {agent.replica: agent.starts[-1]["tfConfig"] for agent in simulation.agents if agent.is_there}
    assert {replica: config["task"]["index"] for replica, config in starts.items()} == {
        "worker-0": 0,
        "worker-2": 1,
        "worker-3": 2,
    }
    assert {len(config["cluster"]["worker"]) for config in starts.values()} == {3}
    assert simulation.group.attempt is not None
    assert simulation.group.attempt.world == {"worker": 3}
    simulation.gather("worker-1")
    assert (simulation.attempts, simulation.codes["worker-1"]) == ([1, 2], None)
    simulation.set_target(world={"worker": 4})
    assert simulation.attempts == [1, 2, 3]
    assert simulation.group.budget.counts.counted == 0


def test_training_never_continues_without_the_leading_agents_replica() -> None:
    simulation = Simulation({"worker": 2})
    simulation.set_target(world={"worker": 2}, without=frozenset(["worker-0", "worker-1"]))
    assert (simulation.attempts, simulation.group.meeting.replicas) == ([1], ["worker-0"])


def test_a_repeated_target_changes_nothing() -> None:
    simulation = running(2)
    for _ in range(3):
        simulation.set_target(
            world={"worker": 2}, incarnations={"worker-0": 1, "worker-1": 1}, max_restarts=3
        )
    assert (simulation.attempts, simulation.group.phase) == ([1], "running")


def test_a_finished_process_is_not_missed() -> None:
    simulation = running(2)
    simulation.end_child("worker-1", 0)
    simulation.vanish("worker-1")
    assert simulation.group.phase == "running"
    simulation.end_child("worker-0", 0)
    assert simulation.group.phase == "finished"


def test_a_worker_that_waits_in_a_call_for_one_that_has_ended_fails_the_job() -> None:
    simulation = running(2)
    simulation.end_child("worker-1", 0)
    for meets in ("evaluate", "", "evaluate"):  # the first time worker 1 had only just ended
        simulation.progress("worker-0", step=40, meets=meets)
        simulation.tick()
        simulation.tick(9)
    assert simulation.group.phase == "running"
    simulation.tick(1)
    simulation.settle()
    failure = simulation.group.failure
    assert failure is not None
    assert (simulation.group.phase, failure.reason) == ("failed", "InvalidConfiguration")
    assert (failure.replica, failure.permanent) == ("worker-0", True)
    assert failure.message.startswith("waits in evaluate() for worker-1, which has ended")


def test_a_failure_after_a_peers_good_end_starts_all_again() -> None:
    simulation = running(2)
    simulation.end_child("worker-1", 0)
    simulation.end_child("worker-0", 1)
    assert (simulation.group.phase, simulation.attempts) == ("running", [1, 2])
    simulation.end_child("worker-1", 0)
    simulation.end_child("worker-0", 0)
    assert simulation.codes == {"worker-0": 0, "worker-1": 0}


@pytest.mark.parametrize("way", ["fails", "is lost"])
def test_what_becomes_of_a_worker_after_the_writers_good_end_changes_nothing(way: str) -> None:
    simulation = running(2)
    simulation.end_child("worker-0", 0)
    assert simulation.group.phase == "running", "the other may still write something of its own"
    if way == "fails":
        simulation.end_child("worker-1", 1)
    else:
        simulation.vanish("worker-1")
        simulation.tick(20)
    assert (simulation.group.phase, simulation.attempts) == ("finished", [1])


def test_only_the_chief_ends_training_with_parameter_servers() -> None:
    simulation = Simulation({"chief": 1, "worker": 1, "ps": 1})
    simulation.gather()
    simulation.end_child("worker-0", 0)
    assert simulation.group.phase == "running"
    simulation.end_child("chief-0", 0)
    assert simulation.codes == {"worker-0": 0, "chief-0": 0, "ps-0": 0}


def test_an_agent_that_joins_after_the_end_is_ended() -> None:
    simulation = running(2)
    simulation.end_child("worker-1", 87)
    simulation.gather("worker-1")
    assert simulation.codes["worker-1"] == 85


def test_an_evaluator_that_joins_after_the_end_still_scores_the_last_checkpoint() -> None:
    simulation = running(1)
    simulation.end_child("worker-0", 0)
    assert simulation.group.phase == "finished"
    simulation.gather("evaluator-0")
    assert simulation.codes["evaluator-0"] is None


@pytest.mark.parametrize("replica", ["worker-0", "worker-1"])
def test_a_replica_that_is_being_replaced_may_save_first(replica: str) -> None:
    """The controller may announce it before the kubelet stops the pod."""
    simulation = running(2)
    simulation.set_target(world={"worker": 2}, incarnations={replica: 2})
    simulation.settle()
    assert [agent.graceful for agent in simulation.agents] == [True, True]
    failure = simulation.group.failure
    assert failure is not None
    assert (failure.replica, failure.reason, failure.counted) == (replica, "Unreachable", False)


def test_a_stall_restarts_all_with_a_stack() -> None:
    simulation = running(2)
    simulation.set_target(world={"worker": 2}, stall_timeout=30.0)
    for replica in ("worker-0", "worker-1"):
        simulation.progress(replica, step=5, stepSeconds=0.1)
    simulation.tick(29)
    assert simulation.group.phase == "running"
    simulation.tick(1)
    simulation.settle()
    assert simulation.attempts == [1, 2]
    failure = simulation.group.failure
    assert failure is not None
    assert (failure.reason, failure.counted, failure.exit_code) == ("Stalled", True, None)
    assert failure.log_tail == f"the stack of {failure.replica}"
    stops = [send for send in simulation.sent if send.message["type"] == "stop"]
    assert all(send.message["stacks"] for send in stops)


@pytest.mark.parametrize("state", ["saving", "evaluating", "starting"])
def test_waiting_for_another_replicas_long_work_is_no_stall(state: str) -> None:
    """Worker 0 saves alone, and the others wait for it in their next step."""
    simulation = running(2)
    simulation.set_target(world={"worker": 2}, stall_timeout=30.0)
    for replica in ("worker-0", "worker-1"):
        simulation.progress(replica, age=1.0, step=5, stepSeconds=0.1)
    simulation.progress("worker-0", age=1.0, step=5, stepSeconds=0.1, state=state)
    simulation.tick(599)
    simulation.settle()
    assert simulation.attempts == [1]
    simulation.tick(1)
    simulation.settle()
    assert simulation.attempts == [1, 2]
    assert simulation.group.failure is not None
    assert simulation.group.failure.reason == "Stalled"


def test_a_frozen_replica_at_long_work_has_stalled() -> None:
    simulation = running(2)
    simulation.set_target(world={"worker": 2}, stall_timeout=30.0)
    simulation.progress("worker-1", age=1.0, step=5, stepSeconds=0.1)
    simulation.progress("worker-0", age=31.0, step=5, stepSeconds=0.1, state="saving")
    simulation.tick(30)
    simulation.settle()
    failure = simulation.group.failure
    assert failure is not None
    assert (failure.replica, failure.reason) == ("worker-0", "Stalled")


@pytest.mark.parametrize("seconds", [5, 19, 20, 21, 39, 41, 200])
def test_those_that_waited_for_a_long_save_get_their_whole_time_afterwards(seconds: int) -> None:
    simulation = running(stall_timeout=20.0)
    writer, other = simulation.agents[:2]

    def pass_time(seconds: int, state: str, step: int) -> None:
        for _ in range(seconds):
            writer.report = {"state": state, "step": step, "stepSeconds": 0.1}
            other.report = {"state": "training", "step": step, "stepSeconds": 0.1}
            for agent in (writer, other):
                agent.age = 0.5
                agent.beat()
            simulation.settle()
            simulation.tick(1.0)

    pass_time(2, "training", 7)
    pass_time(2, "training", 8)
    pass_time(seconds, "saving", 8)
    pass_time(15, "training", 8)
    assert (simulation.group.failure, simulation.attempts) == (None, [1])
    pass_time(10, "training", 8)
    assert simulation.group.failure is not None
    assert simulation.group.failure.reason == "Stalled"


KEYS = [
    *("state", "step", "checkpointStep", "resumedFrom", "totalSteps", "stepSeconds", "evaluatedBatches"),
    *("error", "waitingForStorage", "metrics", "epoch", "time"),
]
wild = st.dictionaries(
    st.sampled_from(KEYS),
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.lists(st.integers())
    | st.dictionaries(st.sampled_from(["reason", "message"]), st.integers() | st.text())
    | st.sampled_from([sys.maxsize, -(2**63), 10**400]),
)


@given(wild, wild)
def test_no_figure_of_a_report_stops_the_worker_group(first: dict[str, Any], second: dict[str, Any]) -> None:
    simulation = running(stall_timeout=20.0)
    one, other = simulation.agents[:2]
    for report in (first, second):
        for agent in (one, other):
            agent.report = report
            agent.beat()
        simulation.settle()
        simulation.tick(1.0)
        build_report(simulation.group, simulation.now)
    other.report = {"state": "training", "step": 3}
    other.end_child(1, step=3)
    simulation.settle()
    assert simulation.attempts == [1, 2]
