from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import trainjob.core.transitions
from support.world.agents import Agents, training
from support.world.jobs import build_job
from support.world.world import START, World
from trainjob.cluster import ClusterError, JobKey, Unavailable
from trainjob.cluster.kube.transport import Call
from trainjob.controller import Reconciler
from trainjob.controller.metrics import JOBS_AT_ONCE, STATES, Metrics
from trainjob.core.progress import WAITING_FOR_STORAGE


async def read(metrics: Metrics) -> dict[str, float]:
    """Return every sample of ours, by name and labels, as Prometheus reads it."""
    return {
        sample.name + "".join(f",{key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families((await metrics.render()).decode())
        for sample in family.samples
        if sample.name.startswith("trainjob_")
    }


async def test_what_a_standby_shows() -> None:
    shown = await read(Metrics())
    assert shown["trainjob_leader"] == 0
    assert shown["trainjob_queue_depth"] == 0
    assert shown["trainjob_reconcile_seconds_count"] == 0
    assert not [name for name in shown if name.endswith("_created")]
    assert shown[f"trainjob_build_info,version={version('trainjob')}"] == 1


@pytest.mark.parametrize(
    "series",
    [
        *(f"trainjob_agent_calls_total,outcome={o}" for o in ("answered", "unreachable", "refused")),
        "trainjob_watch_restarts_total,resource=pods",
        "trainjob_watch_restarts_total,resource=trainjobs",
        "trainjob_jobs_finished_total,state=Failed",
        "trainjob_jobs,state=Failed",
        "trainjob_restart_seconds_count,after=failure",
        "trainjob_first_step_seconds_count",
        "trainjob_admission_seconds_count",
    ],
)
async def test_series_of_known_labels_exist_before_their_first_event(series: str) -> None:
    metrics = Metrics()
    metrics.jobs = list
    assert (await read(metrics))[series] == 0


def test_every_state_is_known() -> None:
    source = Path(trainjob.core.transitions.__file__).read_text()
    used = set(re.findall(r'state"?[=:] ?"(\w+)"|state = "(\w+)"', source))
    assert {WAITING_FOR_STORAGE, *(a or b for a, b in used)} <= set(STATES)
    assert len(used) >= 8


async def test_what_happens_is_counted() -> None:
    metrics = Metrics()
    metrics.count_call(Call("create", "", "pods", 201, 0.1))
    metrics.count_call(Call("create", "", "pods", 201, 0.1))
    metrics.count_call(Call("update", "trainjob.dev", "trainjobs/status", 0, 0.1))
    metrics.count_restart("pods")
    metrics.count_agent_call("answered", 0.002)
    metrics.count_agent_call("unreachable", 3.0)
    metrics.count_reconcile(JobKey("default", "digits"), 0.02)
    metrics.count_wait(0.2)
    metrics.leader.set(1)
    metrics.depth.set_function(lambda: 7)
    shown = await read(metrics)
    assert shown["trainjob_api_requests_total,code=201,resource=pods,verb=create"] == 2
    assert shown["trainjob_api_requests_total,code=0,resource=trainjobs/status,verb=update"] == 1
    assert shown["trainjob_watch_restarts_total,resource=pods"] == 1
    assert shown["trainjob_agent_calls_total,outcome=answered"] == 1
    assert shown["trainjob_agent_calls_total,outcome=unreachable"] == 1
    assert shown["trainjob_agent_call_seconds_count"] == 1
    assert shown["trainjob_agent_call_seconds_bucket,le=0.0025"] == 1
    assert shown["trainjob_queue_seconds_sum"] == 0.2
    assert shown["trainjob_reconcile_seconds_bucket,le=0.01"] == 0
    assert shown["trainjob_reconcile_seconds_bucket,le=0.025"] == 1
    assert (shown["trainjob_leader"], shown["trainjob_queue_depth"]) == (1, 7)


async def test_jobs_are_counted_when_asked() -> None:
    states = ({"state": "Running"}, {"state": "Running"}, {})
    jobs = [{"metadata": {"name": f"job-{i}"}, "status": status} for i, status in enumerate(states)]
    metrics = Metrics()
    metrics.jobs = lambda: jobs
    assert (await read(metrics))["trainjob_jobs,state=Running"] == 2
    assert (await read(metrics))["trainjob_jobs,state=New"] == 1
    jobs.clear()
    assert (await read(metrics))["trainjob_jobs,state=Running"] == 0


async def test_a_page_of_many_jobs_has_each_family_once_and_leaves_the_loop_to_others() -> None:
    jobs = [
        {"metadata": {"namespace": "ml", "name": f"job-{i}"}, "status": {"progress": {"step": i}}}
        for i in range(10 * JOBS_AT_ONCE)
    ]
    metrics = Metrics()
    metrics.jobs = lambda: jobs
    rendering = asyncio.ensure_future(metrics.render())
    turns = 0
    while not rendering.done():
        await asyncio.sleep(0)
        turns += 1
    page = (await rendering).decode()
    assert turns >= 10
    assert page.count("# TYPE trainjob_job_step gauge\n") == 1
    shown = await read(metrics)
    assert [shown[f"trainjob_job_step,name=job-{i},namespace=ml"] for i in range(len(jobs))] == [
        *range(len(jobs))
    ]
    assert shown["trainjob_jobs,state=New"] == len(jobs)


async def test_scrapes_at_the_same_time_share_a_page() -> None:
    """Those who give up and ask again must not add to the load that they wait for."""
    looks: list[None] = []
    jobs: list[dict[str, Any]] = [{"metadata": {"name": f"job-{i}"}} for i in range(10 * JOBS_AT_ONCE)]
    metrics = Metrics()

    def look() -> list[dict[str, Any]]:
        looks.append(None)
        return jobs

    metrics.jobs = look
    gave_up, *others = [asyncio.ensure_future(metrics.render()) for _ in range(5)]
    await asyncio.sleep(0)
    gave_up.cancel()
    pages = await asyncio.gather(*others)
    assert len(looks) == len(set(pages)) == 1
    assert b'trainjob_jobs{state="New"} 500' in pages[0]
    assert await metrics.render()
    assert len(looks) == 2


async def test_the_process_itself_is_shown() -> None:
    assert b"process_resident_memory_bytes" in await Metrics().render()


async def test_two_processes_parts_do_not_share_metrics() -> None:
    first, second = Metrics(), Metrics()
    first.leader.set(1)
    assert (await read(second))["trainjob_leader"] == 0


async def test_each_job_has_its_figures() -> None:
    job = {
        "metadata": {"namespace": "ml", "name": "digits"},
        "status": {
            "progress": {"step": 440, "examplesPerSecond": 3166.5},
            "restarts": {"counted": 2, "notCounted": 1, "reset": 1, "stepsLost": 14},
            "stateSeconds": {"training": 100, "restarting": 7},
            "stragglers": [{"replica": "worker-2", "workSeconds": 0.41, "medianSeconds": 0.2}],
        },
    }
    metrics = Metrics()
    metrics.jobs = lambda: [job, {"metadata": {"name": "new"}}]
    shown = await read(metrics)
    assert shown["trainjob_job_step,name=digits,namespace=ml"] == 440
    assert shown["trainjob_job_examples_per_second,name=digits,namespace=ml"] == 3166.5
    assert shown["trainjob_job_restarts,kind=counted,name=digits,namespace=ml"] == 2
    assert shown["trainjob_job_steps_lost,name=digits,namespace=ml"] == 14
    assert shown["trainjob_job_stragglers,name=digits,namespace=ml"] == 1
    assert shown["trainjob_job_spent_seconds,name=digits,namespace=ml,on=restarting"] == 7
    assert not [name for name in shown if "name=new" in name]


NOW = START.timestamp()


def at(seconds: int) -> str:
    """Return a time so many seconds before now, as the API server writes it."""
    return (START - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("status", "figures"),
    [
        (None, {"queue_seconds": 500, "state_seconds,New": 500}),
        (
            {"state": "Suspended", "stateSeconds": {"since": at(490)}},
            {"queue_seconds": 500, "state_seconds,Suspended": 490},
        ),
        (
            {"state": "Pending", "startTime": at(400), "stateSeconds": {"since": at(400)}},
            {"queue_seconds": 100, "state_seconds,Pending": 400},
        ),
        (
            {"state": "Running", "startTime": at(400), "firstStepTime": at(350),
             "stateSeconds": {"since": at(380)}, "progress": {"step": 7}},
            {"queue_seconds": 100, "state_seconds,Running": 380, "first_step_seconds": 50,
             "checkpoint_age_seconds": 400},
        ),
        (
            {"state": "Restarting", "startTime": at(400), "stateSeconds": {"since": at(3)},
             "progress": {"step": 7}, "output": {"checkpointStep": 5, "checkpointTime": at(60)}},
            {"queue_seconds": 100, "state_seconds,Restarting": 3, "checkpoint_age_seconds": 60},
        ),
        (
            {"state": "Suspended", "startTime": at(400), "stateSeconds": {"since": at(9)},
             "progress": {"step": 7}},
            {"queue_seconds": 100, "state_seconds,Suspended": 9},
        ),
        # An image of its own, which reports nothing: nothing is known of its checkpoints.
        (
            {"state": "Running", "startTime": at(400), "stateSeconds": {"since": at(380)}},
            {"queue_seconds": 100, "state_seconds,Running": 380},
        ),
        ({"state": "Complete", "startTime": at(400), "completionTime": at(1)}, {}),
        ({"state": "Pending", "startTime": "soon"}, {"queue_seconds": 500, "state_seconds,Pending": 500}),
    ],
)  # fmt: skip
async def test_times_of_a_job(status: dict[str, object] | None, figures: dict[str, float]) -> None:
    job = {"metadata": {"namespace": "ml", "name": "digits", "creationTimestamp": at(500)}, "status": status}
    metrics = Metrics(clock=lambda: NOW)
    metrics.jobs = lambda: [job]
    shown = {
        re.sub(r",(name|namespace)=\w+|state=|trainjob_job_", "", name): value
        for name, value in (await read(metrics)).items()
        if "name=digits" in name and "_seconds" in name
    }
    assert shown == figures


def watched(world: World, metrics: Metrics) -> World:
    """Return the world with a new controller, whose writes are counted."""
    world.reconciler = Reconciler(world.cluster, lambda: world.now, world.settings, metrics.count_changes)
    return world


async def test_each_change_of_a_job_is_counted_once_across_controllers() -> None:
    counts = [Metrics(), Metrics(), Metrics()]
    world, agents = await training(build_job(evaluator=False))
    watched(world, counts[0])
    await world.pass_time(7)
    agents.report("worker-0", step=1)
    await world.settle()
    watched(world, counts[1])
    agents.fail("worker-1", step=1)
    await world.pass_time(30)
    watched(world, counts[2])
    agents.meet()
    await world.settle()
    await world.pass_time(100)
    for pod in world.pods:
        world.cluster.end_pod(pod, 0)
    await world.settle()
    shown = [await read(metrics) for metrics in counts]
    assert [s["trainjob_first_step_seconds_count"] for s in shown] == [1, 0, 0]
    assert shown[0]["trainjob_first_step_seconds_sum"] == 7
    assert [s["trainjob_restart_seconds_count,after=failure"] for s in shown] == [0, 0, 1]
    assert shown[2]["trainjob_restart_seconds_sum,after=failure"] == 30
    assert [s["trainjob_jobs_finished_total,state=Complete"] for s in shown] == [0, 0, 1]


async def test_a_resize_is_no_failure() -> None:
    metrics = Metrics()
    world, agents = await training(build_job(evaluator=False))
    watched(world, metrics).edit(worker={"replicas": 3})
    await world.settle()
    await resumed(world, agents)
    shown = await read(metrics)
    assert shown["trainjob_restart_seconds_count,after=resize"] == 1
    assert shown["trainjob_restart_seconds_count,after=failure"] == 0


async def resumed(world: World, agents: Agents) -> None:
    """The new pods run, and all train."""
    world.each(world.cluster.run_pod)
    await world.settle()
    agents.meet()
    await world.settle()


@pytest.mark.parametrize(("when", "counted"), [("fault", 1), ("fault_after", 0)])
async def test_no_change_is_counted_twice_when_its_write_fails(when: str, counted: int) -> None:
    """A write that was refused is made again; one whose answer was lost isn't, and goes uncounted."""
    metrics = Metrics()
    world = watched(World(build_job(evaluator=False)), metrics)
    errors: list[ClusterError] = [Unavailable("no answer")]
    setattr(
        world.cluster,
        when,
        lambda operation, _manifest: errors.pop() if "status" in operation and errors else None,
    )
    await world.settle()
    assert not errors
    assert (await read(metrics))["trainjob_admission_seconds_count"] == counted
