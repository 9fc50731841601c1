from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from support.cli.program import build_replica, build_run, condition
from support.golden import Golden
from trainjob.client.presenter import Results, describe_end, describe_interruption
from trainjob.client.view import ReplicaView
from trainjob.cluster.protocol import PostedEvent
from trainjob.core.agent_reports import EvaluationResult
from trainjob.core.policies.success_policy import NO_STEPS

RESULTS = Results(
    output="runs/training/digits",
    models=("model",),
    checkpoints="runs/training/digits/checkpoints",
    has_events=True,
    logs={"worker-1": "runs/training/digits/logs/replicas/worker-1.log", "evaluator-0": "evaluator-0.log"},
    tails={"digits-worker-1-aaaaaaaa": (*(f"line {n}" for n in range(30)), "ValueError: boom")},
    command="trainjob run job.yaml",
)
COMPLETE = condition("Complete", "TrainingFinished", "training has finished")
FINAL = EvaluationResult(step=440, metrics={"accuracy": 0.975, "loss": 0.08125}, final=True)


def _complete(*replicas: ReplicaView, message: str = "training has finished", **fields: Any) -> str:
    conditions = [condition("Complete", "TrainingFinished", message)]
    job = build_run(replicas, state="Complete", conditions=conditions, message=message, **fields)
    return "\n".join(describe_end(job, RESULTS))


def _failed(first: dict[str, Any] | None = None, reason: str = "Crashed", **more: Any) -> str:
    status: dict[str, Any] = {**more, "conditions": [condition("Failed", reason, "worker 1 crashed")]}
    if first is not None:
        status["firstFailure"] = {"pod": "digits-worker-1-aaaaaaaa", "rank": "worker-1", **first}
    return "\n".join(describe_end(build_run(state="Failed", **status), RESULTS))


def test_success(golden: Golden) -> None:
    worker = build_replica(state="finished", step=440, resumed_from=220)
    golden(_complete(worker, build_replica("evaluator-0", "finished"), evaluation=FINAL))


def test_notices_are_at_the_end() -> None:
    """They change no other line; an interruption ends with what to do."""
    lines = ("trained alone", "the model can't be written as model.keras: no")
    shown = "\n  notice        trained alone\n  notice        the model can't be written as model.keras: no"
    done = build_replica(state="finished", step=440)
    assert _complete(done, notices=lines) == _complete(done) + shown
    crash = {"reason": "Crashed", "exitCode": 1}
    assert _failed(crash, notices=lines) == _failed(crash) + shown
    job = build_run([build_replica(step=3)], notices=lines)
    *_, first, second, again = describe_interruption(job, RESULTS)
    assert "".join(f"\n{line}" for line in (first, second)) == shown
    assert "same command" in again


def test_success_with_a_reason(golden: Golden) -> None:
    why = "training had finished before the job was restored from a backup"
    golden(_complete(build_replica(state="finished", step=120), message=why))


def test_success_without_an_evaluator() -> None:
    assert "evaluat" not in _complete(build_replica(state="finished", step=440))


def test_models_that_the_script_has_saved_are_named() -> None:
    job = build_run(state="Complete", conditions=[COMPLETE])

    def model(*names: str) -> str:
        lines = describe_end(job, Results(output="runs/x", models=names))
        return next(line.split(maxsplit=1)[1] for line in lines if line.startswith("  model  "))

    assert model("model", "best.keras") == "runs/x/model, runs/x/best.keras"
    assert model("a.keras", "b.keras", "c.keras", "d.keras", "e.h5") == (
        "runs/x/a.keras, runs/x/b.keras, runs/x/c.keras and 2 more"
    )


def test_success_without_a_model() -> None:
    job = build_run(state="Complete", conditions=[COMPLETE])
    assert "  model  " not in "\n".join(describe_end(job, Results(output="runs/x")))


def test_success_without_a_step_names_what_reports_steps_and_nothing_that_is_not_there(
    golden: Golden,
) -> None:
    why = f"training has finished, but {NO_STEPS}"
    conditions = [condition("Complete", "TrainingFinished", why)]
    job = build_run([build_replica(state="finished")], state="Complete", conditions=conditions)
    golden(*describe_end(job, Results(output="runs/x")))


def test_success_without_an_evaluation(golden: Golden) -> None:
    golden(_complete(build_replica(state="finished", step=440), build_replica("evaluator-0", "finished")))


def test_success_whose_evaluator_failed(golden: Golden) -> None:
    failed = build_replica("evaluator-0", "failed (1)", exit_code=1, message="Traceback\nKeyError: 'x'")
    golden(_complete(build_replica(state="finished", step=440), failed))


def test_success_without_a_final_evaluation(golden: Golden) -> None:
    text = _complete(
        build_replica("evaluator-0", "stopping"),
        message="training has finished; the evaluator didn't finish in time",
        evaluation=EvaluationResult(step=220, metrics={"accuracy": 0.9}),
    )
    golden(text)


def test_failure(golden: Golden) -> None:
    golden(_failed({"reason": "Crashed", "exitCode": 1, "step": 30}))


def test_failure_by_a_signal() -> None:
    assert "worker-1, killed by SIGKILL (Killed)" in _failed({"reason": "Killed", "exitCode": 137})
    assert "worker-1, exit code 250 (Killed)" in _failed({"reason": "Killed", "exitCode": 250})


def test_failure_of_a_pod_that_left_nothing(golden: Golden) -> None:
    golden(_failed({"pod": "gone", "rank": "worker-7", "reason": "PodLost", "logTail": "last words"}))


def test_failure_without_a_replica(golden: Golden) -> None:
    golden(_failed(reason="InvalidTemplate"))


def test_interruption(golden: Golden) -> None:
    golden(*describe_interruption(build_run(checkpoint_step=220), RESULTS))


def test_interruption_before_a_checkpoint(golden: Golden) -> None:
    golden(*describe_interruption(build_run(), RESULTS))


def test_interruption_of_a_fresh_start(golden: Golden) -> None:
    results = Results(output="runs/x", starts_over=True)
    golden(*describe_interruption(build_run(checkpoint_step=9), results))


AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CRASH = PostedEvent(
    AT, "Warning", "Restarted", "worker 1 crashed at step 30; restarted in place from step 20"
)
RESTART = f"  restarts      {AT.astimezone():%H:%M:%S} {CRASH.message}"


def test_restarts_are_listed() -> None:
    begun = PostedEvent(AT, "Normal", "Started", "training on 2 workers")
    lines = _complete(build_replica(state="finished", step=440), events=(begun, CRASH, CRASH)).splitlines()
    assert lines[2:4] == [RESTART, RESTART.replace("restarts", "        ")]
    failed = build_run(state="Failed", conditions=[condition("Failed", "Crashed", "no")], events=(CRASH,))
    assert describe_end(failed, RESULTS)[1] == RESTART
    assert describe_interruption(build_run(events=(CRASH,)), RESULTS)[1] == RESTART


def test_of_many_restarts_the_last_are_listed() -> None:
    lines = describe_interruption(build_run(events=(CRASH,) * 12), RESULTS)
    assert lines[1] == "  restarts      2 earlier events"
    assert len(lines) == 13


def test_harmless_lines_are_left_out_of_a_failure() -> None:
    harmless = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"
    text = _failed({"pod": "gone", "reason": "Crashed", "logTail": f"{harmless}\nValueError: boom"})
    assert "    | ValueError: boom" in text
    assert harmless not in text


def test_the_result_is_in_one_line_of_the_end() -> None:
    why = "training has finished; the checkpoint of step 440 scores accuracy 0.975"
    text = _complete(build_replica(state="finished", step=440), message=why, evaluation=FINAL)
    assert text.startswith("digits is complete after 1m5s: training has finished\n")


SMOKE = {
    "template": {
        "spec": {"containers": [{"name": "trainer", "env": [{"name": "TRAIN_SMOKE", "value": "true"}]}]}
    }
}


def _smoke_test(
    results: Results = RESULTS, spec: dict[str, Any] = SMOKE, outcome: str = "Complete", **fields: Any
) -> list[str]:
    conditions = [condition(outcome, "TrainingFinished", "training has finished")]
    job = build_run(state=outcome, conditions=conditions, **fields)
    return list(describe_end(replace(job, spec=spec), results))[1:]


def test_a_smoke_test_says_what_has_worked(golden: Golden) -> None:
    replicas = [build_replica(f"worker-{number}", "finished", step=1) for number in (0, 1)]
    metrics = {"accuracy": "0.047", "val_accuracy": "0.203"}
    final = EvaluationResult(step=1, metrics={"accuracy": 0.172}, final=True)
    progress = {"step": 1, "metrics": metrics}
    golden(*_smoke_test(replicas=replicas, progress=progress, checkpoint_step=1, evaluation=final))


def test_a_smoke_test_says_what_was_not_tried(golden: Golden) -> None:
    replicas = [build_replica("worker-0", "running")]
    spec = {**SMOKE, "evaluator": {"replicas": 0}}
    golden(*_smoke_test(Results(output="runs/x"), spec, "Failed", replicas=replicas))


def test_a_smoke_test_in_a_cluster_says_nothing_about_the_model() -> None:
    assert not any("export" in line for line in _smoke_test(progress={"step": 1}))
