from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import TypeAdapter

from support.cli.program import build_replica, build_run
from trainjob.client.page import JobHistory, build_page, describe_phase, direction
from trainjob.client.view import RESTARTS, JobView, ReplicaView, Resumptions, with_stopped
from trainjob.cluster.protocol import PostedEvent
from trainjob.core.agent_reports import EvaluationResult
from trainjob.core.transitions import START_TIMEOUT

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CRASH = "worker 1 crashed (exit code 1) at step 30; restarted in place (restart 1 of 3)"


@pytest.mark.parametrize(
    ("replica", "others", "expected"),
    [
        (build_replica(state="importing TensorFlow"), [], "importing TensorFlow"),
        (build_replica(state="training", step=0), [], "tracing the first step"),
        (build_replica(state="starting", step=0), [], "tracing the first step"),
        (build_replica(state="training", step=20, resumed_from=20), [], "tracing the first step"),
        (build_replica(state="training", step=0, step_seconds=0.1), [], "training"),
        (build_replica(state="training", step=1), [], "training"),
        (build_replica(state="training"), [], "training"),  # a server, which has no steps
        (build_replica(state="starting"), [], "starting"),
        (build_replica(state="waiting"), [], "waiting"),
        (build_replica(state="waiting"), [build_replica("worker-1", "pending")], "waiting for worker 1"),
        (build_replica(state="waiting"), [build_replica("worker-1", "waiting")], "waiting"),
        (
            build_replica(state="waiting"),
            [build_replica("worker-1", "starting"), build_replica("worker-2", "importing TensorFlow")],
            "waiting for 2 replicas",
        ),
        (
            build_replica(state="waiting"),
            [build_replica("evaluator-0", "pending"), build_replica("worker-1", "failed (1)", exit_code=1)],
            "waiting",
        ),
        (build_replica("evaluator-0", "waiting"), [build_replica()], "waiting for a checkpoint"),
    ],
)
def test_phases(replica: ReplicaView, others: list[ReplicaView], expected: str) -> None:
    assert describe_phase(replica, build_run([replica, *others])) == expected


def test_a_replica_with_all_steps_waits_for_the_evaluator() -> None:
    job = _reported("waiting", step=9)
    assert describe_phase(job.replicas[0], job) == "waiting for the evaluator"


def _reported(state: str, **report: Any) -> JobView:
    replica = build_replica(state=state, **report)
    return build_run([ReplicaView(replica.name, state, replace(replica.report, state=state))])


def test_a_phase_has_its_time_while_people_wait_for_it() -> None:
    history = JobHistory()
    importing = [build_replica(state="importing TensorFlow")]
    for seconds in (1, 3, 9):
        history.observe(build_run(importing, seconds=seconds))
    assert history.phase(importing[0], build_run(importing, seconds=9)) == "importing TensorFlow 8s"
    training = build_replica(step=5)
    for seconds in (10, 20):
        history.observe(build_run([training], seconds=seconds))
    assert history.phase(training, build_run([training])) == "training"


def _stepped(*points: tuple[float, int | None], state: str = "training") -> tuple[JobView, JobHistory]:
    history = JobHistory()
    job = build_run()
    for seconds, step in points:
        job = build_run([build_replica(state=state, step=step, total_steps=100)], seconds=seconds)
        history.observe(job)
    return job, history


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(0, 0)], None),
        ([(0, 0), (5, 10)], 45),
        ([(0, 0), (5, 10), (6, 10)], 45),
        ([(0, 0), (5, 50), (6, 20)], None),  # a restart
        ([(0, 0), (5, 50), (6, None)], None),
        ([(0, 0), (40, 10), (60, 30), (80, 50)], 50),  # only the last half minute counts
        ([(0, 0), (5, 100)], None),
    ],
)
def test_the_time_left(points: list[tuple[float, int | None]], expected: float | None) -> None:
    job, history = _stepped(*points)
    left = history.time_left(job)
    assert left == (None if expected is None else timedelta(seconds=expected))


def test_figures_stay_when_the_replica_that_reported_them_is_gone() -> None:
    _, history = _stepped((0, 0), (5, 10))
    history.observe(build_run([build_replica(state="pending", pod=None)]))
    assert history.figures.step == 10


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("loss", -1),
        ("val_loss", -1),
        ("sparse_categorical_accuracy", 1),
        ("AUC", 1),
        ("val_mae", -1),
        ("fid", 0),
    ],
)
def test_the_direction_of_a_metric(metric: str, expected: int) -> None:
    assert direction(metric) == expected


def test_the_best_values() -> None:
    history = JobHistory()
    for step, accuracy in ((20, 0.9), (40, 0.96), (60, 0.95)):
        metrics = {"accuracy": accuracy, "loss": 0.1, "fid": accuracy, "auc": "nan"}
        job = build_run(
            [build_replica(step=step, metrics={"accuracy": "1", "val_mae": f"{step / 100}"})],
            evaluation=EvaluationResult(step=step, metrics=metrics),
        )
        history.observe(job)
    best = ["val_accuracy 96.0 % at step 40, val_mae 0.2 at step 20"]
    assert build_page(job, history).texts("best") == best


def _table(job: JobView) -> list[tuple[str, ...]]:
    rows = build_page(job, grouped=True).replicas
    return [tuple(row.cells[title] for title in ("replica", "state", "step", "loss")) for row in rows]


def test_many_replicas_are_summed_up() -> None:
    workers = [build_replica(f"worker-{index}", step=3 + index % 2, total_steps=9) for index in range(12)]
    workers[5] = build_replica("worker-5", "failed (1)", exit_code=1)
    for index in (0, 2, 4, 7):
        workers[index] = build_replica(f"worker-{index}", "starting")
    assert _table(build_run([*workers, build_replica("evaluator-0", "waiting")])) == [
        ("worker-5", "failed (1)", "", ""),
        ("4 workers", "starting", "", ""),
        ("7 workers", "training", "3-4/9", ""),
        ("evaluator-0", "waiting for a checkpoint", "", ""),
    ]
    together = [build_replica(f"worker-{index}") for index in (0, 1, 2, 3, 5, 6, 8)]
    assert [row[0] for row in _table(build_run(together))] == ["worker 0-3,5-6,8"]


def _event(message: str, reason: str = "Restarted", seconds: float = 0) -> PostedEvent:
    return PostedEvent(AT + timedelta(seconds=seconds), "Warning", reason, message)


def test_the_last_events() -> None:
    events = (_event("created", "Created"), *(_event(f"crash {number}") for number in range(5)))
    lines = build_page(JobView(name="digits", events=events)).events
    assert lines[0] == "2 earlier events"
    assert [line.partition(" ")[2] for line in lines[1:]] == ["crash 2", "crash 3", "crash 4"]


@pytest.mark.parametrize(
    ("message", "reported_after", "expected"),
    [
        (CRASH, 1, f"{CRASH}; resumed from step 20"),
        (CRASH, -1, CRASH),  # the report of the process that failed
        (
            "worker 1 crashed from step 9; restarted in place from step 10 (restart 1 of 3)",
            1,
            "worker 1 crashed from step 9; restarted in place from step 20 (restart 1 of 3)",
        ),
        (
            "worker 1 crashed; restarted from the beginning",
            1,
            "worker 1 crashed; restarted from the beginning",
        ),
    ],
)
def test_a_restart_gets_its_step_from_the_next_start(
    message: str, reported_after: float, expected: str
) -> None:
    resumptions = Resumptions()
    replica = build_replica(step=20, resumed_from=20, time=AT.timestamp() + reported_after)
    job = build_run([replica], events=(_event(message),))
    assert [event.message for event in resumptions.complete(job).events] == [expected]
    later = build_run([build_replica()], events=(_event(message), _event("worker 0 crashed", seconds=9)))
    assert [event.message for event in resumptions.complete(later).events] == [expected, "worker 0 crashed"]


def test_figures_stay_after_a_stop() -> None:
    scored = EvaluationResult(step=4, metrics={"loss": 0.5})
    before = build_run(
        [build_replica(step=5), build_replica("worker-1", "pending", pod=None)], evaluation=scored
    )
    gone = build_run(
        [build_replica(state="pending", pod=None), build_replica("worker-1", "pending", pod=None)]
    )
    stopped = with_stopped(before, gone)
    assert [(each.state, each.report.step) for each in stopped.replicas] == [
        ("stopped", 5),
        ("pending", None),
    ]
    assert stopped.evaluation == scored
    assert with_stopped(stopped, gone) == stopped


def test_events_are_in_the_record_of_a_run() -> None:
    job = build_run(events=(_event(CRASH),))
    adapter = TypeAdapter(JobView)
    assert adapter.validate_json(adapter.dump_json(job)).events == job.events


def test_the_start_timeout_is_a_restart() -> None:
    assert START_TIMEOUT in RESTARTS
