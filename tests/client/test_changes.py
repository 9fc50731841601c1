from support.cli.program import build_replica, build_run
from support.golden import Golden
from trainjob.client.presenter import describe_changes
from trainjob.core.agent_reports import EvaluationResult

TRAINING = build_run([build_replica(step=3, total_steps=10)], message="training on 1 worker")


def test_the_first_view_is_reported_whole(golden: Golden) -> None:
    golden(*describe_changes(None, TRAINING))


def test_the_same_view_again_says_nothing() -> None:
    assert describe_changes(TRAINING, TRAINING) == ()


def test_before_the_first_state_nothing_is_said() -> None:
    assert describe_changes(None, build_run(state=None)) == ()


def test_steps_alone_say_nothing() -> None:
    later = build_run([build_replica(step=9, total_steps=10)], message="training on 1 worker")
    assert describe_changes(TRAINING, later) == ()


def test_saving_a_checkpoint_says_nothing() -> None:
    saving = build_run([build_replica(state="saving", step=4)], message="training on 1 worker")
    assert describe_changes(TRAINING, saving) == ()
    assert describe_changes(saving, TRAINING) == ()


def test_a_failure_while_saving_is_reported(golden: Golden) -> None:
    saving = build_run([build_replica(state="saving")])
    failed = build_run([build_replica(state="failed (1)", exit_code=1)])
    golden(*describe_changes(saving, failed))


def test_a_good_end_after_saving_is_reported(golden: Golden) -> None:
    saving, finished = (build_run([build_replica(state=state, step=9)]) for state in ("saving", "finished"))
    golden(*describe_changes(saving, finished))


def test_a_new_message_is_reported(golden: Golden) -> None:
    restarting = build_run(TRAINING.replicas, state="Restarting", message="worker 0 crashed")
    golden(*describe_changes(TRAINING, restarting))


def test_a_restart_between_two_views_is_reported_once(golden: Golden) -> None:
    restarted = {
        "firstFailure": {"message": "worker 0 crashed; restarted in place"},
        "restarts": {"counted": 1, "lastTime": "2026-01-02T03:04:05Z"},
    }
    before, after = build_run(message="training"), build_run(message="training", **restarted)
    line = "digits: Restarting: worker 0 crashed; restarted in place"
    assert describe_changes(before, after) == (line,)
    assert describe_changes(after, after) == ()
    seen = build_run(state="Restarting", message="worker 0 crashed; restarted in place", **restarted)
    assert describe_changes(before, seen) == (line,)
    golden(*describe_changes(seen, after))


def test_a_restart_without_a_failure_is_no_failure() -> None:
    resized = {"restarts": {"lastTime": "2026-01-02T03:04:05Z"}}
    assert describe_changes(build_run(message="a"), build_run(message="a", **resized)) == ()


def test_resuming_is_reported_once_an_attempt(golden: Golden) -> None:
    fresh = build_run([build_replica(step=1)])
    resumed = build_run([build_replica(step=221, resumed_from=220)])
    golden(*describe_changes(fresh, resumed))
    assert describe_changes(resumed, resumed) == ()
    again = build_run([build_replica(step=221, resumed_from=220)], attempt=2)
    golden(*describe_changes(resumed, again))


def test_a_straggler_is_reported_once(golden: Golden) -> None:
    straggler = {"replica": "worker-2", "node": "gpu-7", "workSeconds": 0.41, "medianSeconds": 0.2}
    before, after = build_run(), build_run(stragglers=[straggler])
    golden(*describe_changes(before, after))
    assert describe_changes(after, after) == ()


def test_a_new_evaluation_is_reported(golden: Golden) -> None:
    first = build_run(evaluation=EvaluationResult(step=220, metrics={"accuracy": 0.961, "loss": 0.12}))
    final = build_run(evaluation=EvaluationResult(step=440, metrics={"accuracy": 0.975}, final=True))
    golden(*describe_changes(build_run(), first))
    golden(*describe_changes(first, final))
    assert describe_changes(final, final) == ()


def test_the_same_result_as_the_final_one_is_reported_once() -> None:
    early, final = (
        build_run(evaluation=EvaluationResult(step=440, metrics={"accuracy": 0.975}, final=is_final))
        for is_final in (False, True)
    )
    assert describe_changes(early, final) == ()


def test_the_message_leaves_out_a_result_that_is_reported_itself() -> None:
    message = "training has finished; the checkpoint of step 440 scores accuracy 0.975"
    scored = build_run(message=message, evaluation=EvaluationResult(step=440, metrics={"accuracy": 0.975}))
    assert describe_changes(TRAINING, scored)[0] == "digits: Running: training has finished"
    assert describe_changes(TRAINING, build_run(message=message))[0] == f"digits: Running: {message}"


def test_the_import_of_tensorflow_is_reported_and_its_end_is_not(golden: Golden) -> None:
    imports = build_run([build_replica(state="importing TensorFlow")])
    imported = build_run([build_replica(state="running")])
    golden(*describe_changes(build_run([build_replica(state="pending", pod=None)]), imports))
    assert describe_changes(imports, imported) == ()
