"""`Job`: a job in a cluster as Python sees it."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from support.cli.requests import Answer, Asked
from support.cli.server import CliServer
from support.cli.stored_jobs import RUNNING, ended, interrupt, stored_job, stored_pod
from trainjob import ClusterProblem, Job, JobFailed, NoCluster, NoJob, Trainer, jobs
from trainjob.client import background

PROGRESS = {"step": 100, "totalSteps": 400, "metrics": {"loss": "0.5", "accuracy": "nan"}}
FAILURE = {
    "rank": "worker-1",
    "node": "node-2",
    "step": 30,
    "reason": "Crashed",
    "exitCode": 1,
    "logTail": "Traceback\nValueError: boom",
}


def at(second: int, text: str) -> str:
    return f"2026-01-02T03:04:{second:02}.000000000Z {text}"


# Each call has its twin.


@pytest.mark.parametrize(("twins", "plain"), [(type(Job.aio), Job), (type(Trainer(print).aio), Trainer)])
def test_every_call_has_its_twin_with_the_same_arguments_and_a_docstring(twins: type, plain: type) -> None:
    calls = {name for name, call in inspect.getmembers(plain, callable) if not name.startswith("_")}
    own = {name for name, call in inspect.getmembers(twins, inspect.isfunction) if not name.startswith("_")}
    assert calls - {"aio", "manifest"} <= own
    for name in own:
        call = getattr(plain, name)
        assert call.__doc__
        if isinstance(call, property):
            continue
        arguments = [dict(inspect.signature(each).parameters) for each in (call, getattr(twins, name))]
        for each in arguments:
            each.pop("self", None)
        assert arguments[0] == arguments[1], name


def test_calls_work_within_a_running_loop(api: CliServer) -> None:
    api.put(stored_job(progress=PROGRESS))

    async def cell() -> tuple[int | None, int | None]:
        job = Job.attach("digits")
        mine = await Job.aio.attach("digits")
        status = await mine.aio.status()
        assert status.progress is not None
        assert job.status.progress is not None
        return job.status.progress.step, status.progress.step

    assert asyncio.run(cell()) == (100, 100)


# Looking at a job.


def test_a_job_shows_what_its_status_has(api: CliServer) -> None:
    api.put(stored_job(progress=PROGRESS, evaluation={"step": 80, "metrics": {"loss": "0.6"}}))
    job = Job.attach("digits")
    assert repr(job) == "Job('digits', namespace default, Running)"
    metrics = job.metrics
    assert (metrics["loss"], metrics["val_loss"]) == (0.5, 0.6)
    assert "100/400" in job._repr_html_()
    assert "polyline" not in job._repr_html_()
    assert [repr(each) for each in jobs(namespace="default")] == [repr(job)]
    api.put(stored_job("Complete", progress=PROGRESS, curves={"loss": "10:1 50:0.5 90:0"}))
    assert 'points="0.0,0.0 120.0,28.0 240.0,56.0"' in job._repr_html_()


def test_a_job_that_does_not_exist_is_named_with_suggestions(api: CliServer) -> None:
    api.put(stored_job())
    with pytest.raises(NoJob, match=r"no TrainJob 'digit' in namespace default; did you mean digits\?"):
        Job.attach("digit", namespace="default")


def test_a_later_job_of_the_name_is_not_taken_for_it(api: CliServer) -> None:
    api.put(stored_job())
    job = Job.attach("digits")
    api.delete("trainjobs", "digits")
    api.put(stored_job(uid="another"))
    with pytest.raises(NoJob, match="was deleted; another job of that name is there now"):
        _ = job.status
    assert "another job of that name" in job._repr_html_()
    for change in (job.suspend, job.delete, lambda: list(job.logs())):
        with pytest.raises(NoJob):
            change()
    assert api.get("trainjobs", "digits") is not None


def test_without_a_cluster_there_are_only_the_runs_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert jobs() == []
    with pytest.raises(
        NoCluster, match="there is no run 'digits' on this machine, and there is no kubeconfig"
    ):
        Job.attach("digits")


def test_a_cluster_that_was_not_asked_for_may_be_away(
    api: CliServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api.url = "http://127.0.0.1:1"
    monkeypatch.setenv("KUBECONFIG", str(api.write_kubeconfig(tmp_path / "away")))
    assert jobs() == []
    assert "trainjob: the cluster's jobs aren't listed: the API server" in capsys.readouterr().err
    with pytest.raises(NoCluster):
        jobs(namespace="ml")


# Waiting.


def test_waiting_prints_what_changes_and_returns_the_job(
    api: CliServer, capsys: pytest.CaptureFixture[str]
) -> None:
    api.put(stored_job(message="training on 2 workers"))
    job = Job.attach("digits")

    def complete() -> None:
        api.put(stored_job("Complete", message="training has finished"))

    with api.once(lambda: api.count("watch") > 0, complete):
        assert job.wait(timeout="1h").status.state == "Complete"
    assert capsys.readouterr().err.splitlines() == [
        "trainjob: digits: Running: training on 2 workers",
        "trainjob: digits: Complete: training has finished",
    ]


def test_a_failure_has_its_node_step_and_log(api: CliServer) -> None:
    api.put(stored_job("Failed", message="worker 1 crashed", firstFailure=FAILURE))
    job = Job.attach("digits")
    with pytest.raises(JobFailed) as failed:
        job.wait()
    error = failed.value
    assert (error.name, error.reason, error.replica, error.node) == (
        "digits",
        "Crashed",
        "worker-1",
        "node-2",
    )
    assert (error.step, error.exit_code, error.log) == (30, 1, "Traceback\nValueError: boom")
    for part in (
        "digits failed",
        "first failure worker-1",
        "on node node-2",
        "| ValueError: boom",
        "what to do",
    ):
        assert part in str(error)
    with pytest.raises(JobFailed):
        asyncio.run(job.aio.wait())


def test_the_time_to_wait_is_limited(api: CliServer) -> None:
    api.put(stored_job())
    job = Job.attach("digits")
    with pytest.raises(TimeoutError, match=r"digits is not over after 0.1s; it continues \(Running\)"):
        job.wait(timeout="0.1s")
    with pytest.raises(ValueError, match="'soon' is not a duration"):
        job.wait(timeout="soon")


def test_ctrl_c_ends_the_wait_and_not_the_job(api: CliServer, capsys: pytest.CaptureFixture[str]) -> None:
    api.put(stored_job())
    job = Job.attach("digits")
    with api.once(lambda: api.count("watch") > 0, interrupt), pytest.raises(KeyboardInterrupt):
        job.wait()
    assert "trainjob: digits continues (namespace default): Job.attach('digits').wait() waits" in (
        capsys.readouterr().err
    )
    assert {asked.verb for asked in api.asked} <= {"get", "list", "watch"}


def test_an_interrupted_cell_leaves_the_job_and_says_so(api: CliServer) -> None:
    api.put(stored_job())
    job = api.get("trainjobs", "digits")
    cell = new_code_cell("from trainjob import Job\nJob.attach('digits').wait()")
    notebook = NotebookClient(new_notebook(cells=[cell]), kernel_name="python3", allow_errors=True)

    def press_stop() -> None:
        os.killpg(notebook.km.provisioner.pgid, signal.SIGINT)  # as Jupyter's button does

    with api.once(lambda: api.count("watch") > 0, press_stop):
        notebook.execute()
    said = [output.get("text", output.get("ename")) for output in cell.outputs]
    again = "Job.attach('digits').wait() waits for it again, Job.attach('digits').delete() ends it"
    assert f"trainjob: digits continues (namespace default): {again}\n" in said
    assert "KeyboardInterrupt" in said
    assert api.get("trainjobs", "digits") == job
    assert {asked.verb for asked in api.asked} <= {"get", "list", "watch"}


# Logs.


def test_logs_cross_a_restart_and_end_with_the_job(api: CliServer) -> None:
    api.put(stored_job())
    api.put(stored_pod("worker", 0, container=RUNNING))
    api.put(stored_pod("worker", 1))
    api.write_log("digits-worker-0-1", at(5, "one"))
    lines = Job.attach("digits").logs(follow=True)
    seen = [next(lines)]
    api.put(stored_pod("worker", 0, container=ended(1)))
    api.write_log("digits-worker-0-1", at(6, "killed"), whole=True)
    seen.append(next(lines))
    api.put(stored_pod("worker", 0, 2, container=RUNNING))
    api.write_log("digits-worker-0-2", at(7, "again"))
    seen.append(next(lines))
    api.put(stored_pod("worker", 0, 2, container=ended()))
    api.write_log("digits-worker-0-2", whole=True)
    api.put(stored_job("Complete"))
    assert [*seen, *lines] == ["worker-0: one", "worker-0: killed", "worker-0: again"]


def test_logs_of_one_replica_have_no_name_before_each_line(api: CliServer) -> None:
    api.put(stored_job())
    for index in (0, 1):
        api.put(stored_pod("worker", index, container=RUNNING))
        api.write_log(f"digits-worker-{index}-1", at(5, "first"), at(6, f"of {index}"))
    job = Job.attach("digits")
    assert list(job.logs(replica="worker-1", tail=1)) == ["of 1"]
    assert sorted(job.logs(tail=1)) == ["worker-0: of 0", "worker-1: of 1"]
    with pytest.raises(ValueError, match="'worker' is no replica"):
        next(job.logs(replica="worker"))


def test_logs_without_a_reader_are_closed() -> None:
    closed = threading.Event()

    async def endless() -> Any:
        try:
            while True:
                yield 1
                await asyncio.sleep(0)
        finally:
            closed.set()

    items = background.iterate(endless())
    assert next(items) == 1
    items.close()
    assert closed.is_set()


def test_ctrl_c_lets_a_call_clean_up() -> None:
    started, cleaned = threading.Event(), threading.Event()

    async def call() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    thread = threading.Thread(target=lambda: started.wait() and interrupt(), daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        background.run(call())
    assert cleaned.is_set()
    thread.join()


# Changing a job.


def asked_patches(api: CliServer) -> list[Any]:
    return [asked.body for asked in api.asked if asked.verb == "patch"]


def test_suspend_resume_and_scale_change_the_spec(api: CliServer) -> None:
    api.put(stored_job())
    job = Job.attach("digits")
    job.suspend()
    job.resume()
    job.scale(8)
    assert asked_patches(api) == [
        {"spec": {"suspend": True}},
        {"spec": {"suspend": False}},
        {"spec": {"worker": {"replicas": 8}}},
    ]


def test_delete_deletes_this_job(api: CliServer) -> None:
    api.put(stored_job())
    Job.attach("digits").delete()
    assert api.get("trainjobs", "digits") is None


# Creating one.


def train(epochs: int) -> int:
    return epochs


def test_submit_creates_the_job_and_its_code(api: CliServer) -> None:
    trainer = Trainer(
        train, kwargs={"epochs": 2}, image="example.com/tf:1", output="claim:training", workers=4, gpus=1
    )
    job = trainer.submit()
    assert repr(job) == "Job('train', namespace default, Pending)"
    stored = api.get("trainjobs", "train")
    assert stored is not None
    container = stored["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["python", "-m", "trainjob_trainer.function", ".trainjob/function.json"]
    assert stored["spec"]["worker"] == {"replicas": 4}
    code = api.get("configmaps", stored["spec"]["code"]["configMap"])
    assert code is not None
    assert code["metadata"]["ownerReferences"][0]["uid"] == stored["metadata"]["uid"]
    assert repr(trainer.submit()) == repr(job)  # the same request, packed again
    other = Trainer(train, kwargs={"epochs": 3}, image="example.com/tf:1", output="claim:training")
    with pytest.raises(
        ClusterProblem, match=r"another request: kwargs epochs 3 \(was 2\); nothing was created"
    ):
        other.submit()
    assert repr(other.submit(new=True)) == "Job('train-2', namespace default, Pending)"
    assert re.fullmatch(r"Job\('train-smoke-[0-9a-f]{4}', .*, Pending\)", repr(trainer.submit(smoke=True)))


def test_what_the_cluster_refuses_is_said(api: CliServer) -> None:
    def refuse(asked: Asked) -> None:
        if asked.verb == "create":
            raise Answer(403, "Forbidden", "no rights", name="train")

    api.rules.append(refuse)
    with pytest.raises(NoCluster, match="the API server doesn't allow it: no rights"):
        Trainer(train, image="i", output="claim:training").submit()
