"""`Trainer`: what is asked for as a TrainJob, and as a run on this machine."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from trainjob import ClusterProblem, Job, JobFailed, Trainer, jobs
from trainjob.api import parse
from trainjob.client import trainer
from trainjob.client.trainer import _spawn, lay_out

FACTOR = 3


def train_digits(number: int, text: str = "") -> dict[str, object]:
    import json  # noqa: PLC0415
    import time  # noqa: PLC0415

    task = json.loads(os.environ["TF_CONFIG"])["task"]
    print(f"replica {task['index']} has {text}", flush=True)
    with open(os.environ["TRAINJOB_PROGRESS_FILE"], "w") as file:  # noqa: PTH123
        json.dump({"state": "training", "step": 5, "totalSteps": 10, "loss": 0.5, "time": time.time()}, file)
    return {"number": number * FACTOR, "text": text}


def fails() -> None:
    raise TypeError("no such thing")


def saves(ends_well: bool = True) -> None:
    Path(os.environ["TRAINJOB_OUTPUT_DIR"], "part").touch()
    if not ends_well:
        raise ValueError("a mistake")


saves_and_fails = functools.partial(saves, False)


CLUSTER = {"image": "example.com/tf:1", "output": "claim:training"}


def in_cluster(**options: Any) -> dict[str, Any]:
    manifest = Trainer(**{**CLUSTER, **options}).manifest()
    parse(manifest)
    return manifest


def container_of(manifest: dict[str, Any]) -> dict[str, Any]:
    return dict(manifest["spec"]["template"]["spec"]["containers"][0])


def test_a_function_is_a_job_named_after_it() -> None:
    manifest = in_cluster(
        train=train_digits,
        kwargs={"number": 1},
        workers=4,
        gpus=1,
        queue="research",
        env={"SEED": 1},
        memory="8Gi",
        evaluator=False,
    )
    assert manifest["metadata"]["name"] == "train-digits"
    assert manifest["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "research"}
    spec = manifest["spec"]
    assert (spec["worker"], spec["evaluator"]) == ({"replicas": 4}, {"replicas": 0})
    assert spec["output"] == {"claim": {"claimName": "training"}}
    assert set(spec["code"]) == {"configMap", "digest"}
    container = container_of(manifest)
    assert container["env"] == [{"name": "SEED", "value": "1"}]
    assert container["resources"]["limits"] == {"memory": "8Gi", "nvidia.com/gpu": "1"}


def joins_a_ring() -> None:
    import horovod.tensorflow as hvd  # noqa: PLC0415

    hvd.init()


def test_only_a_job_of_horovod_has_no_evaluator_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("ring.py").write_text("import horovod.tensorflow as hvd\n")
    counts = [
        in_cluster(train=train, evaluator=asked)["spec"]["evaluator"]["replicas"]
        for train, asked in [("train.py", None), ("ring.py", None), ("ring.py", True), (joins_a_ring, None)]
    ]
    assert counts == [1, 0, 1, 0]
    assert in_cluster(command=["true"])["spec"]["evaluator"] == {"replicas": 1}


@pytest.mark.parametrize(
    ("train", "name"),
    [
        (functools.partial(train_digits, 1), "train-digits"),
        (lambda: None, "function"),
    ],
)
def test_names_of_other_functions(train: Any, name: str) -> None:
    assert Trainer(train).name == name


def test_a_script_travels_with_the_files_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "My_train.py").write_text("import helper\n")
    (tmp_path / "helper.py").touch()
    manifest = in_cluster(train="My_train.py", args=["--epochs", 9])
    assert manifest["metadata"]["name"] == "my-train"
    assert container_of(manifest)["command"] == ["python", "My_train.py"]
    assert container_of(manifest)["args"] == ["--epochs", "9"]
    first = manifest["spec"]["code"]["digest"]
    (tmp_path / "helper.py").write_text("changed = True\n")
    assert in_cluster(train=Path("My_train.py"))["spec"]["code"]["digest"] != first


def test_a_command_needs_no_code() -> None:
    manifest = in_cluster(command=["python", "-m", "package"])
    assert manifest["metadata"]["name"] == "package"
    assert "code" not in manifest["spec"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "name one thing to train"),
        ({"train": fails, "command": ["x"]}, "name one thing to train"),
        ({"train": fails, "args": ["--epochs"]}, "args= are for a script; a function takes kwargs="),
        ({"train": "none.py"}, "there is no script none.py below "),
        ({"train": 5}, "train is a int: pass a function or a script's path"),
        ({"command": ["x"], "kwargs": {"a": 1}}, "kwargs= are for a function; a script takes args="),
        ({"command": ["x"], "args": "--epochs 5"}, "are lists of words"),
        ({"command": "python train.py"}, "are lists of words"),
        ({"train": fails, "output": "training"}, "'training' is no output: give claim:NAME"),
        ({"train": fails, "code": ["/etc"]}, "/etc is outside "),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        in_cluster(**options)


@pytest.mark.parametrize("missing", ["image", "output"])
def test_a_cluster_needs_an_image_and_an_output(missing: str) -> None:
    options = {name: value for name, value in CLUSTER.items() if name != missing}
    with pytest.raises(ValueError, match=f"{missing}= is missing: name"):
        Trainer(fails, **options).manifest()  # type: ignore[arg-type]


def test_functions_of_earlier_runs_are_kept_for_a_while(tmp_path: Path) -> None:
    first = lay_out({"a/b": b"0"}, tmp_path, "digits")
    assert (first / "a" / "b").read_bytes() == b"0"
    assert lay_out({"a/b": b"0"}, tmp_path, "digits") == first
    other = lay_out({"a/b": b"0"}, tmp_path, "digits-2")
    os.utime(first, (1, 1))
    for number in range(1, 11):
        lay_out({"a/b": str(number).encode()}, tmp_path, "digits")
    assert not first.exists()
    assert other.exists()
    assert len(list(tmp_path.iterdir())) == 11


# On this machine.


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    return tmp_path


def test_a_function_trains_here_in_two_processes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "quotes ' \" $HOME $$ `date` \\ äöü 漢字"
    job = Trainer(train_digits, kwargs={"number": 2, "text": text}, workers=2, evaluator=False).run()
    assert repr(job) == "Job('train-digits', this machine, Complete: training has finished)"
    assert job.result() == {"number": 6, "text": text}
    assert job.metrics == {"loss": 0.5}
    assert {f"worker-{index}: replica {index} has {text}" for index in (0, 1)} <= set(job.logs())
    assert "trainjob: train-digits: Complete: training has finished" in capsys.readouterr().err
    assert "train-digits" in job._repr_html_()
    with pytest.raises(ClusterProblem, match="train-digits has no model"):
        job.model("model")
    (project / "runs" / "training" / "train-digits" / "model.keras").write_text("a model")
    assert (job.model("model") / "model.keras").read_text() == "a model"
    with pytest.raises(FileExistsError):
        job.model("model")
    with pytest.raises(ValueError, match="leave out fresh=True"):
        Trainer(train_digits).run(fresh=True, smoke=True)
    assert [each.name for each in jobs()] == ["train-digits"]
    Job.attach("train-digits").delete()
    assert jobs() == []


def test_a_failure_here_is_raised_and_what_cannot_start_is_said(project: Path) -> None:
    with pytest.raises(JobFailed) as failed:
        Trainer(fails, evaluator=False).run(smoke=True)
    assert (failed.value.name, failed.value.replica, failed.value.exit_code) == ("fails-smoke", "worker-0", 1)
    assert "TypeError: no such thing" in failed.value.log
    assert "and call run() again" in str(failed.value)
    (project / "runs" / "training" / "taken").write_text("a file")
    with pytest.raises(ClusterProblem, match=r"can't write into .*taken is a file, not a folder"):
        Trainer(command=[sys.executable, "-c", ""], name="taken").run()


def test_a_corrected_function_continues_and_another_one_has_a_run_of_its_own(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(JobFailed, match="a mistake"):
        Trainer(saves_and_fails, evaluator=False).run()
    other = Trainer(saves, kwargs={"ends_well": True}, evaluator=False)
    with pytest.raises(ClusterProblem, match=r"another request: kwargs ends_well .*name="):
        other.run()
    assert Trainer(saves, evaluator=False).run().name == "saves"
    assert "trainjob: saves: continuing with the function (changed)\n" in capsys.readouterr().err
    assert other.run(new=True).name == "saves.2"
    monkeypatch.setenv("TRAINJOB_NEW", "1")
    assert other.run().name == "saves.2"  # it is finished
    assert "continuing" not in capsys.readouterr().err


def test_a_start_that_is_interrupted_leaves_no_process(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    async def interrupt() -> None:
        loop, run = asyncio.get_running_loop(), asyncio.ensure_future(Trainer(fails).aio.run())

        def spawn(*arguments: Any) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
            process, answer = _spawn(*arguments)
            started.append(process)
            loop.call_soon_threadsafe(loop.call_later, 0.1, run.cancel)
            return process, answer

        monkeypatch.setattr(trainer, "_spawn", spawn)
        await run

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(interrupt())
    assert started[0].wait() != 0
