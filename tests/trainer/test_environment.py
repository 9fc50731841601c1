from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from trainjob_trainer import Environment, InvalidConfiguration, Task
from trainjob_trainer.checkpoint.fence import build_fence
from trainjob_trainer.environment import Generation, is_smoke, script_name, setting

WORKER = Task("worker", 0, {})
EVALUATOR = Task("evaluator", 0, {})


def test_a_plain_process_writes_below_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    environment = Environment.from_environment({}, WORKER, "/code/train.py")

    assert (environment.name, environment.uid, environment.attempt) == ("local", "", 1)
    assert environment.checkpoint_dir == tmp_path / "output" / "train" / "checkpoints"
    assert environment.log_dir == tmp_path / "output" / "train" / "logs" / "train"
    assert "resume=False" in environment.how_to_start_over


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("train.py", "train"),
        ("/code/my.model.py", "my.model"),
        ("/code/package/__main__.py", "package"),
        ("/venv/lib/site-packages/ipykernel_launcher.py", "notebook"),
        ("/usr/lib/colab_kernel_launcher.py", "notebook"),
        ("-c", "interactive"),
        ("", "interactive"),
    ],
)
def test_the_folder_has_the_scripts_name(program: str, name: str) -> None:
    assert script_name(program) == name


def test_a_training_that_is_not_to_go_on_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    def folder(output: Path, *, resume: bool) -> Path:
        return Environment.from_environment({}, WORKER, "train.py", output, resume=resume).output_dir

    assert folder(tmp_path / "runs", resume=False) == tmp_path / "runs"
    for name in ("runs", "runs-2"):
        (tmp_path / name).mkdir()
    assert folder(tmp_path / "runs", resume=True) == tmp_path / "runs"
    assert folder(tmp_path / "runs", resume=False) == tmp_path / "runs-3"


def test_the_output_of_a_job_is_the_jobs() -> None:
    env = {"TRAINJOB_UID": "u", "TRAINJOB_OUTPUT_DIR": "/out"}
    environment = Environment.from_environment(env, WORKER, "train.py", "/mine", resume=False)
    assert environment.output_dir == Path("/out")
    assert "--fresh" in environment.how_to_start_over


def test_processes_that_find_each_other_without_a_job_can_not_choose_a_new_folder() -> None:
    task = Task("worker", 1, {"worker": ("a:1", "b:1")})
    with pytest.raises(InvalidConfiguration, match=r"name one with output=\.\.\."):
        Environment.from_environment({}, task, "train.py", resume=False)


def test_folders_that_cannot_be_examined_now_end_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    env = {"TRAINJOB_UID": "u", "TRAINJOB_OUTPUT_DIR": "/out"}
    with monkeypatch.context() as away:
        away.setattr(os, "stat", fail)
        away.setattr(os, "lstat", fail)
        environment = Environment.from_environment(env, WORKER)
    assert environment.checkpoint_dir == Path("/out/checkpoints")


def test_an_evaluator_finds_the_checkpoints_beside_its_folder() -> None:
    environment = Environment.from_environment({"TRAINJOB_OUTPUT_DIR": "/out/evaluator"}, EVALUATOR)

    assert environment.checkpoint_dir == Path("/out/checkpoints")
    assert environment.log_dir == Path("/out/evaluator/logs")


def test_what_the_job_says_holds() -> None:
    env = {
        "TRAINJOB_NAMESPACE": "team",
        "TRAINJOB_NAME": "digits",
        "TRAINJOB_UID": "u",
        "TRAINJOB_ATTEMPT": "3",
        "TRAINJOB_OUTPUT_DIR": "/out",
        "TRAINJOB_CHECKPOINT_DIR": "/c",
        "TRAINJOB_LOG_DIR": "/l",
        "TRAINJOB_GENERATION": "2.3",
        "TRAINJOB_REPORTED_STEP": "0",
        "TRAINJOB_REPORTED_CHECKPOINT": "3000",
    }

    assert Environment.from_environment(env, WORKER) == Environment(
        "digits", "u", 3, Path("/out"), Path("/c"), Path("/l"), Generation(2, 3), 0, 3000, namespace="team"
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


def test_what_can_not_be_switched_off_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match=r"TRAIN_WITHOUT: must be some of .* got 'memroy'"):
        Environment.from_environment({"TRAIN_WITHOUT": "garbage, memroy"}, WORKER)


@pytest.mark.parametrize(
    ("variables", "smoke"),
    [
        ({}, False),
        ({"TRAIN_SMOKE": "true"}, "only a job has a smoke test"),
        ({"TRAIN_SMOKE": "yes", "TRAINJOB_OUTPUT_DIR": "/out"}, "must be true or false, got 'yes'"),
        ({"TRAIN_SMOKE": "false", "TRAINJOB_OUTPUT_DIR": "/out"}, False),
        ({"TRAIN_SMOKE": "true", "TRAINJOB_OUTPUT_DIR": "/out"}, True),
    ],
)
def test_a_smoke_test_needs_a_job(variables: dict[str, str], smoke: bool | str) -> None:
    if isinstance(smoke, str):
        with pytest.raises(InvalidConfiguration, match=f"TRAIN_SMOKE: {smoke}"):
            Environment.from_environment(variables, WORKER)
    else:
        Environment.from_environment(variables, WORKER)
        assert is_smoke(variables) is smoke


@pytest.mark.parametrize("variable", ["TRAINJOB_OUTPUT_DIR", "TRAINJOB_CHECKPOINT_DIR", "TRAINJOB_LOG_DIR"])
def test_object_storage_is_refused_with_what_to_do(variable: str) -> None:
    env = {variable: "gs://bucket/runs/digits"}
    with pytest.raises(
        InvalidConfiguration, match=rf"{variable}: .* gs://bucket/runs/digits; .* spec.output.uri"
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
    environment = Environment.from_environment({"TRAINJOB_GENERATION": epoch}, task)

    assert (build_fence(task, environment) is not None) is fenced


@pytest.mark.parametrize(
    ("name", "env", "in_code", "expected"),
    [
        ("epochs", {}, None, 1),
        ("epochs", {}, 3, 3),
        ("epochs", {"TRAIN_EPOCHS": "5"}, 3, 5),
        ("export", {}, False, False),
        ("export", {"TRAIN_EXPORT": "on"}, False, True),
        ("compare_weights", {"TRAIN_COMPARE_WEIGHTS": "No"}, None, False),
        ("global_batch", {}, None, None),
        ("output", {"TRAIN_OUTPUT": "there"}, None, "there"),
        ("resume_data", {"TRAIN_RESUME_DATA": "epoch"}, None, "epoch"),
        ("seed", {"TRAIN_SEED": "-1"}, None, -1),
    ],
)
def test_the_environment_comes_before_the_code_and_the_code_before_the_default(
    name: str, env: dict[str, str], in_code: Any, expected: Any
) -> None:
    assert setting(name, env, in_code) == expected


@pytest.mark.parametrize(
    ("name", "env", "in_code", "words"),
    [
        ("epochs", {"TRAIN_EPOCHS": "0"}, None, "TRAIN_EPOCHS: must be a whole number of at least 1, got 0"),
        ("epochs", {"TRAIN_EPOCHS": "two"}, None, "TRAIN_EPOCHS: must be a whole number .*, got 'two'"),
        ("epochs", {}, True, "epochs: must be a whole number of at least 1, got True"),
        ("seed", {}, 1.5, "seed: must be a whole number, got 1.5"),
        ("resume", {"TRAIN_RESUME": "no!"}, None, "TRAIN_RESUME: must be true or false, got 'no!'"),
        ("shuffle", {}, "yes", "shuffle: must be true or false, got 'yes'"),
        ("on_nan", {"TRAIN_ON_NAN": "Stop"}, None, "TRAIN_ON_NAN: must be one of 'stop', 'skip', 'ignore'"),
        ("output", {}, 3, "output: must be a string, got 3"),
    ],
)
def test_a_value_that_a_setting_cannot_have_is_refused(
    name: str, env: dict[str, str], in_code: Any, words: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=words):
        setting(name, env, in_code)
