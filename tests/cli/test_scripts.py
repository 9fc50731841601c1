"""Commands for scripts: the job that a script stands for, its code, its file; and changes of a file's job."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from support.cli.program import write_job
from support.cli.requests import Answer, Asked
from support.cli.server import CliServer
from support.cli.stored_jobs import call, stored_job
from support.golden import Golden
from trainjob.api import parse
from trainjob_trainer.agent.code import Code

CLUSTER = ("--image", "acme/tf:1", "--output", "claim:training")

SCRIPT = """
import os, sys
import helper
print("says", helper.WORD, *sys.argv[1:], os.environ["TRAINJOB_NAME"])
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, a module beside it and a package, which is the current one."""
    folder = tmp_path / "project"
    (folder / "src" / "lib").mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("WORD = 'hello'\n")
    (folder / "notes.txt").write_text("stay")
    (folder / "src" / "lib" / "words.py").write_text("")
    monkeypatch.chdir(folder)
    return folder


def printed(*arguments: str) -> dict[str, Any]:
    result = call(*arguments)
    assert result.exit_code == 0, result.stderr
    job: dict[str, Any] = yaml.safe_load(result.stdout)
    parse(job)
    return job


@pytest.mark.usefixtures("project")
def test_a_script_is_run_with_its_arguments() -> None:
    result = call("run", "train.py", "--no-evaluator", "--plain", "--", "--epochs", "9")
    assert result.exit_code == 0, result.output
    assert "worker-0: says hello --epochs 9 train\n" in result.stdout


def test_a_dry_run_prints_the_job(project: Path) -> None:
    job = printed("run", "train.py", "--workers", "2", "--dry-run", "--", "--epochs", "9")
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert (job["metadata"]["name"], job["spec"]["worker"]["replicas"]) == ("train", 2)
    assert (container["command"], container["args"]) == (["python", "train.py"], ["--epochs", "9"])
    assert "code" not in job["spec"]
    assert not (project / "runs").exists()


def test_a_script_with_horovod_has_an_evaluator_only_if_asked(project: Path) -> None:
    (project / "ring.py").write_text("import horovod.tensorflow as hvd\n")
    for options, count in (((), 0), (("--evaluator",), 1)):
        assert printed("run", "ring.py", *options, "--dry-run")["spec"]["evaluator"]["replicas"] == count


def test_a_dry_run_for_a_cluster_needs_none(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "nowhere")
    options = ("--workers", "4", "--gpus", "1", "--queue", "research", "--code", "src", "--env", "A=b=c")
    result = call("submit", "train.py", *CLUSTER, *options, "--set", "spec.maxRestarts=9", "--dry-run")
    assert result.exit_code == 0, result.stderr
    job = yaml.safe_load(result.stdout)
    spec = parse(job).spec
    assert (spec.worker.replicas, spec.max_restarts) == (4, 9)
    assert spec.code is not None
    assert spec.code.config_map.startswith("train-code-")
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "research"}
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["env"] == [{"name": "A", "value": "b=c"}, {"name": "PYTHONPATH", "value": "src"}]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert result.stderr == "the code travels: 3 files, 1 kB packed: helper.py, src/lib/words.py, train.py\n"


def test_a_smoke_test_is_a_run_beside_the_job_and_the_next_one_takes_its_place(project: Path) -> None:
    (project / "train.py").write_text("import os\nprint(os.environ.get('TRAIN_SMOKE'))\n")
    real = project / "runs" / "training" / "train"
    real.mkdir(parents=True)
    (real / "results").touch()
    for _ in range(2):
        result = call("run", "train.py", "--no-evaluator", "--plain", "--smoke")
        assert result.exit_code == 0, result.output
        assert "worker-0: true\n" in result.stdout
        assert "train-smoke is complete after" in result.stdout
        assert "  training      no step was taken\n" in result.stdout
        assert not (real.with_name("train-smoke") / "mark").exists()
        (real.with_name("train-smoke") / "mark").touch()
    assert {path.name for path in real.parent.iterdir()} == {"train", "train-smoke"}
    assert [path.name for path in real.iterdir()] == ["results"]


def test_smoke_tests_in_a_cluster_are_jobs_of_their_own(project: Path, api: CliServer) -> None:
    write_job(project)
    for arguments in (("submit", "train.py", *CLUSTER), ("submit", "job.yaml"), ("submit", "job.yaml")):
        result = call(*arguments, "--smoke")
        created = re.fullmatch(r"(\w+-smoke-[0-9a-f]{4}) was created in namespace default\n", result.stdout)
        assert created, result.stderr
        job = api.get("trainjobs", created[1])
        assert job is not None
        container = job["spec"]["template"]["spec"]["containers"][0]
        assert container["env"][-1] == {"name": "TRAIN_SMOKE", "value": "true"}


def test_a_scripts_code_travels(project: Path, api: CliServer) -> None:
    result = call("submit", "train.py", *CLUSTER)
    assert (result.exit_code, result.stdout) == (0, "train was created in namespace default\n")
    job = api.get("trainjobs", "train")
    assert job is not None
    code = job["spec"]["code"]
    stored = api.get("configmaps", code["configMap"])
    assert stored is not None
    assert stored["immutable"] is True
    assert stored["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "trainjob.dev/v1alpha1",
            "kind": "TrainJob",
            "name": "train",
            "uid": job["metadata"]["uid"],
        }
    ]
    archive = project / "code.zip"
    archive.write_bytes(base64.b64decode(stored["binaryData"]["code.zip"]))
    Code(archive, code["digest"], project / "unpacked").unpack()
    files = {path.name: path.read_text() for path in (project / "unpacked").iterdir()}
    assert files == {"train.py": SCRIPT, "helper.py": "WORD = 'hello'\n"}


@pytest.mark.usefixtures("project")
def test_a_job_whose_code_is_refused_is_deleted_again(api: CliServer) -> None:
    def refuse(asked: Asked) -> None:
        if asked.plural == "configmaps":
            raise Answer(403, "Forbidden", 'configmaps is forbidden: User "eva" cannot create resource')

    api.rules.append(refuse)
    result = call("submit", "train.py", *CLUSTER)
    assert result.exit_code == 4
    assert result.stderr.endswith(
        'the API server doesn\'t allow it: configmaps is forbidden: User "eva" cannot create resource\n'
    )
    assert api.get("trainjobs", "train") is None


def test_a_job_that_exists_is_followed_by_the_same_request_alone(
    project: Path, api: CliServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(*arguments: str) -> Result:
        return call("submit", "train.py", *CLUSTER, *arguments)

    assert submit("--", "0.02").exit_code == 0
    again = submit("--workers", "4", "--", "0.02")
    assert (again.exit_code, again.stdout) == (0, "")
    assert again.stderr.splitlines()[1:] == [
        "train exists already in namespace default (Pending), with the same request"
    ]
    told = "train exists already in namespace default (Pending), and this is another request: "
    ways = (
        "nothing was created; start over: trainjob delete train -n default, then submit it with --fresh; "
        "train it separately: --name NAME, or --new"
    )
    for options in ((), ("--wait",), ("--logs",)):
        other = submit(*options, "--", "0.07")
        assert (other.exit_code, other.stdout) == (1, "")
        assert other.stderr.splitlines()[1:] == [f"{told}arguments 0.07 (was 0.02); {ways}"]
    assert submit("--new", "--", "0.07").stdout == "train-2 was created in namespace default\n"
    monkeypatch.setenv("TRAINJOB_NEW", "1")
    assert submit("--", "0.5").stdout == "train-3 was created in namespace default\n"
    assert "train-2 exists already" in submit("--", "0.07").stderr
    monkeypatch.delenv("TRAINJOB_NEW")
    (project / "helper.py").write_text("WORD = 'other'\n")
    assert f"{told}its code (changed); nothing" in submit("--", "0.02").stderr
    assert api.count("create", "configmaps") == 3


def test_fresh_replaces_a_finished_job_and_starts_over_in_a_new_folder(project: Path, api: CliServer) -> None:
    def end(state: str = "Complete", **output: Any) -> None:
        job = api.get("trainjobs", "train")
        assert job is not None
        job["spec"]["output"] |= output
        api.put({**job, "status": stored_job(state)["status"]})

    def submit(*options: str) -> Result:
        return call("submit", "train.py", *CLUSTER, *options)

    assert submit().exit_code == 0
    running = submit("--fresh")
    assert running.exit_code == 1
    assert "(Pending), and isn't over; nothing was created; start over: trainjob delete" in running.stderr
    end("Failed")
    assert "start over: --fresh; train it separately" in submit("--", "0.1").stderr
    assert submit("--fresh", "--dry-run").stdout.count("resume: Never") == 1
    assert submit("--fresh", "--", "0.1").stdout == "train was created in namespace default\n"
    job = api.get("trainjobs", "train")
    assert job is not None
    assert api.count("delete", "trainjobs") == 1
    assert job["spec"]["output"] == {"claim": {"claimName": "training"}, "resume": "Never"}
    assert api.get("configmaps", job["spec"]["code"]["configMap"]) is not None
    end(claim={"size": "1Gi"})
    refused = submit("--fresh")
    assert refused.exit_code == 1
    assert "and its output would be deleted with it; nothing was created" in refused.stderr
    assert api.count("delete", "trainjobs") == 1
    assert submit("--fresh", "--smoke").exit_code == 2


def test_a_job_of_a_file_that_exists(project: Path, api: CliServer) -> None:
    file = write_job(project)
    assert call("submit", str(file)).exit_code == 0
    same = call("submit", str(file))
    assert same.exit_code == 0
    assert "(Pending), with the same request\n  it matches " in same.stderr
    other = call(
        "submit", str(file), "--set", "spec.template.spec.containers[trainer].image=example.com/digits:2"
    )
    assert other.exit_code == 1
    assert (
        "another request: image example.com/digits:1 (not used now), image example.com/digits:2 (new); "
        in other.stderr
    )
    assert other.stderr.endswith("train it separately: --set metadata.name=NAME, or --new\n")
    stored = api.get("trainjobs", "digits")
    assert stored is not None
    api.put({**stored_job("Failed"), "spec": stored["spec"]})
    failed = call("submit", str(file), "--dry-run")
    assert failed.exit_code == 1
    assert "to run it again: kubectl delete tj digits -n default, then submit it" in failed.stderr


def test_the_code_of_a_file_travels_where_asked(project: Path, api: CliServer) -> None:
    write_job(project)
    assert call("submit", "-f", "job.yaml", "--code", "helper.py").exit_code == 0
    job = api.get("trainjobs", "digits")
    assert job is not None
    assert api.get("configmaps", job["spec"]["code"]["configMap"]) is not None


def test_a_script_elsewhere_runs_in_its_own_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "scripts").mkdir()
    (project / "scripts" / "train.py").write_text("")
    inside = printed("run", "scripts/train.py", "--dry-run")
    assert inside["spec"]["template"]["spec"]["containers"][0]["command"] == ["python", "scripts/train.py"]
    monkeypatch.chdir(project / "src")
    outside = printed("run", "../scripts/train.py", "--dry-run")
    assert outside["spec"]["template"]["spec"]["containers"][0]["command"] == ["python", "train.py"]


def test_init_writes_a_commented_file(project: Path) -> None:
    options = ("--workers", "2", "--image", "acme/tf:1", "--memory", "4Gi", "--env", "A=1")
    written = call("init", "train.py", *options, "--", "--epochs", "9")
    assert written.exit_code == 0, written.stderr
    text = (project / "train.yaml").read_text()
    assert yaml.safe_load(text) == printed("run", "train.py", *options, "--dry-run", "--", "--epochs", "9")
    lines = text.splitlines()
    for field in ("metadata:", "worker:", "evaluator:", "output:", "template:", "image:", "command:", "args:",
                  "env:", "resources:"):  # fmt: skip
        at = next(number for number, line in enumerate(lines) if line.strip().startswith(field))
        assert lines[at - 1].strip().startswith("# "), field
    assert call("validate", "train.yaml").exit_code == 0

    again = call("init", "train.py")
    assert (again.exit_code, (project / "train.yaml").read_text()) == (1, text)
    assert "train.yaml exists already; nothing was written" in again.stderr


def test_init_says_what_the_least_job_lacks(project: Path) -> None:
    assert call("init", "train.py").exit_code == 0
    text = (project / "train.yaml").read_text()
    changed = text.replace("        # resources: ", "        resources: ")
    assert changed != text
    parse(yaml.safe_load(changed))


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--workers 3 --no-evaluator --name other --queue research",
        "--gpus 1 --cpu 2 --memory 4Gi --env A=1 --env TRAIN_KEEP=2 --code src",
        "--output claim:data -- --epochs 9",
        "--output size:10Gi --evaluator",
        "--output nfs:nfs.example.com:/exports",
    ],
)
@pytest.mark.parametrize("script", ["train.py", "src/Train_MNIST v2.py", "ring.py"])
def test_what_init_writes_is_valid_as_it_is(project: Path, script: str, words: str) -> None:
    (project / script).write_text("import horovod.tensorflow" if script == "ring.py" else "")
    written = call("init", script, *words.split())
    assert written.exit_code == 0, written.stderr
    (file,) = project.rglob(f"{Path(script).stem}.yaml")
    valid = call("validate", str(file))
    assert (valid.exit_code, valid.stderr) == (0, "")
    assert call("run", str(file), "--dry-run").exit_code == 0


def test_arguments_and_fields_of_a_file_are_replaced(project: Path) -> None:
    write_job(project, container={"args": ["--old"]})
    job = printed("run", "job.yaml", "--set", "spec.worker.replicas=1", "--dry-run", "--", "--epochs", "9")
    assert job["spec"]["worker"]["replicas"] == 1
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["--epochs", "9"]
    assert printed("run", "-f", "job.yaml", "--dry-run")["spec"]["worker"]["replicas"] == 2


def test_a_job_comes_from_the_standard_input_as_kubectl_has_it(project: Path) -> None:
    text = write_job(project).read_text()
    for arguments in (("validate", "-f", "-"), ("render", "-f", "-"), ("run", "-f", "-", "--dry-run")):
        result = call(*arguments, stdin=text)
        assert result.exit_code == 0, result.stderr


CODE = {"configMap": "digits-code-1", "digest": "0" * 64}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["run", "train.py", "--epochs", "9"], 2),
        (["run", "train.py", "--worker", "2"], 2),
        (["run", "gone.py"], 2),
        (["run"], 2),
        (["run", "job.yaml", "--smoke", "--fresh"], 2),
        (["run", "job.yaml", "-f", "job.yaml"], 2),
        (["run", "train.py", "--name", "A"], 1),
        (["run", "train.py", "--cpu", "2", "--set", "spec.worker.replica=2", "--dry-run"], 1),
        (["run", "job.yaml", "--set", "spec.worker.replica=2"], 1),
        (["run", "job.yaml", "--set", "spec"], 2),
        (["run", "job.yaml", "--gpus", "2"], 2),
        (["run", "job.yaml", "--env", "A"], 2),
        (["run", "shipped.yaml"], 1),
        (["submit", "train.py"], 2),
        (["submit", "train.py", "--image", "a"], 2),
        (["submit", "train.py", "--image", "a", "--output", "training"], 2),
        (["submit", "train.py", *CLUSTER, "--code", "../elsewhere"], 1),
        (["validate", "train.py"], 1),
        (["render", "a.ipynb"], 1),
        (["submit", "tfjob.yaml"], 1),
        (["init", "job.yaml"], 2),
        (["get", "train.py"], 3),
        (["rnu", "train.py"], 2),
        (["train.py"], 2),
    ],
)
def test_mistakes_are_named(
    arguments: list[str], code: int, project: Path, api: CliServer, golden: Golden
) -> None:
    write_job(project)
    (project / "train.py").write_text(SCRIPT)
    write_job(project, name="shipped.yaml", code=CODE)
    (project / "tfjob.yaml").write_text("apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {name: a}\n")
    result = call(*arguments)
    assert result.exit_code == code, result.stderr
    golden(result.stderr.rpartition("\n\n")[2])
    assert not api.count("create")
