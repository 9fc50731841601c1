from support.world.changes import change_job, errors_of


def test_a_job_of_no_replicas_at_all_is_refused_like_any_other() -> None:
    job = change_job({"spec.worker.replicas": 0, "spec.evaluator.replicas": 0})
    assert list(errors_of(job)) == ["spec.worker.replicas"]
