from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from trainjob.cluster import JobKey
from trainjob.cluster.kube.transport import Call
from trainjob.controller.metrics import Metrics


def read(metrics: Metrics) -> dict[str, float]:
    """Return every sample of ours, by name and labels, as Prometheus reads it."""
    return {
        sample.name + "".join(f",{key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
        if sample.name.startswith("trainjob_")
    }


def test_what_a_standby_shows() -> None:
    shown = read(Metrics())
    assert shown["trainjob_leader"] == 0
    assert shown["trainjob_queue_depth"] == 0
    assert shown["trainjob_reconcile_seconds_count"] == 0
    assert not [name for name in shown if name.endswith("_created")]


def test_what_happens_is_counted() -> None:
    metrics = Metrics()
    metrics.count_call(Call("create", "", "pods", 201, 0.1))
    metrics.count_call(Call("create", "", "pods", 201, 0.1))
    metrics.count_call(Call("update", "trainjob.dev", "trainjobs/status", 0, 0.1))
    metrics.count_restart("pods")
    metrics.count_agent_call("answered", 0.002)
    metrics.count_agent_call("unreachable", 3.0)
    metrics.count_reconcile(JobKey("default", "digits"), 0.02)
    metrics.show_leader()
    metrics.show_depth(lambda: 7)
    shown = read(metrics)
    assert shown["trainjob_api_requests_total,code=201,resource=pods,verb=create"] == 2
    assert shown["trainjob_api_requests_total,code=0,resource=trainjobs/status,verb=update"] == 1
    assert shown["trainjob_watch_restarts_total,resource=pods"] == 1
    assert shown["trainjob_agent_calls_total,outcome=answered"] == 1
    assert shown["trainjob_agent_calls_total,outcome=unreachable"] == 1
    assert shown["trainjob_agent_call_seconds_count"] == 1
    assert shown["trainjob_agent_call_seconds_bucket,le=0.0025"] == 1
    assert shown["trainjob_reconcile_seconds_bucket,le=0.01"] == 0
    assert shown["trainjob_reconcile_seconds_bucket,le=0.025"] == 1
    assert (shown["trainjob_leader"], shown["trainjob_queue_depth"]) == (1, 7)


def test_jobs_are_counted_when_asked() -> None:
    states = ({"state": "Running"}, {"state": "Running"}, {})
    jobs = [{"metadata": {"name": f"job-{i}"}, "status": status} for i, status in enumerate(states)]
    metrics = Metrics()
    metrics.show_jobs(lambda: jobs)
    assert read(metrics)["trainjob_jobs,state=Running"] == 2
    assert read(metrics)["trainjob_jobs,state=New"] == 1
    jobs.clear()
    assert "trainjob_jobs,state=Running" not in read(metrics)


def test_the_process_itself_is_shown() -> None:
    assert b"process_resident_memory_bytes" in Metrics().render()


def test_two_processes_parts_do_not_share_metrics() -> None:
    first, second = Metrics(), Metrics()
    first.show_leader()
    assert read(second)["trainjob_leader"] == 0


def test_each_job_has_its_figures() -> None:
    job = {
        "metadata": {"namespace": "ml", "name": "digits"},
        "status": {
            "progress": {"step": 440, "examplesPerSecond": 3166.5},
            "restarts": {"charged": 2, "uncharged": 1, "refunded": 1, "stepsLost": 14},
            "spent": {"training": 100, "restarting": 7},
            "stragglers": [{"replica": "worker-2", "workSeconds": 0.41, "medianSeconds": 0.2}],
        },
    }
    metrics = Metrics()
    metrics.show_jobs(lambda: [job, {"metadata": {"name": "new"}}])
    shown = read(metrics)
    assert shown["trainjob_job_step,name=digits,namespace=ml"] == 440
    assert shown["trainjob_job_examples_per_second,name=digits,namespace=ml"] == 3166.5
    assert shown["trainjob_job_restarts,kind=charged,name=digits,namespace=ml"] == 2
    assert shown["trainjob_job_steps_lost,name=digits,namespace=ml"] == 14
    assert shown["trainjob_job_stragglers,name=digits,namespace=ml"] == 1
    assert shown["trainjob_job_spent_seconds,name=digits,namespace=ml,on=restarting"] == 7
    assert not [name for name in shown if "name=new" in name]
