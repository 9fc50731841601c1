from __future__ import annotations

from pathlib import Path

import pytest

from trainjob_trainer import Environment, InvalidConfiguration, Task
from trainjob_trainer.checkpoint.fence import build_fence
from trainjob_trainer.epoch import Epoch

WORKER = Task("worker", 0, {})
EVALUATOR = Task("evaluator", 0, {})


def test_a_plain_process_writes_below_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    environment = Environment.from_environment({}, WORKER)

    assert (environment.name, environment.uid, environment.attempt) == ("local", "", 1)
    assert environment.checkpoint_dir == tmp_path / "output" / "checkpoints"
    assert environment.log_dir == tmp_path / "output" / "logs" / "train"


def test_an_evaluator_finds_the_checkpoints_beside_its_folder() -> None:
    environment = Environment.from_environment({"TRAINJOB_OUTPUT_DIR": "/out/evaluator"}, EVALUATOR)

    assert environment.checkpoint_dir == Path("/out/checkpoints")
    assert environment.log_dir == Path("/out/evaluator/logs")


def test_what_the_job_says_holds() -> None:
    env = {
        "TRAINJOB_NAME": "digits",
        "TRAINJOB_UID": "u",
        "TRAINJOB_ATTEMPT": "3",
        "TRAINJOB_OUTPUT_DIR": "/out",
        "TRAINJOB_CHECKPOINT_DIR": "/c",
        "TRAINJOB_LOG_DIR": "/l",
        "TRAINJOB_EPOCH": "2.3",
        "TRAINJOB_REPORTED_STEP": "0",
        "TRAINJOB_REPORTED_CHECKPOINT": "3000",
    }

    assert Environment.from_environment(env, WORKER) == Environment(
        "digits", "u", 3, Path("/out"), Path("/c"), Path("/l"), Epoch(2, 3), 0, 3000
    )


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        *(("TRAINJOB_ATTEMPT", text) for text in ("0", "-1", "one", "1.5", "\u00b2")),
        *(("TRAINJOB_REPORTED_STEP", text) for text in ("-1", "one")),
        *(("TRAINJOB_REPORTED_CHECKPOINT", text) for text in ("-1", "one")),
    ],
)
def test_a_malformed_number_is_refused(variable: str, text: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"{variable}: must be a number from"):
        Environment.from_environment({variable: text}, WORKER)


@pytest.mark.parametrize("variable", ["TRAINJOB_OUTPUT_DIR", "TRAINJOB_CHECKPOINT_DIR", "TRAINJOB_LOG_DIR"])
def test_object_storage_is_refused_with_what_to_do(variable: str) -> None:
    env = {variable: "gs://bucket/runs/digits"}
    with pytest.raises(
        InvalidConfiguration, match=rf"{variable}: gs://bucket/runs/digits .* mount the bucket"
    ):
        Environment.from_environment(env, Task.from_environment(env))


@pytest.mark.parametrize(
    ("task", "epoch", "fenced"),
    [
        (WORKER, "1.1", True),
        (WORKER, "", False),
        (Task("worker", 1, {}), "1.1", False),
        (EVALUATOR, "1.1", False),
    ],
)
def test_only_a_writer_that_belongs_to_a_job_is_fenced(task: Task, epoch: str, fenced: bool) -> None:
    environment = Environment.from_environment({"TRAINJOB_EPOCH": epoch}, task)

    assert (build_fence(task, environment) is not None) is fenced
