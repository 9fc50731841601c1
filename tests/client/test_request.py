"""What a name stands for: which requests are the same, what is said about others, and what may follow."""

from __future__ import annotations

import json
import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from support.world.jobs import build_job
from trainjob.client.request import (
    Request,
    compare,
    describe,
    describe_environment,
    read_local_request,
    read_request,
)
from trainjob.cluster.local import LocalOptions

ARGUMENTS = ["40", "0.02"]
ENV = [{"name": "RATE", "value": "0.1"}, {"name": "TRAIN_SEED", "value": "7"}]


def job(container: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return build_job(container={"args": ARGUMENTS, "env": ENV, **(container or {})}, **changes)


SAME, REFUSED, CONTINUES = "same", "refused", "continues"


@pytest.mark.parametrize(
    ("changed", "verdict", "phrase"),
    [
        # What changes the result.
        ({"container": {"args": ["40", "0.07"]}}, REFUSED, "arguments 40 0.07 (was 40 0.02)"),
        ({"container": {"args": ["0.02", "40"]}}, REFUSED, "arguments 0.02 40 (was 40 0.02)"),
        ({"container": {"args": ["40 0.02"]}}, REFUSED, "arguments '40 0.02' (was 40 0.02)"),
        ({"container": {"args": []}}, REFUSED, "arguments not set (was 40 0.02)"),
        ({"container": {"command": ["python", "b.py"]}}, REFUSED, "command python b.py (was python train"),
        ({"container": {"env": [{**ENV[0], "value": "0.2"}, ENV[1]]}}, REFUSED, "env RATE (changed)"),
        ({"container": {"env": ENV[1:]}}, REFUSED, "env RATE (not set)"),
        ({"container": {"env": [*ENV, {"name": "B"}]}}, REFUSED, "env B (not set before)"),
        ({"container": {"env": [ENV[0], {**ENV[1], "value": "8"}]}}, REFUSED, "env TRAIN_SEED 8 (was 7)"),
        ({"container": {"workingDir": "/a"}}, REFUSED, "workingDir /a (was not set)"),
        ({"pod": {"volumes": [{"name": "data"}]}}, REFUSED, 'volumes [{"name": "data"}] (was not set)'),
        ({"chief": {}}, REFUSED, "chief true (was not set)"),
        ({"evaluator": {"env": [{"name": "SPLIT", "value": "b"}]}}, REFUSED, "evaluator's env SPLIT (not"),
        ({"output": {"claim": {"claimName": "b"}}}, REFUSED, "output "),
        # What changes where and how it runs.
        ({"container": {"env": ENV[::-1]}}, SAME, ""),
        ({"workers": 4}, SAME, ""),
        ({"worker": {"replicas": 2, "minReplicas": 1}}, SAME, ""),
        ({"evaluator": False}, SAME, ""),
        ({"maxRestarts": 50, "stallTimeoutSeconds": 60, "activeDeadlineSeconds": 9}, SAME, ""),
        ({"restartStrategy": "Recreate", "warmStandby": True, "suspend": False}, SAME, ""),
        ({"container": {"resources": {"limits": {"memory": "8Gi"}}}}, SAME, ""),
        ({"pod": {"nodeSelector": {"a": "b"}, "tolerations": []}}, SAME, ""),
        ({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "research"}}}, SAME, ""),
        ({"output": {"mountPath": "/output", "claim": {"claimName": "training"}}}, SAME, ""),
        ({"container": {"env": [*ENV, {"name": "TRAIN_KEEP", "value": "9"}]}}, SAME, ""),
        ({"container": {"env": [*ENV, {"name": "TF_CPP_MIN_LOG_LEVEL", "value": "3"}]}}, SAME, ""),
        # More of the same.
        ({"container": {"args": [*ARGUMENTS, "--epochs", "50"]}}, CONTINUES, "--epochs 50 (was not set)"),
        ({"container": {"args": ["--steps=90", *ARGUMENTS]}}, CONTINUES, "--steps 90 (was not set)"),
        ({"container": {"env": [*ENV, {"name": "TRAIN_EPOCHS", "value": "9"}]}}, CONTINUES, "EPOCHS"),
    ],
)  # fmt: skip
def test_what_a_changed_job_is(changed: dict[str, Any], verdict: str, phrase: str) -> None:
    before, after = read_request(job(), {}), read_request(job(**changed), {})
    differences = compare(before, after)
    refused = differences.refused(finished=False)
    assert refused == differences.refused(finished=True)
    assert (REFUSED if refused else CONTINUES if differences.longer else SAME) == verdict, differences
    assert phrase in ", ".join(differences.all)
    assert len(differences.all) == (verdict != SAME)
    stored = Request.model_validate_json(before.model_dump_json())  # as a record has it
    assert compare(stored, after) == differences


@pytest.mark.parametrize(
    ("changed", "shown", "environment"),
    [
        ({}, "train.py 40 0.02 TRAIN_SEED=7", "RATE"),
        ({"container": {"args": ["a b"], "env": []}}, "train.py 'a b'", ""),
        ({"container": {"command": ["/bin/python3.11", "-u", "-m", "a"], "env": []}}, "a 40 0.02", ""),
        ({"container": {"command": "a.py", "args": 5, "env": []}}, "a.py 5", ""),  # only a cluster has it
        (
            {"container": {"args": []}, "evaluator": {"env": [{"name": "SPLIT"}, ENV[1]]}},
            "train.py TRAIN_SEED=7 evaluator's TRAIN_SEED=7",
            "RATE, evaluator's SPLIT",
        ),
    ],
)
def test_how_a_request_is_shown(changed: dict[str, Any], shown: str, environment: str) -> None:
    request = read_request(job(**changed))
    assert (describe(request), describe_environment(request)) == (shown, environment)


@pytest.mark.parametrize(
    ("then", "now", "verdict"),
    [
        (["--epochs", "25"], ["--epochs", "50"], CONTINUES),
        (["--epochs", "25"], ["--epochs=25"], SAME),
        (["--epochs", "25", "--lr", "1"], ["--lr", "1", "--epochs", "50"], CONTINUES),
        (["--epochs", "25", "--lr", "1"], ["--lr", "2", "--epochs", "50"], REFUSED),
        (["--epochs", "50"], ["--epochs", "25"], REFUSED),
        (["--epochs", "50"], [], REFUSED),
        (["--epochs", "25"], ["--epochs", "many"], REFUSED),
        (["--epochs", "25"], ["--steps", "900"], REFUSED),
        (["--epoch", "25"], ["--epoch", "50"], REFUSED),  # the script's own word
    ],
)
def test_a_longer_training_may_follow_and_a_shorter_one_may_not(
    then: list[str], now: list[str], verdict: str
) -> None:
    before, after = (read_request(job({"args": words})) for words in (then, now))
    differences = compare(before, after)
    assert (
        REFUSED if differences.refused(finished=True) else CONTINUES if differences.longer else SAME
    ) == verdict


@pytest.mark.parametrize(
    ("function", "verdict", "phrase"),
    [
        ({}, SAME, ""),
        ({"kwargs": {"lr": 0.001, "epochs": 5}}, REFUSED, "kwargs lr 0.001 (was 0.01)"),
        ({"kwargs": {"lr": 0.01, "epochs": 9}}, CONTINUES, "kwargs epochs 9 (was 5)"),
        ({"kwargs": {"lr": 0.01, "epochs": 4}}, REFUSED, "kwargs epochs 4 (was 5)"),
        ({"kwargs": {"epochs": 5}}, REFUSED, "kwargs lr not set (was 0.01)"),
        ({"function": "f2"}, REFUSED, "the function (changed)"),
        ({"files": "c2"}, REFUSED, "its files (changed)"),
    ],
)
def test_what_a_changed_function_is(function: dict[str, Any], verdict: str, phrase: str) -> None:
    def asked(path: str, **identity: Any) -> Request:
        known = {"function": "f", "files": "c", "kwargs": {"lr": 0.01, "epochs": 5}, **identity}
        command = ["python", "-m", "trainjob_trainer.function", path]
        return read_request(
            build_job(
                metadata={"annotations": {"trainjob.dev/function": json.dumps(known)}},
                container={"command": command},
                code={"configMap": path, "digest": path},  # its package differs each time
            )
        )

    differences = compare(asked("first"), asked("second", **function))
    assert (
        REFUSED if differences.refused(finished=True) else CONTINUES if differences.longer else SAME
    ) == verdict
    assert ", ".join(differences.all) == phrase


def test_in_a_cluster_image_and_code_are_the_code() -> None:
    first = build_job(code={"configMap": "a", "digest": "d"})
    again = build_job(code={"configMap": "b", "digest": "d"})
    assert compare(read_request(first), read_request(again)).all == ()
    other = build_job(container={"image": "example.com/digits:2"}, code={"configMap": "b", "digest": "e"})
    told = (
        "image example.com/digits:1 (not used now)",
        "image example.com/digits:2 (new)",
        "its code (changed)",
    )
    assert compare(read_request(first), read_request(other)).refused(finished=True) == told
    assert compare(read_request(build_job()), read_request(first)).code == ("its code (new)",)


# On this machine also the caller's environment and the files count.


FILES = {
    "train.py": "import helper, inner.model\nopen('settings.json')\n'_', environ['RATE'], environ['PATH']\n",
    "helper.py": "from parts import *",
    "parts.py": "",
    "inner/model.py": "",
    "inner/deep/layers.yaml": "",
    "settings.json": "{}",
    "other.py": "",
    "notes.json": "{}",
    "train.ipynb": "",
    "job.yaml": "",
    "train.yaml": "apiVersion: trainjob.dev/v1alpha1",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def here(folder: Path, manifest: dict[str, Any] | None = None, **environ: str) -> Request:
    options = LocalOptions(folder=folder / "runs", job_folder=folder)
    return read_local_request(manifest or job(), options, folder / "job.yaml", environ)


@pytest.mark.parametrize(
    ("file", "phrase"),
    [
        ("train.py", "train.py (changed)"),
        ("helper.py", "helper.py (changed)"),
        ("parts.py", "parts.py (changed)"),  # a module of a module
        ("inner/model.py", "inner/model.py (changed)"),
        ("inner/new.py", "inner/new.py (new)"),
        ("inner/deep/layers.yaml", "inner/deep/layers.yaml (changed)"),
        ("settings.json", "settings.json (changed)"),
        ("inner/new.json", ""),  # perhaps written by the script
        ("other.py", ""),
        ("notes.json", ""),
        ("train.ipynb", ""),
        ("job.yaml", ""),  # its spec counts
        ("train.yaml", ""),  # so it does of another job's file
        ("runs/training/digits/inner.py", ""),
        (".hidden/inner.py", ""),
        ("inner/__pycache__/model.py", ""),
    ],
)
def test_which_files_are_the_code(file: str, phrase: str, project: Path) -> None:
    before = here(project)
    (project / file).parent.mkdir(parents=True, exist_ok=True)
    with (project / file).open("a") as changed:
        changed.write("\n# 1")
    differences = compare(before, here(project))
    assert ", ".join(differences.code) == phrase
    assert differences.refused(finished=False) == ()  # an unfinished training is continued with other code
    assert differences.refused(finished=True) == differences.code


def test_a_file_that_is_gone_and_files_that_are_read_by_a_pattern(project: Path) -> None:
    (project / "train.py").write_text("Path().glob('*.json')")
    before = here(project)
    (project / "notes.json").write_text("[]")
    (project / "settings.json").unlink()
    assert compare(before, here(project)).code == ("notes.json (changed)", "settings.json (not used now)")


def test_a_script_in_a_folder_and_modules_elsewhere(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other, modules = tmp_path_factory.mktemp("other"), tmp_path_factory.mktemp("modules")
    env = [{"name": "PYTHONPATH", "value": f"/no/such/folder:{modules}"}]
    manifest = build_job(container={"command": ["python", str(other / "code.py")], "env": env})
    inside = build_job(container={"command": ["python", "inner/model.py"]})
    for folder, text in ((other, "import tools"), (modules, "")):
        for name in ("code.py", "tools.py", "unused.py"):
            (folder / name).write_text(text)
    before, before_inside = here(project, manifest), here(project, inside)
    for folder in (other, modules):
        for path in folder.iterdir():
            path.write_text(path.read_text() + "\n")
    (project / "inner" / "unused.py").touch()
    changed = {
        f"{folder}/{name} (changed)" for folder in (other, modules) for name in ("code.py", "tools.py")
    }
    assert set(compare(before, here(project, manifest)).code) == changed
    assert compare(before_inside, here(project, inside)).code == ()


def test_a_packed_function_names_modules_and_variables_too(project: Path) -> None:
    header = project / "runs" / ".functions" / "train-1" / "function.json"
    header.parent.mkdir(parents=True)
    text = 'import other, train, helper\nos.environ["RATE"]'
    sources = {"<cell>": text, str(project / "train.py"): "", str(project / "helper.py"): ""}
    header.write_text(json.dumps({"sources": sources}))
    identity = json.dumps({"function": "f", "files": "", "kwargs": {}})
    manifest = build_job(
        metadata={"annotations": {"trainjob.dev/function": identity}},
        container={"command": ["python", "-m", "function", str(header)]},
    )
    before = here(project, manifest, RATE="1")
    for name in ("other.py", "train.py", "helper.py"):  # the last two travel by value
        (project / name).write_text("other")
    after = here(project, manifest, RATE="2")
    assert compare(before, after).all == ("env RATE (changed)", "other.py (changed)")


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("RATE", True),  # the code has it in quotes
        ("TRAIN_SEED_OF_MINE", True),
        ("TOKEN", True),  # what a cluster has in a Secret
        ("TRAIN_KEEP", False),
        ("OTHER", False),
        ("_", False),
        ("PATH", False),  # of the shell, though the code has it in quotes
    ],
)
def test_which_variables_of_the_caller_count(name: str, counts: bool, project: Path) -> None:
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    manifest = build_job(container={"env": [secret]})
    before = here(project, manifest, **{name: "1"})
    assert "1" not in before.asked.values() or name == "TRAIN_SEED_OF_MINE"  # it may be a secret
    assert bool(compare(before, here(project, manifest, **{name: "2"})).asked) == counts


def test_a_variable_is_the_same_wherever_it_is_set(project: Path) -> None:
    manifest = build_job(container={"env": [{"name": "RATE", "value": "1"}]})
    assert compare(here(project, manifest), here(project, build_job(), RATE="1")).all == ()
    assert compare(here(project, manifest, RATE="2"), here(project, manifest)).all == ()


def test_too_many_files_are_not_compared(project: Path) -> None:
    for number in range(2001):
        (project / "inner" / f"{number}.json").touch()
    request = here(project)
    assert request.code is None
    perhaps = ("its code, perhaps (too many files to compare)",)
    assert compare(request, deepcopy(request)).refused(finished=True) == perhaps
    assert compare(request, deepcopy(request)).refused(finished=False) == ()


def test_large_files_are_compared_by_size_and_time(project: Path) -> None:
    large = project / "inner" / "data.json"
    large.write_text("1" * (1 << 20 | 1))
    before = here(project)
    os.utime(large, (1, 1))
    assert compare(before, here(project)).code == ("inner/data.json (changed)",)
