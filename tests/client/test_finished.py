"""Whether a job has nothing left to do, from its record and its final marker."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from support.cli.program import NOW, build_replica, build_run
from support.world.jobs import build_job
from trainjob.client.finished import describe_finished, digest_request
from trainjob.client.run_record import Run, RunRecord
from trainjob.cluster.local import LocalOptions
from trainjob.core.agent_reports import EvaluationResult

FILES = ("job.yaml", "train.py", "inner/model.py", "settings.yaml")
JOB = build_job(
    container={"env": [{"name": "MODE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}
)


def digest(folder: Path, job: dict[str, Any] = JOB, **environ: str) -> str:
    options = LocalOptions(folder=folder / "runs", job_folder=folder)
    return digest_request(job, options, folder / "job.yaml", environ)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("first")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("train.py", True),
        ("inner/model.py", True),
        ("inner/new.py", True),
        ("settings.yaml", True),
        ("job.yaml", False),  # its spec counts
        ("picture.png", False),
        ("runs/training/digits/a.json", False),
        (".hidden/a.py", False),
        ("inner/__pycache__/a.py", False),
    ],
)
def test_which_files_ask_for_something_else(file: str, counts: bool, project: Path) -> None:
    before = digest(project)
    (project / file).parent.mkdir(parents=True, exist_ok=True)
    (project / file).write_text("other")
    assert (digest(project) != before) == counts


def test_what_else_asks_for_something_else(project: Path) -> None:
    other = deepcopy(JOB)
    other["spec"]["template"]["spec"]["containers"][0]["args"] = ["--epochs", "50"]
    assert digest(project, other) != digest(project)
    assert digest(project, TRAIN_EPOCHS="50") != digest(project)
    assert digest(project, MODE="x") != digest(project)
    assert digest(project, TERM="xterm") == digest(project)


def test_code_in_other_folders_counts_too(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other, modules = tmp_path_factory.mktemp("other"), tmp_path_factory.mktemp("modules")
    for folder in (other, modules):
        (folder / "code.py").write_text("first")
    env = [{"name": "PYTHONPATH", "value": f"/no/such/folder:{modules}"}]
    job = build_job(container={"command": ["python", str(other / "code.py")], "env": env})
    seen = {digest(project, job)}
    for folder in (other, modules):
        (folder / "code.py").write_text("other")
        seen.add(digest(project, job))
    assert len(seen) == 3


def test_too_many_files_are_not_compared(project: Path) -> None:
    for number in range(2001):
        (project / f"{number}.png").touch()
    assert digest(project) == ""


FINAL = {"step": 440, "endedAt": 550, "jobUid": "u"}


@pytest.mark.parametrize(
    ("record", "marker", "is_finished"),
    [
        ({}, FINAL, True),
        ({"request": "other"}, FINAL, False),
        ({"request": ""}, FINAL, False),
        ({"end": "failed"}, FINAL, False),
        ({}, {**FINAL, "jobUid": "other"}, False),
        ({}, {**FINAL, "step": 441}, False),  # there is no such checkpoint
        ({}, [], False),
        ({}, None, False),
    ],
)
def test_when_a_job_is_finished(
    record: dict[str, str], marker: Any, is_finished: bool, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints/step-00000440.1").mkdir(parents=True)
    if marker is not None:
        (tmp_path / "checkpoints/final.json").write_text(json.dumps(marker))
    score = EvaluationResult.model_validate({"step": 440, "metrics": {"loss": 0.1, "accuracy": 0.989}})
    view = replace(build_run([build_replica(total_epochs=25)], evaluation=score), uid="u")
    fields = {"end": "complete", "request": "asked", **record}
    run = Run(tmp_path, RunRecord(view=view, began=NOW, ended=NOW, **fields))  # type: ignore[arg-type]
    told = describe_finished(run, fields["request"] if not record.get("request") else "asked", NOW + MINUTES)
    expected = (
        "digits is finished (step 550, accuracy 98.9 %, 12 minutes ago); "
        "train on: ask for more, such as -- --epochs 50; start over: --fresh"
    )
    assert told == (expected if is_finished else None)


MINUTES = timedelta(minutes=12)
